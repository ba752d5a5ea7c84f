"""Tasks over HTTP: get, list, cancel."""

from msgspec import UNSET

from app.encoding import codec, pages
from app.http.exchange import Call, Reply, reply
from app.operations import WRITING, operation
from app.problems import invalid_field
from app.registry.topics import check_name
from app.services import Services
from app.store_tasks import StoreTask
from app.tasks.schemas import ListTasksQuery, StoreFinding, Task, TaskFailure, TaskPage
from delivery.leases import tasks as delivery


@operation(
    "GET",
    "/v1/tasks",
    "listTasks",
    tag="tasks",
    scopes=["operate", "admin"],
    checks_access=True,
    query=ListTasksQuery,
    answers={200: TaskPage},
    problems=["invalid_page_token", "reserved_topic"],
)
async def list_(services: Services, call: Call, query: ListTasksQuery) -> Reply:
    """List tasks. Includes the last 1,000 that have ended. A key for some groups gets those of its
    groups.
    """
    states = _states(query.state or ",".join(delivery.TaskState))
    if query.group is not UNSET:
        check_name(query.group, what="group", pointer="/query/group")
    after = "" if query.page_token is UNSET else pages.decode_token("tasks", query.page_token)
    now_ms = services.clock.wall_ms()
    redrives = [
        view(task, now_ms)
        for task in services.delivery.table.tasks
        if query.group in (UNSET, task.group) and call.access.may_use_group(task.group)
    ]
    is_all = query.group is UNSET and not call.access.is_limited
    own = [view_own(task) for task in services.store_tasks] if is_all else []
    found = sorted(
        (task for task in [*redrives, *own] if task.task_id > after and task.state in states),
        key=lambda task: task.task_id,
    )
    page = TaskPage(items=found[: query.page_size])
    if len(found) > query.page_size:
        page.next_page_token = pages.encode_token("tasks", page.items[-1].task_id)
    return reply(200, page)


@operation(
    "GET",
    "/v1/tasks/{task_id}",
    "getTask",
    tag="tasks",
    scopes=["operate", "admin"],
    checks_access=True,
    answers={200: Task},
    problems=["task_not_found"],
)
async def get(services: Services, call: Call, task_id: str) -> Reply:
    """Get a task."""
    own = services.store_tasks.get(task_id)
    if own is not None:
        call.access.check_unlimited()
        return reply(200, view_own(own))
    task = services.delivery.dead_letters.task(task_id)
    call.access.check_group(task.group)
    return reply(200, view(task, services.clock.wall_ms()))


@operation(
    "DELETE",
    "/v1/tasks/{task_id}",
    "cancelTask",
    tag="tasks",
    scopes=["operate", "admin"],
    checks_access=True,
    answers={200: Task},
    problems=["task_not_found", *WRITING],
)
async def cancel(services: Services, call: Call, task_id: str) -> Reply:
    """Cancel a task. Keeps what it has done. A task that has ended does not change."""
    own = services.store_tasks.get(task_id)
    if own is not None:
        call.access.check_unlimited()
        await services.store_tasks.cancel(own)
        return reply(200, view_own(own))
    call.access.check_group(services.delivery.dead_letters.task(task_id).group)
    return reply(
        200, view(await services.delivery.dead_letters.cancel(task_id), services.clock.wall_ms())
    )


def view(task: delivery.Task, now_ms: int) -> Task:
    failures = [
        TaskFailure(message_id=message_id, code="record_corrupt") for message_id in task.stubs
    ]
    failures += [
        TaskFailure(message_id=message_id, code="message_not_found")
        for message_id in task.failed_ids
        if message_id not in task.stubs
    ]
    eta_ms = delivery.eta_ms(task, now_ms)
    return Task(
        task_id=task.task_id,
        kind="redrive",
        group=task.group,
        state=task.state.value,
        total=task.total,
        done=task.done,
        failed=task.failed,
        failures=failures,
        failures_omitted=task.failed - len(failures),
        eta_ms=UNSET if eta_ms is None else eta_ms,
        created_at=codec.rfc3339(task.begun_at_ms),
        ended_at=UNSET if task.ended_at_ms is None else codec.rfc3339(task.ended_at_ms),
    )


def view_own(task: StoreTask) -> Task:
    return Task(
        task_id=task.task_id,
        kind=task.kind,
        state=task.state.value,
        total=max(task.total, task.done),
        done=task.done,
        failed=0,
        failures=[],
        failures_omitted=0,
        findings=UNSET
        if task.findings is None
        else [StoreFinding.of(finding) for finding in task.findings],
        findings_omitted=UNSET if task.findings is None else task.findings_omitted,
        error=task.error or UNSET,
        created_at=codec.rfc3339(task.begun_at_ms),
        ended_at=UNSET if task.ended_at_ms is None else codec.rfc3339(task.ended_at_ms),
    )


def _states(given: str) -> frozenset[delivery.TaskState]:
    try:
        return frozenset(delivery.TaskState(word.strip()) for word in given.split(","))
    except ValueError:
        raise invalid_field(
            "/query/state", "not_allowed", f"a state is one of {', '.join(delivery.TaskState)}"
        ) from None
