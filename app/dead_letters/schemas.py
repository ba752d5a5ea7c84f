"""What goes in and out: dead letters."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, Message, MessageQuery, Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.topics.schemas import TopicName

_Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class DeadLetter(msgspec.Struct, kw_only=True):
    """A message that the group gave up. `message` stands in the place of its first delivery.

    With `damaged` the record of the message cannot be read: `message` has no payload, `message_id` names its place, and the
    times are those of when the damage was found. It cannot be redriven.
    """

    message: Message
    origin_topic: str
    reason: str
    attempts: int
    dead_lettered_at: Timestamp
    damaged: Annotated[bool, Meta(description="The message could not be read; absent where it could.")] | UnsetType = UNSET
    log_offset: (
        Annotated[int, Meta(ge=0, description="With `damaged`: of the damaged record.", extra_json_schema={"format": "int64"})]
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


class RedriveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Which dead letters the group is to be handed once more, and how.

    With `query` at least one of `topic`, `key`, `tag`, `reason_contains`, `from` and `to`; what is said must all hold. With
    `ids` the `message_ids`. Neither goes with another `select`.
    """

    select: Literal["all", "query", "ids"]
    topic: Annotated[TopicName, Meta(description="With `query`: where it was sent to.")] | UnsetType = UNSET
    key: Annotated[str, Meta(min_length=1, max_length=255, description="With `query`.")] | UnsetType = UNSET
    tag: Annotated[str, Meta(min_length=1, max_length=255, description="With `query`.")] | UnsetType = UNSET
    reason_contains: (
        Annotated[str, Meta(min_length=1, max_length=500, description="With `query`: a part of the reason.")] | UnsetType
    ) = UNSET
    from_: Annotated[_Moment, Meta(description="With `query`: given up then or later. RFC 3339.")] | UnsetType = UNSET
    to: Annotated[_Moment, Meta(description="With `query`: given up then or earlier. RFC 3339.")] | UnsetType = UNSET
    message_ids: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=255)]],
            Meta(min_length=1, max_length=MAX_ENTRIES, description="With `ids`."),
        ]
        | UnsetType
    ) = UNSET
    reset_attempts: Annotated[
        bool, Meta(description="Count attempts from 1 again; else the message is handed out one more time.")
    ] = True
    max_per_second: (
        Annotated[int, Meta(ge=1, le=100_000, description="Messages; as fast as it goes if left out.")] | UnsetType
    ) = UNSET
    dry_run: Annotated[bool, Meta(description="Count them, and do nothing.")] = False


class RedrivePreview(msgspec.Struct, kw_only=True):
    """What a redrive would be about."""

    dry_run: bool
    total: Annotated[int, Meta(description="Dead letters that are wanted; by id, the ids.")]
    failed: (
        Annotated[int, Meta(description="Ids of which there is no dead letter; absent where there are none.")] | UnsetType
    ) = UNSET


class PurgeResult(msgspec.Struct, kw_only=True):
    """How many dead letters were purged."""

    purged: int
