"""Which messages each group has been given, which it is done with, and until when the others are lent. Pure.

Derived: replaying the lease events gives it back. Two things only live here: what is being appended (states ACKING and MOVING),
and how far a queue was looked at without finding anything for the group.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from delivery import lease_events as events
from delivery.due_wheel import DueWheel
from delivery.key_order import KeyOrder
from delivery.lease_events import AnyLeaseEvent, Run
from delivery.receipt import queue_hash
from delivery.slots import HELD, QueueSlots, SlotsDump, State
from delivery.tasks import Task, Tasks, TaskState
from storage.formats import names
from storage.message import QueueId

_MOST_ATTEMPTS_KEPT = 100_000
_ATTEMPTS_LOOKED_AT = 4  # for each that is added
_LOOK_AGAIN_MS = 1_000  # at a message that was being appended when its lease ended


class Moment(NamedTuple):
    """Now, on both clocks, in milliseconds."""

    wall_ms: int
    monotonic_ms: int

    def monotonic(self, until_ms: int, length_ms: int) -> int:
        """A wall time on the monotonic clock; whatever the wall clock did, it is at most `length_ms` from now."""
        return self.monotonic_ms + max(0, min(until_ms - self.wall_ms, length_ms))


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A receive that can be asked for again: its lease, until when that was (on both clocks), the messages by (queue index,
    offset).
    """

    lease: int
    until_ms: int
    deadline_ms: int
    places: list[tuple[int, int]]


class Ended(NamedTuple):
    """A lease that ended without a word."""

    queue: "QueueLeases"
    offset: int
    attempt: int
    lease: int


class Untold(Protocol):
    """What a receive takes, until the log tells of it; `arrived` as in the event. A place: queue, offset, attempt before."""

    lease: int
    arrived: dict[str, int]

    @property
    def places(self) -> Iterator[tuple["QueueLeases", int, int]]: ...


class OffsetSet:
    """Offsets of a queue: all below `prefix`, and some above."""

    def __init__(self, prefix: int = 0, ahead: Iterable[int] = ()) -> None:
        self.prefix = prefix
        self.ahead = set(ahead)

    def __contains__(self, offset: int) -> bool:
        return offset < self.prefix or offset in self.ahead

    def add(self, offset: int) -> None:
        if offset >= self.prefix:
            self.ahead.add(offset)
            while self.prefix in self.ahead:
                self.ahead.remove(self.prefix)
                self.prefix += 1

    def add_below(self, end: int) -> None:
        if end > self.prefix:
            self.prefix = end
            ahead, self.ahead = self.ahead, set()
            for offset in sorted(ahead):
                self.add(offset)


