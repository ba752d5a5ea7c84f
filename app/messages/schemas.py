"""What goes in and out: messages, receipts, pages of a queue.

Limits stand here, on the fields, so that the decoder enforces them and the OpenAPI document shows them.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.problems import Problem

MAX_ENTRIES = 1_000
MAX_BODY_BYTES = 16 << 20
MAX_WAIT_MS = 30_000
MAX_DELAY_MS = 1 << 53

WaitMs = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS, description="How long to wait for something new, in milliseconds.")]
PayloadForm = Literal["auto", "utf8", "base64", "omit"]
Timestamp = Annotated[str, Meta(description="RFC 3339, UTC, milliseconds.", extra_json_schema={"format": "date-time"})]
Offset = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]


class PayloadInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body and what is said of it. Exactly one of `payload` and `json` holds the body."""

    payload: Annotated[str, Meta(description="The body, as text or base64.")] | UnsetType = UNSET
    payload_encoding: Literal["utf8", "base64"] = "utf8"
    json: Annotated[Raw, Meta(description="The body as any JSON value; stored without white space.")] | UnsetType = UNSET
    content_type: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    properties: (
        Annotated[
            dict[str, str], Meta(description="The sender's own; 16 KiB with key, tag and ordering key, names and values.")
        ]
        | UnsetType
    ) = UNSET


