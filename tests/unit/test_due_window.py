"""What is due soon, in memory: with plain values, and beside a list of everything."""

from random import Random

import pytest

from scheduler.due_window import DueWindow, before
from storage.message import DueEntry


def due(due_ms: int, place: int = 0, revision: int = 1) -> DueEntry:
    return DueEntry(due_ms, place, revision, 0)


def a_window(
    *entries: DueEntry, begin_ms: int = 0, end_ms: int = 1_000, max_entries: int = 100
) -> DueWindow:
    window = DueWindow(max_entries=max_entries)
    window.advance(begin_ms)
    window.overdue_after = before(begin_ms)  # the index has been asked, and had nothing
    window.extend(entries, before(end_ms), later_ms=None)
    return window


def taken(window: DueWindow, now_ms: int, max_entries: int = 100) -> list[DueEntry]:
    return window.take(now_ms, max_entries=max_entries)


def test_what_is_due_comes_in_the_order_of_its_times_and_once():
    window = a_window(due(30, 1), due(10, 2), due(20, 3), due(40, 4))

    assert taken(window, 9) == []
    assert taken(window, 30, max_entries=2) == [due(10, 2), due(20, 3)]
    assert taken(window, 30) == [due(30, 1)]
    assert taken(window, 30) == []
    assert window.next_due_ms() == 40


def test_what_could_not_be_delivered_is_due_again():
    window = a_window(due(10))
    (one,) = taken(window, 10)

    window.requeue(one)

    assert taken(window, 10) == [due(10)]


def test_what_was_taken_away_or_moved_does_not_come_even_if_it_is_put_back():
    window = a_window(due(10, 1), due(10, 2), due(20, 3))
    one, two = taken(window, 10)

    window.change([due(30, 1, revision=2), due(5, 3, revision=2)], [one, two, due(20, 3)])
    window.requeue(one)
    window.requeue(two)

    assert taken(window, 29) == [due(5, 3, revision=2)]
    assert taken(window, 30) == [due(30, 1, revision=2)]


def test_what_is_due_behind_the_end_is_left_to_the_index():
    window = a_window(end_ms=100)

    window.change([due(99, 1), due(100, 2)], [])

    assert taken(window, 1_000) == [due(99, 1)]


def test_what_is_overdue_leaves_memory_and_is_read_again_from_the_index():
    window = a_window(due(10, 1), due(20, 2), due(30, 3))
    assert not window.has_overdue

    window.advance(25)

    assert window.has_overdue
    assert window.overdue_after < due(10, 1)
    assert taken(window, 100) == [due(30, 3)]


def test_what_is_added_or_put_back_too_late_is_overdue_at_once():
    window = a_window(due(60, 1), begin_ms=50)
    (one,) = taken(window, 60)
    assert not window.has_overdue

    window.change([due(7, 2)], [])
    assert before(7) < window.overdue_after < due(7, 2)
    window.overdue_after = before(50)
    window.advance(80)
    assert not window.has_overdue
    window.requeue(one)

    assert before(60) < window.overdue_after < due(60, 1)
    assert len(window) == 0


def test_what_was_never_in_memory_when_its_time_was_over_is_overdue():
    window = a_window(end_ms=100)

    window.advance(500)

    assert window.overdue_after == before(100)
    assert window.end == before(500)


def test_a_clock_that_is_set_back_changes_nothing():
    window = a_window(due(60, 1), begin_ms=50)

    window.advance(20)

    assert (window.begin_ms, window.has_overdue, taken(window, 60)) == (50, False, [due(60, 1)])


def test_memory_holds_so_many_and_the_rest_is_left_to_the_index():
    window = a_window(max_entries=10)

    window.change([due(number, number) for number in range(100, 0, -1)], [])

    assert len(window) <= 10
    kept = taken(window, 1_000)
    assert kept == [due(number, number) for number in range(1, len(kept) + 1)]
    assert max(kept) < window.end < due(len(kept) + 1, len(kept) + 1)


def test_moving_the_same_message_without_end_takes_no_memory():
    window = a_window(due(10, 1))
    for revision in range(2, 5_000):
        window.change([due(10, 1, revision)], [due(10, 1, revision - 1)])

    assert len(window._heap) < 200
    assert taken(window, 10) == [due(10, 1, 4_999)]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_everything_is_in_memory_or_where_the_index_is_read_from(seed):
    """Nothing is ever forgotten: what is not in memory lies behind the end, or in what is overdue
    and still to be read.
    """
    chosen = Random(seed)
    window = DueWindow(max_entries=chosen.choice([3, 20]))
    index: set[DueEntry] = set()
    in_flight: list[DueEntry] = []
    now_ms = place = 0
    for _ in range(400):
        step = chosen.random()
        if step < 0.4:
            place += 1
            entry = due(now_ms + chosen.randrange(-30, 60), place)
            index.add(entry)
            window.change([entry], [])
        elif step < 0.5 and index:
            entry = chosen.choice(sorted(index))
            index.discard(entry)
            window.change([], [entry])
        elif step < 0.6:
            now_ms += chosen.randrange(20)
            window.advance(now_ms - 10)
        elif step < 0.75 and window.has_room:
            behind = sorted(
                entry for entry in index if entry > window.end and entry.due_ms < now_ms + 30
            )
            found = behind[: window.room]
            is_all = len(found) == len(behind)
            end = before(max(now_ms + 30, window.end.due_ms)) if is_all else found[-1]
            window.extend(
                found,
                end,
                later_ms=min([entry.due_ms for entry in index if entry > end], default=None),
            )
        elif step < 0.9:
            in_flight += window.take(now_ms, max_entries=2)
        elif in_flight:
            window.requeue(in_flight.pop())
        unknown = [entry.due_ms for entry in index - set(in_flight) if entry > window.end]
        assert not unknown or (window.later_ms is not None and window.later_ms <= min(unknown))
        for entry in index - set(in_flight):
            is_overdue = window.overdue_after < entry and entry.due_ms < window.begin_ms
            assert is_overdue or entry > window.end or window.is_waiting(entry), entry
    for entry in in_flight:
        window.requeue(entry)
    behind = {entry for entry in index if entry > window.end}
    overdue = {
        entry for entry in index if window.overdue_after < entry and entry.due_ms < window.begin_ms
    }
    assert set(window.take(1 << 50, max_entries=1 << 30)) == index - behind - overdue
