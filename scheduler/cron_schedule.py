"""A cron schedule, what is noted in the log when it fires, and the plan of what is to fire now.

Pure.

    mark   topic rmq_sys_escrowmq_cron, queue 0, key: the schedule's id; fired, skipped, set aside,
           count restarted; body JSON

What people said is in the registry, what happened is in the log. Each mark says up to where the
schedule is settled by it, and lies in one append with the message that it tells of: so a schedule
goes on behind its last mark, whatever was killed when. Marks move on in time, but for those that
restart the count: the clock that the ones before went by was wrong.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from scheduler.cron_line import CronLine
from storage.formats.names import CRON_TOPIC
from storage.message import Message, QueueId

CRON_QUEUE = QueueId(CRON_TOPIC, 0)
MOST_AT_ONCE = 100  # occurrences of one schedule that are made up for


class CatchUp(StrEnum):
    """Handling of missed occurrences of a cron schedule."""

    SKIP = "skip"  # nothing
    ONCE = "once"  # the last one is made up for
    ALL = "all"  # the last MOST_AT_ONCE are


class CronState(StrEnum):
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    PARKED = "set_aside"


class CronSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a cron schedule. Immutable; a change creates a new one."""

    schedule_id: str
    cron: str
    time_zone: str
    topic: str
    message: bytes  # JSON, as it was given
    catch_up: CatchUp
    paused: bool = False
    created_at_ms: int
    # only what is behind it is an occurrence: when it was made, or its times were changed
    counts_from_ms: int
    cancelled_at_ms: int | None = None
    revision: int = 1
    idempotency_key: str | None = None
    fingerprint: str | None = None


# --------------------------------------------------------------------------------------------------
# marks


class CronMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    schedule_id: str
    settled_ms: int  # whatever is due up to then needs nothing more


class Fired(CronMark, frozen=True, tag="fired"):
    """The message of the occurrence at `settled_ms` was sent, in one append with this."""

    message_id: str


class Skipped(CronMark, frozen=True, tag="skipped"):
    """The occurrences from `since_ms` to `settled_ms` were missed and left out."""

    since_ms: int


class CronParked(CronMark, frozen=True, tag="set_aside"):
    """The message of the occurrence at `settled_ms` could not be sent."""

    reason: str


class CountRestarted(CronMark, frozen=True, tag="counted_anew"):
    """The schedule was settled up to a later time by a clock that was ahead; it continues from this
    time.
    """

    # moments behind `settled_ms` that have fired all the same, and do not again
    fired_ahead: list[int] = []


AnyCronMark = Fired | Skipped | CronParked | CountRestarted
_decoder: msgspec.json.Decoder[AnyCronMark] = msgspec.json.Decoder(AnyCronMark)


def mark_message(mark: AnyCronMark, *, now_ms: int) -> Message:
    body = msgspec.json.encode(mark)
    return Message(
        queue=CRON_QUEUE,
        message_id="",
        body=body,
        born_at_ms=now_ms,
        key=mark.schedule_id,
        tag="cron",
    )


def read_mark(message: Message) -> AnyCronMark:
    """Decode a mark. Raises msgspec.DecodeError."""
    return _decoder.decode(message.body)


# --------------------------------------------------------------------------------------------------
# plan


class Plan(NamedTuple):
    """Next steps for a schedule, in this order. Later occurrences wait for the next plan."""

    skip: tuple[int, int] | None  # from the first to the last moment that is left out
    fire: Sequence[int]


def plan(line: CronLine, catch_up: CatchUp, *, first_ms: int, now_ms: int, grace_ms: int) -> Plan:
    """The next steps. `first_ms`: the first occurrence that is not settled, which is due. An
    occurrence that is later than `grace_ms` was missed.
    """
    missed_ms = now_ms - grace_ms - 1  # and before
    if first_ms > missed_ms:
        return Plan(None, [first_ms])
    if catch_up is CatchUp.SKIP:
        return Plan((first_ms, missed_ms), [])
    count = 1 if catch_up is CatchUp.ONCE else MOST_AT_ONCE
    fire = line.latest(after_ms=first_ms, until_ms=now_ms, count=count)
    if len(fire) < count:
        return Plan(None, [first_ms, *fire])
    return Plan((first_ms, fire[0] - 1), fire)