class MessageInput(PayloadInput, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to be sent. Exactly one of `payload` and `json` holds its body."""

    key: Annotated[str, Meta(min_length=1, max_length=255, description="A business key; 255 bytes, no spaces.")] | UnsetType = (
        UNSET
    )
    tag: (
        Annotated[str, Meta(min_length=1, max_length=255, description="For filters; 255 bytes, no spaces, no |.")] | UnsetType
    ) = UNSET
    ordering_key: (
        Annotated[str, Meta(min_length=1, max_length=255, description="Messages of one stay in order; 255 bytes.")] | UnsetType
    ) = UNSET
    queue_id: Annotated[int, Meta(ge=0, le=1_023)] | UnsetType = UNSET
    delay_ms: (
        Annotated[int, Meta(ge=0, le=MAX_DELAY_MS, description="Deliver so much later; at most the topic's max_delay_ms.")]
        | UnsetType
    ) = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    delay_level: (
        Annotated[
            int, Meta(ge=1, le=18, description="RocketMQ's names for delays: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, ... 2 h.")
        ]
        | UnsetType
    ) = UNSET
    require_durability: (
        Annotated[Literal["synced", "buffered"], Meta(description="The least that will do before the answer.")] | UnsetType
    ) = UNSET


class ReplyInput(PayloadInput, forbid_unknown_fields=True, kw_only=True):
    """A reply. Exactly one of `payload` and `json` holds its body."""

    receipt_handle: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=1_024, description="Of the request's message, which is acknowledged in the same step."
            ),
        ]
        | UnsetType
    ) = UNSET


class Receipt(msgspec.Struct, kw_only=True, gc=False):
    """Where a message was stored, and how sure that is. A delayed one has no place in the topic yet, but a schedule."""

    message_id: str
    topic: str
    queue_id: int | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    schedule_id: Annotated[str, Meta(description="Of a delayed message: what it is moved and cancelled by.")] | UnsetType = (
        UNSET
    )
    deliver_at: Timestamp | UnsetType = UNSET
    log_offset: Offset | UnsetType = UNSET
    stored_at: Timestamp
    durability: Annotated[str, Meta(description="synced: survives a power loss; buffered: survives a killed process.")]
    deduplicated: bool = False


class BatchEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message of a batch."""

    message: MessageInput
    id: Annotated[str, Meta(min_length=1, max_length=255, description="Comes back with the result.")] | UnsetType = UNSET


class BatchInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to be sent together."""

    entries: Annotated[list[BatchEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    atomic: Annotated[bool, Meta(description="All or nothing, in one append.")] = True


class LooseEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A batch entry whose message has not been looked at yet."""

    message: Raw
    id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


class LooseBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A batch in which the wrong messages are to be told from the right ones."""

    entries: Annotated[list[LooseEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    atomic: bool = True


class BatchResult(msgspec.Struct, kw_only=True, gc=False):
    """What became of one entry: a receipt or a problem."""

    status: int
    id: str | UnsetType = UNSET
    receipt: Receipt | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchSendResult(msgspec.Struct, kw_only=True):
    """What became of a batch, entry by entry, in their order."""

    accepted: int
    rejected: int
    results: list[BatchResult]


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A message as it is handed out."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: Offset
    key: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, Meta(description="utf8 or base64: how `payload` is to be read.")] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    properties: dict[str, str]
    born_at: Timestamp
    stored_at: Timestamp


class KnownMessage(msgspec.Struct, kw_only=True):
    """A message as it is stored. One that waits for its time has no place in a queue yet, but a schedule."""

    message_id: str
    topic: str
    queue_id: int | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    schedule_id: Annotated[str, Meta(description="Of one that waits: what it is moved and cancelled by.")] | UnsetType = UNSET
    deliver_at: Timestamp | UnsetType = UNSET
    key: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, Meta(description="utf8 or base64: how `payload` is to be read.")] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    properties: dict[str, str]
    born_at: Timestamp
    stored_at: Timestamp


class MessageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a message is shown."""

    payload: Annotated[PayloadForm, Meta(description="How the body is written; auto: utf8 where it is UTF-8.")] = "auto"


class QueryMessagesQuery(MessageQuery, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Which messages to find."""

    topic: str
    key: Annotated[str, Meta(min_length=1, max_length=255, description="The key, all of it.")]
    from_: Annotated[str, Meta(description="Stored then or later.", extra_json_schema={"format": "date-time"})] | UnsetType = (
        UNSET
    )
    to: Annotated[str, Meta(description="Stored then or earlier.", extra_json_schema={"format": "date-time"})] | UnsetType = (
        UNSET
    )
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class FoundPage(msgspec.Struct, kw_only=True):
    """Messages of a key, newest first."""

    items: list[Message]
    next_page_token: str | UnsetType = UNSET


class TraceEvent(msgspec.Struct, kw_only=True):
    """Something that happened to a message; from `leased` on it happened in a group."""

    at: Timestamp | UnsetType = UNSET
    event: Annotated[
        str,
        Meta(
            description="born, stored, queued, indexed, leased, extended, acked, nacked, expired, dead_lettered, discarded, "
            "skipped, damaged, redriven or reset."
        ),
    ]
    log_offset: Offset | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET
    queue_offset: Offset | UnsetType = UNSET
    group: str | UnsetType = UNSET
    attempt: Annotated[int, Meta(description="Of a lease.")] | UnsetType = UNSET
    worker: Annotated[str, Meta(description="Of a lease: who took it, where that was said.")] | UnsetType = UNSET


class Trace(msgspec.Struct, kw_only=True):
    """What happened to a message, in order."""

    message_id: str
    topic: str
    items: list[TraceEvent]
    told_until: (
        Annotated[Timestamp, Meta(description="So much happened since that it was not looked through beyond.")] | UnsetType
    ) = UNSET


class PullQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Where to read and how much."""

    offset: Annotated[int, Meta(ge=0, description="The first offset to read; the beginning of the queue if left out.")] | (
        UnsetType
    ) = UNSET
    from_: (
        Annotated[
            str,
            Meta(
                description="Instead of an offset: the first message stored then or later. RFC 3339.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    max_messages: Annotated[int, Meta(ge=1, le=1_000)] = 32
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BODY_BYTES, description="Of bodies; one message always comes.")] = 1 << 20
    wait_ms: WaitMs = 0
    tag: Annotated[str, Meta(max_length=4_096, description="Only messages with this tag: `paid`, `paid || created`, `*`.")] = (
        "*"
    )
    payload: Annotated[PayloadForm, Meta(description="How bodies are written; auto: utf8 where they are UTF-8.")] = "auto"
    out_of_range: (
        Annotated[Literal["earliest", "latest"], Meta(description="Where to go on when the offset cannot be read.")] | UnsetType
    ) = UNSET


class MessagePage(msgspec.Struct, kw_only=True):
    """A piece of a queue. `next_offset` is where to read on."""

    messages: list[Message]
    next_offset: Offset
    min_offset: Offset
    max_offset: Offset
    result: Annotated[str, Meta(description="found, no_new_message or no_matched_message.")]
