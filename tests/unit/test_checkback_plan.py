"""When a producer is asked, and when nobody is asked any more."""

from hypothesis import given
from hypothesis import strategies as st

from txn.checkback_plan import CheckbackPolicy, HoldReason, Plan, Step, plan_check

POLICY = CheckbackPolicy(
    first_after_ms=10_000, interval_ms=30_000, max_answers=15, unreachable_limit_ms=60_000
)


def test_a_young_transaction_is_left_alone_until_its_check_is_due():
    assert plan_check(POLICY, now_ms=9_999, due_ms=10_000, asked_ms=None, answers=0) == Plan(
        Step.WAIT, 10_000
    )
    assert (
        plan_check(POLICY, now_ms=10_000, due_ms=10_000, asked_ms=None, answers=0).step is Step.ASK
    )


def test_an_open_check_is_not_asked_twice():
    assert plan_check(POLICY, now_ms=20_000, due_ms=10_000, asked_ms=10_000, answers=0) == Plan(
        Step.WAIT, 70_000
    )


def test_a_check_that_nobody_answers_exhausts_its_own_clock_and_no_budget():
    exhausted = Plan(Step.EXHAUST, reason=HoldReason.UNREACHABLE)

    assert (
        plan_check(POLICY, now_ms=69_999, due_ms=10_000, asked_ms=10_000, answers=3).step
        is Step.WAIT
    )
    assert plan_check(POLICY, now_ms=70_000, due_ms=10_000, asked_ms=10_000, answers=3) == exhausted


def test_answered_unknowns_use_up_the_budget():
    exhausted = Plan(Step.EXHAUST, reason=HoldReason.ANSWERS_EXHAUSTED)

    assert plan_check(POLICY, now_ms=0, due_ms=10_000, asked_ms=None, answers=14).step is Step.WAIT
    assert plan_check(POLICY, now_ms=0, due_ms=10_000, asked_ms=None, answers=15) == exhausted


@given(
    now_ms=st.integers(0, 10**6),
    due_ms=st.integers(0, 10**6),
    asked_ms=st.none() | st.integers(0, 10**6),
    answers=st.integers(0, 20),
)
def test_every_plan_that_waits_or_asks_says_when_to_look_again_and_never_in_the_past(
    now_ms, due_ms, asked_ms, answers
):
    plan = plan_check(POLICY, now_ms=now_ms, due_ms=due_ms, asked_ms=asked_ms, answers=answers)

    if plan.step is Step.EXHAUST:
        assert plan.reason is not None
    else:
        assert plan.replan_at_ms is not None
        assert plan.replan_at_ms > now_ms
