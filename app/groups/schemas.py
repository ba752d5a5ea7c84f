"""Requests and responses about consumer groups: settings, offsets, lag."""

from typing import Annotated, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.consume.schemas import MAX_GENERATION, LeaseMs
from app.messages.schemas import MAX_DELAY_MS, MAX_ENTRIES, KeyOf, KeysOf, Offset, Timestamp
from app.named_schemas import Int32, Texts, open_set
from app.topics.schemas import TopicName
from app.word_sets import GROUP_START, PUSH_FORMAT, GroupStart, PushFormat, ResetTarget
from delivery.filters.filters import MAX_EXPRESSION_BYTES, FilterKind
from delivery.groups import ATTEMPTS, BACKOFF_MS, MOST_ATTEMPTS, GroupRules
from delivery.push import MOST_CONCURRENT

DEFAULT = GroupRules()
MAX_TOPICS = 100
MAX_SKIP_LAG = 1_000_000_000
MIN_SESSION_MS, MAX_SESSION_MS = 1_000, 3_600_000
MAX_ROOMS = 10_000
MemberId = Annotated[str, Meta(min_length=1, max_length=255)]
QueueNumber = Annotated[int, Meta(ge=0, le=1_023)]

FILTER_KIND = open_set(
    "FilterKind",
    get_args(FilterKind),
    "tag: tags joined by `||`. sql92: a condition over properties.",
)


class FilterInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The filter of a subscription. It belongs to the group: all its consumers share it."""

    kind: Annotated[FilterKind, FILTER_KIND] = "tag"
    expression: Annotated[
        str,
        Meta(
            max_length=MAX_EXPRESSION_BYTES,
            description="`paid || created`, or with sql92 `amount > 100`.",
        ),
    ]


class SubscriptionInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic that the group reads."""

    topic: TopicName
    filter: FilterInput | UnsetType = UNSET


class PushInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where the messages of the group are sent, one by one. Every 2xx acknowledges a message.

    Omitted fields keep their value; in a new push, and with `If-Match`, they get their default.
    """

    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2_048,
            description="URL that messages are sent to: https, a public address, port 443.",
        ),
    ]
    timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=60_000,
                description="Limit for one try, from the DNS lookup to the last byte. Default: "
                "15000.",
            ),
        ]
        | UnsetType
    ) = UNSET
    concurrency: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MOST_CONCURRENT,
                description="Maximum number of messages on their way to the endpoint. Default: 4.",
            ),
        ]
        | UnsetType
    ) = UNSET
    format: Annotated[PushFormat, Meta(description="Default: message.")] | UnsetType = UNSET


class GroupInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings of a consumer group.

    Omitted fields keep their value; in a new group, and with `If-Match`, they get their default.
    """

    topics: (
        Annotated[
            list[SubscriptionInput],
            Meta(
                max_length=MAX_TOPICS,
                description="All topics that the group reads. An omitted filter keeps its value. "
                "Default: none.",
            ),
        ]
        | UnsetType
    ) = UNSET
    start: (
        Annotated[
            GroupStart,
            Meta(
                description="Where the group starts in a queue without an offset. Default: "
                "earliest."
            ),
        ]
        | UnsetType
    ) = UNSET
    start_at: (
        Annotated[Timestamp, Meta(description="Required with `time`, and not allowed otherwise.")]
        | UnsetType
    ) = UNSET
    lease_ms: (
        Annotated[
            LeaseMs, Meta(description=f"How long a message is leased. Default: {DEFAULT.lease_ms}.")
        ]
        | UnsetType
    ) = UNSET
    max_attempts: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MOST_ATTEMPTS,
                description=f"Maximum number of deliveries of a message. Default: {ATTEMPTS}.",
            ),
        ]
        | UnsetType
    ) = UNSET
    backoff_ms: (
        Annotated[
            list[Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]],
            Meta(
                min_length=1,
                max_length=100,
                description="How long the nth retry waits; the last value repeats. Default: "
                f"{list(BACKOFF_MS)}.",
            ),
        ]
        | UnsetType
    ) = UNSET
    dead_letter: (
        Annotated[
            bool,
            Meta(
                description=(
                    "Keep messages that have used up their attempts. Otherwise they are dropped, "
                    "with an "
                    "event in the log. Default: true."
                )
            ),
        ]
        | UnsetType
    ) = UNSET
    ordered: (
        Annotated[
            bool,
            Meta(
                description="Lease one message at a time for each ordering key; a retry blocks "
                "its key. Default: false."
            ),
        ]
        | UnsetType
    ) = UNSET
    skip_lag_over: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MAX_SKIP_LAG,
                description="In each queue, skip undelivered messages that are further than this "
                "from its end.",
            ),
        ]
        | UnsetType
    ) = UNSET
    skip_older_than_ms: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MAX_DELAY_MS,
                description="Skip undelivered messages that were stored longer ago than this.",
            ),
        ]
        | UnsetType
    ) = UNSET

    session_timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=MIN_SESSION_MS,
                le=MAX_SESSION_MS,
                description="A member without a heartbeat for this long loses its queues, where it "
                f"asks for no other time. Default: {DEFAULT.session_timeout_ms}.",
            ),
        ]
        | UnsetType
    ) = UNSET
    queue_rooms: (
        Annotated[
            Texts,
            Meta(
                max_length=MAX_ROOMS,
                description="For strategy `machine_room`: the room of a queue, by "
                "`topic/queue_id`. Default: none.",
            ),
        ]
        | UnsetType
    ) = UNSET
    push: (
        Annotated[
            PushInput,
            Meta(
                description="A webhook that the messages are sent to; then nothing else receives "
                "them. Default: none."
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
                description="Your own secret for signing what is pushed: whsec_ and the base64 of "
                "24 to 64 random bytes. It is in no response. Another secret replaces the present "
                "one; both sign for a day. Default: the present one, or one that the service "
                "makes.",
            ),
        ]
        | UnsetType
    ) = UNSET


