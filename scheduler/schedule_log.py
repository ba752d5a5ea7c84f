"""Schedules in the log: follows the delay topics and the marks, and updates the index and the
window.

Messages are delayed by an append to a delay topic (a send, a commit). This package reads them as
any reader does, so its state is that of the visible log, whatever happened to the sender. The
engine stores the index with the positions that it reflects: a start continues from there.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from scheduler import marks, scheduled_message
from scheduler.due_window import DueWindow, before
from scheduler.marks import MARK_QUEUE, AnyMark, Cancelled, Delivered, PutBack
from scheduler.options import ScheduleOptions
from scheduler.progress import Progress
from scheduler.schedule import ScheduleState
from scheduler.scheduled_message import LEVEL_COUNT, TIMER_QUEUE
from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import CorruptRecord, UnknownTopic
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.journal import leave_out, read_event
from storage.message import (
    NEVER_MS,
    DueEntry,
    Durability,
    Message,
    QueueId,
    StoredMessage,
)
from storage.queue_scan import scan
from storage.store import ANY_LABEL, DueCounts, DuePage, KeyQuery, MessageStore

T = TypeVar("T")
log = structlog.get_logger()

_RECALLED_MARKS = 512  # read together
_MARK_WAIT_MS = 10_000
SNAPSHOT = "schedule_progress"


class Finished(NamedTuple):
    entry: DueEntry
    state: ScheduleState


class BrokersChange(NamedTuple):
    """A message of the timer queue by which a broker replaced or recalled an earlier one."""

    entry: DueEntry
    message_id: str  # of the earlier one
    topic: str
    log_offset: int
    is_recall: bool


class ScheduleLog:
    """The delayed messages in the log. Event loop only; `start` before anything else."""

    def __init__(self, store: MessageStore, clock: Clock, options: ScheduleOptions) -> None:
        self._store = store
        self._clock = clock
        self._near_ms = options.near_ms
        self._finished_kept = options.finished_kept
        self.window = DueWindow(max_entries=options.near_kept)
        self.finished: deque[Finished] = deque(maxlen=options.finished_kept)  # the newest last
        self._progress = Progress()
        # The progress, which only a broker asks for, may lack a damaged mark.
        self._table = DerivedTable(store, SNAPSHOT, {MARK_QUEUE: OnDamage.LEAVE_OUT})
        self._kept_progress: dict[QueueId, int] = {}  # of the delay queues, as the engine has it
        self._positions: dict[QueueId, int] = {}  # read up to there; the mark queue is the last one
        self.put_backs = 0  # since then a message may be elsewhere
        self.is_from_a_broker = False  # until what that did is marked
        self._brokers_changes: list[BrokersChange] = []  # noted until then
        self._begins: dict[QueueId, int] | None = None  # during a rebuild of the index
        self._parked: set[int] = set()  # damaged, found during a rebuild of the index
        # who reads the index for the window must not miss what is followed meanwhile
        self._lock = asyncio.Lock()

    @property
    def counts(self) -> DueCounts:
        return self._store.due_counts()

    async def start(self) -> int:
        """Read the log from the positions of the index on; the number of messages read."""
        delay_queues = [
            *await self._queues_of(SCHEDULE_TOPIC, LEVEL_COUNT),
            *await self._queues_of(TIMER_QUEUE.topic, 1),
        ]
        await self._queues_of(MARK_QUEUE.topic, 1)
        by_broker = self._store.delay_progress_by_others()
        self.is_from_a_broker = by_broker is not None
        if self.is_from_a_broker:
            await self._store.forget_due()
        kept = self._store.due_positions()
        self._positions = {**dict.fromkeys([*delay_queues, MARK_QUEUE], 0), **kept}
        await self._recall_progress()
        if not kept:
            count = await self._rebuild()
        else:
            await self._recall_finished()
            count = await self.follow()
        for queue, queue_offset in (by_broker or {}).items():
            self._progress.note_done_before(queue, min(queue_offset, self._positions.get(queue, 0)))
        self._keep_progress()
        return count

    @property
    def left_out(self) -> int:
        """Number of damaged marks that the replay of the progress skipped."""
        return self._table.left_out

    @property
    def delay_queues(self) -> list[QueueId]:
        return [queue for queue in self._positions if queue != MARK_QUEUE]

    @property
    def delay_ends(self) -> dict[QueueId, int]:
        """Offsets up to which each delay queue was read."""
        return {queue: self._positions[queue] for queue in self.delay_queues}

    # ----------------------------------------------------------------------------------------------
    # following the log

    async def follow(self) -> int:
        """Read newly visible records: delayed messages first, then marks; the number of
        messages.
        """
        async with self._lock:
            return await self._follow()

    async def append(
        self, messages: Sequence[Message], mark: AnyMark, durability: Durability | None
    ) -> None:
        """Append messages and a mark together, and follow the log up to the mark."""
        noted = marks.encode(mark, now_ms=self._clock.wall_ms())
        # A change is taken when nothing else is; what is due can wait.
        from_reserve = not isinstance(mark, Delivered)
        appended = await self._table.append(
            [*messages, noted], durability=durability, from_reserve=from_reserve
        )
        place = appended[-1]
        # The sync may take longer than the engine's limit: nothing is delivered twice while the
        # mark is pending.
        if not await self._store.wait_for_arrival(
            MARK_QUEUE, place.queue_offset, timeout_ms=_MARK_WAIT_MS
        ):
            await self._store.wait_durable(place.log_offset)
        if self._positions[MARK_QUEUE] <= place.queue_offset:
            await self.follow()

    def end_take_over(self) -> None:
        """Note that all changes of a broker are marked."""
        self.is_from_a_broker = False
        self._keep_progress()

    def take_brokers_changes(self) -> list[BrokersChange]:
        changes, self._brokers_changes = self._brokers_changes, []
        return changes

    async def was_delivered_by_broker(self, place: int, message: StoredMessage) -> bool:
        """Whether a broker has delivered this waiting message. A broker's deliveries of EscrowMQ's
        messages were marked at the take-over.
        """
        if not scheduled_message.is_brokers(message):
            return self._progress.is_done(place)
        return await self.is_over(place, message)

    async def is_over(self, place: int, message: StoredMessage) -> bool:
        """Whether a broker has delivered it. It writes no marks: it has delivered the messages up
        to its progress, and those that are in the real topic with a later offset.
        """
        if self._progress.is_done(place):
            return True
        topics, from_ms = [scheduled_message.real_topic(message)], message.stored_at_ms
        found = await self._store.find_messages(
            KeyQuery(message.message_id, topics=topics, by_id=True, from_ms=from_ms, max_messages=1)
        )
        return any((one.log_offset or 0) > (message.log_offset or 0) for one in found)

    async def save_snapshot(self) -> int:
        """Save the finished messages after the first unfinished one; the number of bytes, 0 if
        nothing has changed.
        """
        return await self._table.save_snapshot(lambda: [self._progress.dump()])

    async def _rebuild(self) -> int:
        """Rebuild the index. Marks outlive their messages for a while, so marks of dropped messages
        must leave no trace in it.
        """
        self._begins = {
            queue: (await self._store.offsets(queue)).first for queue in self.delay_queues
        }
        try:
            return await self._follow()
        finally:
            self._begins = None
            self._parked.clear()

    async def _follow(self) -> int:
        count = 0
        for queue in self._positions:
            count += await self._read_on(queue)
        self._keep_progress()
        return count

    def _keep_progress(self) -> None:
        if self.is_from_a_broker:
            return  # its files say so until then
        done_before = {
            queue: self._progress.done_before(queue)
            for queue in self.delay_queues
            if self._positions[queue]
        }
        if done_before != self._kept_progress:
            self._kept_progress = done_before
            self._store.keep_delay_progress(done_before)

    async def _read_on(self, queue: QueueId) -> int:
        bounds = await self._store.offsets(queue)
        begin = at = max(self._positions[queue], bounds.first)
        note = self._note_marks if queue == MARK_QUEUE else self._note_delayed
        async for piece in scan(self._store, queue, begin, bounds.end):
            at = piece.end
            if piece.damage is not None:
                added, taken = self._note_damaged(queue, piece.begin, piece.damage)
            else:
                added, taken = note(piece.messages)
            self._store.change_due(added, taken, {queue: at})
            self.window.change(added, taken)
            self._positions[queue] = at
        self._positions[queue] = at
        if queue != MARK_QUEUE:
            self._progress.note_done_before(queue, bounds.first)  # those have been dropped
        return at - begin

    def _note_damaged(
        self, queue: QueueId, queue_offset: int, damage: CorruptRecord
    ) -> tuple[list[DueEntry], list[DueEntry]]:
        """Park a damaged message, whose time and topic cannot be read, and list it with the reason.
        A damaged mark raises: it may have cancelled, moved or ended a delivery.
        """
        if queue == MARK_QUEUE:
            leave_out(queue, queue_offset, damage, may_leave_out=False)
            self._table.count_offsets(MARK_QUEUE, [queue_offset])
            return [], []
        log.error(
            "schedule_damaged", queue=str(queue), queue_offset=queue_offset, reason=str(damage)
        )
        place = scheduled_message.place_of(queue, queue_offset)
        if self._begins is not None:
            self._parked.add(place)
        return [scheduled_message.parked_entry(place)], []

    def _note_delayed(
        self, messages: Sequence[StoredMessage]
    ) -> tuple[list[DueEntry], list[DueEntry]]:
        entries = [scheduled_message.entry_of(message) for message in messages]
        if self.is_from_a_broker:
            self._note_brokers_changes(messages, entries)
        return entries, []

    def _note_brokers_changes(
        self, messages: Sequence[StoredMessage], entries: Sequence[DueEntry]
    ) -> None:
        for message, entry in zip(messages, entries, strict=True):
            recalled = scheduled_message.recalled_id(message)
            if recalled is None and not scheduled_message.is_rolled(message):
                continue
            self._brokers_changes.append(
                BrokersChange(
                    entry,
                    message.message_id if recalled is None else recalled,
                    scheduled_message.real_topic(message),
                    message.log_offset or 0,
                    is_recall=recalled is not None,
                )
            )

    def _note_marks(
        self, messages: Sequence[StoredMessage]
    ) -> tuple[list[DueEntry], list[DueEntry]]:
        read = [read_event(message, marks.decode) for message in messages]
        for mark in read:
            self.finished.extend(_finished(mark))
            self.put_backs += isinstance(mark, PutBack)
        self._note_progress(read)
        self._table.count_offsets(MARK_QUEUE, [message.queue_offset for message in messages])
        added = [entry for mark in read for entry in mark.added]
        taken = [self._in_the_index(entry) for mark in read for entry in mark.taken]
        return [*filter(self._counts, added)], [*filter(self._counts, taken)]

    def _in_the_index(self, entry: DueEntry) -> DueEntry:
        """The entry that a mark ends; a damaged message was parked in a rebuilt index."""
        if entry.place not in self._parked:
            return entry
        self._parked.discard(entry.place)
        return scheduled_message.parked_entry(entry.place)

    def _note_progress(self, read: Sequence[AnyMark]) -> None:
        self._progress.note_done(
            entry.place for mark in read if not mark.added for entry in mark.taken
        )

    def _counts(self, entry: DueEntry) -> bool:
        if self._begins is None:
            return True
        queue, queue_offset = scheduled_message.message_at(entry.place)
        return queue_offset >= self._begins.get(queue, 0)

    # ----------------------------------------------------------------------------------------------
    # reading the index

    async def fill_window(self, now_ms: int) -> None:
        """Fill the window with the entries that are due by now and a while after, as far as it has
        room.
        """

        async def fill() -> bool:
            window = self.window
            if not window.has_room or window.end >= before(now_ms + self._near_ms // 2):
                return False
            until_ms = now_ms + self._near_ms
            page = await self._store.read_due(
                window.end, until_ms=until_ms, max_entries=window.room
            )
            if page.end is not None:
                window.extend(page.entries, page.end, later_ms=page.end.due_ms)
                return True
            end = before(until_ms)
            behind = await self._store.read_due(end, until_ms=NEVER_MS, max_entries=1)
            window.extend(
                page.entries, end, later_ms=behind.entries[0].due_ms if behind.entries else None
            )
            return False

        while await self._exclusively(fill):
            pass

    async def read_overdue(self, now_ms: int, max_entries: int) -> list[DueEntry]:
        """Read the earliest overdue entries; the next call continues, and returns requeued entries
        again.
        """

        async def read() -> list[DueEntry]:
            window = self.window
            until_ms = window.overdue_until_ms(now_ms)
            page = await self._store.read_due(
                window.overdue_after, until_ms=until_ms, max_entries=max_entries
            )
            window.overdue_after = page.end or max(window.overdue_after, before(until_ms))
            return page.entries

        return await self._exclusively(read)

    async def count_overdue(self, now_ms: int) -> int:
        return await self._exclusively(
            lambda: self._store.count_due(until_ms=self.window.overdue_until_ms(now_ms))
        )

    async def read_due(
        self, after: DueEntry, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        return await self._exclusively(
            lambda: self._store.read_due(
                after, until_ms=until_ms, max_entries=max_entries, labels=labels
            )
        )

    async def is_due(self, entry: DueEntry) -> bool:
        """Whether this entry is still to be delivered, or parked."""
        return self.window.is_waiting(entry) or await self._exclusively(
            lambda: self._store.holds_due(entry)
        )

    async def _exclusively(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read under the lock. A damaged index is rebuilt from the log, and read again."""
        async with self._lock:
            try:
                return await read()
            except CorruptRecord as damage:
                log.error(
                    "timers_made_anew",
                    file=str(damage.path),
                    at=damage.physical_offset,
                    reason=damage.reason,
                )
                await self._store.forget_due()
                self.window.clear()
                self.finished.clear()
                self._positions = dict.fromkeys(self._positions, 0)
                await self._rebuild()
                return await read()

    # ----------------------------------------------------------------------------------------------
    # helpers

    async def _recall_progress(self) -> None:
        """Restore the progress of the time when the index was saved, or later: marks that are
        followed then may repeat it.
        """
        data = await self._table.load()
        try:
            if data is not None:
                self._progress.restore(data)
        except msgspec.DecodeError:
            log.warning("progress_made_anew")
            self._table.forget()
        # The index reflects these marks.
        end = self._positions[MARK_QUEUE]
        async for mark in self._table.replay(MARK_QUEUE, marks.decode, before=end):
            self._note_progress([mark])

    async def _recall_finished(self) -> None:
        """Restore the newest finished schedules, which the index no longer has, from the last
        marks.
        """
        bounds = await self._store.offsets(MARK_QUEUE)
        at = min(self._positions[MARK_QUEUE], bounds.end)
        while at > bounds.first and len(self.finished) < self._finished_kept:
            begin = max(bounds.first, at - _RECALLED_MARKS)
            found: list[Finished] = []
            async for piece in scan(self._store, MARK_QUEUE, begin, at):
                for message in piece.messages:
                    found += _finished(marks.decode(message))
            self.finished.extendleft(reversed(found[-(self._finished_kept - len(self.finished)) :]))
            at = begin

    async def _queues_of(self, topic: str, count: int) -> tuple[QueueId, ...]:
        """The queues of a delay topic; a broker's store may have more of them."""
        try:
            known = await self._store.queues(topic)
        except UnknownTopic:
            known = ()
        if len(known) < count:
            await self._store.create_topic(topic, queue_count=count)
        return await self._store.queues(topic)


def _finished(mark: AnyMark) -> list[Finished]:
    if isinstance(mark, Delivered):
        return [Finished(entry, ScheduleState.DELIVERED) for entry in mark.entries]
    return [Finished(mark.entry, ScheduleState.CANCELLED)] if isinstance(mark, Cancelled) else []
