"""How a message waits: RocketMQ's two delay topics, their exact layouts, and the way back."""

import msgspec
import pytest

from scheduler import marks
from scheduler import scheduled_message as scheduled
from scheduler.marks import Cancelled, Delivered, Moved, Parked
from storage.errors import NotADelayedMessage
from storage.message import NEVER_MS, DueEntry, Message, QueueId, StoredMessage, TransactionBits
from tests.support.builders import ORDERS, message

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 86_400_000


def stored(given: Message, *, at_ms: int = NOW_MS, queue_offset: int = 7) -> StoredMessage:
    fields = {name: getattr(given, name) for name in given.__struct_fields__}
    return StoredMessage(**fields, queue_offset=queue_offset, stored_at_ms=at_ms, log_offset=1)


def put_off(now_ms: int = NOW_MS, **delay: int) -> Message:
    return scheduled.delay(
        scheduled.with_delay(message(b"x", queue=QueueId("orders", 2)), **delay), now_ms
    )


@pytest.mark.parametrize(
    ("delay_ms", "level"), [(1_000, 1), (10_000, 3), (60_000, 5), (3_600_000, 17), (7_200_000, 18)]
)
def test_a_delay_that_is_a_level_waits_in_the_queue_of_the_level(delay_ms, level):
    waiting = put_off(delay_ms=delay_ms)

    assert waiting.queue == QueueId("SCHEDULE_TOPIC_XXXX", level - 1)
    assert dict(waiting.system) == {
        "DELAY": str(level), "__schedule": "sch_1", "REAL_TOPIC": "orders", "REAL_QID": "2",
        "__schedule_due_ms": str(NOW_MS + delay_ms),
    }  # fmt: skip
    assert scheduled.due_ms_of(stored(waiting, at_ms=NOW_MS + YEAR_MS)) == NOW_MS + delay_ms


@pytest.mark.parametrize("delay_ms", [1, 999, 1_001, 7_200_001, 86_400_000])
def test_any_other_delay_waits_for_the_timer_wheel_and_counts_from_when_it_was_put_off(delay_ms):
    waiting = put_off(delay_ms=delay_ms)

    assert waiting.queue == QueueId("rmq_sys_wheel_timer", 0)
    assert waiting.system["TIMER_DELIVER_MS"] == str(NOW_MS + delay_ms)
    assert (waiting.system["REAL_TOPIC"], waiting.system["REAL_QID"]) == ("orders", "2")
    assert scheduled.due_ms_of(stored(waiting, at_ms=NOW_MS + YEAR_MS)) == NOW_MS + delay_ms


def test_what_was_put_off_before_its_time_was_noted_is_due_as_it_was_answered():
    before = {"__schedule": "sch_1", "REAL_TOPIC": "orders", "REAL_QID": "2"}
    timed = message(
        queue=QueueId("rmq_sys_wheel_timer", 0),
        system={
            **before,
            "TIMER_DELAY_MS": "77",
            "TIMER_DELIVER_MS": str(NOW_MS + 77),
            "TIMER_OUT_MS": str(NOW_MS),
        },
    )
    levelled = message(queue=QueueId("SCHEDULE_TOPIC_XXXX", 2), system={**before, "DELAY": "3"})

    due = [scheduled.due_ms_of(stored(one, at_ms=NOW_MS + 5)) for one in (timed, levelled)]

    assert due == [NOW_MS + 5 + 77, NOW_MS + 5 + 10_000]


@pytest.mark.parametrize(
    ("due_ms", "slot_ms"),
    [
        (1_800_000_001_500, 1_800_000_001_000),
        (1_800_000_001_000, 1_800_000_000_000),
        (1_800_000_001_001, 1_800_000_001_000),
    ],
)
def test_a_time_is_kept_to_the_millisecond_beside_the_whole_second_of_a_broker(due_ms, slot_ms):
    """An exact second lies in the slot before: a broker empties a slot when its second is over."""
    waiting = put_off(due_ms=due_ms)

    assert (waiting.system["TIMER_DELIVER_MS"], waiting.system["TIMER_OUT_MS"]) == (
        str(due_ms),
        str(slot_ms),
    )
    assert scheduled.due_ms_of(stored(waiting)) == due_ms


@pytest.mark.parametrize("delay", [{"delay_ms": 1_000}, {"delay_ms": 77}, {"due_ms": NOW_MS + 77}])
def test_what_is_delivered_is_what_was_put_off_and_names_no_half(delay):
    given = message(
        b"\x00body",
        queue=QueueId("orders", 2),
        key="8812",
        tag="paid",
        properties={"a": "b"},
        system={"__content_type": "text/plain"},
        transaction=TransactionBits.COMMIT,
        prepared_log_offset=712,
    )
    waiting = scheduled.delay(scheduled.with_delay(given, **delay), NOW_MS)

    delivered = scheduled.unwrap(stored(waiting))

    assert dict(delivered.system) == {"__content_type": "text/plain", "__schedule": "sch_1"}
    for name in set(given.__struct_fields__) - {"system", "prepared_log_offset"}:
        assert getattr(delivered, name) == getattr(given, name)
    assert delivered.prepared_log_offset == 0  # as in a broker's copy


