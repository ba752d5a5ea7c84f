"""The routes of schedules."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.operations import IDEMPOTENCY_KEY, IF_MATCH, WRITING, OperationRoute, answer, operation
from app.schedules import cron_handlers, handlers
from app.schedules.schemas import (
    CronInput,
    ListOccurrencesQuery,
    ListSchedulesQuery,
    OccurrenceList,
    RescheduleInput,
    Schedule,
    SchedulePage,
)

router = APIRouter(route_class=OperationRoute)

ScheduleId = Annotated[str, Path(description="The schedule's id.")]


@router.post(
    "/v1/schedules",
    **operation(
        "createSchedule",
        tag="schedules",
        body=CronInput,
        example={
            "cron": "0 6 * * 1-5",
            "time_zone": "Europe/Berlin",
            "topic": "orders",
            "message": {"json": {"report": "daily"}},
            "catch_up": "skip",
        },
        answers={201: Schedule, 200: OccurrenceList},
        answer_headers=["Location", "ETag", "Idempotency-Replayed"],
        headers=[IDEMPOTENCY_KEY],
        problems=[
            "topic_not_found", "queue_not_found", "reserved_topic", "unsupported_combination", "message_too_large",
            "idempotency_key_reused", *WRITING,
        ],
    ),
)  # fmt: skip
async def create_schedule(request: Request) -> Response:
    """Send a message whenever a cron line says so. With `dry_run` the answer is 200 and only says when that would be."""
    return await answer(request, cron_handlers.create)


@router.get(
    "/v1/schedules",
    **operation(
        "listSchedules",
        tag="schedules",
        query=ListSchedulesQuery,
        answers={200: SchedulePage},
        problems=["invalid_page_token", "reserved_topic"],
    ),
)
async def list_schedules(request: Request) -> Response:
    """List schedules. Those that wait, unless `state` asks for others."""
    return await answer(request, handlers.list_)


@router.get(
    "/v1/schedules/{schedule_id}",
    **operation(
        "getSchedule",
        tag="schedules",
        answers={200: Schedule},
        answer_headers=["ETag"],
        problems=["schedule_not_found"],
    ),
)
async def get_schedule(schedule_id: ScheduleId, request: Request) -> Response:
    """Look at a schedule."""
    return await answer(request, handlers.get, schedule_id)


@router.get(
    "/v1/schedules/{schedule_id}/occurrences",
    **operation(
        "listOccurrences",
        tag="schedules",
        query=ListOccurrencesQuery,
        answers={200: OccurrenceList},
        problems=["schedule_not_found", "unsupported_combination"],
    ),
)
async def list_occurrences(schedule_id: ScheduleId, request: Request) -> Response:
    """Say when a cron schedule fires next."""
    return await answer(request, cron_handlers.list_occurrences, schedule_id)


@router.patch(
    "/v1/schedules/{schedule_id}",
    **operation(
        "rescheduleMessage",
        tag="schedules",
        body=RescheduleInput,
        example={"deliver_at": "2026-03-02T12:00:00.000Z"},
        answers={200: Schedule},
        answer_headers=["ETag"],
        headers=[IF_MATCH],
        problems=[
            "schedule_not_found", "topic_not_found", "queue_not_found", "already_delivered", "already_cancelled",
            "revision_mismatch", "unsupported_combination", "message_too_large", *WRITING,
        ],
    ),
)  # fmt: skip
async def reschedule_message(schedule_id: ScheduleId, request: Request) -> Response:
    """Move a message to another time, or change a cron schedule. The change is durable when it is answered."""
    return await answer(request, handlers.change, schedule_id)


@router.delete(
    "/v1/schedules/{schedule_id}",
    **operation(
        "cancelSchedule",
        tag="schedules",
        answers={200: Schedule},
        answer_headers=["ETag"],
        headers=[IF_MATCH],
        problems=["schedule_not_found", "already_delivered", "revision_mismatch", *WRITING],
    ),
)
async def cancel_schedule(schedule_id: ScheduleId, request: Request) -> Response:
    """Cancel a message: nobody will see it; or stop a cron schedule. Durable when it is answered; again changes nothing."""
    return await answer(request, handlers.cancel, schedule_id)
