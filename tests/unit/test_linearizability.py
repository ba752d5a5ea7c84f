"""The judge of concurrent histories, on histories whose verdict is known."""

from collections.abc import Iterator
from typing import Any

from tests.support.linearizability import Call, states_after
from tests.support.transaction_spec import (
    BEGUN,
    DONE,
    REPLAYED,
    Decide,
    Look,
    Resume,
    Sweep,
    answers,
)
from txn.checkback_plan import OnExhausted
from txn.states import Resolver, TxnState

COMMITTED = (TxnState.COMMITTED, Resolver.PRODUCER)
ROLLED_BACK = (TxnState.ROLLED_BACK, Resolver.PRODUCER)
COMMIT, ROLLBACK = Decide(*COMMITTED), Decide(*ROLLED_BACK)


def register(state: int, what: Any) -> Iterator[tuple[int, Any]]:
    """A number that can be set and read."""
    yield (state, state) if what == "read" else (what, "set")


def test_calls_one_after_another_have_one_order():
    assert states_after([Call(1, 0, 1, "set"), Call("read", 2, 3, 1)], {0}, register) == {1}
    assert states_after([Call(1, 0, 1, "set"), Call("read", 2, 3, 0)], {0}, register) == set()


def test_calls_beside_each_other_may_have_happened_in_any_order():
    beside = [Call(1, 0, 3, "set"), Call(2, 1, 2, "set")]

    assert states_after(beside, {0}, register) == {1, 2}
    assert (
        states_after([*beside, Call("read", 4, 5, 1), Call("read", 6, 7, 2)], {0}, register)
        == set()
    )


def test_a_call_without_an_answer_may_have_happened_or_not_but_not_behind_its_end():
    assert states_after([Call(1, 0)], {0}, register) == {0, 1}
    assert (
        states_after([Call(1, 0, 1), Call("read", 2, 3, 0), Call("read", 4, 5, 1)], {0}, register)
        == set()
    )
    assert states_after(
        [Call(1, 0), Call("read", 2, 3, 0), Call("read", 4, 5, 1)], {0}, register
    ) == {1}


def test_of_two_opposite_decisions_one_wins_and_the_other_is_told_so():
    assert states_after(
        [Call(COMMIT, 0, 3, DONE), Call(ROLLBACK, 1, 2, COMMITTED)], {BEGUN}, answers
    ) == {COMMITTED}
    assert (
        states_after([Call(COMMIT, 0, 3, DONE), Call(ROLLBACK, 1, 2, DONE)], {BEGUN}, answers)
        == set()
    )


def test_a_decision_that_is_overwritten_is_found():
    history = [Call(COMMIT, 0, 1, DONE), Call(ROLLBACK, 2, 3), Call(Look(), 4, 5, ROLLED_BACK)]

    assert states_after(history, {BEGUN}, answers) == set()


def test_a_decision_that_is_done_twice_is_found():
    assert (
        states_after([Call(COMMIT, 0, 1, DONE), Call(COMMIT, 2, 3, DONE)], {BEGUN}, answers)
        == set()
    )
    assert states_after(
        [Call(COMMIT, 0, 1, DONE), Call(COMMIT, 2, 3, REPLAYED)], {BEGUN}, answers
    ) == {COMMITTED}


def test_a_policy_may_hold_or_roll_back_but_only_while_it_acts_and_a_held_one_can_be_resumed():
    held = Call(Look(), 2, 3, (TxnState.HELD, None))

    assert states_after([Call(Sweep(OnExhausted.HOLD), 0, 1), held], {BEGUN}, answers) == {
        (TxnState.HELD, None)
    }
    assert states_after([Call(Sweep(OnExhausted.ROLLBACK), 0, 1), held], {BEGUN}, answers) == set()
    assert states_after([held, Call(Sweep(OnExhausted.HOLD), 4, 5)], {BEGUN}, answers) == set()
    resumed = Call(Resume(), 4, 5, "taken note of")
    assert states_after([Call(Sweep(OnExhausted.HOLD), 0, 1), held, resumed], {BEGUN}, answers) == {
        BEGUN
    }
