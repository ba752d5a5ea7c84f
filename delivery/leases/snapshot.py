"""The snapshot of the table of leases: each group, the tasks, and its time. Pure."""

import msgspec

from delivery.leases.attempts import Attempt
from delivery.leases.clock_reading import ClockReading
from delivery.leases.group import GroupLeases, LeaseTable
from delivery.leases.message_states import State
from delivery.leases.queue_slots import QueueSlots, SlotsDump, Unlogged
from delivery.leases.retries import Retries
from delivery.leases.tasks import Task
from storage.message import QueueId
from storage.offset_set import OffsetSet


class GroupDump(msgspec.Struct, frozen=True, kw_only=True):
    """A group as a snapshot keeps it."""

    group: str
    generation: int
    void_before: int
    void_before_of: dict[str, int]
    retry_start: int
    dead_letters_gone: tuple[int, list[int]]
    waiting: dict[str, int]
    attempts: list[tuple[str, Attempt]]
    queues: list[tuple[QueueId, SlotsDump]]
    skipped: dict[str, int] = {}  # an earlier version kept none
    damaged: dict[str, int] = {}  # an earlier version kept none
    forgotten: list[QueueId] = []  # of deleted topics


class TableDump(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and the time of the dump on both clocks."""

    wall_ms: int
    monotonic_ms: int
    groups: list[GroupDump]
    tasks: list[Task]


def dump_table(table: LeaseTable, now: ClockReading) -> TableDump:
    return TableDump(
        wall_ms=now.wall_ms,
        monotonic_ms=now.monotonic_ms,
        groups=[dump_group(group) for group in table],
        tasks=list(table.tasks),
    )


def load_table(table: LeaseTable, dump: TableDump, now: ClockReading) -> None:
    """Load a snapshot into an empty table."""
    # The time since then counts as the wall clock shows it; a clock that was turned back makes
    # no lease longer.
    passed_ms = max(0, now.wall_ms - dump.wall_ms)
    later_ms = now.monotonic_ms - dump.monotonic_ms - passed_ms
    for group in dump.groups:
        table.put(load_group(group, now_ms=now.monotonic_ms, later_ms=later_ms))
    for task in dump.tasks:
        table.tasks.add(task)


def dump_group(leases: GroupLeases) -> GroupDump:
    """The table of a group, as the log has it. Leases that are not in the log yet are left out:
    their receive has not been answered.
    """
    retries = leases.retries
    waiting = dict(retries.waiting)
    unlogged: dict[int, dict[int, Unlogged]] = {}
    for one in leases.unlogged.values():
        for queue, count in one.arrived.items():
            waiting[queue] = waiting.get(queue, 0) + count
        for queue_leases, offset, attempt, lease in one.places:
            of_queue = unlogged.setdefault(queue_leases.index, {})
            of_queue[offset] = Unlogged(one.lease, attempt, lease)
    return GroupDump(
        group=leases.group,
        generation=retries.generation,
        void_before=retries.void_before,
        void_before_of=retries.void_before_of,
        retry_start=retries.start,
        dead_letters_gone=(leases.dead_letters_gone.prefix, list(leases.dead_letters_gone.ahead)),
        waiting=waiting,
        skipped=leases.skipped,
        damaged=leases.damaged,
        attempts=list(leases.attempts),
        forgotten=list(leases.forgotten),
        queues=[
            (queue.queue, queue.slots.dump(unlogged.get(queue.index, {})))
            for queue in leases.queues
        ],
    )


def load_group(dump: GroupDump, *, now_ms: int, later_ms: int) -> GroupLeases:
    """Load a group. `now_ms`: on the monotonic clock, which is `later_ms` ahead of that of the
    dump.
    """
    retries = Retries(
        generation=dump.generation, void_before=dump.void_before, start=dump.retry_start
    )
    retries.void_before_of = dump.void_before_of
    retries.waiting = dump.waiting
    leases = GroupLeases(dump.group, retries)
    leases.dead_letters_gone = OffsetSet(*dump.dead_letters_gone)
    leases.skipped = dump.skipped
    leases.damaged = dump.damaged
    leases.attempts.load(dump.attempts)
    for queue, slots in dump.queues:
        added = leases.add(queue, QueueSlots.load(slots, later_ms=later_ms))
        for slot in added.slots:
            if slot.state != State.OPEN:
                leases.wheel.add(max(now_ms, slot.deadline_ms), added.index, slot.offset, 1)
        if queue in dump.forgotten:
            leases.forget(added)
    return leases
