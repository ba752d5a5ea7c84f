"""What goes in and out: schedules."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken


class Schedule(msgspec.Struct, kw_only=True):
    """A message that is delivered later, or was."""

    schedule_id: str
    message_id: str
    topic: str
    deliver_at: Timestamp
    state: Annotated[str, Meta(description="scheduled, delivered, cancelled or set_aside.")]
    reason: Annotated[str, Meta(description="Why it was set aside: it could not be delivered.")] | UnsetType = UNSET
    revision: int


class SchedulePage(msgspec.Struct, kw_only=True):
    """Schedules in the order in which they were made."""

    items: list[Schedule]
    next_page_token: str | UnsetType = UNSET


class ListSchedulesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which schedules."""

    topic: Annotated[str, Meta(min_length=1, max_length=127)] | UnsetType = UNSET
    due_before: (
        Annotated[str, Meta(description="Due before then. RFC 3339.", extra_json_schema={"format": "date-time"})] | UnsetType
    ) = UNSET
    state: Annotated[str, Meta(max_length=100, description="States with commas between.")] = "scheduled"
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class RescheduleInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The new time; one that is past delivers at once."""

    deliver_at: Timestamp
