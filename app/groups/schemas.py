"""What goes in and out: committed offsets of a group."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_ENTRIES, Offset
from app.topics.schemas import TopicName


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which topic; all of them if left out."""

    topic: TopicName | UnsetType = UNSET


class OffsetInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where the group continues in one queue: the next offset to read."""

    topic: TopicName
    queue_id: Annotated[int, Meta(ge=0, le=1_023)]
    offset: Annotated[int, Meta(ge=0)]


class OffsetsInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Offsets to be committed."""

    offsets: Annotated[list[OffsetInput], Meta(min_length=1, max_length=MAX_ENTRIES)]


class GroupOffset(msgspec.Struct, kw_only=True):
    """Where the group continues in one queue, and what the queue holds."""

    topic: str
    queue_id: int
    offset: Offset
    min_offset: Offset
    max_offset: Offset


class GroupOffsetList(msgspec.Struct, kw_only=True):
    """Every queue for which the group has committed an offset."""

    items: list[GroupOffset]
