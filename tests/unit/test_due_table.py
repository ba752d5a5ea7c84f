"""What is due when: the table of scheduled messages with plain values."""

import msgspec
import pytest

from scheduler.due_table import DueTable, ScheduledItem, ScheduleState
from scheduler.scheduled_message import Cancelled, Delivered, Moved, SetAside
from storage.message import QueueId

QUEUE = QueueId("rmq_sys_wheel_timer", 0)


def item(schedule_id: str, due_ms: int) -> ScheduledItem:
    return ScheduledItem(due_ms, schedule_id, 1, 0, QUEUE, f"msg_{schedule_id}", "orders")


def a_table(finished_kept: int = 100, **due: int) -> DueTable:
    table = DueTable(finished_kept=finished_kept)
    for schedule_id, due_ms in due.items():
        table.add(item(schedule_id, due_ms))
    return table


def taken(table: DueTable, now_ms: int, max_items: int = 100) -> list[str]:
    return [one.schedule_id for one in table.take_due(now_ms, max_items=max_items)]


def test_what_is_due_comes_in_the_order_of_its_times_and_once():
    table = a_table(a=30, b=10, c=20, d=40)

    assert taken(table, 9) == []
    assert taken(table, 30, max_items=2) == ["b", "c"]
    assert taken(table, 30) == ["a"]
    assert taken(table, 30) == []
    assert table.next_due_ms() == 40


def test_what_could_not_be_delivered_is_due_again():
    table = a_table(a=10)
    (one,) = table.take_due(10, max_items=1)

    table.put_back(one)

    assert taken(table, 10) == ["a"]


def test_a_moved_message_is_due_at_its_new_time_only():
    table = a_table(a=10, b=20)

    table.apply(Moved(schedule_id="a", revision=2, due_ms=30))
    table.apply(Moved(schedule_id="b", revision=2, due_ms=5))

    assert taken(table, 10) == ["b"]
    assert taken(table, 29) == []
    assert taken(table, 30) == ["a"]


def test_one_that_was_moved_while_it_was_taken_does_not_come_back_at_its_old_time():
    table = a_table(a=10)
    (one,) = table.take_due(10, max_items=1)

    table.apply(Moved(schedule_id="a", revision=2, due_ms=30))
    table.put_back(one)

    assert taken(table, 29) == []


@pytest.mark.parametrize("mark", [Cancelled(schedule_id="a", revision=2), Delivered(schedule_ids=["a"])])
def test_what_is_finished_is_never_due_and_nothing_changes_it(mark):
    table = a_table(a=10)

    table.apply(mark)
    state = table.get("a").state
    table.apply(Moved(schedule_id="a", revision=3, due_ms=5))
    table.apply(Cancelled(schedule_id="a", revision=3))
    table.apply(Delivered(schedule_ids=["a"]))

    assert table.get("a").state is state
    assert (taken(table, 100), table.scheduled_count) == ([], 0)


def test_what_was_set_aside_waits_for_a_move():
    table = a_table(a=10)

    table.apply(SetAside(schedule_id="a", revision=2, reason="no such topic"))
    assert (taken(table, 100), table.set_aside_count, table.get("a").reason) == ([], 1, "no such topic")
    table.apply(Moved(schedule_id="a", revision=3, due_ms=50))

    assert (taken(table, 100), table.set_aside_count, table.get("a").reason) == (["a"], 0, None)


def test_an_old_mark_changes_nothing_when_it_is_read_again():
    table = a_table(a=10)
    marks = [Moved(schedule_id="a", revision=2, due_ms=20), Moved(schedule_id="a", revision=3, due_ms=30)]
    for mark in [*marks, *marks]:
        table.apply(mark)
    table.add(item("a", 10))

    assert (table.get("a").due_ms, table.get("a").revision, len(table)) == (30, 3, 1)


def test_only_so_many_finished_ones_are_kept_the_last_ones():
    table = a_table(finished_kept=2, a=1, b=2, c=3, d=4)

    table.apply(Delivered(schedule_ids=["a", "b", "c"]))

    assert [table.get(one) is not None for one in "abcd"] == [False, True, True, True]
    assert [one.schedule_id for one in table.slice(after="", count=10)] == ["b", "c", "d"]


def test_a_slice_goes_on_behind_an_id_and_is_short_only_at_the_end():
    table = a_table(e=5, b=2, a=1, d=4, c=3)

    assert [one.schedule_id for one in table.slice(after="", count=2)] == ["a", "b"]
    assert [one.schedule_id for one in table.slice(after="b", count=9)] == ["c", "d", "e"]
    assert table.slice(after="e", count=1) == []


def test_moving_the_same_message_without_end_takes_no_memory():
    table = a_table(a=10)
    for revision in range(2, 5_000):
        table.apply(Moved(schedule_id="a", revision=revision, due_ms=revision))

    assert len(table._due) < 200
    assert taken(table, 10_000) == ["a"]


def test_an_item_is_kept_in_a_snapshot_as_it_is():
    kept = msgspec.msgpack.encode([item("a", 10), msgspec.structs.replace(item("b", 9), state=ScheduleState.SET_ASIDE)])

    assert msgspec.msgpack.decode(kept, type=list[ScheduledItem])[1].state is ScheduleState.SET_ASIDE
