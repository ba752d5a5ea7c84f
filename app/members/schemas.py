"""Requests and responses of the members of consumer groups: joins, heartbeats, locks."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.consume.schemas import MAX_GENERATION
from app.groups.schemas import (
    MAX_SESSION_MS,
    MAX_TOPICS,
    MIN_SESSION_MS,
    MemberId,
    OffsetInput,
    QueueNumber,
    SubscriptionInput,
)
from app.messages.schemas import MAX_ENTRIES, Offset, Timestamp, WaitMs
from app.named_schemas import Int32
from app.topics.schemas import TopicName
from app.word_sets import ASSIGNMENT_STRATEGY, AssignmentStrategy, GroupStart

_MAX_NAME_BYTES = 255
_Queues = Annotated[list["QueueName"], Meta(max_length=MAX_ENTRIES)]


class QueueName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A queue of a topic."""

    topic: TopicName
    queue_id: QueueNumber


class JoinInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A consumer that joins a group as a member.

    Filters belong to the group: another one than the group has is 409.
    """

    client_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=_MAX_NAME_BYTES,
            description="Name of the client, for operators. A client that joins again under its "
            "name gets about the queues that it had.",
        ),
    ]
    topics: Annotated[list[SubscriptionInput], Meta(min_length=1, max_length=MAX_TOPICS)]
    start: (
        Annotated[
            GroupStart,
            Meta(description="Where a new group starts in its queues. Default: earliest."),
        ]
        | UnsetType
    ) = UNSET
    start_at: (
        Annotated[Timestamp, Meta(description="Required with `time`, and not allowed otherwise.")]
        | UnsetType
    ) = UNSET
    strategy: Annotated[
        AssignmentStrategy,
        Meta(description="How queues are shared out. The first member's holds."),
    ] = "average"
    session_timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=MIN_SESSION_MS,
                le=MAX_SESSION_MS,
                description="Without a heartbeat for this long the member loses its queues. "
                "Default: as the group has it.",
            ),
        ]
        | UnsetType
    ) = UNSET
    broadcast: Annotated[
        bool, Meta(description="Every member owns every queue, with offsets of its own.")
    ] = False
    queues: (
        Annotated[_Queues, Meta(description="With `manual`: the queues that the member wants.")]
        | UnsetType
    ) = UNSET
    room: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=_MAX_NAME_BYTES,
                description="With `machine_room`: where the member runs.",
            ),
        ]
        | UnsetType
    ) = UNSET


class OwnedQueue(msgspec.Struct, kw_only=True):
    """A queue of a topic that a member owns, and the offset at which it continues."""

    topic: str
    queue_id: Int32
    offset: Annotated[
        Offset,
        Meta(description="The next to read: the committed offset, or where the group starts."),
    ]


class QueueOfTopic(msgspec.Struct, kw_only=True):
    """A queue of a topic."""

    topic: str
    queue_id: Int32


class Membership(msgspec.Struct, kw_only=True):
    """A new member and the queues it owns."""

    member_id: str
    generation: Annotated[int, Meta(description="Number of the assignment; it rises.")]
    heartbeat_interval_ms: Annotated[int, Meta(description="Send a heartbeat this often.")]
    expires_at: Annotated[Timestamp, Meta(description="When the session ends without a heartbeat.")]
    assignment: list[OwnedQueue]


class HeartbeatInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A sign of life, and how far the member has come."""

    generation: Annotated[
        int, Meta(ge=0, le=MAX_GENERATION, description="Of the assignment that it knows.")
    ]
    wait_ms: WaitMs = 0
    offsets: (
        Annotated[
            list[OffsetInput],
            Meta(max_length=MAX_ENTRIES, description="Offsets to commit: the next to read."),
        ]
        | UnsetType
    ) = UNSET


class Heartbeat(msgspec.Struct, kw_only=True):
    """The present assignment of a member."""

    generation: int
    assignment: list[OwnedQueue]
    revoked: Annotated[
        list[QueueOfTopic],
        Meta(
            description="Queues of the assignment before that it does not own any more. Stop "
            "working on them."
        ),
    ]
    refused: (
        Annotated[
            list[QueueOfTopic],
            Meta(
                description="Queues of the request whose offsets were not committed, since it does "
                "not own them."
            ),
        ]
        | UnsetType
    ) = UNSET
    expires_at: Timestamp


class MemberQueue(msgspec.Struct, kw_only=True):
    """A queue that a member owns, and how far it is behind in it."""

    topic: str
    queue_id: Int32
    locked: Annotated[bool, Meta(description="Does the member hold its lock?")]
    offset: Offset
    lag: Annotated[int, Meta(description="Messages behind the committed offset.")]


class Member(msgspec.Struct, kw_only=True):
    """A member of a group."""

    member_id: str
    client_id: str
    joined_at: Timestamp
    last_heartbeat_at: Timestamp
    expires_at: Timestamp
    strategy: Annotated[str, ASSIGNMENT_STRATEGY]
    broadcast: bool
    room: str | UnsetType = UNSET
    assignment: list[MemberQueue]
    lag: Annotated[int, Meta(description="Of all its queues.")]


class MemberList(msgspec.Struct, kw_only=True):
    """Members of a group, in the order in which they joined."""

    generation: int
    items: list[Member]
    next_page_token: str | UnsetType = UNSET


class LocksInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Queues that a member locks, or gives back."""

    member_id: MemberId
    generation: Annotated[int, Meta(ge=0, le=MAX_GENERATION)] | UnsetType = UNSET
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=MAX_ENTRIES)]


class RefusedLock(msgspec.Struct, kw_only=True):
    """A queue that another member has locked."""

    topic: str
    queue_id: Int32
    owner: Annotated[str, Meta(description="The member that holds the lock.")]


class LockResult(msgspec.Struct, kw_only=True):
    """Queues that are locked now."""

    locked: list[QueueOfTopic]
    refused: list[RefusedLock]
    lock_expires_at: Annotated[
        Timestamp, Meta(description="Renew the locks before, or stop working on the queues.")
    ]


class UnlockResult(msgspec.Struct, kw_only=True):
    """Queues of the request that the member does not lock any more."""

    released: list[QueueOfTopic]
