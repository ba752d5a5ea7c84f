"""What goes in and out: transactions."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, MessageInput, Offset, Timestamp, WaitMs
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.topics.schemas import TopicName

_MAX_MS = 1 << 53
CheckMs = Annotated[int, Meta(ge=10, le=_MAX_MS)]
Name = Annotated[str, Meta(min_length=1, max_length=127, description="Letters, digits, `_`, `-`, `.`; no leading dot.")]
Reason = Annotated[str, Meta(max_length=1_024)]


class TransactionMessageInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message that is published when the transaction commits."""

    topic: TopicName
    message: MessageInput


class CheckInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When the producer is asked what became of the transaction, and what happens when nobody can say."""

    first_after_ms: CheckMs = 10_000
    interval_ms: CheckMs = 30_000
    max_answers: Annotated[int, Meta(ge=1, le=1_000, description="Answered unknowns until it is exhausted.")] = 15
    unreachable_limit_ms: Annotated[int, Meta(ge=1, le=_MAX_MS, description="How long a check may stay unanswered.")] = (
        86_400_000
    )
    on_exhausted: Literal["hold", "rollback"] = "hold"


class BeginInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A transaction to be begun: its messages are stored, and seen by nobody before it commits."""

    producer_group: Name
    messages: Annotated[list[TransactionMessageInput], Meta(min_length=1, max_length=MAX_ENTRIES)]
    transaction_id: Name | UnsetType = UNSET
    business_key: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    check: CheckInput = msgspec.field(default_factory=CheckInput)


class TransactionMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of a transaction; where it is, once committed. A delayed one has a schedule then."""

    message_id: str
    topic: str
    schedule_id: str | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET


class Transaction(msgspec.Struct, kw_only=True):
    """A transaction as it is now."""

    transaction_id: str
    state: Annotated[str, Meta(description="prepared, held, committed or rolled_back.")]
    producer_group: str
    business_key: str | UnsetType = UNSET
    messages: list[TransactionMessage]
    prepared_at: Timestamp
    first_check_at: Timestamp
    next_check_at: (
        Annotated[
            str,
            Meta(
                description="Of an open one. One that is held is not asked about until it is resumed.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    answers: Annotated[int, Meta(description="Checks answered unknown since it was begun or resumed.")]
    last_answer: str | UnsetType = UNSET
    last_failure: Annotated[str, Meta(description="Why the last try of the open check gave no answer.")] | UnsetType = UNSET
    hold_reason: Annotated[str, Meta(description="answers_exhausted or unreachable.")] | UnsetType = UNSET
    checking: Annotated[bool, Meta(description="A check is open that its producer has not answered.")]
    late: Annotated[bool, Meta(description="Decided after it had been held.")]
    resolved_by: Annotated[str, Meta(description="producer, check, operator or policy.")] | UnsetType = UNSET
    resolved_at: Timestamp | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    revision: int


class Decision(msgspec.Struct, kw_only=True):
    """What was decided. `replayed`: it had been decided so before."""

    transaction_id: str
    state: str
    resolved_by: str
    resolved_at: Timestamp
    reason: str | UnsetType = UNSET
    replayed: bool
    messages: list[TransactionMessage]


class TransactionSummary(msgspec.Struct, kw_only=True):
    """A transaction in a list."""

    transaction_id: str
    state: str
    producer_group: str
    business_key: str | UnsetType = UNSET
    prepared_at: Timestamp
    age_ms: int
    answers: int
    last_answer: str | UnsetType = UNSET
    hold_reason: str | UnsetType = UNSET
    resolved_by: str | UnsetType = UNSET
    resolved_at: Timestamp | UnsetType = UNSET


class TransactionPage(msgspec.Struct, kw_only=True):
    """Transactions in the order in which they were begun."""

    items: list[TransactionSummary]
    next_page_token: str | UnsetType = UNSET


class GetTransactionQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether to wait until the transaction is no longer prepared, or to look at it as it was."""

    wait_ms: WaitMs = 0
    as_of: (
        Annotated[
            str,
            Meta(
                description="How it stood at this time; not together with wait_ms.", extra_json_schema={"format": "date-time"}
            ),
        ]
        | UnsetType
    ) = UNSET


class ListTransactionsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which transactions."""

    state: Annotated[str, Meta(max_length=100, description="States with commas between; all if left out.")] | UnsetType = UNSET
    producer_group: Name | UnsetType = UNSET
    older_than_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = 0
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class CheckNowInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`dry_run`: ask, and change nothing whatever the answer is."""

    dry_run: bool = False


class CheckNowResult(msgspec.Struct, kw_only=True):
    """What the producer said. A group that is polled is not asked: its work item is due at once."""

    state: Annotated[str, Meta(description="Of the transaction, now.")]
    decision: Annotated[str, Meta(description="commit, rollback, unknown; none: there was no answer.")] | UnsetType = UNSET
    would_change: Annotated[str, Meta(description="With dry_run: what the answer would have changed.")] | UnsetType = UNSET
    latency_ms: int | UnsetType = UNSET
    evidence: dict[str, str] | UnsetType = UNSET
    reason: (
        Annotated[str, Meta(description="Why there was no answer: timeout, unreachable, invalid or disabled.")] | UnsetType
    ) = UNSET
    detail: str | UnsetType = UNSET


class TransactionEvent(msgspec.Struct, kw_only=True):
    """Something that happened to a transaction."""

    at: Timestamp
    event: Annotated[
        str,
        Meta(
            description="half_stored, put_back, check_sent, check_answered, check_failed, held, resumed, committed or "
            "rolled_back; releases to come may add others."
        ),
    ]
    log_offset: Offset | UnsetType = UNSET
    attempt: Annotated[int, Meta(description="Of its check, from 1.")] | UnsetType = UNSET
    via: str | UnsetType = UNSET
    decision: str | UnsetType = UNSET
    latency_ms: int | UnsetType = UNSET
    evidence: dict[str, str] | UnsetType = UNSET
    why: Annotated[str, Meta(description="unreachable or invalid.")] | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    hold_reason: str | UnsetType = UNSET
    by: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class TransactionHistory(msgspec.Struct, kw_only=True):
    """What happened to a transaction, oldest first."""

    items: list[TransactionEvent]


class Explanation(msgspec.Struct, kw_only=True):
    """A transaction in words."""

    summary: str
    facts: list[str]
    next: Annotated[str, Meta(description="What happens next and when, or what to do.")]


class NothingInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No field is taken; the body may be left out."""


class RollbackInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Why."""

    reason: Reason | UnsetType = UNSET


class ResolveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An operator's decision."""

    decision: Literal["commit", "rollback"]
    reason: Reason | UnsetType = UNSET
