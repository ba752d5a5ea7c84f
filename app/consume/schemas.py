"""Requests and responses of consumers: leased messages, and their settlement."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import (
    MAX_BODY_BYTES,
    MAX_DELAY_MS,
    MAX_ENTRIES,
    Message,
    Timestamp,
    WaitMs,
)
from app.named_schemas import Int32
from app.problems import Problem
from app.word_sets import PayloadView, ReceiveFormat

LeaseMs = Annotated[int, Meta(ge=100, le=43_200_000, description="Lease time in milliseconds.")]
Handle = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_024,
        description="The receipt handle that was delivered with the message.",
    ),
]
MAX_GENERATION = (1 << 53) - 1  # a double holds it
Reason = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=500,
        description="A reason for people to read; stored with the message.",
    ),
]


WorkerName = Annotated[
    str,
    Meta(min_length=1, max_length=255, description="Name of the worker; stored with the lease."),
]


class ReceiveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Maximum number of messages, how long to wait for one, and their lease time."""

    max_messages: Annotated[int, Meta(ge=1, le=1_000)] = 32
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_BODY_BYTES,
            description="Maximum size of all bodies; at least one message is returned.",
        ),
    ] = 1 << 20
    wait_ms: WaitMs = 0
    lease_ms: LeaseMs | UnsetType = UNSET
    worker: WorkerName | UnsetType = UNSET
    attempt_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description=(
                    "Makes the request repeatable after a lost response: the same id returns the "
                    "same messages and leases."
                ),
            ),
        ]
        | UnsetType
    ) = UNSET
    payload: PayloadView = "auto"
    format: ReceiveFormat = "message"


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many messages may be unacknowledged, and for how long each is leased."""

    credit: Annotated[
        int, Meta(ge=1, le=1_000, description="Maximum number of unacknowledged messages.")
    ] = 32
    lease_ms: LeaseMs | UnsetType = UNSET
    worker: WorkerName | UnsetType = UNSET
    payload: PayloadView = "auto"


class ReceivedMessage(Message, kw_only=True, gc=False):
    """A message under a lease. Topic, queue and offset are those of its first delivery, also in a
    retry.
    """

    attempt: Annotated[
        Int32,
        Meta(
            description="Number of deliveries so far, from 1, without those that were given back "
            "unprocessed."
        ),
    ]
    receipt_handle: Annotated[
        str, Meta(description="Settles the message; valid only for this lease.")
    ]
    lease_expires_at: Timestamp
    request_id: (
        Annotated[str, Meta(description="For a request: the id to reply to.")] | UnsetType
    ) = UNSET
    reply_by: (
        Annotated[Timestamp, Meta(description="For a request: the deadline for the reply.")]
        | UnsetType
    ) = UNSET


class ReceivedMessages(msgspec.Struct, kw_only=True):
    """Messages under leases; empty if there are none."""

    server_time: Annotated[Timestamp, Meta(description="Compare lease_expires_at with this time.")]
    messages: list[ReceivedMessage]
    events: (
        Annotated[
            list[dict[str, Any]],
            Meta(
                description="With format `cloudevents`, in place of `messages`: CloudEvents in "
                "their JSON format, with `leasehandle` and `attempt`."
            ),
        ]
        | UnsetType
    ) = UNSET


class AckEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to acknowledge."""

    receipt_handle: Handle


class AckInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The messages to acknowledge."""

    entries: Annotated[list[AckEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    member_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="The member that acknowledges, where it is one.",
            ),
        ]
        | UnsetType
    ) = UNSET
    generation: (
        Annotated[
            int,
            Meta(ge=0, le=MAX_GENERATION, description="Of the assignment that the member knows."),
        ]
        | UnsetType
    ) = UNSET


class NackEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to reject."""

    receipt_handle: Handle
    delay_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_DELAY_MS,
                description="Delay before the next delivery. Default: the backoff of the group; 0 "
                "if unprocessed.",
            ),
        ]
        | UnsetType
    ) = UNSET
    reason: Reason | UnsetType = UNSET
    unprocessed: Annotated[
        bool,
        Meta(
            description="True if the message was not processed: the attempt does not count, and "
            "the message does not become a dead letter."
        ),
    ] = False


class NackInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to reject. They are delivered again, or become dead letters after their last
    attempt.
    """

    entries: Annotated[list[NackEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class ExtendEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A lease to extend."""

    receipt_handle: Handle
    lease_ms: (
        Annotated[
            int,
            Meta(
                ge=100,
                le=43_200_000,
                description="New lease time, counted from now. Default: the lease time of the "
                "group.",
            ),
        ]
        | UnsetType
    ) = UNSET


class ExtendInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The leases to extend."""

    entries: Annotated[list[ExtendEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class DeadLetterEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to move to the dead letters."""

    receipt_handle: Handle
    reason: Reason | UnsetType = UNSET


class DeadLetterInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to move to the dead letters."""

    entries: Annotated[list[DeadLetterEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class SettleResult(msgspec.Struct, kw_only=True, gc=False):
    """Result of one entry."""

    receipt_handle: str
    status: Int32
    lease_expires_at: Timestamp | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class SettleResults(msgspec.Struct, kw_only=True):
    """Results of the entries, in the same order. The status is 200 if every entry was accepted,
    otherwise 207, also if all were rejected.
    """

    accepted: Int32
    rejected: Int32
    results: list[SettleResult]
