"""What goes in and out: producer groups, checks, answers."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, Timestamp, WaitMs
from app.problems import Problem


class ProducerGroupInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How the group is asked about its transactions. This release offers `poll`."""

    check_mode: Literal["poll", "webhook"] = "poll"
    check_url: Annotated[str, Meta(max_length=2_048)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType = UNSET


class ProducerGroup(msgspec.Struct, kw_only=True):
    """A producer group."""

    producer_group: str
    check_mode: str
    created_at: Timestamp
    revision: int


class ReceiveChecksInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many work items, how long to wait for one, and for how long they are lent."""

    max_checks: Annotated[int, Meta(ge=1, le=1_000)] = 32
    wait_ms: WaitMs = 0
    lease_ms: Annotated[int, Meta(ge=100, le=43_200_000)] = 15_000


class CheckMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of the transaction that a check asks about."""

    message_id: str
    topic: str
    key: str | UnsetType = UNSET


class Check(msgspec.Struct, kw_only=True):
    """A question: what became of this transaction?"""

    check_id: str
    transaction_id: str
    business_key: str | UnsetType = UNSET
    answer_number: Annotated[int, Meta(description="From 1; answered unknowns since it was begun or resumed, and this one.")]
    prepared_at: Timestamp
    age_ms: int
    messages: list[CheckMessage]
    lease_expires_at: Timestamp


class CheckList(msgspec.Struct, kw_only=True):
    """Checks, oldest first."""

    checks: list[Check]


class AnswerInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What became of it. `unknown` is for a transaction that is still under way."""

    check_id: Annotated[str, Meta(min_length=1, max_length=255)]
    decision: Literal["commit", "rollback", "unknown"]
    evidence: Annotated[dict[str, str], Meta(max_length=32, description="Kept with the answer.")] | UnsetType = UNSET
    recheck_after_ms: (
        Annotated[int, Meta(ge=0, le=86_400_000, description="When to ask again, instead of the interval.")] | UnsetType
    ) = UNSET


class AnswersInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers to checks."""

    answers: Annotated[list[AnswerInput], Meta(min_length=1, max_length=MAX_ENTRIES)]


class AnswerResult(msgspec.Struct, kw_only=True):
    """What became of one answer: the transaction's state, or a problem."""

    check_id: str
    status: int
    state: str | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class AnswersResult(msgspec.Struct, kw_only=True):
    """What became of the answers, in their order."""

    accepted: int
    rejected: int
    results: list[AnswerResult]
