"""A refusal is an error like the others, and carries its own problem code."""

import pickle

import pytest

from app.problems import FieldError, Refusal, document, invalid_field, under
from storage.errors import InvalidRequest, MessagingError, UnknownTopic


def test_a_refusal_is_caught_with_the_other_errors_and_answers_with_its_own_code():
    with pytest.raises(MessagingError) as caught:
        raise Refusal("topic_in_use", "topic a is in use", context={"groups": "1"})

    problem = document(caught.value)
    assert (problem.status, problem.code, problem.detail) == (
        409, "topic_in_use", "topic a is in use"
    )  # fmt: skip
    assert problem.context == {"groups": "1"}


def test_a_refused_part_is_named_from_the_top_of_the_request():
    refused = under(invalid_field("/key", "wrong_type", "/key: is no text"), "/entries/3/message")

    assert refused.errors == [
        FieldError("/entries/3/message/key", "wrong_type", "/key: is no text")
    ]
    assert refused.detail == "/entries/3/message/key: is no text"


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (UnknownTopic("no"), FieldError("/messages/0/topic", "topic_not_found", "no")),
        (InvalidRequest("no", pointer="/topic"), FieldError("/messages/0/topic", "invalid", "no")),
    ],
)
def test_an_error_that_names_no_field_is_of_the_field_that_the_caller_names(error, field):
    assert under(error, "/messages/0", field="/topic").errors == [field]


def test_a_part_can_be_refused_twice_for_the_same_reason():
    reason = invalid_field("/key", "wrong_type", "is no text")

    first, again = (under(reason, "/entries/0/message") for _ in range(2))

    assert document(first) == document(again)
    assert reason.errors == [FieldError("/key", "wrong_type", "is no text")]


def test_a_refusal_is_the_same_after_it_has_come_from_another_process():
    refused = Refusal("overloaded", "busy", context={"a": "b"}, headers={"Allow": "GET"})

    came = pickle.loads(pickle.dumps(refused))

    assert vars(came) == vars(refused)
    assert came.detail == "busy"
