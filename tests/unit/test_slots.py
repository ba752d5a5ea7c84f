"""The compact slots of a queue against a plain dict, and what they cost."""

import tracemalloc
from collections import Counter
from random import Random

import pytest

from delivery.leases.claim import scans_of
from delivery.leases.events import LeasedRun, Scan
from delivery.leases.group import GroupLeases
from delivery.leases.message_states import TRANSITIONS, Event, State
from delivery.leases.queue_slots import CHUNK, QueueSlots
from storage.message import QueueId

UNSETTLED = [state for state in State if state not in (State.SETTLED, State.UNSCANNED)]
MOVES = {
    state: [
        event
        for (before, event), after in TRANSITIONS.items()
        if before is state and after is not State.SETTLED
    ]
    for state in UNSETTLED
}


def settled_prefix(model: dict[int, int], cursor: int) -> int:
    return min(model, default=cursor)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_they_say_what_a_dict_says(seed):
    chance = Random(seed)
    first = chance.choice([0, 5, CHUNK - 1, 3 * CHUNK])
    slots, model, cursor = QueueSlots(first), {}, first
    for step in range(400):
        choice = chance.random()
        if choice < 0.3:
            count = chance.choice([1, 3, 32, CHUNK, 2 * CHUNK + 1])
            leased = range(cursor, cursor + chance.randint(0, count))
            slots.put(cursor, len(leased), Event.LEASE, attempt=1, lease=7, deadline_ms=9)
            model |= dict.fromkeys(leased, State.LEASED)
            cursor += count
            slots.advance_to(cursor)
        elif choice < 0.4 and cursor > first:
            begin, count, now_ms = (
                chance.randrange(first, cursor),
                chance.choice([1, 3, 32, CHUNK]),
                chance.choice([8, 9]),
            )
            run = range(begin, begin + count)
            assert slots.which_settled(begin, count) == [slots.is_settled(offset) for offset in run]
            lease = chance.choice([7, 7, 8])
            is_within = begin // CHUNK == (begin + count - 1) // CHUNK
            expected = is_within and all(slots.is_leased(offset, lease, now_ms) for offset in run)
            assert slots.move_leased(begin, count, lease, now_ms, Event.ACK) == expected
            if expected:
                model |= dict.fromkeys(run, State.ACKING)
        elif choice < 0.6 and model:
            offset = chance.choice(list(model))
            event = chance.choice(MOVES[State(model[offset])])
            model[offset] = TRANSITIONS[State(model[offset]), event]
            slots.move(offset, event)
        elif cursor > first:
            # Half of the time what is oldest, as consumers do: so the prefix moves, and what is
            # compared each time stays small.
            begin = chance.choice([min(slots.prefix, cursor - 1), chance.randrange(first, cursor)])
            count = min(chance.choice([1, 40, 3 * CHUNK]), cursor - begin)
            slots.settle(begin, count)
            for offset in range(begin, begin + count):
                model.pop(offset, None)

        # what is wrong with a slot stays so; the numbers below are asked after each step
        if step % 5 == 4:
            assert {slot.offset: slot.state for slot in slots} == model
            begin = chance.randint(first, cursor + 1)
            assert [slot.offset for slot in slots.in_states((State.OPEN,), begin)] == [
                offset
                for offset in sorted(model)
                if begin <= offset and model[offset] == State.OPEN
            ]
        assert slots.prefix == settled_prefix(model, cursor)
        assert slots.cursor == cursor
        counts = Counter(model.values())
        assert slots.counts == [counts[state] for state in State]
        assert slots.unsettled == len(model)
    again = QueueSlots.load(slots.dump(), later_ms=100)
    assert [slot[:4] for slot in again] == [
        (
            *slot[:1],
            State.LEASED if slot.state in (State.ACKING, State.MOVING) else slot.state,
            *slot[2:4],
        )
        for slot in slots
    ]
    assert [slot.deadline_ms for slot in again] == [slot.deadline_ms + 100 for slot in slots]
    assert (again.prefix, again.cursor) == (slots.prefix, slots.cursor)


@pytest.mark.parametrize("first", [0, CHUNK - 3])
def test_what_another_lease_holds_is_left_out_of_a_run(first):
    slots = QueueSlots(first)
    slots.put(first, 6, Event.LEASE, attempt=1, lease=7)
    slots.put(first + 2, 2, Event.LEASE, attempt=2, lease=8)
    slots.put(first + 4, 1, Event.REOPEN, attempt=2, lease=8)
    slots.advance_to(first + 6)

    assert list(slots.runs_not_of_others(first, 6, 7)) == [(first, 2), (first + 4, 2)]
    assert list(slots.runs_not_of_others(first, 2, 7)) == [(first, 2)]
    assert list(slots.runs_not_of_others(first, 4, 8)) == [(first + 2, 2)]
    assert list(slots.runs_not_of_others(first + 2, 2, 7)) == []


def test_telling_of_a_scan_costs_what_is_open_in_it():
    leases = GroupLeases("billing")
    queue = leases.open(QueueId("orders", 0), 0)
    queue.slots.put(5, 1, Event.LEAVE_OPEN, attempt=2)
    queue.slots.advance_to(10**12)

    told = scans_of(leases)

    assert told == ([Scan("orders", 0, 0, 10**12)], [LeasedRun("orders", 0, 5, 1, 2)])


def test_a_lease_holds_a_message_until_its_deadline_and_no_other_does():
    slots = QueueSlots(0)
    slots.put(0, 1, Event.LEASE, attempt=1, lease=7, deadline_ms=100)
    slots.advance_to(1)

    assert slots.is_leased(0, 7, 99)
    assert not slots.is_leased(0, 7, 100)
    assert not slots.is_leased(0, 8, 99)
    assert not slots.is_leased(1, 7, 99)
    slots.move(0, Event.ACK)
    assert not slots.is_leased(0, 7, 99)


def test_one_that_is_stuck_does_not_keep_the_memory_of_all_that_came_behind_it():
    slots = QueueSlots(0)
    for first in range(0, 1_000_000, 1_000):
        slots.put(first, 1_000, Event.LEASE, attempt=1, lease=7, deadline_ms=9)
        slots.advance_to(first + 1_000)
        slots.settle(max(1, first), 1_000 - (first == 0))

    assert slots.prefix == 0
    assert slots.unsettled == 1
    assert len(slots.dump().chunks) == 1
    assert len(slots._chunks) <= 2


def test_unsettled_messages_take_twenty_bytes_each():
    count = 50 * CHUNK
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        slots = QueueSlots(0)
        for offset in range(count):
            slots.put(offset, 1, Event.LEASE, attempt=1, lease=offset + 1, deadline_ms=9)
            slots.advance_to(offset + 1)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert slots.unsettled == count
    assert taken / count < 22
