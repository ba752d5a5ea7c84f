"""Requests and responses about schedules."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import MessageInput, Timestamp
from app.named_schemas import Int32
from app.word_sets import (
    CATCH_UP,
    FIRING_KIND,
    SCHEDULE_KIND,
    SCHEDULE_STATE,
    CatchUp,
    ScheduleKind,
)

CronText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description=(
            "Five fields: minute, hour, day of month, month, day of week. Six fields start with "
            "seconds. Also @hourly, @daily, ..."
        ),
    ),
]
ZoneText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description="A time zone of the IANA database, for example Europe/Berlin.",
    ),
]


class Firing(msgspec.Struct, kw_only=True):
    """An event of a cron schedule."""

    event: Annotated[str, FIRING_KIND]
    at: Annotated[
        str, Meta(description="Time of the event.", extra_json_schema={"format": "date-time"})
    ]
    occurrence: (
        Annotated[
            str, Meta(description="The scheduled time.", extra_json_schema={"format": "date-time"})
        ]
        | UnsetType
    ) = UNSET
    message_id: str | UnsetType = UNSET
    reason: (
        Annotated[str, Meta(description="Reason why its message could not be sent.")] | UnsetType
    ) = UNSET
    skipped_from: Timestamp | UnsetType = UNSET
    skipped_to: Timestamp | UnsetType = UNSET


class Schedule(msgspec.Struct, kw_only=True):
    """A delayed message, or a cron schedule that sends a message repeatedly."""

    schedule_id: str
    kind: Annotated[str, SCHEDULE_KIND]
    message_id: Annotated[str, Meta(description="For kind message.")] | UnsetType = UNSET
    topic: str
    deliver_at: (
        Annotated[
            str,
            Meta(
                description="For kind cron: the next time; absent if there is none.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    state: Annotated[str, SCHEDULE_STATE]
    reason: (
        Annotated[
            str,
            Meta(
                description="Why it was set aside: its message could not be delivered, or its "
                "next time could not be computed."
            ),
        ]
        | UnsetType
    ) = UNSET
    revision: Int32
    cron: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    description: Annotated[str, Meta(description="The cron line in words.")] | UnsetType = UNSET
    catch_up: Annotated[str, CATCH_UP] | UnsetType = UNSET
    created_at: Timestamp | UnsetType = UNSET
    message: MessageInput | UnsetType = UNSET
    recent_firings: (
        Annotated[list[Firing], Meta(description="The last ten, newest first.")] | UnsetType
    ) = UNSET


class CronInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to send at every time that matches a cron line. It cannot have a delay of
    its own.
    """

    cron: CronText
    time_zone: ZoneText = "UTC"
    topic: Annotated[str, Meta(min_length=1, max_length=127)]
    message: MessageInput
    catch_up: CatchUp = "skip"
    paused: bool = False
    dry_run: Annotated[bool, Meta(description="Return the next times, and create nothing.")] = False


class Occurrence(msgspec.Struct, kw_only=True):
    """A time at which a cron schedule sends its message."""

    at: Timestamp
    local: Annotated[
        str, Meta(description="The same time in the schedule's time zone, with UTC offset.")
    ]


class OccurrenceList(msgspec.Struct, kw_only=True):
    """The next times of a cron schedule."""

    cron: str
    time_zone: str
    description: Annotated[str, Meta(description="The cron line in words.")]
    items: list[Occurrence]


class ListOccurrencesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the next occurrences."""

    count: Annotated[int, Meta(ge=1, le=100)] = 10


class SchedulePage(msgspec.Struct, kw_only=True):
    """Cron schedules in the order of their creation, then delayed messages by delivery time.

    A page may be short or empty although more pages follow.
    """

    items: list[Schedule]
    next_page_token: str | UnsetType = UNSET


class ListSchedulesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the list of schedules."""

    kind: ScheduleKind | UnsetType = UNSET
    topic: Annotated[str, Meta(min_length=1, max_length=127)] | UnsetType = UNSET
    due_before: (
        Annotated[
            str,
            Meta(
                description="Due before this time. RFC 3339.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    state: Annotated[str, Meta(max_length=100, description="Comma-separated states.")] = "scheduled"
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class RescheduleInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """For kind message, the new delivery time; a time in the past delivers immediately.

    The other fields are for kind cron.
    """

    deliver_at: Timestamp | UnsetType = UNSET
    cron: CronText | UnsetType = UNSET
    time_zone: ZoneText | UnsetType = UNSET
    message: MessageInput | UnsetType = UNSET
    catch_up: CatchUp | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
