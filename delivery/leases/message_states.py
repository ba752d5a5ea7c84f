"""The states of a message for one group, with the table of what moves it. Pure.

    UNSCANNED ──lease──> LEASED ──ack───> ACKING ──settle──> SETTLED
        │                ↑   ↑ └──move──> MOVING ──settle──────↑
        └─leave_open─> OPEN  └────fail──────┘ └──reopen, wait──> OPEN, WAITING

A lease ends with an append: of an acknowledgement (ACKING), or of what follows a rejection or the
end of its time (MOVING). The event in the log moves the message on; a failed append leaves it
leased. Settled is final: only `QueueSlots.restart` begins again, with messages that have no state.
"""

from enum import IntEnum


class State(IntEnum):
    """The numbers are stored: a snapshot has a byte for each message."""

    SETTLED = 0  # or not for the group
    OPEN = 1  # may be leased; in an ordered group as soon as its key is free
    LEASED = 2
    ACKING = 3  # its acknowledgement is being appended
    MOVING = 4  # what follows its rejection or the end of its lease is being appended
    WAITING = 5  # for its retry, in its queue
    UNSCANNED = 6  # at the cursor or behind it; not stored, since the cursor is


class Event(IntEnum):
    """A change of one message."""

    LEAVE_OPEN = 0  # it was scanned, and is left for a later receive
    LEASE = 1
    EXTEND = 2
    ACK = 3
    MOVE = 4
    FAIL = 5  # the append of its acknowledgement or its move failed, or was cut off by a crash
    WAIT = 6
    REOPEN = 7
    SETTLE = 8


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.UNSCANNED, Event.LEAVE_OPEN): State.OPEN,
    (State.UNSCANNED, Event.LEASE): State.LEASED,
    (State.UNSCANNED, Event.SETTLE): State.SETTLED,
    (State.OPEN, Event.LEAVE_OPEN): State.OPEN,  # after a scan that failed behind it
    (State.OPEN, Event.LEASE): State.LEASED,
    (State.OPEN, Event.MOVE): State.MOVING,  # its attempts are used up
    (State.OPEN, Event.REOPEN): State.OPEN,  # a receive looked at it and had no room
    (State.OPEN, Event.SETTLE): State.SETTLED,  # skipped, cancelled, damaged or expired
    # Leased again: in a replay, since the end of the lease before need not be in the log.
    (State.LEASED, Event.LEASE): State.LEASED,
    (State.LEASED, Event.EXTEND): State.LEASED,
    (State.LEASED, Event.ACK): State.ACKING,
    (State.LEASED, Event.MOVE): State.MOVING,
    # In a replay, which knows no appends under way; or the undo of a claim.
    (State.LEASED, Event.REOPEN): State.OPEN,
    (State.LEASED, Event.WAIT): State.WAITING,
    (State.LEASED, Event.SETTLE): State.SETTLED,
    (State.ACKING, Event.FAIL): State.LEASED,
    (State.ACKING, Event.SETTLE): State.SETTLED,
    (State.MOVING, Event.FAIL): State.LEASED,
    (State.MOVING, Event.REOPEN): State.OPEN,
    (State.MOVING, Event.WAIT): State.WAITING,
    (State.MOVING, Event.SETTLE): State.SETTLED,
    (State.WAITING, Event.REOPEN): State.OPEN,
    (State.WAITING, Event.SETTLE): State.SETTLED,  # a reset ends it, or the log has lost it
    # In a replay: the end of a wait is no event, and an event may be applied once more.
    (State.WAITING, Event.LEASE): State.LEASED,
    (State.WAITING, Event.EXTEND): State.WAITING,
    (State.WAITING, Event.WAIT): State.WAITING,
    (State.SETTLED, Event.SETTLE): State.SETTLED,
}

# For what each receive and acknowledgement needs: Python 3.11 calls a function for each member that
# is looked up in its class.
OPEN, LEASED, SETTLED, UNSCANNED = State.OPEN, State.LEASED, State.SETTLED, State.UNSCANNED
LEASE, ACK, SETTLE = Event.LEASE, Event.ACK, Event.SETTLE

HELD = (State.LEASED, State.ACKING, State.MOVING, State.WAITING)  # not to be leased


def next_state(state: State, event: Event) -> State:
    """The state after an event. Raises AssertionError for a pair that the table does not have: a
    bug in the service.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise refused(state, event) from None


def refused(state: int, event: Event) -> AssertionError:
    return AssertionError(f"{event.name} of a message that is {State(state).name}")


# ----------------------------------------------------------------------------------------------
# compiled, for `bytes.translate`: by event the next state of each stored byte

REFUSED = 0xFF


def _compiled(zero: State) -> tuple[bytes, ...]:
    """`zero`: the state of a message whose byte is 0."""
    states = {**{int(state): state for state in State}, 0: zero}
    del states[State.UNSCANNED]
    return tuple(
        bytes(
            TRANSITIONS.get((states[byte], event), REFUSED) if byte in states else REFUSED
            for byte in range(256)
        )
        for event in Event
    )


AFTER = _compiled(zero=State.SETTLED)
AFTER_UNSCANNED = _compiled(zero=State.UNSCANNED)  # at the cursor or behind it
