"""What goes in and out: dead letters."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, Message, MessageQuery, Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.tasks.schemas import Task
from app.topics.schemas import TopicName

_Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class DeadLetter(msgspec.Struct, kw_only=True):
    """A message that the group gave up. `message` stands in the place of its first delivery."""

    message: Message
    origin_topic: str
    reason: str
    attempts: int
    dead_lettered_at: Timestamp


class DeadLetterPage(msgspec.Struct, kw_only=True):
    """Dead letters, oldest first."""

    items: list[DeadLetter]
    next_page_token: str | UnsetType = UNSET


class ListDeadLettersQuery(MessageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which piece of the list."""

    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class RedriveQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Which dead letters: what is said must all hold."""

    topic: TopicName | UnsetType = UNSET
    key: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    tag: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="A part of it.")] | UnsetType = UNSET
    from_: Annotated[_Moment, Meta(description="Given up then or later. RFC 3339.")] | UnsetType = UNSET
    to: Annotated[_Moment, Meta(description="Given up then or earlier. RFC 3339.")] | UnsetType = UNSET


class RedriveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters the group is to be handed once more, and how."""

    select: Literal["all", "query", "ids"]
    query: RedriveQuery | UnsetType = UNSET
    message_ids: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=MAX_ENTRIES)]
        | UnsetType
    ) = UNSET
    reset_attempts: Annotated[
        bool, Meta(description="Count attempts from 1 again; else the message is handed out one more time.")
    ] = True
    rate_per_second: (
        Annotated[int, Meta(ge=1, le=100_000, description="Messages; as fast as it goes if left out.")] | UnsetType
    ) = UNSET
    dry_run: Annotated[bool, Meta(description="Count them, and do nothing.")] = False


class RedriveResult(msgspec.Struct, kw_only=True):
    """How many dead letters it is about; and the task that sends them to the group once more."""

    dry_run: bool
    total: int
    task: Task | UnsetType = UNSET


class PurgeResult(msgspec.Struct, kw_only=True):
    """How many dead letters were purged."""

    purged: int