def test_a_retry_for_a_further_retry_queue_of_a_broker_comes_to_the_one_that_a_group_receives():
    system = {"REAL_TOPIC": "%RETRY%billing", "REAL_QID": "3"}

    delivered = scheduled.unwrap(
        stored(message(queue=QueueId("SCHEDULE_TOPIC_XXXX", 2), system=system))
    )

    assert delivered.queue == QueueId("%RETRY%billing", 0)


def test_a_message_without_a_delay_is_not_put_off():
    assert scheduled.delay(message(b"x"), NOW_MS) == message(b"x")


@pytest.mark.parametrize(
    "system",
    [
        {},
        {"REAL_TOPIC": "orders"},
        {"REAL_TOPIC": "orders", "REAL_QID": "-1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
    ],
)
def test_a_message_that_does_not_say_where_it_is_to_go_is_refused(system):
    with pytest.raises(NotADelayedMessage):
        scheduled.unwrap(
            stored(message(b"x", queue=QueueId("rmq_sys_wheel_timer", 0), system=system))
        )


def test_a_brokers_message_is_due_at_the_end_of_its_slot_and_is_known_by_its_place():
    timed = stored(
        message(queue=QueueId("rmq_sys_wheel_timer", 0), system={"TIMER_OUT_MS": "5000"})
    )
    levelled = stored(message(queue=QueueId("SCHEDULE_TOPIC_XXXX", 2), system={"DELAY": "3"}))
    endless = stored(
        message(queue=QueueId("rmq_sys_wheel_timer", 0), system={"TIMER_DELIVER_MS": "9" * 18})
    )

    assert [scheduled.due_ms_of(one) for one in (timed, levelled)] == [6_000, NOW_MS + 10_000]
    assert scheduled.due_ms_of(endless) == scheduled.LAST_DUE_MS
    assert [scheduled.schedule_id_of(one) for one in (timed, levelled)] == ["sch_T0-7", "sch_L2-7"]
    assert scheduled.is_brokers(timed)


ENTRY = DueEntry(NOW_MS, 712, 3, 9)


@pytest.mark.parametrize(
    "mark",
    [
        Delivered((ENTRY, DueEntry(5, 6, 7, 8))),
        Cancelled("a", ENTRY),
        Moved("a", ENTRY, 5),
        Parked("a", ENTRY, "why"),
    ],
)
def test_a_mark_is_read_as_it_was_written(mark):
    written = marks.encode(mark, now_ms=NOW_MS)

    assert marks.decode(stored(written)) == mark
    assert written.key == (None if isinstance(mark, Delivered) else "a")


def test_a_mark_says_which_entries_end_and_which_come_in_their_place():
    assert (Cancelled("a", ENTRY).taken, Cancelled("a", ENTRY).added) == ((ENTRY,), ())
    assert Moved("a", ENTRY, 5).added == (DueEntry(5, 712, 4, 9),)
    (aside,) = Parked("a", ENTRY, "why").added
    assert (aside.due_ms >= NEVER_MS, marks.shown_due_ms(aside), aside.revision) == (
        True,
        NOW_MS,
        4,
    )


@pytest.mark.parametrize(
    "queue",
    [
        QueueId("rmq_sys_wheel_timer", 0),
        QueueId("SCHEDULE_TOPIC_XXXX", 17),
        QueueId("SCHEDULE_TOPIC_XXXX", 999),
    ],
)
def test_a_place_is_one_number_and_leads_back(queue):
    for queue_offset in (0, 1, 10**13 - 1):
        place = scheduled.place_of(queue, queue_offset)

        assert scheduled.message_at(place) == (queue, queue_offset)
        assert 0 <= place < 10**18
        assert scheduled.place_by_id(scheduled.schedule_id_at(queue, queue_offset)) == (
            queue,
            queue_offset,
        )


def test_a_schedule_is_called_as_its_message_is():
    waiting = stored(scheduled.with_delay(message(message_id="msg_0NcxZ"), delay_ms=5))

    assert scheduled.schedule_id_of(waiting) == "sch_0NcxZ"
    assert "msg_0NcxZ" in scheduled.message_ids_by("sch_0NcxZ")
    assert scheduled.place_by_id("sch_0NcxZ") is None


def test_topics_of_the_house_have_no_label_and_all_others_one():
    assert [scheduled.label_of(topic) for topic in ("%RETRY%shop", "rmq_sys_escrowmq_checks")] == [
        0,
        0,
    ]
    assert 0 < scheduled.label_of("orders") < 1 << 32


def test_the_place_of_a_waiting_message_is_no_place_of_its_topic():
    assert scheduled.is_delayed(put_off(delay_ms=5))
    assert not scheduled.is_delayed(message(queue=ORDERS))


def test_a_carried_state_has_the_same_names_in_the_log_as_in_older_versions():
    state = scheduled.CarriedState(revision=2, parked="why")

    assert msgspec.json.decode(msgspec.json.encode(state)) == {"revision": 2, "set_aside": "why"}
