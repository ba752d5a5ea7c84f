"""Transactions, their decisions and their history."""

from datetime import datetime
from typing import Literal

from escrowmq_client.models.base import Input, Output
from escrowmq_client.models.messages import MessageInput


class CheckInput(Input, frozen=True, kw_only=True):
    """When the producer is checked, and what happens if the outcome stays unknown."""

    first_after_ms: int | None = None
    interval_ms: int | None = None
    max_answers: int | None = None
    """Number of `unknown` answers after which checking ends."""
    unreachable_limit_ms: int | None = None
    """Maximum time that a check may stay unanswered."""
    on_exhausted: Literal["hold", "rollback"] | None = None


class TransactionMessageInput(Input, frozen=True):
    """A message that is published when the transaction commits."""

    topic: str
    """Letters, digits, `_`, `-`, `.`; no leading dot; case counts."""
    message: MessageInput


class TransactionMessage(Output, frozen=True, kw_only=True):
    """A message of a transaction. After the commit it has a queue offset, or a schedule if it is
    delayed.
    """

    message_id: str
    topic: str
    schedule_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


class Transaction(Output, frozen=True, kw_only=True):
    """The current state of a transaction."""

    transaction_id: str
    state: str
    """prepared, held, committed or rolled_back."""
    producer_group: str
    business_key: str | None = None
    messages: list[TransactionMessage]
    prepared_at: datetime
    first_check_at: datetime
    next_check_at: datetime | None = None
    """For a prepared transaction: time of the next check, or of the open one (`checking`). For a
    held transaction: the time that was set when checking ended, which may be past; it is not
    checked until it is resumed.
    """
    answers: int
    """Number of `unknown` answers since it was begun or resumed."""
    last_answer: str | None = None
    last_failure: str | None = None
    """Why the last attempt of the open check had no answer."""
    hold_reason: str | None = None
    """answers_exhausted or unreachable."""
    checking: bool
    """True if a check is waiting for the producer's answer."""
    late: bool
    """True if it was decided after it had been held."""
    resolved_by: str | None = None
    """producer, check, operator or policy."""
    resolved_at: datetime | None = None
    reason: str | None = None
    revision: int


class TransactionSummary(Output, frozen=True, kw_only=True):
    """A transaction in a list."""

    transaction_id: str
    state: str
    producer_group: str
    business_key: str | None = None
    prepared_at: datetime
    age_ms: int
    answers: int
    last_answer: str | None = None
    hold_reason: str | None = None
    resolved_by: str | None = None
    resolved_at: datetime | None = None


class TransactionPage(Output, frozen=True, kw_only=True):
    """Transactions in the order in which they were begun."""

    items: list[TransactionSummary]
    next_page_token: str | None = None


class Decision(Output, frozen=True, kw_only=True):
    """A decision. `replayed` is true if the same decision had been made before."""

    transaction_id: str
    state: str
    resolved_by: str
    resolved_at: datetime
    reason: str | None = None
    replayed: bool
    messages: list[TransactionMessage]


class CheckNowResult(Output, frozen=True, kw_only=True):
    """The producer's answer.

    A group that polls is not called: its check becomes due immediately.
    """

    state: str
    """Current state of the transaction."""
    decision: str | None = None
    """commit, rollback or unknown; none if there was no answer."""
    would_change: str | None = None
    """With dry_run: the change that the answer would have made."""
    latency_ms: int | None = None
    evidence: dict[str, str] | None = None
    reason: str | None = None
    """Reason why there was no answer: timeout, unreachable, invalid or disabled."""
    detail: str | None = None


class TransactionEvent(Output, frozen=True, kw_only=True):
    """An event of a transaction."""

    at: datetime
    event: str
    """half_stored, put_back, check_sent, check_answered, check_failed, held, resumed, committed or
    rolled_back; later releases may add others.
    """
    log_offset: int | None = None
    attempt: int | None = None
    """For a check: the attempt, from 1."""
    via: str | None = None
    decision: str | None = None
    latency_ms: int | None = None
    evidence: dict[str, str] | None = None
    why: str | None = None
    """unreachable or invalid."""
    detail: str | None = None
    hold_reason: str | None = None
    by: str | None = None
    reason: str | None = None


class TransactionHistory(Output, frozen=True, kw_only=True):
    """The history of a transaction, oldest first."""

    items: list[TransactionEvent]


class Explanation(Output, frozen=True, kw_only=True):
    """An explanation of a transaction in words."""

    summary: str
    facts: list[str]
    next: str
    """The next event and its time, or the action to take."""
