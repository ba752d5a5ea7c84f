"""Operations of tasks."""

from escrowmq_client.call import Call, decoded, query
from escrowmq_client.models.tasks import Task, TaskPage


def list_tasks(
    *,
    state: str | None = None,
    group: str | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[TaskPage]:
    """List tasks in the order of their start, with the last 1,000 that have ended."""
    return Call(
        "listTasks",
        "GET",
        "/v1/tasks",
        decoded(TaskPage),
        query=query(state=state, group=group, page_size=page_size, page_token=page_token),
    )


def get_task(task_id: str) -> Call[Task]:
    """Get a task. Raises NotFound (task_not_found)."""
    return Call("getTask", "GET", "/v1/tasks/{task_id}", decoded(Task), parts={"task_id": task_id})


def cancel_task(task_id: str) -> Call[Task]:
    """Cancel a task; what it has done stays done. Raises NotFound (task_not_found)."""
    return Call(
        "cancelTask", "DELETE", "/v1/tasks/{task_id}", decoded(Task), parts={"task_id": task_id}
    )
