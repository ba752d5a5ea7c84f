"""A broker that is given a store writes halves again when it asks about them, and waiting messages
when they are due, by its own rules: what it writes of ours still says the same.

Source: RocketMQ HookUtils#checkBeforePutMessage, #handleScheduleMessage,
TransactionalMessageBridge#renewHalfMessageInner, EndTransactionProcessor#endMessageTransaction,
ScheduleMessageService#messageTimeUp, TimerMessageStore#convertMessage.
"""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.decode import plain_rows
from delivery.leases import retry_message
from scheduler import scheduled_message
from storage.formats import names, properties, record, unit
from storage.formats.record import Record
from storage.formats.row import rows_of
from storage.identifiers import Identifiers, Random
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId, StoredMessage, TransactionBits
from tests.support.builders import message
from tests.support.clock import ManualClock
from tests.support.message_json import assert_both_ways_are_equal
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import HALF_QUEUE, CarriedState, Facts
from txn.options import TransactionOptions
from txn.plain import PlainBegin

ORDERS = QueueId("orders", 2)
NOW_MS = 1_800_000_000_000
BODIES = st.sampled_from([b"", b"\x00", b"paid"])
DELAYS = st.sampled_from([{"delay_ms": 5_000}, {"delay_ms": 777}, {"due_ms": NOW_MS + 60_000}])


class Illegal(Exception):
    """A broker does not store it, and tries again for ever."""


class Broker:
    """Stores records as a broker does."""

    def put(self, given: Record, topic: str, own: dict[str, str], sys_flag: int) -> Record:
        if not given.body:
            raise Illegal("message body is null")
        number = given.queue_number
        if sys_flag & record.TRANSACTION_MASK in (TransactionBits.NONE, TransactionBits.COMMIT):
            level = int(own.get("DELAY", "0"))
            is_timed = {"TIMER_DELIVER_MS", "TIMER_DELAY_MS"} & own.keys()
            if level or (is_timed and "TIMER_OUT_MS" not in own):
                own = own | {properties.REAL_TOPIC: topic, properties.REAL_QUEUE: str(number)}
                topic = names.SCHEDULE_TOPIC if level else names.TIMER_TOPIC
        return given._replace(
            topic=topic,
            sys_flag=sys_flag,
            # in the order of a hash map
            properties=properties.encode(sorted(own.items(), key=lambda item: hash(item))),
        )

    def ask_about(self, half: Record) -> Record:
        own = properties.decode(half.properties)
        checks = int(own.get(properties.CHECK_TIMES, "0")) + 1
        own[properties.CHECK_TIMES] = str(checks)
        return self.put(half, names.HALF_TOPIC, own, half.sys_flag)

    def commit(self, half: Record) -> Record:
        return self._to_real_queue(half, half.sys_flag | TransactionBits.COMMIT)

    def deliver(self, waiting: Record) -> Record:
        is_level = waiting.topic == names.SCHEDULE_TOPIC
        return self._to_real_queue(
            waiting,
            waiting.sys_flag,
            without=("DELAY", "TIMER_DELIVER_MS") if is_level else (),
        )

    def _to_real_queue(self, given: Record, sys_flag: int, without: tuple[str, ...] = ()) -> Record:
        own = properties.decode(given.properties)
        number = int(own[properties.REAL_QUEUE])
        kept = {name: value for name, value in own.items() if name not in without}
        return self.put(
            given._replace(queue_number=number), own[properties.REAL_TOPIC], kept, sys_flag
        )


def stored(given: Message) -> Record:
    (row,) = rows_of([given])
    encoded = unit.encode(
        [row], [7], first_offset=64, synced_offset=0, epoch=0, stored_at_ms=NOW_MS
    )
    return record.decode(encoded.data)


def read(given: Record) -> StoredMessage:
    """As any reader of the log."""
    assert_both_ways_are_equal([given])
    return record.to_message(given)


def as_seen(given: Message) -> tuple[object, ...]:
    return given.queue, given.message_id, given.body, given.key, given.properties


@given(
    body=BODIES,
    delay=st.none() | DELAYS,
    checks=st.lists(st.sampled_from(["broker", "retention"]), max_size=3),
)
def test_a_half_keeps_its_body_its_topic_and_its_delay_however_often_it_is_written_again(
    body, delay, checks
):
    given_ = message(body, queue=ORDERS, key="8812", properties={"a": "b"})
    if delay is not None:
        given_ = scheduled_message.with_delay(given_, **delay)
    facts = Facts(message_count=1, policy=CheckbackPolicy())
    so_far = CarriedState(sequence=7, prepared_at_ms=0, revision=1, next_check_at_ms=0)
    (wrapped,) = half_message.wrap_halves(
        [given_], transaction_id="txn_1", producer_group="shop", facts=facts
    )
    half = stored(wrapped)
    expected = half_message.unwrap_final(read(half))

    for writer in checks:
        if writer == "broker":
            half = Broker().ask_about(half)
        else:
            again = Facts(message_count=1, policy=CheckbackPolicy(), so_far=so_far)
            half = stored(half_message.wrap_again([read(half)], again)[0])

        assert half.topic == names.HALF_TOPIC
        assert not {"DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"} & (
            properties.decode(half.properties).keys()
        )
    final = half_message.unwrap_final(read(half))
    assert (as_seen(final), final.system) == (as_seen(expected), expected.system)
    assert as_seen(final) == as_seen(given_)
    assert given_.system.items() <= final.system.items()  # with its delay

    brokers = Broker().commit(half)
    assert as_seen(read(brokers)) == as_seen(given_)
    assert brokers.topic == "orders"
    assert properties.SCHEDULE_ID not in read(brokers).system  # it has not waited


