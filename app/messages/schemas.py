"""Requests and responses about messages: messages, receipts, pages of a queue.

Limits are here, on the fields, so that the decoder enforces them and the OpenAPI document shows
them.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.named_schemas import Int32, Texts
from app.problems import Problem
from app.word_sets import (
    DURABILITY,
    MESSAGE_STATUS,
    PAYLOAD_ENCODING,
    PULL_RESULT,
    TRACE_EVENT_KIND,
    Durability,
    OutOfRange,
    PayloadEncoding,
    PayloadView,
)

MAX_ENTRIES = 1_000
MAX_BODY_BYTES = 16 << 20
MAX_WAIT_MS = 30_000
MAX_DELAY_MS = 1 << 53
MAX_KEYS = 32

WaitMs = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_WAIT_MS,
        description="How long to wait if there is nothing yet, in milliseconds.",
    ),
]
Timestamp = Annotated[
    str, Meta(description="RFC 3339, UTC, milliseconds.", extra_json_schema={"format": "date-time"})
]
Offset = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
KeyOf = Annotated[str, Meta(description="The key; of several, the first one.")]
KeysOf = Annotated[list[str], Meta(description="All keys, if there are several; otherwise absent.")]


class PayloadInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body and what is said of it. Exactly one of `payload` and `json` holds the body."""

    payload: Annotated[str, Meta(description="The body, as text or base64.")] | UnsetType = UNSET
    payload_encoding: PayloadEncoding = "utf8"
    json: (
        Annotated[Raw, Meta(description="The body as a JSON value; stored without whitespace.")]
        | UnsetType
    ) = UNSET
    content_type: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    properties: (
        Annotated[
            Texts,
            Meta(
                description=(
                    "Properties of the sender. Names and values, with key or keys, tag and "
                    "ordering key, may have 16 KiB in total."
                ),
            ),
        ]
        | UnsetType
    ) = UNSET


class MessageInput(PayloadInput, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to send. Its body is either `payload` or `json`, never both."""

    key: (
        Annotated[
            str,
            Meta(min_length=1, max_length=255, description="A business key; 255 bytes, no spaces."),
        ]
        | UnsetType
    ) = UNSET
    keys: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=255)]],
            Meta(
                min_length=1,
                max_length=MAX_KEYS,
                description="Instead of `key`: business keys, all different. The message is found "
                "by each of them.",
            ),
        ]
        | UnsetType
    ) = UNSET
    tag: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=255, description="For filters; 255 bytes, no spaces, no |."
            ),
        ]
        | UnsetType
    ) = UNSET
    ordering_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="Messages with the same ordering key stay in order; 255 bytes.",
            ),
        ]
        | UnsetType
    ) = UNSET
    queue_id: Annotated[int, Meta(ge=0, le=1_023)] | UnsetType = UNSET
    delay_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_DELAY_MS,
                description="Delay before delivery, at most the topic's max_delay_ms.",
            ),
        ]
        | UnsetType
    ) = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    delay_level: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=18,
                description="Delay as a level of RocketMQ: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, ... "
                "2 h.",
            ),
        ]
        | UnsetType
    ) = UNSET
    require_durability: (
        Annotated[
            Durability,
            Meta(description="Minimum durability before the response is sent."),
        ]
        | UnsetType
    ) = UNSET


class ReplyInput(PayloadInput, forbid_unknown_fields=True, kw_only=True):
    """A reply. Exactly one of `payload` and `json` holds its body."""

    receipt_handle: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1_024,
                description="Receipt handle of the request message, which is acknowledged in the "
                "same step.",
            ),
        ]
        | UnsetType
    ) = UNSET


class Receipt(msgspec.Struct, kw_only=True, gc=False):
    """Where a message was stored, and how durably. A delayed message has a schedule, and no queue
    offset yet.
    """

    message_id: str
    topic: str
    queue_id: Int32 | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    schedule_id: (
        Annotated[
            str, Meta(description="For a delayed message: the id to reschedule or cancel it.")
        ]
        | UnsetType
    ) = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    log_offset: Offset | UnsetType = UNSET
    stored_at: Timestamp
    durability: Annotated[str, DURABILITY]
    copies: (
        Annotated[
            int,
            Meta(
                ge=2,
                description="Where it is replicated: the machines that are known to have it on "
                "disk, this one among them.",
            ),
        ]
        | UnsetType
    ) = UNSET
    deduplicated: bool = False


class BatchEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message of a batch."""

    message: MessageInput
    id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="An id chosen by the client, returned with the result.",
            ),
        ]
        | UnsetType
    ) = UNSET


class BatchInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to send together."""

    entries: Annotated[list[BatchEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    atomic: Annotated[bool, Meta(description="Store all messages in one append, or none.")] = True


class LooseEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A batch entry whose message has not been looked at yet."""

    message: Raw
    id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


class LooseBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A batch whose invalid messages are answered one by one."""

    entries: Annotated[list[LooseEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    atomic: bool = True


class BatchResult(msgspec.Struct, kw_only=True, gc=False):
    """Result of one entry: a receipt or a problem."""

    status: Int32
    id: str | UnsetType = UNSET
    receipt: Receipt | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchSendResult(msgspec.Struct, kw_only=True):
    """Results of a batch, one for each entry, in the same order."""

    accepted: Int32
    rejected: Int32
    results: list[BatchResult]


PayloadProblem = Annotated[
    str,
    Meta(
        description="Why there is no payload: the code of a problem, `payload_unreadable` if the "
        "body is compressed and cannot be decompressed. Otherwise absent."
    ),
]

OfTransaction = Annotated[
    str, Meta(description="The transaction that the message was sent in; absent if in none.")
]


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A message as it is delivered."""

    message_id: str
    topic: str
    queue_id: Int32
    queue_offset: Offset
    key: KeyOf | UnsetType = UNSET
    keys: KeysOf | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, PAYLOAD_ENCODING] | UnsetType = UNSET
    payload_problem: PayloadProblem | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    transaction_id: OfTransaction | UnsetType = UNSET
    properties: Texts
    born_at: Timestamp
    stored_at: Timestamp


