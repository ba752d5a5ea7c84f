"""Requests and responses about transactions."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import MAX_ENTRIES, MessageInput, Offset, Timestamp, WaitMs
from app.named_schemas import Int32, Texts
from app.topics.schemas import TopicName
from app.word_sets import (
    CHECK_DECISION,
    CHECK_MODE,
    CHECK_OUTCOME,
    HOLD_REASON,
    NO_ANSWER_REASON,
    RESOLVER,
    TRANSACTION_EVENT_KIND,
    TRANSACTION_STATE,
    OnExhausted,
    OperatorDecision,
)

_MAX_MS = 1 << 53
CheckMs = Annotated[int, Meta(ge=10, le=_MAX_MS)]
Name = Annotated[
    str,
    Meta(
        min_length=1, max_length=127, description="Letters, digits, `_`, `-`, `.`; no leading dot."
    ),
]
Reason = Annotated[str, Meta(max_length=1_024)]


class TransactionMessageInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message that is published when the transaction commits."""

    topic: TopicName
    message: MessageInput


class CheckInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When the producer is checked, and what happens if the outcome stays unknown."""

    first_after_ms: CheckMs = 10_000
    interval_ms: CheckMs = 30_000
    max_answers: Annotated[
        int,
        Meta(ge=1, le=1_000, description="Number of `unknown` answers after which checking ends."),
    ] = 15
    unreachable_limit_ms: Annotated[
        int, Meta(ge=1, le=_MAX_MS, description="Maximum time that a check may stay unanswered.")
    ] = 86_400_000
    on_exhausted: OnExhausted = "hold"


class BeginInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A transaction to begin. Its messages are stored, and no consumer sees them before the
    commit.
    """

    producer_group: Name
    messages: Annotated[list[TransactionMessageInput], Meta(min_length=1, max_length=MAX_ENTRIES)]
    transaction_id: Name | UnsetType = UNSET
    business_key: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    check: CheckInput = msgspec.field(default_factory=CheckInput)


class TransactionMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of a transaction. After the commit it has a queue offset, or a schedule if it is
    delayed.
    """

    message_id: str
    topic: str
    schedule_id: str | UnsetType = UNSET
    queue_id: Int32 | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET


class Transaction(msgspec.Struct, kw_only=True):
    """The current state of a transaction."""

    transaction_id: str
    state: Annotated[str, TRANSACTION_STATE]
    producer_group: str
    business_key: str | UnsetType = UNSET
    messages: list[TransactionMessage]
    prepared_at: Timestamp
    first_check_at: Timestamp
    next_check_at: (
        Annotated[
            str,
            Meta(
                description=(
                    "For a prepared transaction: time of the next check, or of the open one "
                    "(`checking`). For a held transaction: the time that was set when checking "
                    "ended, which may be past; it is not checked until it is resumed."
                ),
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    answers: Annotated[
        Int32, Meta(description="Number of `unknown` answers since it was begun or resumed.")
    ]
    last_answer: Annotated[str, CHECK_DECISION] | UnsetType = UNSET
    last_failure: (
        Annotated[str, Meta(description="Why the last attempt of the open check had no answer.")]
        | UnsetType
    ) = UNSET
    hold_reason: Annotated[str, HOLD_REASON] | UnsetType = UNSET
    checking: Annotated[
        bool, Meta(description="True if a check is waiting for the producer's answer.")
    ]
    late: Annotated[bool, Meta(description="True if it was decided after it had been held.")]
    resolved_by: Annotated[str, RESOLVER] | UnsetType = UNSET
    resolved_at: Timestamp | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    revision: Int32


class Decision(msgspec.Struct, kw_only=True):
    """A decision. `replayed` is true if the same decision had been made before."""

    transaction_id: str
    state: Annotated[str, TRANSACTION_STATE]
    resolved_by: Annotated[str, RESOLVER]
    resolved_at: Timestamp
    reason: str | UnsetType = UNSET
    replayed: bool
    messages: list[TransactionMessage]


class TransactionSummary(msgspec.Struct, kw_only=True):
    """A transaction in a list."""

    transaction_id: str
    state: Annotated[str, TRANSACTION_STATE]
    producer_group: str
    business_key: str | UnsetType = UNSET
    prepared_at: Timestamp
    age_ms: int
    answers: Int32
    last_answer: Annotated[str, CHECK_DECISION] | UnsetType = UNSET
    hold_reason: Annotated[str, HOLD_REASON] | UnsetType = UNSET
    resolved_by: Annotated[str, RESOLVER] | UnsetType = UNSET
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
                description="Return the state at this time, without a wait.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET


class ListTransactionsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The filter of transactions, and the page."""

    state: (
        Annotated[str, Meta(max_length=100, description="Comma-separated states. Default: all.")]
        | UnsetType
    ) = UNSET
    producer_group: Name | UnsetType = UNSET
    business_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="The whole business key that was given at the begin. Transactions that "
                "only the log has follow the others, the latest decision first; a page of these "
                "may have fewer items.",
            ),
        ]
        | UnsetType
    ) = UNSET
    older_than_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = 0
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class CheckNowInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """With `dry_run` the producer is checked, but its answer changes nothing."""

    dry_run: bool = False


class CheckNowResult(msgspec.Struct, kw_only=True):
    """The producer's answer. A group that polls is not called: its check becomes due
    immediately.
    """

    state: Annotated[str, TRANSACTION_STATE, Meta(description="Current state of the transaction.")]
    decision: Annotated[str, CHECK_OUTCOME] | UnsetType = UNSET
    would_change: (
        Annotated[
            str, Meta(description="With dry_run: the change that the answer would have made.")
        ]
        | UnsetType
    ) = UNSET
    latency_ms: int | UnsetType = UNSET
    evidence: Texts | UnsetType = UNSET
    reason: Annotated[str, NO_ANSWER_REASON] | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class TransactionEvent(msgspec.Struct, kw_only=True):
    """An event of a transaction."""

    at: Timestamp
    event: Annotated[str, TRANSACTION_EVENT_KIND]
    log_offset: Offset | UnsetType = UNSET
    attempt: Annotated[Int32, Meta(description="For a check: the attempt, from 1.")] | UnsetType = (
        UNSET
    )
    via: Annotated[str, CHECK_MODE] | UnsetType = UNSET
    decision: Annotated[str, CHECK_DECISION] | UnsetType = UNSET
    latency_ms: int | UnsetType = UNSET
    evidence: Texts | UnsetType = UNSET
    why: Annotated[str, NO_ANSWER_REASON] | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    hold_reason: Annotated[str, HOLD_REASON] | UnsetType = UNSET
    by: Annotated[str, RESOLVER] | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class TransactionHistory(msgspec.Struct, kw_only=True):
    """The history of a transaction, oldest first."""

    items: list[TransactionEvent]


class Explanation(msgspec.Struct, kw_only=True):
    """An explanation of a transaction in words."""

    summary: str
    facts: list[str]
    next: Annotated[str, Meta(description="The next event and its time, or the action to take.")]


class RollbackInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The reason for the rollback."""

    reason: Reason | UnsetType = UNSET


class ResolveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The decision of an operator."""

    decision: OperatorDecision
    reason: Reason | UnsetType = UNSET
