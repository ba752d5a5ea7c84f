"""The messages that each group has leased or settled, and when its leases end: all groups. Pure.

Derived: replaying the lease events gives it back (`replay.py`), from a snapshot on
(`snapshot.py`).
"""

from collections.abc import Iterator

from delivery.leases import events, replay, snapshot
from delivery.leases.clock_reading import ClockReading
from delivery.leases.events import AnyLeaseEvent
from delivery.leases.group import GroupLeases
from delivery.leases.retries import Retries
from delivery.leases.snapshot import TableDump
from delivery.leases.tasks import Task, Tasks, TaskState
from storage.offset_set import OffsetSet


class LeaseTable:
    """The leases of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupLeases] = {}
        self.tasks = Tasks()

    def __iter__(self) -> Iterator[GroupLeases]:
        return iter(self._groups.values())

    def find(self, group: str) -> GroupLeases | None:
        return self._groups.get(group)

    def group(self, group: str) -> GroupLeases:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = GroupLeases(group)
        return known

    def apply(self, event: AnyLeaseEvent, now: ClockReading) -> None:
        """Telling it what it reflects already changes nothing."""
        if isinstance(event, events.Deleted):
            retries = Retries(
                generation=event.generation, void_before=event.generation, start=event.retry_end
            )
            created = self._groups[event.group] = GroupLeases(event.group, retries)
            created.dead_letters_gone = OffsetSet(event.dead_letter_end)
            for task in self.tasks.running:
                if task.group == event.group:
                    self.tasks.end(task.task_id, TaskState.CANCELLED, now.wall_ms)
        elif isinstance(event, events.TaskBegun):
            self.tasks.add(Task(**{name: getattr(event, name) for name in event.__struct_fields__}))
        elif isinstance(event, events.TaskEnded):
            self.tasks.end(event.task_id, event.state, event.ended_at_ms, event.stubs)
        else:
            if isinstance(event, events.Redriven):
                self._note_redriven(event)
            replay.apply(self.group(event.group), event, now)

    def _note_redriven(self, event: events.Redriven) -> None:
        """Replayed once more, it changes nothing: the dead letters have gone."""
        task, gone = self.tasks.get(event.task_id), self.group(event.group).dead_letters_gone
        if task is not None and event.offsets[0] not in gone:
            task.note_done(event.message_ids)

    def dump(self, now: ClockReading) -> TableDump:
        return TableDump(
            wall_ms=now.wall_ms,
            monotonic_ms=now.monotonic_ms,
            groups=[snapshot.dump_group(group) for group in self._groups.values()],
            tasks=list(self.tasks),
        )

    def load(self, dump: TableDump, now: ClockReading) -> None:
        # The time since then counts as the wall clock shows it; a clock that was turned back makes
        # no lease longer.
        passed_ms = max(0, now.wall_ms - dump.wall_ms)
        later_ms = now.monotonic_ms - dump.monotonic_ms - passed_ms
        for group in dump.groups:
            self._groups[group.group] = snapshot.load_group(
                group, now_ms=now.monotonic_ms, later_ms=later_ms
            )
        for task in dump.tasks:
            self.tasks.add(task)
