"""Tasks of the service about its own store: one of each kind at a time.

They end with the process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import structlog

from delivery.leases.tasks import TaskState
from storage.clock import Clock
from storage.errors import reason_of
from storage.store_status import Finding

_ENDED_KEPT = 100
_MOST_FINDINGS = 1_000

log = structlog.get_logger()


@dataclass
class StoreTask:
    """`total` and `done` are bytes, `total` as far as known."""

    task_id: str
    kind: str
    begun_at_ms: int
    state: TaskState = TaskState.RUNNING
    total: int = 0
    done: int = 0
    findings: list[Finding] | None = None  # of a verification alone
    findings_omitted: int = 0
    error: str | None = None
    ended_at_ms: int | None = None

    def note_findings(self, findings: tuple[Finding, ...]) -> None:
        known = self.findings or []
        room = _MOST_FINDINGS - len(known)
        self.findings = [*known, *findings[:room]] if findings else known
        self.findings_omitted += max(0, len(findings) - room)


Work = Callable[[StoreTask], Awaitable[None]]


class StoreTasks:
    """Owns the tasks. Event loop only."""

    def __init__(self, clock: Clock, new_task_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_task_id = new_task_id
        self._tasks: dict[str, StoreTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[StoreTask]:
        """The tasks in the order in which they were begun."""
        return iter(list(self._tasks.values()))

    def get(self, task_id: str) -> StoreTask | None:
        return self._tasks.get(task_id)

    def begin(self, kind: str, work: Work) -> StoreTask:
        """Begin the task; the running one of this kind, where there is one."""
        for task in self._tasks.values():
            if task.kind == kind and task.state is TaskState.RUNNING:
                return task
        task = StoreTask(self._new_task_id(), kind, self._clock.wall_ms())
        self._tasks[task.task_id] = task
        self._running[task.task_id] = asyncio.create_task(
            self._run(task, work), name=f"task-{kind}"
        )
        ended = [one for one in self._tasks.values() if one.state is not TaskState.RUNNING]
        for one in ended[: max(0, len(ended) - _ENDED_KEPT)]:
            del self._tasks[one.task_id]
        return task

    async def cancel(self, task: StoreTask) -> None:
        """End the task; one that has ended stays as it is. Returns once its work has stopped."""
        running = self._running.get(task.task_id)
        if running is not None:
            running.cancel()
            await asyncio.wait({running})

    async def stop(self) -> None:
        """End all tasks."""
        for task in self:
            await self.cancel(task)

    async def _run(self, task: StoreTask, work: Work) -> None:
        try:
            await work(task)
            state = TaskState.DONE
        except asyncio.CancelledError:
            state = TaskState.CANCELLED  # by `cancel` alone, which waits for this
        except Exception as error:
            log.exception("task_failed", task_id=task.task_id, kind=task.kind)
            task.error, state = reason_of(error), TaskState.FAILED
        task.state, task.ended_at_ms = state, self._clock.wall_ms()
        del self._running[task.task_id]
