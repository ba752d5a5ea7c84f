"""Requests and responses about producer groups, checks and their answers."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, KeyOf, Timestamp, WaitMs
from app.named_schemas import Int32, Texts
from app.problems import Problem
from app.word_sets import (
    CHECK_MODE,
    CHECK_TEST_CASE_NAME,
    TRANSACTION_STATE,
    CheckDecision,
    CheckMode,
)


class ProducerGroupInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How the group is checked. All fields except check_mode apply to `webhook`.

    Omitted fields keep their value; in a new group, and with `If-Match`, they get their default.
    """

    check_mode: Annotated[CheckMode, Meta(description="Default: poll.")] | UnsetType = UNSET
    check_url: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=2_048,
                description="URL that checks are sent to: https, a public address, port 443.",
            ),
        ]
        | UnsetType
    ) = UNSET
    timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=60_000,
                description="Limit for one attempt, from the DNS lookup to the last byte. "
                "Default: 15000.",
            ),
        ]
        | UnsetType
    ) = UNSET
    concurrency: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000,
                description="Maximum number of concurrent checks to the host, of all groups. "
                "Default: 4.",
            ),
        ]
        | UnsetType
    ) = UNSET
    signing_secret: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                description="Your own secret for signing checks: whsec_ and the base64 of 24 to 64 "
                "random bytes. It is in no response. Another secret replaces the present one; both "
                "sign for a day. Default: the present one, or one that the service makes.",
            ),
        ]
        | UnsetType
    ) = UNSET


class ProducerGroup(msgspec.Struct, kw_only=True):
    """A producer group and its settings."""

    producer_group: str
    check_mode: Annotated[str, CHECK_MODE]
    check_url: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    concurrency: Int32 | UnsetType = UNSET
    signing_secret: (
        Annotated[
            str,
            Meta(
                description="The secret that the service made. Returned only once, in the response "
                "to the request that made it."
            ),
        ]
        | UnsetType
    ) = UNSET
    previous_secret_expires_at: (
        Annotated[
            str,
            Meta(
                description="Until this time checks are also signed with the previous secret.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    disabled_at: (
        Annotated[
            str,
            Meta(
                description="The endpoint answered 410 at this time. It is not called again until "
                "the group is updated.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    created_at: Timestamp
    revision: Int32


class CheckTestCase(msgspec.Struct, kw_only=True):
    """A test case and its result."""

    case: Annotated[str, CHECK_TEST_CASE_NAME]
    expected: str
    got: Annotated[
        str,
        Meta(
            description="commit, rollback or unknown; or the reason why there was no valid answer."
        ),
    ]
    passed: bool
    latency_ms: Annotated[int, Meta(description="Absent if nothing was sent.")] | UnsetType = UNSET


class CheckTestResult(msgspec.Struct, kw_only=True):
    """Whether an endpoint follows the contract of checks. `passed`: in every case."""

    passed: bool
    cases: list[CheckTestCase]


class ReceiveChecksInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Maximum number of checks, how long to wait for one, and their lease time."""

    max_checks: Annotated[int, Meta(ge=1, le=1_000)] = 32
    wait_ms: WaitMs = 0
    lease_ms: Annotated[int, Meta(ge=100, le=43_200_000)] = 15_000


class CheckMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of the transaction that a check asks about."""

    message_id: str
    topic: str
    key: KeyOf | UnsetType = UNSET


class Check(msgspec.Struct, kw_only=True):
    """A check: asks the producer for the outcome of a transaction."""

    check_id: str
    transaction_id: str
    business_key: str | UnsetType = UNSET
    answer_number: Annotated[
        Int32,
        Meta(
            description="From 1: the number of this answer, counted since the transaction was "
            "begun or resumed."
        ),
    ]
    prepared_at: Timestamp
    age_ms: int
    messages: list[CheckMessage]
    lease_expires_at: Timestamp


class CheckList(msgspec.Struct, kw_only=True):
    """Checks of transactions, oldest first."""

    checks: list[Check]


class AnswerInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The outcome of a transaction. Answer `unknown` while the transaction is still in progress."""

    check_id: Annotated[str, Meta(min_length=1, max_length=255)]
    decision: CheckDecision
    evidence: (
        Annotated[
            Texts, Meta(max_length=32, description="At most 32 texts; stored with the answer.")
        ]
        | UnsetType
    ) = UNSET
    recheck_after_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=86_400_000,
                description="Delay before the next check, instead of the interval.",
            ),
        ]
        | UnsetType
    ) = UNSET


class AnswersInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers to checks of transactions."""

    answers: Annotated[list[AnswerInput], Meta(min_length=1, max_length=MAX_ENTRIES)]


class AnswerResult(msgspec.Struct, kw_only=True):
    """Result of one answer: the state of the transaction, or a problem."""

    check_id: str
    status: Int32
    state: Annotated[str, TRANSACTION_STATE] | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class AnswersResult(msgspec.Struct, kw_only=True):
    """Results of the answers, in the same order. The status is 200 if every answer was accepted,
    otherwise 207, also if all were rejected.
    """

    accepted: Int32
    rejected: Int32
    results: list[AnswerResult]
