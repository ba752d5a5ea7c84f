"""Requests and responses about dead letters."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import MAX_ENTRIES, Message, MessageQuery, Timestamp
from app.named_schemas import Int32
from app.topics.schemas import TopicName
from app.word_sets import RedriveSelect

_Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class DeadLetter(msgspec.Struct, kw_only=True):
    """A dead letter of a group. `message` has the topic, queue and offset of its first delivery.

    With `damaged` the record of the message cannot be read: `message` has no payload, `message_id`
    is made of its queue and offset, and its times are those at which the damage was found. It
    cannot be redriven.
    """

    message: Message
    origin_topic: str
    reason: str
    attempts: Int32
    dead_lettered_at: Timestamp
    damaged: (
        Annotated[
            bool, Meta(description="True if the message could not be read; otherwise absent.")
        ]
        | UnsetType
    ) = UNSET
    log_offset: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="With `damaged`: log offset of the damaged record.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | UnsetType
    ) = UNSET


class DeadLetterPage(msgspec.Struct, kw_only=True):
    """Dead letters, oldest first."""

    items: list[DeadLetter]
    next_page_token: str | UnsetType = UNSET


class ListDeadLettersQuery(MessageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which piece of the list."""

    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class RedriveInput(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}
):
    """Selects dead letters for redelivery.

    `query` needs at least one of `topic`, `key`, `tag`, `reason_contains`, `from` and `to`, and a
    dead letter must match all that are given. `ids` needs `message_ids`. Fields of one `select` are
    not allowed with another.
    """

    select: RedriveSelect
    topic: (
        Annotated[
            TopicName, Meta(description="With `query`: the topic that the message was sent to.")
        ]
        | UnsetType
    ) = UNSET
    key: (
        Annotated[
            str, Meta(min_length=1, max_length=255, description="With `query`: one of its keys.")
        ]
        | UnsetType
    ) = UNSET
    tag: (
        Annotated[str, Meta(min_length=1, max_length=255, description="With `query`.")] | UnsetType
    ) = UNSET
    reason_contains: (
        Annotated[
            str, Meta(min_length=1, max_length=500, description="With `query`: part of the reason.")
        ]
        | UnsetType
    ) = UNSET
    from_: (
        Annotated[
            _Moment,
            Meta(description="With `query`: dead-lettered at or after this time. RFC 3339."),
        ]
        | UnsetType
    ) = UNSET
    to: (
        Annotated[
            _Moment,
            Meta(description="With `query`: dead-lettered at or before this time. RFC 3339."),
        ]
        | UnsetType
    ) = UNSET
    message_ids: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=255)]],
            Meta(min_length=1, max_length=MAX_ENTRIES, description="With `ids`."),
        ]
        | UnsetType
    ) = UNSET
    reset_attempts: Annotated[
        bool,
        Meta(
            description="Count attempts from 1 again. Otherwise the message gets one more attempt."
        ),
    ] = True
    max_per_second: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100_000,
                description="Maximum rate in messages per second. Default: no limit.",
            ),
        ]
        | UnsetType
    ) = UNSET
    dry_run: Annotated[bool, Meta(description="Count the messages, and change nothing.")] = False


class RedrivePreview(msgspec.Struct, kw_only=True):
    """The number of messages that a redrive would deliver."""

    dry_run: bool
    total: Annotated[
        int, Meta(description="Number of selected dead letters; with `ids`, the number of ids.")
    ]
    failed: (
        Annotated[
            int, Meta(description="Number of ids without a dead letter; absent if there are none.")
        ]
        | UnsetType
    ) = UNSET


class PurgeResult(msgspec.Struct, kw_only=True):
    """How many dead letters were purged."""

    purged: int
