"""A `MessageStore` on this machine: the bridge between asyncio above and the plain parts below.

The event loop on which it is opened owns it; every method is called there.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import PurePath
from typing import Literal, TypeVar

import structlog

from storage.clock import Clock
from storage.errors import (
    CorruptRecord,
    FlushFailed,
    InvalidRequest,
    OffsetBeyondEnd,
    OffsetExpired,
    RejectedError,
    StorageFull,
    StoreClosed,
    UnknownQueue,
    UnknownTopic,
)
from storage.files.segments import Segments
from storage.files.vfs import Space, Vfs
from storage.formats import record as records
from storage.formats import unit
from storage.formats.queue_entry import QueueEntry
from storage.identifiers import Identifiers
from storage.local import group_offsets, queue_ends
from storage.local.arrivals import Arrivals
from storage.local.checkpoint_file import CheckpointFile
from storage.local.commit_log import CommitLog
from storage.local.consume_queue import ConsumeQueue, QueueFiles
from storage.local.data_directory import DataDirectory
from storage.local.deriver import OFFSETS_SNAPSHOT, Deriver
from storage.local.due_index import SNAPSHOT as TIMERS_SNAPSHOT
from storage.local.due_index import LocalDueIndex
from storage.local.event_loop import EventLoopRunner
from storage.local.flusher import Flusher
from storage.local.group_offsets import GroupOffsets
from storage.local.interval_flush import IntervalFlush
from storage.local.key_index import KeyIndex
from storage.local.key_lookup import KeyLookup, Wanted
from storage.local.log_writer import AppendCall, LogWriter
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.local.preparer import Preparer
from storage.local.recovery import Progress, Recovered, Report, recover
from storage.local.retention import Retention
from storage.local.runner import Lane, Runner
from storage.local.snapshot_files import SnapshotFiles
from storage.local.timer_files import TimerFolder
from storage.message import Appended, DueEntry, Durability, Message, OffsetRange, QueueId, StoredMessage
from storage.store import ANY_LABEL, LAST_MS, DiskUsage, DueCounts, DuePage, PutBack, Scanned, Snapshot, StoreStatus

_PUT_BACK_TOGETHER = 1_000  # offsets
_SEARCH_STEPS = 1_000  # records that a search looks at in one go
_READ_AT_ONCE = 32  # messages; about a millisecond

T = TypeVar("T")
log = structlog.get_logger()


class LocalMessageStore:
    """Made by `open`."""

    @classmethod
    async def open(
        cls,
        directory: PurePath,
        options: LocalStoreOptions,
        vfs: Vfs,
        clock: Clock,
        identifiers: Identifiers,
        *,
        runner: Runner | None = None,
        progress: Progress = lambda walked, to_walk: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> "LocalMessageStore":
        """Take the store's directory, recover what is there, get ready to append.

        `on_failure` is told once when the store can no longer be trusted to keep anything; the process should end then.
        Raises DirectoryInUse, UnknownFormat, CorruptRecord.
        """
        own_runner = EventLoopRunner() if runner is None else None
        used = runner or own_runner
        assert used is not None
        try:
            files = await _in_lane(used, Lane.READ, lambda: _Files.open(directory, options, vfs, clock, progress))
        except BaseException:
            if own_runner is not None:
                own_runner.close()
            raise
        return cls(options, files, clock, identifiers, used, own_runner, on_failure)

    def __init__(
        self,
        options: LocalStoreOptions,
        files: "_Files",
        clock: Clock,
        identifiers: Identifiers,
        runner: Runner,
        own_runner: EventLoopRunner | None,
        on_failure: Callable[[Exception], None],
    ) -> None:
        recovered = files.recovered
        self._loop = asyncio.get_running_loop()  # asked once: asking is a system call
        self._options = options
        self._files = files
        self._clock = clock
        self._identifiers = identifiers
        self._runner = runner
        self._own_runner = own_runner
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waits = True
        self._drained: asyncio.Future[None] | None = None
        self._kept: asyncio.Future[bool] | None = None
        self._committing: dict[tuple[str, QueueId], asyncio.Future[None]] = {}
        self._synced: list[tuple[int, asyncio.Future[None]]] = []
        self._queues = recovered.queues
        self._offsets = files.offsets
        self._due_index = files.due_index
        self._arrivals = Arrivals()
        self._log = CommitLog(files.segments, trusted_from=recovered.walked_from, written_end=recovered.end)
        self._preparer = Preparer(
            files.segments,
            runner,
            prepared_end=recovered.end,
            ahead_bytes=options.prepare_ahead_bytes,
            reserve_bytes=options.log_reserve_bytes,
            on_prepared=self._on_prepared,
            on_full=self._on_full,
            on_failure=self._fail,
        )
        self._writer = LogWriter(
            self._log,
            self._preparer,
            runner,
            clock,
            options,
            epoch=recovered.epoch,
            last_stored_at_ms=recovered.last_stored_at_ms,
            on_visible=self._on_visible,
        )
        self._flusher = Flusher(
            files.segments,
            files.checkpoint,
            runner,
            clock,
            durable_end=recovered.end,
            epoch=recovered.epoch,
            on_flushed=self._on_flushed,
            on_failure=self._fail,
        )
        self._writer.attach(self._flusher)
        self._deriver = Deriver(
            self._queues,
            files.queue_files,
            files.key_index,
            files.due_index,
            files.segments,
            files.snapshots,
            self._offsets,
            files.checkpoint,
            self._writer,
            self._flusher,
            runner,
            clock,
            options,
            on_failure=self._fail,
        )
        self._lookup = KeyLookup(
            self._log,
            files.key_index,
            indexed_end=lambda: self._deriver.indexed_end,
            visible_end=lambda: self._writer.visible_end,
        )
        self._retention = Retention(
            self._log,
            files.segments,
            self._queues,
            files.queue_files,
            files.key_index,
            self._deriver,
            self._writer,
            options,
            space=files.space,
            measure=files.measure,
            in_lane=self._in_lane,
            append=self._append_own,
            put_back_offsets=self._put_back_offsets,
        )
        self._interval = IntervalFlush(self._writer, self._flusher, runner, clock, options)
        self._queues.grow(group_offsets.QUEUE.topic, 1)
        self._preparer.advance(recovered.end)
        self._deriver.start()
        if options.flush is FlushPolicy.INTERVAL:
            self._interval.start()

    # --------------------------------------------------------------------------------------------------- MessageStore

    async def create_topic(self, topic: str, *, queue_count: int) -> None:
        known = self._queues.count(topic)
        if queue_count < known:
            raise InvalidRequest(f"topic {topic} has {known} queues; their number cannot shrink to {queue_count}")
        self._queues.grow(topic, queue_count)

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        count = self._queues.count(topic)
        if not count:
            raise UnknownTopic(f"topic {topic} does not exist")
        return tuple(QueueId(topic, number) for number in range(count))

    async def append(
        self, messages: Sequence[Message], *, durability: Durability | None = None, from_reserve: bool = False
    ) -> list[Appended]:
        if not messages:
            return []
        if self._retention.refuses_new and not from_reserve:
            raise StorageFull
        if len(messages) > unit.MAX_RECORDS:
            raise InvalidRequest(f"{len(messages)} messages in one append, at most {unit.MAX_RECORDS} fit")
        answer: asyncio.Future[list[Appended]] = self._loop.create_future()
        queues = self._queues_of(messages)
        call = AppendCall(
            messages, queues, durability, done=_answering(answer), failed=_failing(answer), from_reserve=from_reserve
        )
        self._writer.add(call)
        return await answer

    async def read(self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int) -> list[StoredMessage]:
        page = _Page(queue_offset, max_messages, max_bytes)
        await self._fill(page, self._readable(queue, queue_offset), max_messages)
        return page.messages

    async def offsets(self, queue: QueueId) -> OffsetRange:
        return self._queue(queue).bounds

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        found = self._queue(queue)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while found.end <= queue_offset and self._waits:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            arrival: asyncio.Future[None] = self._loop.create_future()
            wake = _waking(arrival)
            forget = self._arrivals.wait(queue, wake)
            timer = self._runner.later(left_ms, wake)
            try:
                await arrival
            finally:
                forget()
                timer.cancel()
        return found.end > queue_offset

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        self._queue(queue)
        return self._offsets.get(group, queue)

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        bounds = self._queue(queue).bounds
        if not 0 <= queue_offset <= bounds.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=bounds)
        await self._commit_offset(group, queue, queue_offset)

    def stop_waiting(self) -> None:
        """Every reader that waits, or will, returns at once: the service stops."""
        self._waits = False
        self._arrivals.wake_all()

    async def aclose(self) -> None:
        if self._closing is None:
            self._writer.close(StoreClosed())
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    # --------------------------------------------------------------------------------------------------------- extras

    async def topics(self) -> Mapping[str, int]:
        """TopicListing."""
        return {topic: count for topic, count in self._queues.counts.items() if self._queues.holds_messages(topic)}

    def is_durable(self, log_offset: int | None) -> bool:
        """SyncedPosition."""
        return log_offset is not None and log_offset < self._flusher.durable_end

    async def expire(self, now_ms: int, put_back: PutBack) -> int:
        """Retention."""
        self._check_readable()
        return await self._retention.run_once(now_ms, put_back)

    def disk_usage(self) -> DiskUsage:
        """Retention."""
        return self._retention.usage()

    def owe(self, owed_bytes: int) -> None:
        """Reserve."""
        self._preparer.owe(owed_bytes)

    async def wait_durable(self, appended: Appended) -> None:
        """SyncedPosition."""
        if appended.durable or appended.log_offset is None or self.is_durable(appended.log_offset):
            return
        if self._failure is not None:
            raise FlushFailed
        synced: asyncio.Future[None] = self._loop.create_future()
        self._synced.append((appended.log_offset, synced))
        self._flusher.request(self._writer.written_end, self._writer.stored_at_ms)
        await synced

    async def find_messages(
        self,
        key: str,
        *,
        topics: Collection[str],
        by_id: bool = False,
        from_ms: int = 0,
        to_ms: int = LAST_MS,
        older_than: int | None = None,
        max_messages: int,
    ) -> list[StoredMessage]:
        """KeyLookup."""
        self._check_readable()
        visible_end = self._writer.visible_end
        log_end = visible_end if older_than is None else min(older_than, visible_end)
        search = self._lookup.search(Wanted(key, frozenset(topics), by_id, from_ms, to_ms, log_end))
        found: list[StoredMessage] = []
        is_over = max_messages <= 0
        while not is_over:
            # A piece at a time: a key that a million messages have must not keep the lane from everybody else.
            step = partial(_advance, search, found, max_messages)
            is_over = await self._in_lane(Lane.READ, step)
        return found

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """ScatteredReads. A few at a time from memory, so that others get their turn; the rest in one go in the read lane."""
        self._check_readable()
        found: list[StoredMessage | RejectedError | CorruptRecord | None] = []
        for begin in range(0, len(places), _READ_AT_ONCE):
            for queue, same_queue in groupby(places[begin : begin + _READ_AT_ONCE], key=itemgetter(0)):
                found += self._read_each_now(queue, [queue_offset for _, queue_offset in same_queue])
            max_bytes -= sum([len(one.body) for one in found[begin:] if isinstance(one, StoredMessage)])
            if max_bytes <= 0:
                break
            await asyncio.sleep(0)
        waiting = [number for number, one in enumerate(found) if one is None]
        if waiting:
            asked = [places[number] for number in waiting]
            fetched = await self._in_lane(Lane.READ, lambda: self._read_each_waiting(asked, max(1, max_bytes)))
            for number, one in zip(waiting, fetched, strict=False):
                found[number] = one
        return list(takewhile(lambda one: one is not None, found))  # type: ignore[arg-type]

    async def read_tagged(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int],
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> Scanned:
        """TagCodes."""
        page = _Page(queue_offset, max_messages, max_bytes, tag_codes)
        await self._fill(page, self._readable(queue, queue_offset), max_scanned)
        return Scanned(page.messages, page.next_offset)

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Snapshots. Written with the next thorough round; nothing waits for it."""
        self._deriver.keep(name, snapshot)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """Snapshots."""
        if self._is_closed:
            raise StoreClosed
        waiting = self._deriver.waiting_snapshot(name)
        if waiting is not None:
            return waiting
        return await self._in_lane(Lane.READ, lambda: self._files.load_snapshot(name, self._queues.bounds_of))

    def due_positions(self) -> Mapping[QueueId, int]:
        """DueIndex."""
        return dict(self._due_index.positions)

    def change_due(self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]) -> None:
        """DueIndex. It becomes files with the next thorough round; nothing waits for it."""
        self._due_index.change(added, taken, positions)

    async def read_due(self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL) -> DuePage:
        """DueIndex."""
        self._check_readable()
        read = self._due_index.reading(after, until_ms=until_ms, max_entries=max_entries, labels=labels)
        return await self._in_lane(Lane.READ, read)

    async def holds_due(self, entry: DueEntry) -> bool:
        """DueIndex."""
        self._check_readable()
        said = self._due_index.says_of(entry)
        return await self._in_lane(Lane.READ, self._due_index.holding(entry)) if said is None else said

    async def count_due(self, *, until_ms: int) -> int:
        """DueIndex."""
        self._check_readable()
        return await self._in_lane(Lane.READ, self._due_index.counting(until_ms=until_ms))

    def due_counts(self) -> DueCounts:
        """DueIndex."""
        return self._due_index.counts

    async def forget_due(self) -> None:
        """DueIndex."""
        surplus = self._due_index.forget()
        await self._in_lane(Lane.DERIVE, lambda: None)  # it may be making a file of them
        await self._in_lane(Lane.READ, self._due_index.dispose(surplus))

    @property
    def is_prepared(self) -> bool:
        """Has the log all the space ahead of its writer that it is to have?"""
        return self._preparer.is_idle

    @property
    def recovery(self) -> Report:
        return self._files.recovered.report

    def status(self) -> StoreStatus:
        """Status."""
        return StoreStatus(
            first_offset=self._log.first_offset,
            written_end=self._writer.written_end,
            durable_end=self._flusher.durable_end,
            visible_end=self._writer.visible_end,
            queued_bytes=self._writer.queued_bytes,
            pressure=self._writer.pressure,
            replay_backlog_bytes=self._deriver.backlog_bytes,
            last_flush_ms=self._flusher.last_flush_ms,
            segments=len(list(self._log.segments)),
            derived_at_ms=self._deriver.last_round_ms,
            derive_lag_ms=self._deriver.lag_ms(),
            derive_error=self._deriver.last_error,
        )

    # -------------------------------------------------------------------------------------------------------- reading

    def _check_readable(self) -> None:
        if self._is_closed or self._failure is not None:
            raise StoreClosed

    def _readable(self, queue: QueueId, queue_offset: int) -> ConsumeQueue:
        self._check_readable()
        found = self._queue(queue)
        if queue_offset < found.first:
            raise OffsetExpired(requested=queue_offset, available=found.bounds)
        if queue_offset > found.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=found.bounds)
        return found

    def _read_each_now(
        self, queue: QueueId, queue_offsets: Sequence[int]
    ) -> list[StoredMessage | RejectedError | CorruptRecord | None]:
        """What memory holds, or why there is none; None where a file must be asked."""
        found: list[StoredMessage | RejectedError | CorruptRecord | None] = []
        try:
            consume_queue = self._queue(queue)
        except RejectedError as refused:
            return [refused] * len(queue_offsets)
        entries = self._files.queue_files.read_now(consume_queue, queue_offsets)
        for queue_offset, entry in zip(queue_offsets, entries, strict=True):
            try:
                self._check_message_at(consume_queue, queue_offset)
                record = None if entry is None else self._log.read_now(entry.physical_offset, entry.record_bytes)
                found.append(None if record is None else self._checked(record, consume_queue, queue_offset))
            except (RejectedError, CorruptRecord) as error:
                found.append(error)
        return found

    def _read_each_waiting(
        self, places: Sequence[tuple[QueueId, int]], max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """The read lane's: messages that are there, of the first ones as many as these bytes allow, at least one."""
        found: list[StoredMessage | RejectedError | CorruptRecord] = []
        for queue, queue_offset in places:
            consume_queue = self._queue(queue)
            try:
                entry = self._entries(consume_queue, queue_offset, 1)[0]
                max_bytes -= entry.record_bytes
                record = self._log.read(entry.physical_offset, entry.record_bytes)
                found.append(self._checked(record, consume_queue, queue_offset))
            except (OffsetExpired, CorruptRecord) as error:
                found.append(error)
            except IndexError:  # its segment was dropped meanwhile
                found.append(OffsetExpired(requested=queue_offset, available=consume_queue.bounds))
            if max_bytes <= 0:
                break
        return found

    def _check_message_at(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Raises OffsetExpired, OffsetBeyondEnd."""
        if queue_offset < queue.first:
            raise OffsetExpired(requested=queue_offset, available=queue.bounds)
        if queue_offset >= queue.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=queue.bounds)

    async def _fill(self, page: "_Page", queue: ConsumeQueue, count: int) -> None:
        """With what is wanted of so many messages."""
        if page.next_offset < queue.first:  # it was dropped since the last piece
            raise OffsetExpired(requested=page.next_offset, available=queue.bounds)
        end = min(queue.end, page.next_offset + count)
        if not self._fill_now(page, queue, end):
            await self._in_lane(Lane.READ, lambda: self._fill_waiting(page, queue, end))

    def _fill_now(self, page: "_Page", queue: ConsumeQueue, end: int) -> bool:
        """From memory; False where a file must be asked for the rest of it."""
        entries = queue.recent(page.next_offset, end - page.next_offset)
        if entries is None:
            return False
        for entry in entries:
            if not page.wants(entry):
                continue
            try:
                record = self._log.read_now(entry.physical_offset, entry.record_bytes)
                if record is None:
                    return False
                is_full = page.add(self._checked(record, queue, page.next_offset))
            except CorruptRecord as damage:
                is_full = page.end_at(damage)
            if is_full:
                break
        return True

    def _fill_waiting(self, page: "_Page", queue: ConsumeQueue, end: int) -> None:
        """The read lane's: asks the files."""
        while page.next_offset < end:
            for entry in self._entries(queue, page.next_offset, end - page.next_offset):
                if not page.wants(entry):
                    continue
                try:
                    record = self._log.read(entry.physical_offset, entry.record_bytes)
                    is_full = page.add(self._checked(record, queue, page.next_offset))
                except IndexError:  # its segment was dropped meanwhile
                    raise OffsetExpired(requested=page.next_offset, available=queue.bounds) from None
                except CorruptRecord as damage:
                    is_full = page.end_at(damage)
                if is_full:
                    return

    def _entries(self, queue: ConsumeQueue, queue_offset: int, count: int) -> list[QueueEntry]:
        """The read lane's. Raises OffsetExpired where they were dropped meanwhile."""
        try:
            entries = self._files.queue_files.entries(queue, queue_offset, count)
        except FileNotFoundError:
            entries = []
        # Asked afterwards: whatever has not expired by then is there.
        if queue_offset < queue.first or not entries:
            raise OffsetExpired(requested=queue_offset, available=queue.bounds)
        return entries

    def _checked(self, record: records.Record, queue: ConsumeQueue, queue_offset: int) -> StoredMessage:
        """The message, if it is the one that the queue entry promised."""
        found = (record.topic, record.queue_number, record.queue_offset)
        if found != (*queue.id, queue_offset):
            raise self._log.corrupt(record.physical_offset, f"number {queue_offset} of {queue.id} points here, to {found}")
        return records.to_message(record)

    def _queue(self, queue: QueueId) -> ConsumeQueue:
        try:
            return self._queues[queue]
        except KeyError:
            raise self._unknown(queue) from None

    def _queues_of(self, messages: Sequence[Message]) -> list[ConsumeQueue]:
        queues = self._queues
        try:
            return [queues[message.queue] for message in messages]
        except KeyError as error:
            raise self._unknown(error.args[0]) from None

    def _unknown(self, queue: QueueId) -> UnknownTopic | UnknownQueue:
        count = self._queues.count(queue.topic)
        if not count:
            return UnknownTopic(f"topic {queue.topic} does not exist")
        return UnknownQueue(f"topic {queue.topic} has queues 0 to {count - 1}, there is no queue {queue.number}")

    # ------------------------------------------------------------------------------------------- what the parts report

    def _on_visible(self, queues: Iterable[ConsumeQueue]) -> None:
        self._deriver.note_visible(queues)
        self._arrivals.notify(queues)

    def _on_prepared(self) -> None:
        self._writer.on_prepared()

    def _on_full(self) -> None:
        log.warning("disk_full", directory=str(self._files.directory.root))
        self._writer.on_full()

    def _on_flushed(self) -> None:
        self._writer.on_flushed()
        self._deriver.on_flushed()
        if self._synced:
            durable_end = self._flusher.durable_end
            reached = [synced for offset, synced in self._synced if offset < durable_end]
            self._synced = [(offset, synced) for offset, synced in self._synced if offset >= durable_end]
            for synced in reached:
                _resolve(synced, None)
        self._check_drained()

    def _fail(self, error: Exception) -> None:
        """The log, or what belongs to it, could not be written: nothing is acknowledged any more."""
        if self._failure is not None:
            return
        self._failure = error
        self._writer.fail(error)
        self._preparer.stop()
        synced, self._synced = self._synced, []
        for _, waiting in synced:
            _failing(waiting)(FlushFailed())
        self._arrivals.wake_all()
        self._check_drained()
        if self._kept is not None:
            _resolve(self._kept, False)
        self._on_failure(error)

    # -------------------------------------------------------------------------------------------------------- closing

    async def _close(self) -> None:
        self.stop_waiting()
        if not self._writer.is_idle and self._failure is None:
            self._drained = self._loop.create_future()
            await self._drained
        self._interval.stop()
        self._preparer.stop()
        is_kept = self._failure is None and await self._keep_derived()
        self._deriver.stop()
        # One after another, behind whatever the lanes still do: then nobody uses a file any more.
        for lane in (Lane.PREPARE, Lane.DERIVE, Lane.READ):
            await self._in_lane(lane, lambda: None)
        self._is_closed = True
        in_order = is_kept and self._failure is None
        end, stored_at_ms, epoch = self._writer.written_end, self._writer.stored_at_ms, self._files.recovered.epoch
        await self._in_lane(Lane.FLUSH, lambda: self._files.close(end, stored_at_ms, epoch, in_order=in_order))
        if self._own_runner is not None:
            self._own_runner.close()

    async def _keep_derived(self) -> bool:
        kept: asyncio.Future[bool] = self._loop.create_future()
        self._kept = kept
        self._deriver.run_thorough(lambda succeeded: _resolve(kept, succeeded))
        return await kept

    def _check_drained(self) -> None:
        if self._drained is not None and (self._writer.is_idle or self._failure is not None):
            _resolve(self._drained, None)

    # ------------------------------------------------------------------------------------------------------ retention

    async def _append_own(self, messages: Sequence[Message]) -> None:
        """Durable on return."""
        self._queues.grow(queue_ends.QUEUE.topic, 1)
        appended = await self.append(messages, durability=Durability.SYNCED, from_reserve=True)
        await self.wait_durable(appended[-1])

    async def _put_back_offsets(self, below: int) -> None:
        """Only those that nobody is about to commit: what is said last counts."""
        while expiring := self._offsets.below(below):
            free = [one for one in expiring if one[:2] not in self._committing]
            if free:
                await asyncio.gather(*[self._commit_offset(*one) for one in free[:_PUT_BACK_TOGETHER]])
            else:
                await asyncio.wait([self._committing[one[:2]] for one in expiring])

    async def _commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        message = group_offsets.commit_message(
            group, queue, queue_offset, message_id=self._identifiers.new("msg"), now_ms=self._clock.wall_ms()
        )
        answer: asyncio.Future[None] = self._loop.create_future()

        def done(appended: list[Appended]) -> None:
            # Here and not in the caller's turn: a snapshot of the table must never miss a message that can be read.
            self._offsets.set(group, queue, queue_offset, place=appended[0].queue_offset)
            _resolve(answer, None)

        queues = [self._queues[group_offsets.QUEUE]]
        self._writer.add(
            AppendCall([message], queues, Durability.SYNCED, done=done, failed=_failing(answer), from_reserve=True)
        )  # fmt: skip
        self._committing[group, queue] = answer
        try:
            await answer
        finally:
            if self._committing.get((group, queue)) is answer:
                del self._committing[group, queue]

    async def _in_lane(self, lane: Lane, job: Callable[[], T]) -> T:
        return await _in_lane(self._runner, lane, job)


class _Page:
    """The messages of one read, up to a number of them and of body bytes but at least one."""

    def __init__(self, queue_offset: int, max_messages: int, max_bytes: int, tag_codes: Collection[int] | None = None) -> None:
        """`tag_codes`: the hashes of the tags that are wanted; None: all."""
        self.messages: list[StoredMessage] = []
        self._first_offset = self.next_offset = queue_offset
        self._max_messages = max_messages
        self._left_bytes = max_bytes
        self._tag_codes = tag_codes

    def wants(self, entry: QueueEntry) -> bool:
        """False: the message at `next_offset` need not be read, and is passed over."""
        if self._tag_codes is None or entry.tag_hash in self._tag_codes:
            return True
        self.next_offset += 1
        return False

    def add(self, message: StoredMessage) -> bool:
        """True: it does not fit any more, the page ends before it."""
        self._left_bytes -= len(message.body)
        if self.messages and (self._left_bytes < 0 or len(self.messages) == self._max_messages):
            return True
        self.messages.append(message)
        self.next_offset += 1
        return False

    def end_at(self, damage: CorruptRecord) -> Literal[True]:
        """What lies before the damage is served; who reads on meets the damage first, at its own offset."""
        if self.next_offset == self._first_offset:
            raise damage
        return True


class _Files:
    """Everything of the store that is open on disk; opened and closed where waiting is allowed."""

    def __init__(self, directory: PurePath, options: LocalStoreOptions, vfs: Vfs, clock: Clock) -> None:
        self.directory = DataDirectory(vfs, directory)
        self.recovered: Recovered
        self.offsets = GroupOffsets()
        self.due_index: LocalDueIndex
        self._open: list[Callable[[], None]] = [self.directory.close]
        try:
            self.segments = Segments(
                vfs, self.directory.commit_log, segment_bytes=options.segment_bytes, scratch=self.directory.making
            )
            self._open.append(self.segments.close)
            self.checkpoint = CheckpointFile(self.directory)
            self._open.append(self.checkpoint.close)
            self.queue_files = QueueFiles(
                vfs,
                self.directory.consume_queues,
                entries_per_file=options.queue_file_entries,
                max_open=options.max_open_queue_files,
                scratch=self.directory.making,
            )
            self._open.append(self.queue_files.close)
            self.key_index = KeyIndex(
                vfs,
                self.directory.key_index,
                clock,
                slots=options.index_slots,
                entries=options.index_file_entries,
                scratch=self.directory.making,
            )
            self._open.append(self.key_index.close)
            self.snapshots = SnapshotFiles(self.directory)
            self.space = self.measure()
        except BaseException:
            self._close_all()
            raise

    @classmethod
    def open(cls, directory: PurePath, options: LocalStoreOptions, vfs: Vfs, clock: Clock, progress: Progress) -> "_Files":
        files = cls(directory, options, vfs, clock)
        try:
            files._recover(clock, progress)
        except BaseException:
            files._close_all()
            raise
        return files

    def measure(self) -> Space:
        return self.directory.vfs.space(self.directory.root)

    def load_snapshot(self, name: str, bounds_of: Callable[[QueueId], OffsetRange]) -> Snapshot | None:
        """The kept one, unless it reflects more than the log holds, or the log has dropped what came after it."""
        snapshot = self.snapshots.load(name)
        if snapshot is None:
            return None
        for queue, queue_offset in snapshot.positions.items():
            bounds = bounds_of(queue)
            if not bounds.first <= queue_offset <= bounds.end:
                return None
        return snapshot

    def close(self, end: int, stored_at_ms: int, epoch: int, *, in_order: bool) -> None:
        """In order: the next start has nothing to recover."""
        if in_order:
            self.checkpoint.note(synced_offset=end, epoch=epoch, stored_at_ms=stored_at_ms, is_clean=True)
            self.checkpoint.force()
            self.directory.unmark()
        self._close_all()

    def _recover(self, clock: Clock, progress: Progress) -> None:
        recovered = self.recovered = recover(
            self.directory, self.segments, self.checkpoint, self.queue_files, self.key_index, self.snapshots, clock, progress
        )
        self._replay_offsets()
        self._open_timers()
        self.directory.mark()
        self.checkpoint.note(
            synced_offset=recovered.end, epoch=recovered.epoch, stored_at_ms=recovered.last_stored_at_ms
        )  # fmt: skip
        self.checkpoint.force()

    def _open_timers(self) -> None:
        folder = TimerFolder(self.directory.vfs, self.directory.timers, scratch=self.directory.making)
        self.due_index = LocalDueIndex(folder, self.load_snapshot(TIMERS_SNAPSHOT, self.recovered.queues.bounds_of))
        self._open.append(self.due_index.close)

    def _replay_offsets(self) -> None:
        queue = group_offsets.QUEUE
        queues = self.recovered.queues
        queues.grow(queue.topic, 1)
        snapshot = self.load_snapshot(OFFSETS_SNAPSHOT, queues.bounds_of)
        found = queues[queue]
        at = found.first
        if snapshot is not None and self.offsets.restore(snapshot.data):
            at = snapshot.positions[queue]
        log_ = CommitLog(self.segments, trusted_from=self.recovered.walked_from, written_end=self.recovered.end)
        while at < found.end:
            for entry in self.queue_files.entries(found, at, found.end - at):
                self.offsets.apply(log_.read(entry.physical_offset, entry.record_bytes).body, place=at)
                at += 1

    def _close_all(self) -> None:
        while self._open:
            self._open.pop()()


async def _in_lane(runner: Runner, lane: Lane, job: Callable[[], T]) -> T:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    runner.beside(lane, job, _answering(answer), _failing(answer))
    return await answer


def _advance(search: Iterator[StoredMessage | None], found: list[StoredMessage], max_messages: int) -> bool:
    """Go on with the search for a while; True: it is over."""
    for _ in range(_SEARCH_STEPS):
        try:
            message = next(search)
        except StopIteration:
            return True
        if message is not None:
            found.append(message)
            if len(found) == max_messages:
                return True
    return False


def _resolve(future: asyncio.Future[T], result: T) -> None:
    """Whoever waited may have gone meanwhile."""
    if not future.done():
        future.set_result(result)


def _answering(future: asyncio.Future[T]) -> Callable[[T], None]:
    return lambda result: _resolve(future, result)


def _waking(future: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: _resolve(future, None)


def _failing(future: asyncio.Future[T]) -> Callable[[Exception], None]:
    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    return fail