class Filter(msgspec.Struct, kw_only=True):
    """The filter of a subscription: which messages of the topic the group receives."""

    kind: Annotated[str, FILTER_KIND]
    expression: str


class Subscription(msgspec.Struct, kw_only=True):
    """A topic that the group reads."""

    topic: str
    filter: Filter


class Push(msgspec.Struct, kw_only=True):
    """Where the messages of the group are sent."""

    url: str
    timeout_ms: int
    concurrency: Int32
    format: Annotated[str, PUSH_FORMAT]
    disabled_at: (
        Annotated[
            Timestamp,
            Meta(
                description="The endpoint answered 410 at this time. Nothing is sent there until "
                "the group is updated with `push`."
            ),
        ]
        | UnsetType
    ) = UNSET


class Group(msgspec.Struct, kw_only=True):
    """A consumer group and its settings."""

    group: str
    topics: list[Subscription]
    start: Annotated[str, GROUP_START]
    start_at: Timestamp | UnsetType = UNSET
    lease_ms: int
    max_attempts: Int32
    backoff_ms: list[int]
    dead_letter: bool
    ordered: bool
    skip_lag_over: int | UnsetType = UNSET
    skip_older_than_ms: int | UnsetType = UNSET
    session_timeout_ms: int
    queue_rooms: Texts
    push: Push | UnsetType = UNSET
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
            Timestamp,
            Meta(description="Until this time pushes are also signed with the previous secret."),
        ]
        | UnsetType
    ) = UNSET
    created_at: Timestamp
    revision: Int32


class GroupPage(msgspec.Struct, kw_only=True):
    """Consumer groups in order of name."""

    items: list[Group]
    next_page_token: str | UnsetType = UNSET


class QueueLag(msgspec.Struct, kw_only=True):
    """Lag of a group in one queue, before any filter. Every message below `offset` is settled."""

    topic: str
    queue_id: Int32
    offset: Offset
    max_offset: Offset
    messages_ready: int
    messages_leased: int
    messages_waiting: int
    messages_skipped: int
    messages_damaged: int
    oldest_ready_age_ms: int | UnsetType = UNSET


