"""A message that is stored a second time keeps each of its fields, those that are added
later, too.
"""

from collections.abc import Callable

import msgspec
import pytest

from delivery.leases import retry_message
from scheduler import scheduled_message
from scheduler.scheduled_message import CarriedState
from storage.formats import record as records
from storage.message import Message, QueueId, RecordHeader, StoredMessage, TransactionBits
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts

ORDERS = QueueId("orders", 2)
NOW_MS = 1_800_000_000_000


class Prioritised(StoredMessage, frozen=True, kw_only=True, gc=False):
    """A stored message with a field that this version does not have."""

    priority: int = 0


def stored(message: Message) -> Prioritised:
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return Prioritised(**{**fields, "queue_offset": 7, "stored_at_ms": NOW_MS, "log_offset": 712})


BROKERS = RecordHeader(
    flag=-1,
    sys_flag=records.COMPRESSED | 0x300 | 0x2 | records.BORN_HOST_IPV6,
    born_host=bytes.fromhex("20010db8000000000000000000000001" + "0000c350"),
    reconsume_times=7,
)

GIVEN = Prioritised(
    queue=ORDERS,
    message_id="msg_1",
    body=b"\x00body",
    born_at_ms=NOW_MS - 9,
    key="8812",
    tag="paid",
    properties={"a": "b"},
    system={"__content_type": "text/plain"},
    priority=9,
    transaction=TransactionBits.COMMIT,
    prepared_log_offset=88,
    header=BROKERS,
    queue_offset=7,
    stored_at_ms=NOW_MS,
)


def halves() -> list[Prioritised]:
    so_far = half_message.CarriedState(
        sequence=1, prepared_at_ms=NOW_MS, revision=2, next_check_at_ms=NOW_MS
    )
    facts = Facts(message_count=1, policy=CheckbackPolicy(), so_far=so_far)
    wrapped = half_message.wrap_halves(
        [GIVEN], transaction_id="txn_1", producer_group="shop", facts=facts
    )
    return [stored(half) for half in wrapped]


def waiting() -> Prioritised:
    return stored(
        scheduled_message.delay(scheduled_message.with_delay(GIVEN, delay_ms=5_000), NOW_MS)
    )


def half_written_again() -> Message:
    (half,) = halves()
    facts = half_message.facts_of(half)
    assert facts is not None
    (copy,) = half_message.wrap_again([half], facts)
    return copy


COPIES: dict[str, Callable[[], Message]] = {
    "a final message": lambda: half_message.unwrap_final(halves()[0]),
    "a half message written again": half_written_again,
    "a retry": lambda: retry_message.retry_copy(GIVEN, "workers", attempts=1, generation=0),
    "a dead letter": lambda: retry_message.dead_letter_copy(
        GIVEN, "workers", attempts=1, reason="db down"
    ),
    "a delayed message that is delivered": lambda: scheduled_message.unwrap(waiting()),
    "a delayed message written again": lambda: scheduled_message.put_back(
        waiting(), NOW_MS, CarriedState(revision=2)
    ),
}

RETRIED = ("a retry", "a dead letter")


@pytest.mark.parametrize("name", COPIES)
def test_a_message_that_is_stored_again_keeps_each_field_even_one_that_is_added_later(name):
    copy = COPIES[name]()

    for field in {*Message.__struct_fields__, "priority"} - {
        "queue",
        "system",
        "transaction",
        "prepared_log_offset",
        "header",
    }:
        assert getattr(copy, field) == getattr(GIVEN, field), field
    assert copy.system["__content_type"] == "text/plain"
    assert copy.header is not None
    times = 1 if name in RETRIED else BROKERS.reconsume_times
    assert copy.header == msgspec.structs.replace(BROKERS, reconsume_times=times)


@pytest.mark.parametrize(
    ("name", "bits", "prepared_log_offset"),
    [
        ("a final message", TransactionBits.COMMIT, 712),
        ("a half message written again", TransactionBits.NONE, 0),
        ("a retry", TransactionBits.COMMIT, 0),
        ("a dead letter", TransactionBits.COMMIT, 0),
        ("a delayed message that is delivered", TransactionBits.COMMIT, 0),
        ("a delayed message written again", TransactionBits.COMMIT, 88),
    ],
)
def test_what_a_copy_is_in_a_transaction_is_decided_by_what_it_is_for(
    name, bits, prepared_log_offset
):
    copy = COPIES[name]()

    assert (copy.transaction, copy.prepared_log_offset) == (bits, prepared_log_offset)


@pytest.mark.parametrize("name", RETRIED)
def test_a_copy_that_counts_attempts_counts_them_where_a_java_consumer_reads_them(name):
    usual = msgspec.structs.replace(GIVEN, header=None)
    make = retry_message.retry_copy if name == "a retry" else retry_message.dead_letter_copy
    more = {"generation": 0} if name == "a retry" else {"reason": "db down"}

    copy = make(usual, "workers", attempts=3, **more)

    assert copy.header == msgspec.structs.replace(records.USUAL_HEADER, reconsume_times=3)
    assert retry_message.attempts_of(copy) == 3


def test_the_attempts_of_a_brokers_retry_are_those_of_its_header_even_on_its_copy_of_one_of_ours():
    ours = retry_message.retry_copy(GIVEN, "workers", attempts=2, generation=0)
    assert ours.header is not None
    brokers = msgspec.structs.replace(
        ours, header=msgspec.structs.replace(ours.header, reconsume_times=3)
    )

    assert retry_message.attempts_of(GIVEN) == 7
    assert retry_message.attempts_of(brokers) == 3


def test_the_attempts_of_a_retry_of_an_earlier_version_are_those_of_its_property():
    usual = msgspec.structs.replace(GIVEN, header=None)
    ours = retry_message.retry_copy(usual, "workers", attempts=2, generation=0)

    assert retry_message.attempts_of(msgspec.structs.replace(ours, header=None)) == 2
