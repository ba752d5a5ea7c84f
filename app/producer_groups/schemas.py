"""What goes in and out: producer groups, checks, answers."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, Timestamp, WaitMs
from app.problems import Problem


class ProducerGroupInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How the group is asked about its transactions. All but check_mode goes with `webhook`.

    A field that is left out keeps its value; in a new group, and with `If-Match`, it gets its default.
    """

    check_mode: Annotated[Literal["poll", "webhook"], Meta(description="Default: poll.")] | UnsetType = UNSET
    check_url: (
        Annotated[str, Meta(min_length=1, max_length=2_048, description="Where checks are sent: https, public, port 443.")]
        | UnsetType
    ) = UNSET
    timeout_ms: (
        Annotated[
            int, Meta(ge=1, le=60_000, description="For one try, from the lookup of the name to the last byte. Default: 15000.")
        ]
        | UnsetType
    ) = UNSET
    concurrency: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000,
                description="A check is sent while its host has fewer under way, of whichever group. Default: 4.",
            ),
        ]
        | UnsetType
    ) = UNSET


class ProducerGroup(msgspec.Struct, kw_only=True):
    """A producer group."""

    producer_group: str
    check_mode: str
    check_url: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    signing_secret: (
        Annotated[str, Meta(description="Shown once: in the answer to the request that made it, and never again.")] | UnsetType
    ) = UNSET
    previous_secret_expires_at: (
        Annotated[
            str,
            Meta(description="The secret before this one signs too until then.", extra_json_schema={"format": "date-time"}),
        ]
        | UnsetType
    ) = UNSET
    disabled_at: (
        Annotated[
            str,
            Meta(
                description="The endpoint said 410: it is not asked any more, until the group is put again.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    created_at: Timestamp
    revision: int


class RotateSecretInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No field is taken; the body may be left out."""


class CheckTestInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No field is taken; the body may be left out."""


class CheckTestCase(msgspec.Struct, kw_only=True):
    """A made-up question, and what came of it."""

    case: Annotated[
        str,
        Meta(
            description="never_seen, asked_again, very_old, wrong_signature or old_timestamp; releases to come may add others."
        ),
    ]
    expected: str
    got: Annotated[str, Meta(description="commit, rollback or unknown; or why it is no answer.")]
    passed: bool
    latency_ms: Annotated[int, Meta(description="Missing where nothing was sent.")] | UnsetType = UNSET


class CheckTestResult(msgspec.Struct, kw_only=True):
    """Whether an endpoint keeps the contract of checks. `passed`: in every case."""

    passed: bool
    cases: list[CheckTestCase]


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
