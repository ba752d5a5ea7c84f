"""The routes of tasks."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.operations import WRITING, OperationRoute, answer, operation
from app.tasks import handlers
from app.tasks.schemas import ListTasksQuery, Task, TaskPage

router = APIRouter(route_class=OperationRoute)

TaskId = Annotated[str, Path(description="The task's id.")]


@router.get(
    "/v1/tasks",
    **operation(
        "listTasks",
        tag="tasks",
        query=ListTasksQuery,
        answers={200: TaskPage},
        problems=["invalid_page_token", "reserved_topic"],
    ),
)
async def list_tasks(request: Request) -> Response:
    """List tasks. Of those that have ended the last 1,000 are known."""
    return await answer(request, handlers.list_)


@router.get("/v1/tasks/{task_id}", **operation("getTask", tag="tasks", answers={200: Task}, problems=["task_not_found"]))
async def get_task(task_id: TaskId, request: Request) -> Response:
    """Look at a task."""
    return await answer(request, handlers.get, task_id)


@router.delete(
    "/v1/tasks/{task_id}",
    **operation("cancelTask", tag="tasks", answers={200: Task}, problems=["task_not_found", *WRITING]),
)
async def cancel_task(task_id: TaskId, request: Request) -> Response:
    """Cancel a task. What it has done stays done; one that has ended stays as it is."""
    return await answer(request, handlers.cancel, task_id)
