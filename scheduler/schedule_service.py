"""Delivers what is due, moves and cancels what is not, over a `MessageStore`.

Messages are put off by whoever appends them to a delay topic (a send, a commit); nobody tells this service. It follows the
delay topics and its own marks as a reader, so its table is what the visible log says, and nothing that was stored can be
forgotten because its sender had gone. A delivery is one append of the messages and a mark; a change is one append of a mark.
While either is under way its schedules are *busy*, until the mark has been read.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from scheduler import scheduled_message
from scheduler.due_table import DueTable, ScheduledItem, ScheduleState
from scheduler.options import ScheduleOptions
from scheduler.scheduled_message import LEVEL_COUNT, MARK_QUEUE, TIMER_QUEUE, AnyMark, Cancelled, Delivered, Moved, SetAside
from storage.clock import Clock
from storage.errors import (
    AlreadyCancelled,
    AlreadyDelivered,
    Backpressure,
    CorruptRecord,
    RejectedError,
    UnknownSchedule,
    UnknownTopic,
)
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.message import Appended, Durability, Message, QueueId, StoredMessage
from storage.store import KeyLookup, MessageStore, Snapshot, Snapshots, SyncedPosition

T = TypeVar("T")
log = structlog.get_logger()

SNAPSHOT = "schedules"
_SNAPSHOT_SLICE = 5_000  # items encoded in one turn of the loop
_SEARCH_SLICE = 5_000
_READ_MESSAGES = 512
_READ_BYTES = 8 << 20
_TAKEN = 2_000  # items looked at in one turn of the loop
_APPEND_MESSAGES = 400
_APPEND_BYTES = 1 << 20
_MARK_WAIT_MS = 10_000

_decoder = msgspec.msgpack.Decoder(list[ScheduledItem])


class ScheduleService:
    """The event loop's. `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        options: ScheduleOptions,
        *,
        on_delivered: Callable[[Iterable[int]], None] = lambda late_ms: None,
    ) -> None:
        """`on_delivered` is told how late each delivered message was."""
        self._store = store
        self._clock = clock
        self._options = options
        self._on_delivered = on_delivered
        self.table = DueTable(finished_kept=options.finished_kept)
        self._backlog: deque[ScheduledItem] = deque()
        self._busy: dict[str, asyncio.Future[None]] = {}
        self._positions: dict[QueueId, int] = {}  # read up to there; the mark queue is the last one
        self._following = asyncio.Lock()
        self._queues: dict[QueueId, QueueId] = {}
        self._topics: dict[str, str] = {}  # one text for each topic, however many items name it
        self._brokers: list[ScheduledItem] | None = []  # while it starts: what a broker put off
        self._running: set[asyncio.Task[Any]] = set()
        self._swept_ms: int | None = None
        self._allowance = 0.0  # of the backlog, in messages
        self._kept_positions: dict[QueueId, int] = {}

    # ------------------------------------------------------------------------------------------------------ life cycle

    async def start(self) -> int:
        """Give the table back from the last snapshot and the log; the number of messages replayed."""
        delay_queues = [*await self._queues_of(SCHEDULE_TOPIC, LEVEL_COUNT), *await self._queues_of(TIMER_QUEUE.topic, 1)]
        await self._queues_of(MARK_QUEUE.topic, 1)
        self._positions = dict.fromkeys([*delay_queues, MARK_QUEUE], 0)
        await self._restore()
        replayed = await self.follow()
        await self._settle_brokers()
        return replayed

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        while self._running:
            await asyncio.wait(self._running)

    # --------------------------------------------------------------------------------------------------------- reading

    async def get(self, schedule_id: str) -> ScheduledItem:
        """Raises UnknownSchedule."""
        await self.follow()
        return self._known(schedule_id)

    async def search(self, *, after: str, count: int, wanted: Callable[[ScheduledItem], bool]) -> list[ScheduledItem]:
        """So many items behind this id, in the order of ids, which is that in which they were made."""
        await self.follow()
        found: list[ScheduledItem] = []
        while len(found) < count and (items := self.table.slice(after=after, count=_SEARCH_SLICE)):
            found += filter(wanted, items)
            after = items[-1].schedule_id
            await asyncio.sleep(0)
        return found[:count]

    @property
    def backlog_count(self) -> int:
        return len(self._backlog)

    def next_due_ms(self) -> int | None:
        """When the next one is to be delivered, which is past where one is late."""
        while self._backlog and not self.table.is_waiting(self._backlog[0]):
            self._backlog.popleft()
        return self._backlog[0].due_ms if self._backlog else self.table.next_due_ms()

    def check_room(self, count: int) -> None:
        """Raises Backpressure where so many more messages would be too many for memory."""
        limit = self._options.max_scheduled
        if self.table.scheduled_count + count > limit:
            raise Backpressure(f"{self.table.scheduled_count} messages are scheduled, the limit is {limit}")

    # --------------------------------------------------------------------------------------------------------- changes

    async def cancel(self, schedule_id: str, *, check: Callable[[ScheduledItem], None] = lambda item: None) -> ScheduledItem:
        """Nobody will see the message. `check` may refuse by raising. Raises UnknownSchedule, AlreadyDelivered.

        Durable on return. Cancelling what is cancelled changes nothing.
        """

        def mark(item: ScheduledItem) -> AnyMark | None:
            check(item)
            if item.state is ScheduleState.CANCELLED:
                return None
            return Cancelled(schedule_id=schedule_id, revision=item.revision + 1)

        return await self._uncancelled(self._change(schedule_id, mark))

    async def move(
        self, schedule_id: str, due_ms: int, *, check: Callable[[ScheduledItem], None] = lambda item: None
    ) -> ScheduledItem:
        """Another time; one that was set aside is tried again then. Raises as `cancel`, and AlreadyCancelled."""

        def mark(item: ScheduledItem) -> AnyMark | None:
            check(item)
            if item.state is ScheduleState.CANCELLED:
                raise AlreadyCancelled(f"schedule {schedule_id} was cancelled")
            if item.state is ScheduleState.SCHEDULED and item.due_ms == due_ms:
                return None
            return Moved(schedule_id=schedule_id, revision=item.revision + 1, due_ms=due_ms)

        return await self._uncancelled(self._change(schedule_id, mark))

    async def _change(self, schedule_id: str, mark_of: Callable[[ScheduledItem], AnyMark | None]) -> ScheduledItem:
        await self.follow()
        while (busy := self._busy.get(schedule_id)) is not None:
            await busy
        item = self._known(schedule_id)
        if item.state is ScheduleState.DELIVERED:
            raise AlreadyDelivered(f"schedule {schedule_id} was delivered")
        mark = mark_of(item)
        if mark is None:
            return item
        self._begin([schedule_id])
        try:
            await self._append([], mark, Durability.SYNCED)
        finally:
            self._end([schedule_id])
        return self._known(schedule_id)

    # -------------------------------------------------------------------------------------------------------- delivery

    async def run_once(self, now_ms: int) -> int:
        """Deliver what is due: at once what is due now, at a bounded rate what is long overdue; how many messages."""
        await self.follow()
        delivered = 0
        while taken := self.table.take_due(now_ms, max_items=_TAKEN):
            overdue_ms = now_ms - self._options.catch_up_after_ms
            self._backlog += [item for item in taken if item.due_ms < overdue_ms]
            delivered += await self._deliver_all([item for item in taken if item.due_ms >= overdue_ms])
            await asyncio.sleep(0)
        return delivered + await self._deliver_all(self._take_backlog(now_ms))

    def _take_backlog(self, now_ms: int) -> list[ScheduledItem]:
        rate = self._options.catch_up_per_second
        elapsed_ms = 0 if self._swept_ms is None else min(max(0, now_ms - self._swept_ms), 1_000)
        self._swept_ms = now_ms
        self._allowance = min(self._allowance + rate * elapsed_ms / 1_000, float(rate))
        taken: list[ScheduledItem] = []
        while self._backlog and len(taken) + 1 <= self._allowance:
            item = self._backlog.popleft()
            if self.table.is_waiting(item):
                taken.append(item)
        self._allowance -= len(taken)
        return taken

    async def _deliver_all(self, items: Sequence[ScheduledItem]) -> int:
        """In pieces; what is left when one fails waits again."""
        delivered = at = 0
        try:
            while at < len(items):
                piece = items[at : at + _APPEND_MESSAGES]
                delivered += await self._uncancelled(self._deliver(piece))
                at += len(piece)
        except BaseException:
            for item in items[at:]:
                self.table.put_back(item)
            raise
        return delivered

    async def _deliver(self, items: Sequence[ScheduledItem]) -> int:
        """One append, or several where the messages are large."""
        # One that is being changed is put back by whoever changes it; one that was put back twice is delivered once.
        given = {item.schedule_id: item for item in items if item.schedule_id not in self._busy and self.table.is_waiting(item)}
        items, ids = list(given.values()), list(given)
        self._begin(ids)
        try:
            waiting = await self._read(items)
            delivered = 0
            while waiting:
                size = count = 0
                for _, message in waiting:
                    size += len(message.body)
                    if count and size > _APPEND_BYTES:
                        break
                    count += 1
                delivered += await self._deliver_together(waiting[:count])
                waiting = waiting[count:]
        finally:
            self._end(ids)
        return delivered

    async def _deliver_together(self, messages: Sequence[tuple[ScheduledItem, Message]]) -> int:
        """All in one append; where that is refused, each in its own, and the poisoned ones are set aside."""
        mark = Delivered(schedule_ids=[item.schedule_id for item, _ in messages])
        try:
            await self._append([message for _, message in messages], mark, None)
        except RejectedError as refused:
            if len(messages) == 1:
                await self._set_aside(messages[0][0], refused)
                return 0
            return sum([await self._deliver_together([one]) for one in messages])
        now_ms = self._clock.wall_ms()
        self._on_delivered([now_ms - item.due_ms for item, _ in messages])
        return len(messages)

    async def _read(self, items: Sequence[ScheduledItem]) -> list[tuple[ScheduledItem, Message]]:
        """What is to be delivered for these items; what cannot be read or understood is set aside."""
        reads = [self._read_run(run) for run in _runs(items)]
        # Together, so that one wait for the engine serves them all.
        found = [pair for pairs in await asyncio.gather(*reads) for pair in pairs]
        return sorted(found, key=lambda pair: pair[0])

    async def _read_run(self, items: Sequence[ScheduledItem]) -> list[tuple[ScheduledItem, Message]]:
        """Of neighbours in one queue."""
        found: list[tuple[ScheduledItem, Message]] = []
        at = 0
        while at < len(items):
            first, count = items[at], len(items) - at
            try:
                stored = await self._store.read(first.queue, first.queue_offset, max_messages=count, max_bytes=_READ_BYTES)
            except (RejectedError, CorruptRecord) as error:
                await self._set_aside(first, error)
                at += 1
                continue
            for item, message in zip(items[at:], stored, strict=False):
                try:
                    found.append((item, scheduled_message.unwrap(message)))
                except RejectedError as error:
                    await self._set_aside(item, error)
            at += max(1, len(stored))
        return found

    async def _set_aside(self, item: ScheduledItem, error: RejectedError | CorruptRecord) -> None:
        reason = f"{type(error).__name__}: {error.detail}"
        log.warning("delivery_set_aside", schedule_id=item.schedule_id, topic=item.topic, reason=reason)
        mark = SetAside(schedule_id=item.schedule_id, revision=item.revision + 1, reason=reason[:1_000])
        await self._append([], mark, Durability.SYNCED)

    async def _append(self, messages: Sequence[Message], mark: AnyMark, durability: Durability | None) -> None:
        """Append them together, and read the mark."""
        noted = scheduled_message.mark_message(mark, now_ms=self._clock.wall_ms())
        # A change is taken when nothing else is; what is due can wait.
        appended = await self._store.append([*messages, noted], durability=durability, from_reserve=not messages)
        place = appended[-1]
        if durability is Durability.SYNCED:
            await self._wait_durable(place)
        # The sync may take longer than the engine's limit: nothing is delivered twice while nobody knows of the mark.
        if not await self._store.wait_for_arrival(MARK_QUEUE, place.queue_offset, timeout_ms=_MARK_WAIT_MS):
            await self._wait_durable(place)
        await self.follow()

    async def _wait_durable(self, place: Appended) -> None:
        if not place.durable and isinstance(self._store, SyncedPosition):
            await self._store.wait_durable(place)

    # ------------------------------------------------------------------------------------------------ following the log

    async def follow(self) -> int:
        """Read what has become visible: first what was put off, then the marks; how many messages."""
        async with self._following:
            count = 0
            for queue in self._positions:
                count += await self._read_on(queue)
            return count

    async def _read_on(self, queue: QueueId) -> int:
        bounds = await self._store.offsets(queue)
        begin = at = max(self._positions[queue], bounds.first)
        note = self._note_mark if queue == MARK_QUEUE else self._note_delayed
        while at < bounds.end:
            try:
                messages = await self._store.read(queue, at, max_messages=_READ_MESSAGES, max_bytes=_READ_BYTES)
            except CorruptRecord as damage:
                log.error("schedule_damaged", queue=str(queue), queue_offset=at, reason=str(damage))
                messages = []
            for message in messages:
                note(message)
            at += max(1, len(messages))
            self._positions[queue] = at
            await asyncio.sleep(0)
        self._positions[queue] = at
        return at - begin

    def _note_delayed(self, message: StoredMessage) -> None:
        topic = scheduled_message.real_topic(message)
        item = ScheduledItem(
            due_ms=scheduled_message.due_ms_of(message),
            schedule_id=scheduled_message.schedule_id_of(message),
            revision=1,
            queue_offset=message.queue_offset,
            queue=self._queue_of(message.queue),
            message_id=message.message_id,
            topic=self._topics.setdefault(topic, topic),
        )
        self.table.add(item)
        if self._brokers is not None and scheduled_message.is_brokers(message):
            self._brokers.append(item)

    def _note_mark(self, message: StoredMessage) -> None:
        self.table.apply(scheduled_message.read_mark(message))

    def _queue_of(self, queue: QueueId) -> QueueId:
        """One value for each queue, however many items name it."""
        return self._queues.setdefault(queue, queue)

    async def _settle_brokers(self) -> None:
        """A broker marks nothing when it delivers: what lies in the real topic since then, it has delivered."""
        brokers, self._brokers = self._brokers or [], None
        if not isinstance(self._store, KeyLookup):
            return
        now_ms = self._clock.wall_ms()
        delivered: list[str] = []
        for item in brokers:
            if item.due_ms > now_ms or not self.table.is_waiting(item):
                continue
            (waiting,) = await self._store.read(item.queue, item.queue_offset, max_messages=1, max_bytes=1)
            if await self._store.find_messages(
                item.message_id, topics=[item.topic], by_id=True, from_ms=waiting.stored_at_ms, max_messages=1
            ):
                delivered.append(item.schedule_id)
        for at in range(0, len(delivered), _APPEND_MESSAGES):
            await self._append([], Delivered(schedule_ids=delivered[at : at + _APPEND_MESSAGES]), Durability.SYNCED)

    # -------------------------------------------------------------------------------------------------------- snapshots

    async def save_snapshot(self) -> bool:
        """Keep the table, so that a start replays only what came later. False where nothing has changed or none can be kept."""
        # The positions first: what changes while the table is encoded, a slice at a time, is then replayed once more.
        positions = dict(self._positions)
        if not isinstance(self._store, Snapshots) or positions == self._kept_positions:
            return False
        pieces, items = [], list(self.table)
        for at in range(0, len(items), _SNAPSHOT_SLICE):
            pieces.append(msgspec.msgpack.encode(items[at : at + _SNAPSHOT_SLICE]))
            await asyncio.sleep(0)
        await self._store.save_snapshot(SNAPSHOT, Snapshot(msgspec.msgpack.encode(pieces), positions))
        self._kept_positions = positions
        return True

    async def _restore(self) -> None:
        snapshot = await self._store.load_snapshot(SNAPSHOT) if isinstance(self._store, Snapshots) else None
        if snapshot is None:
            return
        for piece in msgspec.msgpack.decode(snapshot.data, type=list[bytes]):
            for item in _decoder.decode(piece):
                topic = self._topics.setdefault(item.topic, item.topic)
                self.table.add(msgspec.structs.replace(item, topic=topic, queue=self._queue_of(item.queue)))
        self._positions |= snapshot.positions
        self._kept_positions = dict(self._positions)

    # --------------------------------------------------------------------------------------------------------- helpers

    async def _queues_of(self, topic: str, count: int) -> tuple[QueueId, ...]:
        """A broker's store may have more of them."""
        try:
            known = await self._store.queues(topic)
        except UnknownTopic:
            known = ()
        if len(known) < count:
            await self._store.create_topic(topic, queue_count=count)
        return await self._store.queues(topic)

    def _known(self, schedule_id: str) -> ScheduledItem:
        item = self.table.get(schedule_id)
        if item is None:
            raise UnknownSchedule(f"schedule {schedule_id[:200]} does not exist")
        return item

    def _begin(self, ids: Sequence[str]) -> None:
        self._busy |= dict.fromkeys(ids, asyncio.get_running_loop().create_future())

    def _end(self, ids: Sequence[str]) -> None:
        """What is still to be delivered waits again, and whoever wants to change one of them may."""
        for schedule_id in ids:
            ended = self._busy.pop(schedule_id)
            if not ended.done():
                ended.set_result(None)
            item = self.table.get(schedule_id)
            if item is not None:
                self.table.put_back(item)

    async def _uncancelled(self, change: Coroutine[Any, Any, T]) -> T:
        """A change goes on when the one who asked for it has gone: an append cannot be taken back."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


def _runs(items: Sequence[ScheduledItem]) -> list[list[ScheduledItem]]:
    """The items, neighbours in one queue together."""
    runs: list[list[ScheduledItem]] = []
    for item in sorted(items, key=lambda item: (item.queue, item.queue_offset)):
        last = runs[-1][-1] if runs else None
        if last is not None and last.queue == item.queue and last.queue_offset + 1 == item.queue_offset:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs
