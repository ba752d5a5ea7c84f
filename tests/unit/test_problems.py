"""Problem documents, as refusals become them."""

import msgspec
from msgspec import UNSET

from app.problems import Refusal, document
from storage.errors import Backpressure, UnknownTopic


def test_a_problem_has_the_time_of_retry_after_in_milliseconds():
    assert document(Refusal("overloaded")).retry_after_ms == 1_000
    assert document(Refusal("overloaded", headers={"Retry-After": "7"})).retry_after_ms == 7_000
    assert document(Backpressure()).retry_after_ms == 1_000


def test_a_problem_that_repeating_does_not_solve_has_no_time():
    problem = document(UnknownTopic("there is no topic payments"))

    assert problem.retry_after_ms is UNSET
    assert b"retry_after_ms" not in msgspec.json.encode(problem)
