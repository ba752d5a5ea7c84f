"""Actions of a transaction block at each event: a table. Pure.

    state      what is known
    NEW        nothing was sent
    BEGUN      the service has the messages; a marker, if any, is the caller's own
    MARKED     a marker was inserted in a local transaction, or that was tried
    OPEN       the same, and that local transaction is certainly not over
    OVER       the begin failed, or all is decided

    event      what happens
    ADD        a message is added
    BEGIN      `begin()` is called
    MARK       `mark()` is called
    ROLLBACK   `rollback()` is called
    LEAVE      the block ends
    FAIL       the block ends with an Exception
    INTERRUPT  the block ends with another BaseException: KeyboardInterrupt, CancelledError

SETTLE asks the database for the marker, and fences if there is none: the decision that is sent is
what the database says, as with a check. So no event, flag or status of a driver has to be trusted.
Where the outcome is not known, nothing is sent, and the check decides.
"""

from enum import Enum, auto


class State(Enum):
    """Knowledge about a transaction in its block."""

    NEW = auto()
    BEGUN = auto()
    MARKED = auto()
    OPEN = auto()
    OVER = auto()


class Event(Enum):
    """Something that a block or its caller does."""

    ADD = auto()
    BEGIN = auto()
    MARK = auto()
    ROLLBACK = auto()
    LEAVE = auto()
    FAIL = auto()
    INTERRUPT = auto()


class Action(Enum):
    """Response of the block to an event."""

    ADD = auto()  # a message to those that will be begun
    BEGIN = auto()
    BEGIN_AND_MARK = auto()
    MARK = auto()
    PUBLISH = auto()  # begin and commit, without a marker
    COMMIT = auto()
    ROLL_BACK = auto()
    SETTLE = auto()
    NOTHING = auto()
    REFUSE = auto()  # a mistake of the caller
    REFUSE_OPEN = auto()  # the block ends inside the local transaction


ACTIONS: dict[tuple[State, Event], Action] = {
    (State.NEW, Event.ADD): Action.ADD,
    (State.NEW, Event.BEGIN): Action.BEGIN,
    (State.NEW, Event.MARK): Action.BEGIN_AND_MARK,
    (State.NEW, Event.ROLLBACK): Action.NOTHING,
    (State.NEW, Event.LEAVE): Action.PUBLISH,
    (State.NEW, Event.FAIL): Action.NOTHING,
    (State.NEW, Event.INTERRUPT): Action.NOTHING,
    # Messages are sent with the begin: one that is added later would be lost in silence.
    (State.BEGUN, Event.ADD): Action.REFUSE,
    (State.BEGUN, Event.BEGIN): Action.REFUSE,
    (State.BEGUN, Event.MARK): Action.MARK,
    (State.BEGUN, Event.ROLLBACK): Action.ROLL_BACK,
    (State.BEGUN, Event.LEAVE): Action.COMMIT,
    # The caller's own marker may be committed already; its own checker knows.
    (State.BEGUN, Event.FAIL): Action.NOTHING,
    (State.BEGUN, Event.INTERRUPT): Action.NOTHING,
    (State.MARKED, Event.ADD): Action.REFUSE,
    (State.MARKED, Event.BEGIN): Action.REFUSE,
    # The local transaction is tried again: after a deadlock, for example.
    (State.MARKED, Event.MARK): Action.MARK,
    (State.MARKED, Event.ROLLBACK): Action.SETTLE,
    (State.MARKED, Event.LEAVE): Action.SETTLE,
    # Behind the local commit a failure of the block changes nothing: the marker is there.
    (State.MARKED, Event.FAIL): Action.SETTLE,
    (State.MARKED, Event.INTERRUPT): Action.NOTHING,
    (State.OPEN, Event.ADD): Action.REFUSE,
    (State.OPEN, Event.BEGIN): Action.REFUSE,
    (State.OPEN, Event.MARK): Action.REFUSE,
    (State.OPEN, Event.ROLLBACK): Action.REFUSE_OPEN,
    (State.OPEN, Event.LEAVE): Action.REFUSE_OPEN,
    # It may still be committed, outside.
    (State.OPEN, Event.FAIL): Action.NOTHING,
    (State.OPEN, Event.INTERRUPT): Action.NOTHING,
    (State.OVER, Event.ADD): Action.REFUSE,
    (State.OVER, Event.BEGIN): Action.REFUSE,
    (State.OVER, Event.MARK): Action.REFUSE,
    (State.OVER, Event.ROLLBACK): Action.NOTHING,
    (State.OVER, Event.LEAVE): Action.NOTHING,
    (State.OVER, Event.FAIL): Action.NOTHING,
    (State.OVER, Event.INTERRUPT): Action.NOTHING,
}


def event_of_end(error: BaseException | None) -> Event:
    """The event of a block that ends with this error, or without one."""
    if error is None:
        return Event.LEAVE
    return Event.FAIL if isinstance(error, Exception) else Event.INTERRUPT
