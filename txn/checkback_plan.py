"""The plan of checkbacks: when to ask a producer for the outcome of its transaction, and when to
stop.

Pure: time is an argument.

Answers are counted, not tries: only an answered "unknown" uses up the budget. A producer that
cannot be reached has a time limit of its own, which starts with its first unanswered check.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

import msgspec


class OnExhausted(StrEnum):
    HOLD = "hold"
    ROLLBACK = "rollback"


class HoldReason(StrEnum):
    ANSWERS_EXHAUSTED = "answers_exhausted"
    UNREACHABLE = "unreachable"


class CheckbackPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one transaction is checked back.

    Source of the defaults: RocketMQ BrokerConfig, transactionCheckMax and -Interval.
    """

    first_after_ms: int = 10_000  # the grace: longer than most local transactions take
    interval_ms: int = 30_000
    max_answers: int = 15
    unreachable_limit_ms: int = 86_400_000
    on_exhausted: OnExhausted = OnExhausted.HOLD


class Step(Enum):
    WAIT = "nothing to do yet"
    ASK = "its check is due"
    EXHAUST = "no more checks: on_exhausted applies"


@dataclass(frozen=True)
class Plan:
    """The step, the time of the next plan (wall milliseconds; None: at the next event), and the
    reason for exhaustion.
    """

    step: Step
    replan_at_ms: int | None = None
    reason: HoldReason | None = None


def plan_check(
    policy: CheckbackPolicy, *, now_ms: int, due_ms: int, asked_ms: int | None, answers: int,
    started_ms: int = 0
) -> Plan:  # fmt: skip
    """The next step of the checkback of one undecided transaction.

    `due_ms`: when its next check is due; `asked_ms`: since when its unanswered check is open;
    `answers`: how many checks were answered "unknown" since it was begun or resumed; `started_ms`:
    when the service started. No checks are sent while it is down, so a check that was open then
    stays open for one interval more before it is given up.
    """
    if answers >= policy.max_answers:
        return Plan(Step.EXHAUST, reason=HoldReason.ANSWERS_EXHAUSTED)
    if asked_ms is not None:
        give_up_ms = asked_ms + policy.unreachable_limit_ms
        if asked_ms < started_ms:
            give_up_ms = max(give_up_ms, started_ms + policy.interval_ms)
        if now_ms >= give_up_ms:
            return Plan(Step.EXHAUST, reason=HoldReason.UNREACHABLE)
        return Plan(Step.WAIT, give_up_ms)
    if now_ms >= due_ms:
        return Plan(Step.ASK, now_ms + policy.unreachable_limit_ms)
    return Plan(Step.WAIT, due_ms)
