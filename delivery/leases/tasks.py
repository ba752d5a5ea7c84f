"""Tasks over many messages, such as a redrive, and their progress. Pure.

One kind so far: dead letters are redriven. A task is derived from the lease events: it goes on
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
    """Which dead letters: what is said must all hold; nothing said is all of them.

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
    """`end`: dead letters from there on came later.

    `total`: messages that it was to be about; `done`: those redriven.

    Where they were named, these are numbers of names, and `done_ids` says which were done.
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
        """Messages that it was to be about and that were no dead letters when their turn came;
        known at its end.
        """
        return max(0, self.total - self.done) if self.state is TaskState.DONE else 0

    @property
    def failed_ids(self) -> list[str]:
        """Of those, the ones that were named."""
        if self.wanted.message_ids is None or self.state is not TaskState.DONE:
            return []
        return sorted(self.wanted.message_ids - self.done_ids)


def eta_ms(task: Task, now_ms: int) -> int | None:
    """How long a running task may still take, by its rate and its speed so far; None where that is
    unknown. `now_ms`: wall.
    """
    left = max(0, task.total - task.done)
    if task.state is not TaskState.RUNNING or not (left == 0 or task.done or task.max_per_second):
        return None
    by_rate = left * 1_000 / task.max_per_second if task.max_per_second else 0
    by_speed = left * max(0, now_ms - task.begun_at_ms) / task.done if task.done else 0
    return round(max(by_rate, by_speed))


class Tasks:
    """The running ones, and the last that ended."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._by_key: dict[tuple[str, str], str] = {}

    def __iter__(self) -> Iterator[Task]:
        """In the order in which they were begun."""
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
