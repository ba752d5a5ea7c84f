"""Tasks over many messages, such as a redrive, and their progress. Pure.

One kind so far: redrives of dead letters. A task is derived from the lease events, so it continues
after a restart where it was.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

_ENDED_KEPT = 1_000


class TaskState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"  # of a task of the service itself: it could not be carried out


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A selection of dead letters: all conditions that are given must hold; without any, all dead
    letters.

    Times are wall milliseconds.
    """

    message_ids: frozenset[str] | None = None
    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    reason_contains: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        return self == _EVERYTHING


_EVERYTHING = Wanted()


class Task(msgspec.Struct, kw_only=True):
    """A task. `end`: dead letters from this offset on came later and are not part of it.

    `total`: number of messages that it selects; `done`: number of those redriven. If message ids
    were named, both count ids, and `done_ids` has those that were redriven.
    """

    task_id: str
    group: str
    wanted: Wanted
    end: int
    total: int
    begun_at_ms: int
    reset_attempts: bool
    max_per_second: int | None
    idempotency_key: str | None
    fingerprint: str | None
    state: TaskState = TaskState.RUNNING
    done: int = 0
    done_ids: set[str] = msgspec.field(default_factory=set)
    ended_at_ms: int | None = None
    # ids of wanted dead letters that stand for damaged messages; known at its end
    stubs: list[str] = []

    def note_done(self, message_ids: list[str]) -> None:
        if self.wanted.message_ids is None:
            self.done += len(message_ids)
        else:
            self.done_ids.update(message_ids)
            self.done = len(self.done_ids)

    @property
    def failed(self) -> int:
        """Number of selected messages that were no longer dead letters at their turn; known when
        the task has ended.
        """
        return max(0, self.total - self.done) if self.state is TaskState.DONE else 0

    @property
    def failed_ids(self) -> list[str]:
        """The named ids among the failed messages."""
        if self.wanted.message_ids is None or self.state is not TaskState.DONE:
            return []
        return sorted(self.wanted.message_ids - self.done_ids)


def eta_ms(task: Task, now_ms: int) -> int | None:
    """Estimated time until a running task ends, by its rate limit and its speed so far; None if
    unknown. `now_ms`: wall.
    """
    left = max(0, task.total - task.done)
    if task.state is not TaskState.RUNNING or not (left == 0 or task.done or task.max_per_second):
        return None
    by_rate = left * 1_000 / task.max_per_second if task.max_per_second else 0
    by_speed = left * max(0, now_ms - task.begun_at_ms) / task.done if task.done else 0
    return round(max(by_rate, by_speed))


class Tasks:
    """The running tasks, and the last ones that ended."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._by_key: dict[tuple[str, str], str] = {}

    def __iter__(self) -> Iterator[Task]:
        """The tasks, in the order in which they began."""
        return iter(list(self._tasks.values()))

    def get(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def by_key(self, group: str, idempotency_key: str) -> Task | None:
        return self._tasks.get(self._by_key.get((group, idempotency_key), ""))

    @property
    def running(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.state is TaskState.RUNNING]

    def add(self, task: Task) -> None:
        if task.task_id in self._tasks:
            return
        self._tasks[task.task_id] = task
        if task.idempotency_key is not None:
            self._by_key[task.group, task.idempotency_key] = task.task_id

    def end(
        self, task_id: str, state: TaskState, ended_at_ms: int, stubs: Sequence[str] = ()
    ) -> None:
        task = self._tasks.get(task_id)
        if task is not None and task.state is TaskState.RUNNING:
            task.state, task.ended_at_ms, task.stubs = state, ended_at_ms, list(stubs)
        ended = [one for one in self._tasks.values() if one.state is not TaskState.RUNNING]
        for one in ended[: max(0, len(ended) - _ENDED_KEPT)]:
            del self._tasks[one.task_id]
            if one.idempotency_key is not None:
                self._by_key.pop((one.group, one.idempotency_key), None)
