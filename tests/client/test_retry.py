"""The rule of repetition, over all failures, times and chances."""

from hypothesis import given
from hypothesis import strategies as st

from escrowmq_client import Overloaded, ProblemError, Refused, Retry, Unreachable
from escrowmq_client.addresses import Addresses
from escrowmq_client.errors import EscrowMQError, error_of
from escrowmq_client.models.problem import Problem
from escrowmq_client.retry import Attempts, may_repeat


def problem(
    status: int, code: str = "a_code", *, retryable: bool = False, retry_after_ms: int | None = None
) -> ProblemError:
    return error_of(
        Problem(
            type=f"/problems/{code}",
            title="A problem",
            status=status,
            code=code,
            detail="",
            retryable=retryable,
            retry_after_ms=retry_after_ms,
        )
    )


NEVER_SENT = Unreachable("ConnectError", outcome_unknown=False)
LOST = Unreachable("ReadTimeout", outcome_unknown=True)
problems = st.builds(
    problem,
    st.sampled_from([400, 404, 409, 410, 413, 422, 429, 500, 501, 503, 504, 507]),
    retryable=st.booleans(),
    retry_after_ms=st.none() | st.integers(0, 60_000),
)
failures = st.sampled_from([NEVER_SENT, LOST]) | problems
retries = st.builds(
    Retry,
    total_ms=st.integers(0, 60_000),
    first_ms=st.integers(1, 1_000),
    longest_ms=st.integers(1_000, 10_000),
)
chances = st.floats(0, 1, exclude_max=True)


def test_a_call_that_was_never_sent_is_repeated_whatever_it_does():
    assert may_repeat(NEVER_SENT, repeatable=False)


def test_a_call_whose_answer_was_lost_is_repeated_only_if_twice_is_as_once():
    assert may_repeat(LOST, repeatable=True)
    assert not may_repeat(LOST, repeatable=False)


def test_a_refusal_that_may_end_is_repeated_and_another_is_not():
    assert may_repeat(problem(507, retryable=True), repeatable=False)
    assert may_repeat(problem(503, "storage_failed"), repeatable=True)
    assert not may_repeat(problem(503, "storage_failed"), repeatable=False)
    assert not may_repeat(problem(422), repeatable=True)
    assert not may_repeat(Refused(None, []), repeatable=True)


@given(st.booleans(), st.booleans())
def test_a_reply_that_came_too_late_is_never_asked_for_again(retryable, repeatable):
    late = problem(504, "reply_timeout", retryable=retryable)

    assert not may_repeat(late, repeatable=repeatable)


@given(retries, failures, st.integers(1, 100), st.booleans(), st.floats(0, 1e6), chances)
def test_a_wait_is_as_long_as_the_service_asks_for_and_ends_in_time(
    retry, failure, count, repeatable, spent_ms, chance
):
    wait_ms = retry.wait_ms(
        failure, failures=count, repeatable=repeatable, spent_ms=spent_ms, chance=chance
    )

    if wait_ms is None:
        return
    assert may_repeat(failure, repeatable=repeatable)
    assert spent_ms + wait_ms < retry.total_ms
    asked_ms = getattr(failure, "retry_after_ms", None) or 0
    longest = min(retry.longest_ms, retry.first_ms * 2 ** (count - 1))
    assert asked_ms <= wait_ms <= max(asked_ms, longest)


@given(retries, st.lists(st.tuples(failures, chances), max_size=200))
def test_the_tries_of_a_call_end(retry, course):
    """Each wait passes on the clock; no course of failures waits longer than `total_ms`."""
    attempts = Attempts(retry, repeatable=True)
    began_ms = now_ms = 0.0  # exact sums: each wait is compared as it is added
    for failure, chance in course:
        wait_ms = attempts.wait_ms(failure, now_ms=now_ms, chance=chance)
        if wait_ms is None:
            return
        now_ms += wait_ms
        assert now_ms - began_ms < max(retry.total_ms, 1)


def test_time_before_the_first_failure_does_not_count():
    attempts = Attempts(Retry(total_ms=100, first_ms=10), repeatable=True)

    assert attempts.wait_ms(LOST, now_ms=1_000_000, chance=0.5) == 5
    assert attempts.wait_ms(LOST, now_ms=1_000_099, chance=0.5) is None


def test_an_accepted_connection_ends_the_time_of_the_failures_before_it():
    attempts = Attempts(Retry(total_ms=100, first_ms=10, longest_ms=40), repeatable=True)

    assert attempts.wait_ms(LOST, now_ms=0, chance=0.5) == 5
    attempts.reached(10)
    assert attempts.wait_ms(LOST, now_ms=49, chance=0.5) == 10  # soon, so that the wait grows
    assert attempts.wait_ms(LOST, now_ms=149, chance=0.5) is None
    attempts.reached(150)
    assert attempts.wait_ms(LOST, now_ms=190, chance=0.5) == 5


def test_the_wait_grows_when_every_address_has_failed_once_more():
    addresses = Addresses(["http://a", "http://b", "http://c"])
    retry = Retry(total_ms=10_000, first_ms=100)
    attempts = Attempts(retry, repeatable=True, rounds=addresses.rounds)

    waits = [attempts.wait_ms(LOST, now_ms=0, chance=0.5) for _ in range(7)]

    assert waits == [50, 50, 50, 100, 100, 100, 200]


@given(problems)
def test_an_error_has_the_class_of_its_status(error: EscrowMQError):
    assert isinstance(error, ProblemError)
    assert isinstance(error, Overloaded) == (error.status in (429, 503))
