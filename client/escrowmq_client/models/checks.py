"""Producer groups, and the checks of their transactions."""

from datetime import datetime
from typing import Literal

from escrowmq_client.models.base import Input, Output
from escrowmq_client.models.problem import Problem


class ProducerGroup(Output, frozen=True, kw_only=True):
    """A producer group and its settings."""

    producer_group: str
    check_mode: str
    check_url: str | None = None
    timeout_ms: int | None = None
    concurrency: int | None = None
    signing_secret: str | None = None
    """Returned only once, in the response to the request that created it."""
    previous_secret_expires_at: datetime | None = None
    """Until this time checks are also signed with the previous secret."""
    disabled_at: datetime | None = None
    """The endpoint answered 410 at this time. It is not called again until the group is updated."""
    created_at: datetime
    revision: int


class CheckTestCase(Output, frozen=True, kw_only=True):
    """A test case and its result."""

    case: str
    """never_seen, asked_again, very_old, wrong_signature or old_timestamp; later releases may add
    others.
    """
    expected: str
    got: str
    """commit, rollback or unknown; or the reason why there was no valid answer."""
    passed: bool
    latency_ms: int | None = None
    """Absent if nothing was sent."""


class CheckTestResult(Output, frozen=True, kw_only=True):
    """Whether an endpoint follows the contract of checks. `passed`: in every case."""

    passed: bool
    cases: list[CheckTestCase]


class CheckMessage(Output, frozen=True, kw_only=True):
    """A message of the transaction that a check asks about."""

    message_id: str
    topic: str
    key: str | None = None
    """The key; of several, the first one."""


class Check(Output, frozen=True, kw_only=True):
    """A check: asks the producer for the outcome of a transaction."""

    check_id: str
    transaction_id: str
    business_key: str | None = None
    answer_number: int
    """From 1: the number of this answer, counted since the transaction was begun or resumed."""
    prepared_at: datetime
    age_ms: int
    messages: list[CheckMessage]
    lease_expires_at: datetime


class CheckList(Output, frozen=True, kw_only=True):
    """Checks of transactions, oldest first."""

    checks: list[Check]


class CheckQuestion(Output, frozen=True, kw_only=True):
    """A check of one transaction, signed according to Standard Webhooks.

    The webhook-id is the check_id in every attempt.
    """

    kind: str
    check_id: str
    transaction_id: str
    business_key: str | None = None
    age_ms: int
    answer_number: int
    """From 1: the number of this answer, counted since the transaction was begun or resumed."""


class CheckAnswer(Input, frozen=True):
    """The producer's answer.

    Answer `unknown` while the transaction is still in progress. Unknown fields are ignored.
    """

    decision: Literal["commit", "rollback", "unknown"]
    recheck_after_ms: int | None = None
    """Delay before the next check, instead of the interval."""
    evidence: dict[str, str] | None = None
    """Stored with the answer."""


class AnswerInput(Input, frozen=True):
    """The outcome of a transaction. Answer `unknown` while the transaction is still in progress."""

    check_id: str
    decision: Literal["commit", "rollback", "unknown"]
    evidence: dict[str, str] | None = None
    """Stored with the answer."""
    recheck_after_ms: int | None = None
    """Delay before the next check, instead of the interval."""


class AnswerResult(Output, frozen=True, kw_only=True):
    """Result of one answer: the state of the transaction, or a problem."""

    check_id: str
    status: int
    state: str | None = None
    problem: Problem | None = None


class AnswersResult(Output, frozen=True, kw_only=True):
    """Results of the answers, in the same order."""

    accepted: int
    rejected: int
    results: list[AnswerResult]