class QueueLeases:
    """One queue for one group. Until `learn` has run, nothing is taken from what is open."""

    def __init__(self, queue: QueueId, index: int, slots: QueueSlots) -> None:
        self.queue = queue
        self.index = index
        self.hash = queue_hash(queue)
        self.is_retry = queue.topic.startswith(names.RETRY_PREFIX)
        self.slots = slots
        self.logged_end = slots.cursor  # the log says what was looked at up to here
        self.order: KeyOrder | None = None
        self.is_learned = False
        self._open: list[int] = []  # a heap; with settled ones in between

    def restart(self, position: int) -> None:
        self.slots.restart(position)
        self.logged_end = position
        self.forget()

    def forget(self) -> None:
        """What was learned no longer holds."""
        self.order = None
        self.is_learned = False
        self._open = []

    def learn(self, keys: Iterable[tuple[int, str]] | None) -> None:
        """`keys`: of every unsettled message of an ordered group; None where the group is not ordered."""
        self.forget()
        self.is_learned = True
        if keys is None:
            self._open = [slot.offset for slot in self.slots if slot.state == State.OPEN]
            return
        self.order = KeyOrder()
        for offset, key in keys:
            state = self.slots.state(offset)
            if state != State.SETTLED:
                self.order.note(offset, key, is_held=state in HELD)

    @property
    def has_open(self) -> bool:
        """Is there something to be handed out again?"""
        if not self.is_learned:
            return self.slots.counts[State.OPEN] > 0
        if self.order is not None:
            return self.order.has_takeable
        return self.slots.counts[State.OPEN] > 0

    def take_open(self, count: int) -> list[int]:
        """Up to so many messages that may be handed out again, by offset; `put_back` those that are not."""
        if self.order is not None:
            return self.order.take(count)
        taken: list[int] = []
        while self._open and len(taken) < count:
            offset = heapq.heappop(self._open)
            if self.slots.state(offset) == State.OPEN and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def put_back(self, offset: int) -> None:
        """A message that was taken, or held, is open."""
        self.slots.set_state(offset, State.OPEN)
        self._note_open(offset)

    def take_back(self, offset: int, attempt: int) -> None:
        """It was lent, and nobody was told: it is open as it was before, at this attempt."""
        self.slots.put(offset, 1, State.OPEN, attempt=attempt)
        self._note_open(offset)

    def settle_taken(self, offset: int) -> None:
        """A message of `take_open` is not for the group."""
        if self.order is not None:
            self.order.settle(offset)
        self.slots.settle(offset, 1)

    def _note_open(self, offset: int) -> None:
        if self.order is not None:
            self.order.release(offset)
        elif self.is_learned:
            heapq.heappush(self._open, offset)

    def settle_held(self, run: Run) -> int:
        """What that lease had is done with: not what another one holds since. How many were not before."""
        before = self.slots.unsettled
        for first, count in self.slots.runs_not_of_others(run.first, run.count, run.lease):
            self.settle(first, count)
        return before - self.slots.unsettled

    def skip(self, first: int, count: int) -> int:
        """Those of them that were never handed out are done with. How many were not before."""
        end, cursor = first + count, self.slots.cursor
        skipped = max(0, end - max(first, cursor))
        for offset in range(first, min(end, cursor)):
            slot = self.slots.get(offset)
            if slot.state == State.OPEN and not slot.attempt:
                self.settle(offset, 1)
                skipped += 1
        if end > cursor:
            self.slots.advance_to(end)
        self.logged_end = max(self.logged_end, end)
        return skipped

    def drop_below(self, first: int) -> None:
        """The log no longer has what lies below."""
        slots = self.slots
        if slots.cursor < first:
            self.settle(slots.prefix, slots.cursor - slots.prefix)
            slots.advance_to(first)

    def settle(self, first: int, count: int) -> None:
        if self.order is not None:
            for offset in range(first, first + count):
                self.order.settle(offset)
        self.slots.settle(first, count)


