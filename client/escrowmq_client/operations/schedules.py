"""Operations of delayed messages and cron schedules."""

from datetime import datetime
from typing import Literal

from escrowmq_client import encoding
from escrowmq_client.call import (
    Call,
    decoded,
    fields,
    if_revision,
    json_headers,
    keyed,
    query,
)
from escrowmq_client.models.messages import MessageInput
from escrowmq_client.models.schedules import OccurrenceList, Schedule, SchedulePage

CatchUp = Literal["skip", "once", "all"]


def create_schedule(
    cron: str,
    topic: str,
    message: MessageInput,
    *,
    time_zone: str | None = None,
    catch_up: CatchUp | None = None,
    paused: bool | None = None,
    idempotency_key: str | None = None,
) -> Call[Schedule]:
    """Create a cron schedule that sends a message. `preview_schedule` returns its next times.

    `catch_up`: what to do about missed times: skip them, send the last one (once), or the last
    hundred (all).

    Raises NotFound (topic_not_found); ProblemError (validation_failed).
    """
    return Call(
        "createSchedule",
        "POST",
        "/v1/schedules",
        decoded(Schedule),
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            cron=cron,
            topic=topic,
            message=encoding.for_json(message),
            time_zone=time_zone,
            catch_up=catch_up,
            paused=paused,
        ),
    )


def preview_schedule(
    cron: str, topic: str, message: MessageInput, *, time_zone: str | None = None
) -> Call[OccurrenceList]:
    """Return the next times of a cron schedule, and create nothing.

    Raises NotFound (topic_not_found); ProblemError (validation_failed).
    """
    return Call(
        "createSchedule",
        "POST",
        "/v1/schedules",
        decoded(OccurrenceList),
        headers=json_headers(),
        body=fields(
            cron=cron,
            topic=topic,
            message=encoding.for_json(message),
            time_zone=time_zone,
            dry_run=True,
        ),
    )


def list_schedules(
    *,
    kind: Literal["message", "cron"] | None = None,
    topic: str | None = None,
    due_before: datetime | None = None,
    state: str | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[SchedulePage]:
    """List schedules: those that are waiting, unless `state` asks for others."""
    return Call(
        "listSchedules",
        "GET",
        "/v1/schedules",
        decoded(SchedulePage),
        query=query(
            kind=kind,
            topic=topic,
            due_before=due_before,
            state=state,
            page_size=page_size,
            page_token=page_token,
        ),
    )


def get_schedule(schedule_id: str) -> Call[Schedule]:
    """Get a schedule. Raises NotFound (schedule_not_found)."""
    return Call(
        "getSchedule",
        "GET",
        "/v1/schedules/{schedule_id}",
        decoded(Schedule),
        parts={"schedule_id": schedule_id},
    )


def reschedule_message(
    schedule_id: str,
    *,
    deliver_at: datetime | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    message: MessageInput | None = None,
    catch_up: CatchUp | None = None,
    paused: bool | None = None,
    if_match: int | None = None,
) -> Call[Schedule]:
    """Change the time of a delayed message (`deliver_at`), or a cron schedule (the other fields).

    The change is durable when the call returns. `if_match`: the revision that it applies to.

    Raises Conflict (already_delivered, already_cancelled); NotFound (schedule_not_found);
    ProblemError (revision_mismatch, validation_failed).
    """
    return Call(
        "rescheduleMessage",
        "PATCH",
        "/v1/schedules/{schedule_id}",
        decoded(Schedule),
        parts={"schedule_id": schedule_id},
        headers=json_headers(if_revision(if_match)),
        body=fields(
            deliver_at=deliver_at,
            cron=cron,
            time_zone=time_zone,
            message=None if message is None else encoding.for_json(message),
            catch_up=catch_up,
            paused=paused,
        ),
    )


def cancel_schedule(schedule_id: str, *, if_match: int | None = None) -> Call[Schedule]:
    """Cancel a delayed message, which is then never delivered, or a cron schedule.

    The change is durable when the call returns; repeating it changes nothing.

    Raises Conflict (already_delivered); NotFound (schedule_not_found); ProblemError
    (revision_mismatch).
    """
    return Call(
        "cancelSchedule",
        "DELETE",
        "/v1/schedules/{schedule_id}",
        decoded(Schedule),
        parts={"schedule_id": schedule_id},
        headers=if_revision(if_match),
    )


def list_occurrences(schedule_id: str, *, count: int | None = None) -> Call[OccurrenceList]:
    """List the next times of a cron schedule. Raises NotFound (schedule_not_found)."""
    return Call(
        "listOccurrences",
        "GET",
        "/v1/schedules/{schedule_id}/occurrences",
        decoded(OccurrenceList),
        parts={"schedule_id": schedule_id},
        query=query(count=count),
    )