@given(body=BODIES, delay=DELAYS, is_retry=st.booleans(), is_put_back=st.booleans())
def test_a_waiting_message_is_delivered_with_its_body_by_a_broker_too(
    body, delay, is_retry, is_put_back
):
    original = message(body, queue=ORDERS, key="8812")
    if is_retry:
        original = retry_message.retry_copy(
            read(stored(original)), "workers", attempts=1, generation=0
        )
    noted = scheduled_message.with_delay(original, again=is_retry, **delay)
    waiting = stored(scheduled_message.delay(noted, NOW_MS))
    if is_put_back:
        so_far = scheduled_message.CarriedState(revision=2)
        waiting = stored(scheduled_message.put_back(read(waiting), NOW_MS + 9, so_far))

    assert as_seen(scheduled_message.unwrap(read(waiting))) == as_seen(original)
    assert as_seen(read(Broker().deliver(waiting))) == as_seen(original)


def test_what_is_stored_in_a_real_topic_has_its_empty_body():
    (row,) = rows_of([message(b"", queue=ORDERS)])

    assert row[2] == b""
    assert properties.NO_BODY.encode() not in row[1]


def test_a_half_of_an_older_version_that_has_rocketmqs_own_delay_is_read():
    noted = scheduled_message.with_delay(message(queue=ORDERS), delay_ms=5_000)
    (half,) = half_message.wrap_halves(
        [noted],
        transaction_id="txn_1",
        producer_group="shop",
        facts=Facts(message_count=1, policy=CheckbackPolicy()),
    )
    older = stored(half)._replace(
        properties=properties.encode(
            {
                **properties.decode(rows_of([noted])[0][1]),
                properties.REAL_TOPIC: "orders",
                properties.REAL_QUEUE: "2",
            }.items()
        )
    )

    final = half_message.unwrap_final(read(older))

    assert half_message.schedule_id_of(read(older)) == "sch_1"
    assert noted.system.items() <= final.system.items()
    (again,) = half_message.wrap_again(
        [read(older)],
        Facts(
            message_count=1,
            policy=CheckbackPolicy(),
            so_far=CarriedState(sequence=7, prepared_at_ms=0, revision=1, next_check_at_ms=0),
        ),
    )
    assert "DELAY" not in again.system


@pytest.mark.parametrize("body", [b"", b"paid"])
async def test_the_half_of_a_plain_begin_has_a_body_and_its_final_the_one_that_was_sent(body):
    class Store(MemoryMessageStore):
        def append_rows(self, rows, **more):
            appended.extend(rows)
            super().append_rows(rows, **more)

    appended, waiting = [], []
    clock = ManualClock()
    store = Store(clock)
    await store.create_topic("orders", queue_count=4)
    coordinator = TransactionCoordinator(
        store, clock, Identifiers(clock, Random(1)), TransactionOptions()
    )
    await coordinator.start()
    asked = PlainBegin("txn_1", "shop", ORDERS, "msg_1", "", None, body, 0)
    done = asyncio.Event()
    coordinator.plain.begin(
        [asked], CheckbackPolicy(), done=lambda begun: done.set(), failed=waiting.append
    )
    await done.wait()
    (half_row,) = appended
    (half,) = await store.read(HALF_QUEUE, 0, max_messages=1, max_bytes=1)

    assert half_row[2] == (body or properties.PLACEHOLDER)
    assert half.body == body
    await coordinator.commit("txn_1")
    (final,) = await store.read(ORDERS, 0, max_messages=1, max_bytes=1)
    assert (final.body, properties.NO_BODY in final.system, waiting) == (body, False, [])


@pytest.mark.parametrize("body", [b"", b"\x00", b"paid"])
def test_to_the_audit_a_half_has_the_checksum_of_its_final(body):
    (half,) = half_message.wrap_halves(
        [message(body, queue=ORDERS)],
        transaction_id="txn_1",
        producer_group="shop",
        facts=Facts(message_count=1, policy=CheckbackPolicy()),
    )
    raw = record.encode(stored(half))

    assert plain_rows.row_at(raw, 64, ["body_crc"]) == {"body_crc": record.body_crc(body)}