class KnownMessage(msgspec.Struct, kw_only=True):
    """A stored message. A delayed message has a schedule until its delivery, and no queue
    offset.
    """

    message_id: str
    topic: str
    queue_id: Int32 | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    schedule_id: (
        Annotated[
            str, Meta(description="For a delayed message: the id to reschedule or cancel it.")
        ]
        | UnsetType
    ) = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    key: KeyOf | UnsetType = UNSET
    keys: KeysOf | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, PAYLOAD_ENCODING] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    transaction_id: OfTransaction | UnsetType = UNSET
    properties: Texts
    born_at: Timestamp
    stored_at: Timestamp


class MessageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a message is shown."""

    payload: Annotated[PayloadView, Meta(description="Encoding of the body in the response.")] = (
        "auto"
    )


class QueryMessagesQuery(
    MessageQuery, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}
):
    """Which messages to find: those of a topic with a key, or that of a log offset."""

    topic: Annotated[str, Meta(description="Required with `key`.")] | UnsetType = UNSET
    key: (
        Annotated[
            str,
            Meta(min_length=1, max_length=255, description="One whole key. Required with `topic`."),
        ]
        | UnsetType
    ) = UNSET
    log_offset: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=(1 << 63) - 1,
                description="The `log_offset` of a receipt, instead of `topic` and `key`.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | UnsetType
    ) = UNSET
    from_: (
        Annotated[
            str,
            Meta(
                description="Stored at or after this time.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    to: (
        Annotated[
            str,
            Meta(
                description="Stored at or before this time.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class FoundPage(msgspec.Struct, kw_only=True):
    """Messages with a key, newest first; or of a log offset."""

    items: list[Message]
    next_page_token: str | UnsetType = UNSET


class TraceEvent(msgspec.Struct, kw_only=True):
    """An event of a message. Events from `leased` on belong to a group."""

    at: Timestamp | UnsetType = UNSET
    event: Annotated[str, TRACE_EVENT_KIND]
    log_offset: Offset | UnsetType = UNSET
    queue_id: Int32 | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    group: str | UnsetType = UNSET
    attempt: Annotated[Int32, Meta(description="For a lease: the attempt, from 1.")] | UnsetType = (
        UNSET
    )
    worker: (
        Annotated[str, Meta(description="For a lease: the worker, if it gave a name.")] | UnsetType
    ) = UNSET
    reason: (
        Annotated[
            str,
            Meta(
                description="For nacked, released, dead_lettered and discarded: the reason that "
                "the consumer gave."
            ),
        ]
        | UnsetType
    ) = UNSET


class GroupStatus(msgspec.Struct, kw_only=True):
    """Status of a message for a consumer group, by the group's positions and filter of today."""

    group: str
    status: Annotated[str, MESSAGE_STATUS]
    filter: (
        Annotated[str, Meta(description="For filtered: the expression of the group's filter.")]
        | UnsetType
    ) = UNSET
    until: (
        Annotated[
            Timestamp,
            Meta(
                description="For leased, the end of the lease; for waiting, the time of the next "
                "delivery, if it is known."
            ),
        ]
        | UnsetType
    ) = UNSET


class Trace(msgspec.Struct, kw_only=True):
    """The history of a message, in order, and its status for each group that reads its topic."""

    message_id: str
    topic: str
    transaction_id: OfTransaction | UnsetType = UNSET
    schedule_id: (
        Annotated[
            str, Meta(description="For a delayed message: the id to reschedule or cancel it.")
        ]
        | UnsetType
    ) = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    items: list[TraceEvent]
    groups: Annotated[list[GroupStatus], Meta(description="At most 1,000 groups, by name.")]
    told_until: (
        Annotated[
            Timestamp,
            Meta(description="The trace ends at this time: later events were too many to search."),
        ]
        | UnsetType
    ) = UNSET


class PullQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Where to read and how much."""

    offset: Annotated[
        int,
        Meta(ge=0, description="The first offset to read. Default: the beginning of the queue."),
    ] | (UnsetType) = UNSET
    from_: (
        Annotated[
            str,
            Meta(
                description="Instead of an offset: start at the first message stored at or after "
                "this time. RFC 3339.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
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
    tag: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Only messages with this tag: `paid`, `paid || created`, `*`.",
        ),
    ] = "*"
    group: (
        Annotated[
            str,
            Meta(
                max_length=127,
                description="Only messages that the filter of this consumer group selects.",
            ),
        ]
        | UnsetType
    ) = UNSET
    payload: Annotated[PayloadView, Meta(description="Encoding of bodies in the response.")] = (
        "auto"
    )
    out_of_range: (
        Annotated[
            OutOfRange,
            Meta(description="Where to continue if the offset is out of range."),
        ]
        | UnsetType
    ) = UNSET


class MessagePage(msgspec.Struct, kw_only=True):
    """Messages of a queue. Continue at `next_offset`."""

    messages: list[Message]
    next_offset: Offset
    min_offset: Offset
    max_offset: Offset
    result: Annotated[str, PULL_RESULT]
