"""The state machine of a message for one group, pair by pair."""

import itertools

import pytest

from delivery.leases.message_states import HELD, TRANSITIONS, Event, State, next_state
from delivery.leases.queue_slots import QueueSlots

FIRST, LEASE, DEADLINE_MS = 3, 7, 1_000
# The events that lead to a state from a message that is not scanned.
WAYS = {
    State.UNSCANNED: [],
    State.OPEN: [Event.LEAVE_OPEN],
    State.LEASED: [Event.LEASE],
    State.ACKING: [Event.LEASE, Event.ACK],
    State.MOVING: [Event.LEASE, Event.MOVE],
    State.WAITING: [Event.LEASE, Event.MOVE, Event.WAIT],
    State.SETTLED: [Event.LEASE, Event.SETTLE],
}


def slots_in(state: State, count: int = 1) -> QueueSlots:
    slots = QueueSlots(FIRST)
    for event in WAYS[state]:
        for offset in range(FIRST, FIRST + count):
            happen(slots, offset, event)
    return slots


def happen(slots: QueueSlots, offset: int, event: Event) -> None:
    """Apply an event as the service does."""
    if event in (Event.LEAVE_OPEN, Event.LEASE):
        is_new = offset >= slots.cursor
        slots.put(offset, 1, event, attempt=1, lease=LEASE, deadline_ms=DEADLINE_MS)
        if is_new:
            slots.advance_to(offset + 1)
    elif event is Event.SETTLE:
        slots.settle(offset, 1)
        slots.advance_to(max(slots.cursor, offset + 1))
    else:
        slots.move(offset, event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_state_answers_every_event(state, event):
    """Exhaustive: each pair either moves or is refused; none is forgotten."""
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError, match=f"{event.name} of a message that is {state.name}"):
            next_state(state, event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_the_slots_of_a_queue_do_what_the_table_says(state, event):
    slots = slots_in(state)
    assert slots.state(FIRST) == state
    before = list(slots.counts)

    if (state, event) in TRANSITIONS:
        happen(slots, FIRST, event)
        assert slots.state(FIRST) == TRANSITIONS[state, event]
        after = TRANSITIONS[state, event]
        is_unsettled = after is not State.SETTLED
        assert slots.counts == [int(is_unsettled and after == one) for one in State]
    else:
        with pytest.raises(AssertionError, match=state.name):
            happen(slots, FIRST, event)
        assert slots.state(FIRST) == state
        assert slots.counts == before


@pytest.mark.parametrize("event", [Event.LEAVE_OPEN, Event.LEASE])
def test_of_neighbours_one_that_refuses_an_event_keeps_the_others_as_they_were(event):
    slots = slots_in(State.OPEN, count=3)
    slots.settle(FIRST + 1, 1)

    with pytest.raises(AssertionError, match="SETTLED"):
        slots.put(FIRST, 3, event, attempt=2)

    assert [slot[:3] for slot in slots] == [
        (FIRST, State.OPEN, 1),
        (FIRST + 2, State.OPEN, 1),
    ]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", [Event.REOPEN, Event.WAIT])
def test_a_message_that_is_given_back_has_the_attempt_from_before_its_delivery(state, event):
    """As a lease and an undo, a release writes the attempt with the state, in one step."""
    slots = slots_in(state)
    before = list(slots)

    if (state, event) in TRANSITIONS:
        slots.put(FIRST, 1, event, attempt=0, lease=LEASE, deadline_ms=9)

        assert list(slots) == [(FIRST, TRANSITIONS[state, event], 0, LEASE, 9)]
        assert slots.get(FIRST).was_delivered
    else:
        with pytest.raises(AssertionError, match=f"{event.name} of a message that is {state.name}"):
            slots.put(FIRST, 1, event, attempt=0, lease=LEASE, deadline_ms=9)
        assert list(slots) == before


def test_settled_is_final():
    assert {event for state, event in TRANSITIONS if state is State.SETTLED} == {Event.SETTLE}
    assert TRANSITIONS[State.SETTLED, Event.SETTLE] is State.SETTLED


def test_every_state_can_still_be_settled():
    for state in State:
        assert TRANSITIONS[state, Event.SETTLE] is State.SETTLED


def test_a_message_is_leased_from_no_append_that_is_under_way():
    """Its outcome is in the log already, and the next lease would hold what is settled."""
    for state in (State.ACKING, State.MOVING):
        assert {event for one, event in TRANSITIONS if one is state} <= {
            Event.FAIL, Event.REOPEN, Event.WAIT, Event.SETTLE
        }  # fmt: skip


def test_only_a_lease_that_lasts_is_acknowledged_or_extended_by_its_consumer():
    assert [state for state, event in TRANSITIONS if event is Event.ACK] == [State.LEASED]
    assert {state for state, event in TRANSITIONS if event is Event.EXTEND} <= set(HELD)
