"""Who is to be looked at when: the same as a plain dict says, however many there are and whatever
has become pointless.
"""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn import due_times
from txn.due_times import DueTimes

times = st.integers(0, 20_000)
steps = st.lists(
    st.tuples(st.just("look"), st.integers(0, 20), times)
    | st.tuples(st.just("forget"), st.integers(0, 20), st.just(0))
    | st.tuples(st.just("take"), st.integers(0, 10), times)
    | st.tuples(st.just("drop"), st.just(0), st.just(0)),
    max_size=80,
)


@given(steps, st.integers(1, 5))
def test_each_comes_at_the_time_that_was_said_last_and_never_before(steps, piece):
    look_at: dict[int, int] = {}
    due = DueTimes(look_at.get)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_times, "_PIECE", piece)
        for step, number, at_ms in steps:
            if step == "look":
                look_at[number] = at_ms
                due.add(at_ms, number)
            elif step == "forget":
                look_at.pop(number, None)
            elif step == "drop":
                due.drop_some()
            else:  # whoever takes some may leave the others to the next one
                looks = 0
                for one in islice(due.take(at_ms), number):
                    looks += 1
                    assert one is None or look_at.pop(one) <= at_ms
                assert looks == number or all(its_ms > at_ms for its_ms in look_at.values())
            first_ms = min(look_at.values(), default=None)
            assert first_ms is None or (due.next_ms() is not None and due.next_ms() <= first_ms)


@pytest.mark.parametrize("that_count", [0, 20_000])
def test_a_bucket_of_many_is_opened_taken_and_cleaned_a_piece_at_a_time(that_count):
    looked_at = 0

    def look_at_ms(number: int) -> int | None:
        nonlocal looked_at
        looked_at += 1
        return 60_000 if number < that_count else None

    due = DueTimes(look_at_ms)
    for number in range(20_000):
        due.add(60_000, number)
    turns, taken = [0], []

    due.drop_some()
    assert looked_at <= 64
    looked_at = 0
    for number in due.take(60_000):
        if number is None:
            turns.append(looked_at)
        else:
            taken.append(number)

    assert taken == list(range(that_count))
    assert (
        max(end - begin for begin, end in zip(turns, [*turns[1:], looked_at], strict=True)) <= 1_000
    )


def test_they_come_in_the_order_of_their_times_and_one_that_is_added_meanwhile_among_them():
    look_at = {number: 1_000 * number for number in range(50)}
    due = DueTimes(look_at.get)
    for number in reversed(range(50)):
        due.add(look_at[number], number)

    taken = []
    for number in due.take(40_000):
        taken.append(number)
        if number == 10:
            look_at[99] = 20_500
            due.add(20_500, 99)

    assert taken == [*range(21), 99, *range(21, 41)]
    assert due.next_ms() <= 41_000
    assert list(due.take(41_000)) == [41]


def test_what_counts_no_more_is_dropped_piece_by_piece():
    look_at = dict.fromkeys(range(10_000), 0)
    due = DueTimes(look_at.get)
    for number in look_at:
        look_at[number] = 5_000 * (number % 1_000)
        due.add(look_at[number], number)
    for number in range(10, 10_000):
        del look_at[number]

    looked_at = 0
    while len(due) > 84:
        due.drop_some()
        looked_at += 64
        assert looked_at <= 2 * 10_000, "each is looked at once"
    assert sorted(due.take(10_000_000)) == [*range(10)]


def test_dropping_ends_where_nothing_is_left():
    look_at = {7: 60_000}
    due = DueTimes(look_at.get)
    due.add(60_000, 7)
    del look_at[7]

    for _ in range(3):
        due.drop_some()

    assert len(due) == 0
    assert list(due.take(100_000)) == []


def test_one_that_is_added_a_thousand_times_for_one_moment_comes_once():
    look_at = {7: 60_000}
    due = DueTimes(look_at.get)
    for _ in range(1_000):
        due.add(60_000, 7)

    assert [one for one in due.take(60_000) if one is not None] == [7]
    assert len(due) == 0
