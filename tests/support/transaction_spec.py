"""One transaction as a thing that is asked one question after another: what concurrent answers are
held against.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from txn.checkback_plan import OnExhausted
from txn.states import Resolver, TxnState

State = tuple[TxnState, Resolver | None]
BEGUN: State = (TxnState.PREPARED, None)
DONE, REPLAYED, TAKEN = "done", "replayed", "taken note of"


class Decide(NamedTuple):
    """Answered with DONE or REPLAYED, or the decision that it conflicts with."""

    state: TxnState
    by: Resolver


class Unknown(NamedTuple):
    """A producer does not know; with its budget used up that ends the checks.

    Answered with TAKEN, or the decision.
    """

    on_exhausted: OnExhausted


class Sweep(NamedTuple):
    """May end the checks of an undecided transaction. Never answered."""

    on_exhausted: OnExhausted


class Resume(NamedTuple):
    """Answered with TAKEN, or the decision that it conflicts with."""


class Look(NamedTuple):
    """Answered with the state."""


def answers(state: State, what: Any) -> Iterator[tuple[State, Any]]:
    is_decided = state[0].is_decided
    if isinstance(what, Look):
        yield state, state
    elif isinstance(what, Decide):
        if not is_decided:
            yield (what.state, what.by), DONE
        elif state[0] is what.state:
            yield state, REPLAYED
        else:
            yield state, state
    elif is_decided:
        yield state, state
    elif isinstance(what, Resume):
        yield BEGUN, TAKEN
    else:
        yield state, TAKEN
        if state[0] is TxnState.PREPARED:
            is_hold = what.on_exhausted is OnExhausted.HOLD
            yield (
                ((TxnState.HELD, None) if is_hold else (TxnState.ROLLED_BACK, Resolver.POLICY)),
                TAKEN,
            )
