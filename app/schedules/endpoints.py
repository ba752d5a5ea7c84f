"""The routes of schedules."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.operations import IF_MATCH, WRITING, answer, operation
from app.schedules import handlers
from app.schedules.schemas import ListSchedulesQuery, RescheduleInput, Schedule, SchedulePage

router = APIRouter()

ScheduleId = Annotated[str, Path(description="The schedule's id.")]


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
        problems=["schedule_not_found", "already_delivered", "already_cancelled", "revision_mismatch", *WRITING],
    ),
)
async def reschedule_message(schedule_id: ScheduleId, request: Request) -> Response:
    """Move a message to another time. The move is durable when it is answered."""
    return await answer(request, handlers.reschedule, schedule_id)


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
    """Cancel a message. Nobody will see it; durable when it is answered. Cancelling it again changes nothing."""
    return await answer(request, handlers.cancel, schedule_id)
