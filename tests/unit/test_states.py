"""The state machine of a transaction, pair by pair."""

import itertools

import pytest

from storage.errors import TransactionConflict
from txn.states import TRANSITIONS, TxnEvent, TxnState, next_state


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TxnState, TxnEvent)))
def test_every_state_answers_every_event(state, event):
    """Exhaustive: each pair either moves or is refused; none is forgotten."""
    if (state, event) in TRANSITIONS:
        assert next_state("txn_1", state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(TransactionConflict) as caught:
            next_state("txn_1", state, event, resolved_by="producer")
        assert (caught.value.state, caught.value.resolved_by) == (state, "producer")


def test_a_decision_is_never_taken_back():
    for (state, _), after in TRANSITIONS.items():
        assert after is state or not state.is_decided


def test_only_a_commit_commits_and_only_a_rollback_rolls_back():
    for (state, event), after in TRANSITIONS.items():
        if after is TxnState.COMMITTED:
            assert event is TxnEvent.COMMIT
        if after is TxnState.ROLLED_BACK:
            assert event is TxnEvent.ROLLBACK
        assert state in TxnState


def test_every_undecided_state_can_still_be_decided_both_ways():
    for state in (TxnState.PREPARED, TxnState.HELD):
        assert next_state("txn_1", state, TxnEvent.COMMIT) is TxnState.COMMITTED
        assert next_state("txn_1", state, TxnEvent.ROLLBACK) is TxnState.ROLLED_BACK
