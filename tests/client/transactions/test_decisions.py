"""The table of a transaction block: every pair is answered, and none trusts more than it knows."""

from itertools import product

import pytest

from escrowmq_client.decisions import ACTIONS, Action, Event, State, event_of_end

ENDS = (Event.LEAVE, Event.FAIL, Event.INTERRUPT)
SENDING = {Action.PUBLISH, Action.COMMIT, Action.ROLL_BACK, Action.SETTLE}


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_state_answers_every_event(state, event):
    assert (state, event) in ACTIONS


def test_nothing_is_sent_where_the_local_transaction_is_open_or_all_is_over():
    for state, event in product((State.OPEN, State.OVER), Event):
        assert ACTIONS[state, event] not in SENDING


def test_an_interrupted_block_sends_nothing_whatever_its_state():
    assert {ACTIONS[state, Event.INTERRUPT] for state in State} == {Action.NOTHING}


def test_a_block_with_a_marker_decides_by_the_marker_alone():
    found = {ACTIONS[State.MARKED, event] for event in Event}

    assert found & SENDING == {Action.SETTLE}


def test_a_block_that_fails_publishes_nothing_unless_a_marker_says_so():
    found = {ACTIONS[state, Event.FAIL] for state in State}

    assert found == {Action.NOTHING, Action.SETTLE}


def test_a_message_is_taken_only_before_the_begin():
    assert [state for state in State if ACTIONS[state, Event.ADD] is Action.ADD] == [State.NEW]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (None, Event.LEAVE),
        (ValueError(), Event.FAIL),
        (KeyboardInterrupt(), Event.INTERRUPT),
        (GeneratorExit(), Event.INTERRUPT),
    ],
)
def test_an_end_is_an_event_by_its_error(error, event):
    assert event_of_end(error) is event
