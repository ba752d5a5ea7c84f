"""What goes in and out: schedules."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MessageInput, Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken

CatchUpWord = Literal["skip", "once", "all"]
CronText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="Minute, hour, day of month, month, day of week; six fields begin with seconds; or @hourly, @daily, ...",
    ),
]
ZoneText = Annotated[str, Meta(min_length=1, max_length=64, description="A name of the IANA database, as Europe/Berlin.")]
_CATCH_UP = "Of occurrences that were missed: skip them all, make up for the last one (once), or for the last hundred (all)."


class Firing(msgspec.Struct, kw_only=True):
    """Something that came of a cron schedule."""

    event: Annotated[str, Meta(description="fired, skipped, set_aside or counted_anew.")]
    at: Annotated[str, Meta(description="When it was noted.", extra_json_schema={"format": "date-time"})]
    occurrence: (
        Annotated[str, Meta(description="The time that was meant.", extra_json_schema={"format": "date-time"})] | UnsetType
    ) = UNSET
    message_id: str | UnsetType = UNSET
    reason: Annotated[str, Meta(description="Why its message could not be sent.")] | UnsetType = UNSET
    skipped_from: Timestamp | UnsetType = UNSET
    skipped_to: Timestamp | UnsetType = UNSET


class Schedule(msgspec.Struct, kw_only=True):
    """A message that is delivered later, or was; or a cron schedule, which sends one again and again."""

    schedule_id: str
    kind: Annotated[str, Meta(description="message or cron.")]
    message_id: Annotated[str, Meta(description="Of kind message.")] | UnsetType = UNSET
    topic: str
    deliver_at: (
        Annotated[
            str,
            Meta(
                description="Of kind cron the next time; without it no more is to come.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    state: Annotated[str, Meta(description="scheduled, delivered, cancelled or set_aside; of kind cron paused, too.")]
    reason: Annotated[str, Meta(description="Why it was set aside: it could not be delivered, or worked out.")] | UnsetType = (
        UNSET
    )
    revision: int
    cron: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    description: Annotated[str, Meta(description="The cron line in words.")] | UnsetType = UNSET
    catch_up: str | UnsetType = UNSET
    created_at: Timestamp | UnsetType = UNSET
    message: MessageInput | UnsetType = UNSET
    recent_firings: Annotated[list[Firing], Meta(description="The last ten, newest first.")] | UnsetType = UNSET


class CronInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to be sent at every time that a cron line names. It has no delay of its own."""

    cron: CronText
    time_zone: ZoneText = "UTC"
    topic: Annotated[str, Meta(min_length=1, max_length=127)]
    message: MessageInput
    catch_up: Annotated[CatchUpWord, Meta(description=_CATCH_UP)] = "skip"
    paused: bool = False
    dry_run: Annotated[bool, Meta(description="Only say when it would fire.")] = False


class Occurrence(msgspec.Struct, kw_only=True):
    """A time at which a cron schedule fires."""

    at: Timestamp
    local: Annotated[str, Meta(description="The same as a clock of its time zone shows it, with the offset.")]


class OccurrenceList(msgspec.Struct, kw_only=True):
    """When a cron schedule fires next."""

    cron: str
    time_zone: str
    description: Annotated[str, Meta(description="The cron line in words.")]
    items: list[Occurrence]


class ListOccurrencesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many."""

    count: Annotated[int, Meta(ge=1, le=100)] = 10


class SchedulePage(msgspec.Struct, kw_only=True):
    """Cron schedules as they were made, then messages by their times. A page may be short, or empty, with others behind it."""

    items: list[Schedule]
    next_page_token: str | UnsetType = UNSET


class ListSchedulesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which schedules."""

    kind: Literal["message", "cron"] | UnsetType = UNSET
    topic: Annotated[str, Meta(min_length=1, max_length=127)] | UnsetType = UNSET
    due_before: (
        Annotated[str, Meta(description="Due before then. RFC 3339.", extra_json_schema={"format": "date-time"})] | UnsetType
    ) = UNSET
    state: Annotated[str, Meta(max_length=100, description="States with commas between.")] = "scheduled"
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class RescheduleInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of kind message the new time; one that is past delivers at once. The other fields are those of kind cron."""

    deliver_at: Timestamp | UnsetType = UNSET
    cron: CronText | UnsetType = UNSET
    time_zone: ZoneText | UnsetType = UNSET
    message: MessageInput | UnsetType = UNSET
    catch_up: Annotated[CatchUpWord, Meta(description=_CATCH_UP)] | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
