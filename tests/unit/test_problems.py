"""Problem documents, as refusals become them."""

from errno import EIO
from pathlib import PurePath

import msgspec
import pytest
from msgspec import UNSET

from app.answering import refusal_of
from app.problems import FieldError, Refusal, document, invalid_field, refusal_of_field
from storage.errors import Backpressure, InvalidRequest, UnknownTopic
from storage.files.unreadable import UnreadableLog


def test_a_problem_has_the_time_of_retry_after_in_milliseconds():
    assert document(Refusal("overloaded")).retry_after_ms == 1_000
    assert document(Refusal("overloaded", headers={"Retry-After": "7"})).retry_after_ms == 7_000
    assert document(Backpressure()).retry_after_ms == 1_000


def test_a_problem_that_repeating_does_not_solve_has_no_time():
    problem = document(UnknownTopic("there is no topic payments"))

    assert problem.retry_after_ms is UNSET
    assert b"retry_after_ms" not in msgspec.json.encode(problem)


def test_only_what_the_disk_does_not_give_back_is_to_be_asked_for_again():
    failure = OSError(EIO, "Input/output error")  # of a write, or of the removal of a file
    unreadable = UnreadableLog(failure, PurePath("commitlog/0"), 0, 4_096)
    given = {"path": "/v1/topics", "request_id": "1"}

    assert refusal_of(unreadable, **given).code == "overloaded"
    assert refusal_of(failure, **given).code == "internal_error"


@pytest.mark.parametrize(
    ("refusal", "detail"),
    [
        (
            invalid_field("/entries/3/reason", "invalid_format", "must have no control characters"),
            "/entries/3/reason: must have no control characters",
        ),
        (invalid_field("/queues", "missing", "queues are needed"), "queues are needed"),
        (invalid_field("/at", "missing", "that is needed"), "/at: that is needed"),
        (invalid_field("", "schema", "is no JSON"), "is no JSON"),
        (
            refusal_of_field(UnknownTopic("there is no such"), "/topics/0/topic"),
            "there is no such",  # 404
        ),
        (InvalidRequest("must be shorter", pointer="/group"), "/group: must be shorter"),
        (
            Refusal(
                "validation_failed",
                "two are wrong",
                errors=[FieldError("/a", "missing", "a"), FieldError("/b", "missing", "b")],
            ),
            "two are wrong",
        ),
    ],
)
def test_the_detail_of_a_refusal_for_one_field_names_the_field(refusal, detail):
    assert document(refusal).detail == detail