class Lag(msgspec.Struct, kw_only=True):
    """How far the group is behind. The queues of its retry topic are among `queues` once it has had
    retries.
    """

    messages_ready: int
    messages_leased: int
    messages_waiting: Annotated[
        int,
        Meta(
            description="For their retry, or for their ordering key, which another message holds."
        ),
    ]
    messages_skipped: Annotated[int, Meta(description="Passed over by the group's rules, ever.")]
    messages_damaged: Annotated[
        int,
        Meta(
            description="Not deliverable because their records are damaged, ever; kept as dead "
            "letters."
        ),
    ]
    dead_letters: (
        Annotated[int, Meta(description="Number of dead letters that are kept now.")] | UnsetType
    ) = UNSET
    oldest_ready_age_ms: int | UnsetType = UNSET
    queues: list[QueueLag]


class Lease(msgspec.Struct, kw_only=True):
    """A lease. Topic, queue and offset are those of the message's first delivery."""

    message_id: (
        Annotated[str, Meta(description="Absent where the log can no longer give the message.")]
        | UnsetType
    ) = UNSET
    topic: str
    queue_id: Int32
    queue_offset: Offset
    key: KeyOf | UnsetType = UNSET
    keys: KeysOf | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    attempt: Annotated[Int32, Meta(description="Number of deliveries so far, from 1.")]
    lease_expires_at: Timestamp


class LeasePage(msgspec.Struct, kw_only=True):
    """Leases, by queue and offset."""

    items: list[Lease]
    next_page_token: str | UnsetType = UNSET


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which topic; all of them if left out."""

    topic: TopicName | UnsetType = UNSET
    member_id: (
        Annotated[MemberId, Meta(description="Offsets of this member of a broadcast group.")]
        | UnsetType
    ) = UNSET


class OffsetInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Offset of a group in one queue: the next offset to read."""

    topic: TopicName
    queue_id: Annotated[int, Meta(ge=0, le=1_023)]
    offset: Annotated[int, Meta(ge=0)]


class OffsetsInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Offsets of a group to commit."""

    offsets: Annotated[list[OffsetInput], Meta(min_length=1, max_length=MAX_ENTRIES)]
    member_id: (
        Annotated[
            MemberId,
            Meta(
                description="The member that owns the queues; required while the group has members."
            ),
        ]
        | UnsetType
    ) = UNSET
    generation: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_GENERATION,
                description="Generation of the assignment that the member knows. Offsets of queues "
                "that it lost since are not committed, even if it owns them again.",
            ),
        ]
        | UnsetType
    ) = UNSET


class GroupOffset(msgspec.Struct, kw_only=True):
    """Offset of a group in one queue, and the readable offsets of the queue."""

    topic: str
    queue_id: Int32
    offset: Offset
    min_offset: Offset
    max_offset: Offset


class GroupOffsetList(msgspec.Struct, kw_only=True):
    """All queues in which the group has an offset."""

    items: list[GroupOffset]


class ResetInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The new position of a group in a topic."""

    topic: TopicName
    to: ResetTarget
    at: (
        Annotated[
            str,
            Meta(
                description="With `time`: continue at the first message stored at or after this "
                "time. RFC 3339.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    offset: Annotated[int, Meta(ge=0, description="With `offset`: the new offset.")] | UnsetType = (
        UNSET
    )
    queue_id: (
        Annotated[int, Meta(ge=0, le=1_023, description="Only this queue; required with `offset`.")]
        | UnsetType
    ) = UNSET
    dry_run: Annotated[bool, Meta(description="Return the effect, and change nothing.")] = False


class QueueReset(msgspec.Struct, kw_only=True):
    """Effect of a reset in one queue."""

    queue_id: Int32
    from_offset: Offset
    to_offset: Offset


class ResetResult(msgspec.Struct, kw_only=True):
    """Effect of a reset."""

    dry_run: bool
    queues: list[QueueReset]
    messages_affected: Annotated[
        int, Meta(description="Sum of the differences between old and new offsets.")
    ]
    already_acked: Annotated[
        int, Meta(description="Number of settled messages among these, and behind the old offset.")
    ]
    note: Annotated[
        str,
        Meta(
            description="For people: messages delivered again, messages skipped, leases and "
            "retries ended."
        ),
    ]