class GroupLeases:
    """One group. `generation` counts resets: a retry that was put off in an older one than its topic's is void."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.queues: list[QueueLeases] = []
        self.wheel = DueWheel()
        self._put_off: set[tuple[int, int]] = set()  # lent for longer than the wheel knows: queue index, offset
        self.generation = 0
        self.void_before = 0
        self.void_before_of: dict[str, int] = {}  # by queue ("orders/2"), or topic
        self.retry_start = 0  # where the retry topic begins for this group
        self.dead_letters_gone = OffsetSet()  # redriven, purged, or those of an earlier group of the name
        self.waiting: dict[str, int] = {}  # messages put off for a retry, by queue ("orders/2"), or topic
        self.skipped: dict[str, int] = {}  # messages that were passed over by the group's rules, by queue
        self.attempts: OrderedDict[str, Attempt] = OrderedDict()
        self.turn = 0
        self.untold: dict[int, Untold] = {}  # by lease: lent here and not in the log yet
        self._by_id: dict[QueueId, QueueLeases] = {}
        self._by_hash: dict[int, QueueLeases] = {}

    # --------------------------------------------------------------------------------------------------------- queues

    def find(self, queue: QueueId) -> QueueLeases | None:
        return self._by_id.get(queue)

    def by_hash(self, hash_: int) -> QueueLeases | None:
        return self._by_hash.get(hash_)

    def open(self, queue: QueueId, position: int) -> QueueLeases:
        """The queue; where the group does not know it, it begins at this position."""
        known = self._by_id.get(queue)
        return self._add(queue, QueueSlots(position)) if known is None else known

    def _add(self, queue: QueueId, slots: QueueSlots) -> QueueLeases:
        added = QueueLeases(queue, len(self.queues), slots)
        self.queues.append(added)
        self._by_id[queue] = self._by_hash[added.hash] = added
        return added

    @property
    def is_anew(self) -> bool:
        """Was there a group of the name before, that was deleted? What was said for that one does not count."""
        return self.void_before > 0

    def is_void(self, queue: QueueId, generation: int) -> bool:
        """Was a retry of a message of this queue ended by a reset, or with an earlier group of the name?"""
        return generation < self._void_before(str(queue))

    def _void_before(self, queue: str) -> int:
        ended = self.void_before_of
        return max(self.void_before, ended.get(queue.partition("/")[0], 0), ended.get(queue, 0))

    def count(self, state: State) -> int:
        return sum(queue.slots.counts[state] for queue in self.queues)

    # --------------------------------------------------------------------------------------------------------- leases

    def lend(self, queue: QueueLeases, first: int, count: int, *, attempt: int, lease: int, deadline_ms: int) -> None:
        """These messages, one behind another, are lent until then, for this attempt."""
        queue.slots.put(first, count, State.LEASED, attempt=attempt, lease=lease, deadline_ms=deadline_ms)
        self.wheel.add(deadline_ms, queue.index, first, count)

    def extend(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """Of a message that is lent. Where that is later, the wheel is told when the time before is up: once, however often."""
        is_later = deadline_ms >= queue.slots.get(offset).deadline_ms
        queue.slots.set_deadline(offset, deadline_ms)
        if is_later:
            self._put_off.add((queue.index, offset))
        else:
            self.wheel.add(deadline_ms, queue.index, offset, 1)

    def wait(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """A message that is held is handed out again, where it lies, at that moment."""
        queue.slots.set_state(offset, State.WAITING)
        self._look_at(queue, offset, deadline_ms)

    def end_due(self, now_ms: int) -> list[Ended]:
        """End what is due: waits, which are open then, and leases, which stay with whoever called (in state MOVING)."""
        ended: list[Ended] = []
        for index, first, count in self.wheel.take(now_ms):
            queue = self.queues[index]
            for offset in range(first, first + count):
                slot = queue.slots.get(offset)
                is_put_off = (index, offset) in self._put_off
                if is_put_off:
                    self._put_off.discard((index, offset))
                if slot.state in (State.SETTLED, State.OPEN):
                    continue
                if slot.deadline_ms > now_ms:
                    if is_put_off:
                        self.wheel.add(slot.deadline_ms, index, offset, 1)
                    continue
                if slot.state == State.LEASED:
                    queue.slots.set_state(offset, State.MOVING)
                    ended.append(Ended(queue, offset, slot.attempt, slot.lease))
                elif slot.state == State.WAITING:
                    queue.put_back(offset)
                else:
                    self.wheel.add(now_ms + _LOOK_AGAIN_MS, queue.index, offset, 1)
        return ended

    def hold_again(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """What was to happen to a message could not be written: its lease ends at that moment instead."""
        if queue.slots.state(offset) in (State.ACKING, State.MOVING):
            queue.slots.set_state(offset, State.LEASED)
            self._look_at(queue, offset, deadline_ms)

    def _look_at(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        queue.slots.set_deadline(offset, deadline_ms)
        self.wheel.add(deadline_ms, queue.index, offset, 1)

    # --------------------------------------------------------------------------------------------------------- replay

    def apply(self, event: AnyLeaseEvent, now: Moment) -> None:
        """Any event but that the group was deleted."""
        if isinstance(event, events.Leased):
            self._apply_leased(event, now)
        elif isinstance(event, events.Retried):
            self._apply_retried(event)
        elif isinstance(event, events.Redriven):
            if event.offsets[0] not in self.dead_letters_gone:
                self._note_waiting(event.waiting)
            for offset in event.offsets:
                self.dead_letters_gone.add(offset)
        elif isinstance(event, events.Purged):
            self.dead_letters_gone.add_below(event.before)
        elif isinstance(event, events.Acked | events.DeadLettered | events.Discarded):
            self._settle(event.runs)
        elif isinstance(event, events.Skipped):
            self._apply_skipped(event)
        elif isinstance(event, events.Expired):
            self._apply_expired(event.runs)
        elif isinstance(event, events.Returned):
            self._apply_returned(event.messages, now)
        elif isinstance(event, events.Extended):
            for message in event.messages:
                queue = self.find(message.queue_id)
                if queue is not None and self._is_held_by(queue, message.offset, message.lease):
                    self.extend(queue, message.offset, now.monotonic(message.until_ms, message.lease_ms))
        elif isinstance(event, events.Reset):
            self._apply_reset(event)

    def _apply_retried(self, event: events.Retried) -> None:
        if self._settle(event.runs):
            # Behind a reset that the refusal did not know yet, they are void.
            known = self.generation if event.generation is None else event.generation
            self._note_waiting({one: count for one, count in event.waiting.items() if known >= self._void_before(one)})

    def _note_waiting(self, waiting: dict[str, int]) -> None:
        for queue, count in waiting.items():
            self.waiting[queue] = self.waiting.get(queue, 0) + count

    def note_arrived(self, arrived: dict[str, int]) -> None:
        """So many retries of each queue have come to the retry topic and were met there."""
        for queue, count in arrived.items():
            # What was put off by an earlier version is counted by topic.
            for counted in (queue, queue.partition("/")[0]):
                known = min(count, self.waiting.get(counted, 0))
                if known:
                    self.waiting[counted] -= known
                    count -= known

    def note_attempt(self, attempt_id: str, attempt: Attempt, now_ms: int) -> None:
        """And forget some of those that hold nothing any more: however long leases are, as many are kept as are in use."""
        self.attempts[attempt_id] = attempt
        for _ in range(min(_ATTEMPTS_LOOKED_AT, len(self.attempts))):
            at, oldest = self.attempts.popitem(last=False)
            is_alive = any(True for _ in self.held_of(oldest, now_ms))
            if is_alive and len(self.attempts) < _MOST_ATTEMPTS_KEPT:
                self.attempts[at] = oldest  # the others have their turn before it is looked at again

    def held_of(self, attempt: Attempt, now_ms: int) -> Iterator[tuple[QueueLeases, int]]:
        """Which messages a receive was given, by queue and offset, are still lent to it."""
        for index, offset in attempt.places:
            queue = self.queues[index]
            if queue.slots.is_leased(offset, attempt.lease, now_ms):
                yield queue, offset

    def _apply_leased(self, event: events.Leased, now: Moment) -> None:
        for scan in event.scans:
            self._apply_scan(scan, event)
        deadline_ms = now.monotonic(event.until_ms, event.lease_ms)
        places: list[tuple[int, int]] = []
        for run in event.runs:
            queue = self.open(run.queue_id, run.first)
            places += [(queue.index, offset) for offset in range(run.first, run.first + run.count)]
            # What is settled stays so: then this is told once more.
            for first, count in queue.slots.unsettled_runs(run.first, run.count):
                self.lend(queue, first, count, attempt=run.attempt, lease=event.lease, deadline_ms=deadline_ms)
        self.note_arrived(event.arrived)
        if event.attempt_id is not None:
            attempt = Attempt(event.lease, event.until_ms, deadline_ms, places)
            self.note_attempt(event.attempt_id, attempt, now.monotonic_ms)

    def _apply_scan(self, scan: events.Scan, event: events.Leased) -> None:
        queue = self.open(scan.queue_id, scan.begin)
        slots = queue.slots
        queue.logged_end = max(queue.logged_end, scan.end)
        if slots.cursor >= scan.end:
            return  # it is known already
        self._look_again(queue, scan.begin)
        for run in (*event.runs, *event.passed):
            if run.queue_id == scan.queue_id:
                first, end = max(run.first, slots.cursor, scan.begin), min(run.first + run.count, scan.end)
                if first < end:
                    slots.put(first, end - first, State.OPEN, attempt=run.attempt)
        slots.advance_to(scan.end)

    def _apply_skipped(self, event: events.Skipped) -> None:
        for run in event.runs:
            queue = self.open(run.queue_id, run.first)
            self._look_again(queue, run.first)
            if skipped := queue.skip(run.first, run.count):
                self.skipped[str(run.queue_id)] = self.skipped.get(str(run.queue_id), 0) + skipped

    @staticmethod
    def _look_again(queue: QueueLeases, end: int) -> None:
        """No event tells what became of the messages below: it was never written. They may be for the group."""
        cursor = queue.slots.cursor
        if cursor < end:
            queue.slots.put(cursor, end - cursor, State.OPEN, attempt=0)
            queue.slots.advance_to(end)

    def _apply_expired(self, runs: Sequence[Run]) -> None:
        for run in runs:
            queue = self.find(run.queue_id)
            for offset in range(run.first, run.first + run.count):
                if queue is not None and self._is_held_by(queue, offset, run.lease):
                    queue.put_back(offset)

    def _apply_returned(self, messages: Sequence[events.ReturnedMessage], now: Moment) -> None:
        for message in messages:
            queue = self.find(message.queue_id)
            if queue is None or not self._is_held_by(queue, message.offset, message.lease):
                continue
            if message.due_ms <= now.wall_ms:
                queue.put_back(message.offset)
            else:
                self.wait(queue, message.offset, now.monotonic(message.due_ms, message.delay_ms))

    def _apply_reset(self, event: events.Reset) -> None:
        self.generation = max(self.generation, event.generation)
        ended = event.topics + [str(position.queue_id) for position in event.positions if event.ends_retries]
        for one in ended:
            self.void_before_of[one] = event.generation
            self.waiting.pop(one, None)
        for run in event.voided:
            if (queue := self.find(run.queue_id)) is not None:
                queue.settle(run.first, run.count)
        for position in event.positions:
            self.open(position.queue_id, position.offset).restart(position.offset)

    def _settle(self, runs: Sequence[Run]) -> int:
        """How many messages are done with that were not before."""
        found = [(queue, run) for run in runs if (queue := self.find(run.queue_id)) is not None]
        return sum([queue.settle_held(run) for queue, run in found])

    @staticmethod
    def _is_held_by(queue: QueueLeases, offset: int, lease: int) -> bool:
        slot = queue.slots.get(offset)
        return slot.lease == lease and slot.state in HELD

    # ------------------------------------------------------------------------------------------------------- snapshots

    def dump(self) -> "GroupDump":
        """What the log does not tell of yet is left out: should it never do so, nobody was given anything."""
        waiting = dict(self.waiting)
        untold: dict[int, dict[int, tuple[int, int]]] = {}
        for one in self.untold.values():
            for queue, count in one.arrived.items():
                waiting[queue] = waiting.get(queue, 0) + count
            for leases, offset, attempt in one.places:
                untold.setdefault(leases.index, {})[offset] = one.lease, attempt
        return GroupDump(
            group=self.group,
            generation=self.generation,
            void_before=self.void_before,
            void_before_of=self.void_before_of,
            retry_start=self.retry_start,
            dead_letters_gone=(self.dead_letters_gone.prefix, list(self.dead_letters_gone.ahead)),
            waiting=waiting,
            skipped=self.skipped,
            attempts=list(self.attempts.items()),
            queues=[(queue.queue, queue.slots.dump(untold.get(queue.index, {}))) for queue in self.queues],
        )

    @classmethod
    def load(cls, dump: "GroupDump", *, now_ms: int, later_ms: int) -> "GroupLeases":
        """`now_ms`: on the monotonic clock, which shows `later_ms` more for the moments of the dump."""
        group = cls(dump.group)
        group.generation = dump.generation
        group.void_before = dump.void_before
        group.void_before_of = dump.void_before_of
        group.retry_start = dump.retry_start
        group.dead_letters_gone = OffsetSet(*dump.dead_letters_gone)
        group.waiting = dump.waiting
        group.skipped = dump.skipped
        group.attempts = OrderedDict(dump.attempts)
        for queue, slots in dump.queues:
            added = group._add(queue, QueueSlots.load(slots, later_ms=later_ms))
            for slot in added.slots:
                if slot.state != State.OPEN:
                    group.wheel.add(max(now_ms, slot.deadline_ms), added.index, slot.offset, 1)
        return group


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


class TableDump(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and when that was on both clocks."""

    wall_ms: int
    monotonic_ms: int
    groups: list[GroupDump]
    tasks: list[Task]


