"""Requests and responses about topics and their queues."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import MAX_BODY_BYTES, Offset, Timestamp
from app.named_schemas import Int32, open_set
from app.registry.topics import ALL_TYPES, DAY_MS, MIB, NAME_PATTERN, MessageType
from app.word_sets import SchemaKind, SchemaMode

_MAX_MS = 1 << 53

MESSAGE_TYPE = open_set("MessageType", ALL_TYPES, "Type of messages that a topic accepts.")

TopicName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=127,
        description="Letters, digits, `_`, `-`, `.`; no leading dot; case counts.",
        extra_json_schema={"pattern": NAME_PATTERN},
    ),
]


class TopicSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON Schema for the messages of a topic.

    With `mode` enforce, a message that is not JSON or does not match is rejected.
    """

    kind: SchemaKind = "json_schema"
    mode: SchemaMode = "enforce"
    json: Annotated[
        Raw,
        Meta(
            description="A JSON Schema of up to 64 KiB, draft 2020-12 unless its `$schema` says "
            "4, 6, 7 or 2019-09. References "
            "stay inside of it; patterns have no look-around and no back-references."
        ),
    ]


class TopicDefinition(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The settings of a topic."""

    queues: Annotated[int, Meta(ge=1, le=1_024)] = 4
    message_types: Annotated[
        list[Annotated[MessageType, MESSAGE_TYPE]],
        Meta(
            min_length=1,
            max_length=4,
            description="Types of messages that the topic accepts. Default: all.",
        ),
    ] = msgspec.field(default_factory=lambda: list(ALL_TYPES))
    retention_ms: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=_MAX_MS,
                description=(
                    "Minimum time for which messages are kept. Retention deletes whole segments "
                    "of the "
                    "log, which hold messages of all topics. The longest retention of any topic "
                    "therefore "
                    "applies to all topics, or the retention of the service if that is longer. "
                    "Default: "
                    "the retention of the service, three days unless configured."
                ),
            ),
        ]
        | UnsetType
    ) = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_BODY_BYTES)] = 4 * MIB
    dedup_window_ms: Annotated[
        int, Meta(ge=0, le=_MAX_MS, description="How long an Idempotency-Key is remembered.")
    ] = DAY_MS
    max_delay_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = 30 * DAY_MS
    schema: TopicSchema | UnsetType = UNSET


class TopicInput(TopicDefinition, forbid_unknown_fields=True, kw_only=True):
    """A topic to create."""

    topic: TopicName


class TopicChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings to change. Omitted fields keep their value."""

    queues: (
        Annotated[int, Meta(ge=1, le=1_024, description="The number of queues can only grow.")]
        | UnsetType
    ) = UNSET
    message_types: (
        Annotated[list[Annotated[MessageType, MESSAGE_TYPE]], Meta(min_length=1, max_length=4)]
        | UnsetType
    ) = UNSET
    retention_ms: Annotated[int, Meta(ge=1, le=_MAX_MS)] | UnsetType = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_BODY_BYTES)] | UnsetType = UNSET
    dedup_window_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] | UnsetType = UNSET
    max_delay_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] | UnsetType = UNSET
    schema: TopicSchema | UnsetType = UNSET


class Topic(msgspec.Struct, kw_only=True):
    """A topic and its settings."""

    topic: str
    queues: Int32
    message_types: list[Annotated[str, MESSAGE_TYPE]]
    retention_ms: int
    max_message_bytes: int
    dedup_window_ms: int
    max_delay_ms: int
    schema: TopicSchema | UnsetType = UNSET
    created_at: Timestamp
    revision: Int32


class TopicPage(msgspec.Struct, kw_only=True):
    """Topics in order of name."""

    items: list[Topic]
    next_page_token: str | UnsetType = UNSET


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which piece of a list."""

    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class TopicStats(msgspec.Struct, kw_only=True):
    """Metrics of a topic."""

    topic: str
    queues: Int32
    messages: Annotated[
        int, Meta(description="Number of readable messages.", extra_json_schema={"format": "int64"})
    ]
    messages_ever: Annotated[
        int,
        Meta(
            description="Number of messages ever stored, including expired ones.",
            extra_json_schema={"format": "int64"},
        ),
    ]
    groups: Annotated[list[str], Meta(description="Consumer groups that read the topic.")]


class DeleteTopicQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to delete a topic."""

    dry_run: Annotated[
        bool, Meta(description="Return what would be deleted, and change nothing.")
    ] = False
    force: Annotated[
        bool,
        Meta(
            description="Roll back the open transactions that name the topic, and end its "
            "subscriptions and schedules."
        ),
    ] = False


class TopicUse(msgspec.Struct, kw_only=True):
    """A topic's queues and messages, and the counts of what refers to it."""

    topic: str
    queues: Int32
    messages: Annotated[
        int, Meta(description="Number of readable messages.", extra_json_schema={"format": "int64"})
    ]
    groups: Annotated[Int32, Meta(description="Number of consumer groups that read it.")]
    open_transactions: Annotated[
        Int32, Meta(description="Number of undecided transactions with messages to it.")
    ]
    schedules: Annotated[
        Int32,
        Meta(description="Number of its delayed messages that wait, and of its cron schedules."),
    ]


class Queue(msgspec.Struct, kw_only=True):
    """A queue of a topic and its readable offsets."""

    queue_id: Int32
    min_offset: Offset
    max_offset: Offset


class QueueList(msgspec.Struct, kw_only=True):
    """The queues of a topic, by number."""

    items: list[Queue]


class OffsetQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Time whose offsets are searched."""

    at: Annotated[str, Meta(description="RFC 3339.", extra_json_schema={"format": "date-time"})]


class QueuePosition(msgspec.Struct, kw_only=True):
    """The first message stored at or after the given time.

    If there is none: the end of the queue, without `stored_at`.
    """

    queue_id: Int32
    offset: Offset
    stored_at: Timestamp | UnsetType = UNSET
