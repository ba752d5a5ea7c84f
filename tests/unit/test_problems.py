"""Problem documents, as refusals become them."""

from errno import EIO
from pathlib import PurePath

import msgspec
from msgspec import UNSET

from app.answering import refusal_of
from app.problems import Refusal, document
from storage.errors import Backpressure, UnknownTopic
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