class LeaseTable:
    """All groups."""

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

    def apply(self, event: AnyLeaseEvent, now: Moment) -> None:
        """Telling it what it reflects already changes nothing."""
        if isinstance(event, events.Deleted):
            anew = self._groups[event.group] = GroupLeases(event.group)
            anew.generation = anew.void_before = event.generation
            anew.retry_start = event.retry_end
            anew.dead_letters_gone = OffsetSet(event.dead_letter_end)
            for task in self.tasks.running:
                if task.group == event.group:
                    self.tasks.end(task.task_id, TaskState.CANCELLED, now.wall_ms)
        elif isinstance(event, events.TaskBegun):
            self.tasks.add(Task(**{name: getattr(event, name) for name in event.__struct_fields__}))
        elif isinstance(event, events.TaskEnded):
            self.tasks.end(event.task_id, event.state, event.ended_at_ms)
        else:
            if isinstance(event, events.Redriven):
                self._note_redriven(event)
            self.group(event.group).apply(event, now)

    def _note_redriven(self, event: events.Redriven) -> None:
        """Told once more, it changes nothing: the dead letters have gone."""
        task, gone = self.tasks.get(event.task_id), self.group(event.group).dead_letters_gone
        if task is not None and event.offsets[0] not in gone:
            task.note_done(event.message_ids)

    def dump(self, now: Moment) -> TableDump:
        return TableDump(
            wall_ms=now.wall_ms,
            monotonic_ms=now.monotonic_ms,
            groups=[group.dump() for group in self._groups.values()],
            tasks=list(self.tasks),
        )

    def load(self, dump: TableDump, now: Moment) -> None:
        # The time since then counts as the wall clock shows it; a clock that was turned back makes no lease longer.
        passed_ms = max(0, now.wall_ms - dump.wall_ms)
        later_ms = now.monotonic_ms - dump.monotonic_ms - passed_ms
        for group in dump.groups:
            self._groups[group.group] = GroupLeases.load(group, now_ms=now.monotonic_ms, later_ms=later_ms)
        for task in dump.tasks:
            self.tasks.add(task)
