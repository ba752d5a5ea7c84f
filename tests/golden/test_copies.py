"""EscrowMQ's copies of a broker's messages, beside those that the broker made of the same ones."""

from collections.abc import Iterator

import pytest

from delivery.leases import retry_message
from scheduler import scheduled_message
from scheduler.scheduled_message import TIMER_QUEUE
from storage.formats import names, scan
from storage.formats import record as records
from storage.formats.delay_levels import DELAYS_MS, SCHEDULE_TOPIC
from storage.message import Message, StoredMessage
from tests.support.golden import unpack
from txn import half_message

# times of the broker's clock
_CLOCK = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
pytestmark = pytest.mark.parametrize("name", ["public-1", "public-2"])


@pytest.fixture
def stored(name, tmp_path) -> list[StoredMessage]:
    return list(messages(unpack(name, tmp_path)))


def messages(root) -> Iterator[StoredMessage]:
    for path in sorted((root / "commitlog").iterdir()):
        data, base = path.read_bytes(), names.base_offset(path.name) or 0
        walk = scan.scan(data, base, begin=base, segment_end=base + len(data))
        for at, length in zip(
            walk.record_offsets.tolist(), walk.record_bytes.tolist(), strict=True
        ):
            yield records.to_message(records.decode(data[at - base : at - base + length]))


def pairs(
    stored: list[StoredMessage], topics: set[str]
) -> Iterator[tuple[StoredMessage, StoredMessage]]:
    """Each message of the topics that the broker has copied to its real topic, and that copy."""
    for message in stored:
        if message.queue.topic not in topics:
            continue
        place = message.system.get("REAL_TOPIC"), message.system.get("REAL_QID")
        for copy in stored:
            if (
                copy.message_id == message.message_id
                and (copy.queue.topic, str(copy.queue.number)) == place
                and copy.system.get("TRANSACTION_CHECK_TIMES")
                == message.system.get("TRANSACTION_CHECK_TIMES")
                and (copy.header or records.USUAL_HEADER).reconsume_times
                == (message.header or records.USUAL_HEADER).reconsume_times
            ):
                yield message, copy
                break


def known(message: Message) -> dict[str, object]:
    return {
        "queue": message.queue,
        "id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "own": dict(message.properties),
        "reserved": {name: text for name, text in message.system.items() if name not in _CLOCK},
        "body": message.body,
        "born": message.born_at_ms,
        "header": message.header,
        "transaction": message.transaction,
    }


def test_a_final_has_all_that_the_broker_s_has(stored):
    found = list(pairs(stored, {names.HALF_TOPIC}))

    assert len(found) > 20
    for half, final in found:
        made = half_message.unwrap_final(half)
        assert known(made) == known(final)
        assert made.prepared_log_offset == half.log_offset


def test_a_delivered_delay_has_all_that_the_broker_s_has(stored):
    found = list(pairs(stored, {SCHEDULE_TOPIC, names.TIMER_TOPIC}))

    assert len(found) > 5
    for waiting, delivered in found:
        assert known(scheduled_message.unwrap(waiting)) == known(delivered)


@pytest.fixture
def sent_back(stored) -> list[tuple[StoredMessage, StoredMessage, int]]:
    """Each message that a consumer rejected, the broker's copy of it, and how often it was
    consumed.
    """
    by_id: dict[str, list[StoredMessage]] = {}
    for message in stored:
        by_id.setdefault(message.message_id, []).append(message)
    return [
        (consumed[-1], copy, times)
        for copy in stored
        if (times := reconsume_times(copy))
        and (copy.queue.topic == SCHEDULE_TOPIC or copy.queue.topic.startswith("%DLQ%"))
        and (
            consumed := [
                one
                for one in by_id[copy.message_id]
                if reconsume_times(one) == times - 1
                and one.queue.topic != SCHEDULE_TOPIC
                and (one.queue.topic[0] != "%" or group_of(one) == group_of(copy))
            ]
        )
    ]


def reconsume_times(message: Message) -> int:
    return (message.header or records.USUAL_HEADER).reconsume_times


def group_of(copy: Message) -> str:
    topic = copy.system["REAL_TOPIC"] if copy.queue.topic == SCHEDULE_TOPIC else copy.queue.topic
    return topic.removeprefix("%RETRY%").removeprefix("%DLQ%")


def reserved_alike(made: Message, brokers: Message) -> None:
    """The same but for what is EscrowMQ's, and the id: a broker's is of store host and log
    offset.
    """
    ours, theirs = known(made), known(brokers)
    added = {*ours["reserved"]} - {*theirs["reserved"]}
    assert added <= OURS
    for reserved in (ours["reserved"], theirs["reserved"]):
        for name in (*added, "ORIGIN_MESSAGE_ID"):
            reserved.pop(name, None)
    assert ours == theirs


OURS = {"__origin", "__generation", "__schedule", "__schedule_due_ms", "__reason"} | {
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
}


def test_a_retry_has_all_that_the_broker_s_has(stored, sent_back):
    delivered = {waiting.log_offset: copy for waiting, copy in pairs(stored, {SCHEDULE_TOPIC})}
    found = [one for one in sent_back if one[1].queue.topic == SCHEDULE_TOPIC]

    assert len(found) > 5
    for consumed, brokers, times in found:
        copy = retry_message.retry_copy(consumed, group_of(brokers), attempts=times, generation=0)
        delay_ms = DELAYS_MS[brokers.queue.number]
        noted = scheduled_message.with_delay(copy, delay_ms=delay_ms, again=True)
        waiting = scheduled_message.delay(noted, 1_000)
        reserved_alike(waiting, brokers)

        assert isinstance(waiting, StoredMessage)
        due = scheduled_message.unwrap(waiting)
        reserved_alike(due, delivered[brokers.log_offset])
        assert not {"__schedule_due_ms", "__schedule_so_far"} & due.system.keys()
        assert retry_message.attempts_of(due) == times


def test_a_dead_letter_has_all_that_the_broker_s_has(sent_back):
    found = [one for one in sent_back if one[1].queue.topic.startswith("%DLQ%")]

    assert found
    for consumed, brokers, times in found:
        copy = retry_message.dead_letter_copy(
            consumed, group_of(brokers), attempts=times, reason="no"
        )
        reserved_alike(copy, brokers)
        assert retry_message.attempts_of(copy) == times


def test_a_retry_of_what_the_broker_delivered_waits_as_long_as_it_should(stored):
    found = list(pairs(stored, {SCHEDULE_TOPIC, names.TIMER_TOPIC}))

    for _, delivered in found:
        copy = retry_message.retry_copy(delivered, "billing", attempts=1, generation=0)
        delayed = scheduled_message.with_delay(copy, delay_ms=123_457, again=True)
        waiting = scheduled_message.delay(delayed, 1_000)

        assert waiting.queue == TIMER_QUEUE
        assert scheduled_message.due_ms_at(waiting, 1_000) == 124_457
