"""Delayed messages and cron schedules."""

from datetime import datetime
from typing import Any

from msgspec import UNSET

from escrowmq_client.models.base import Output


class Firing(Output, frozen=True, kw_only=True):
    """An event of a cron schedule."""

    event: str
    """fired, skipped, set_aside or counted_anew."""
    at: datetime
    """Time of the event."""
    occurrence: datetime | None = None
    """The scheduled time."""
    message_id: str | None = None
    reason: str | None = None
    """Reason why its message could not be sent."""
    skipped_from: datetime | None = None
    skipped_to: datetime | None = None


class ScheduledMessage(Output, frozen=True, kw_only=True):
    """The message that a cron schedule sends."""

    payload: str | None = None
    """The body, as text or base64."""
    payload_encoding: str = "utf8"
    json: Any = UNSET
    """The body as a JSON value; stored without whitespace."""
    content_type: str | None = None
    properties: dict[str, str] | None = None
    """Properties of the sender. Names and values, with key or keys, tag and ordering key, may have
    16 KiB in total.
    """
    key: str | None = None
    """A business key; 255 bytes, no spaces."""
    keys: list[str] | None = None
    """Instead of `key`: business keys, all different. The message is found by each of them."""
    tag: str | None = None
    """For filters; 255 bytes, no spaces, no |."""
    ordering_key: str | None = None
    """Messages with the same ordering key stay in order; 255 bytes."""
    queue_id: int | None = None
    delay_ms: int | None = None
    """Delay before delivery, at most the topic's max_delay_ms."""
    deliver_at: datetime | None = None
    delay_level: int | None = None
    """Delay as a level of RocketMQ: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, ... 2 h."""
    require_durability: str | None = None
    """Minimum durability before the response is sent."""


class Schedule(Output, frozen=True, kw_only=True):
    """A delayed message, or a cron schedule that sends a message repeatedly."""

    schedule_id: str
    kind: str
    """message or cron."""
    message_id: str | None = None
    """For kind message."""
    topic: str
    deliver_at: datetime | None = None
    """For kind cron: the next time; absent if there is none."""
    state: str
    """scheduled, delivered, cancelled or set_aside; for kind cron also paused."""
    reason: str | None = None
    """Why it was set aside: its message could not be delivered, or its next time could not be
    computed.
    """
    revision: int
    cron: str | None = None
    time_zone: str | None = None
    description: str | None = None
    """The cron line in words."""
    catch_up: str | None = None
    created_at: datetime | None = None
    message: ScheduledMessage | None = None
    recent_firings: list[Firing] | None = None
    """The last ten, newest first."""


class SchedulePage(Output, frozen=True, kw_only=True):
    """Cron schedules in the order of their creation, then delayed messages by delivery time.

    A page may be short or empty although more pages follow.
    """

    items: list[Schedule]
    next_page_token: str | None = None


class Occurrence(Output, frozen=True, kw_only=True):
    """A time at which a cron schedule sends its message."""

    at: datetime
    local: str
    """The same time in the schedule's time zone, with UTC offset."""


class OccurrenceList(Output, frozen=True, kw_only=True):
    """The next times of a cron schedule."""

    cron: str
    time_zone: str
    description: str
    """The cron line in words."""
    items: list[Occurrence]
