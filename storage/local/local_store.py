"""A `MessageStore` on this machine: the bridge between asyncio above and the plain parts below.

The event loop on which it is opened owns it; every method is called there.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

import structlog

from storage.clock import Clock
from storage.errors import (
    CorruptRecord,
    FlushFailed,
    InvalidRequest,
    LogTakenAway,
    OffsetBeyondEnd,
    RejectedError,
    StorageFull,
    StoreClosed,
    UnknownTopic,
)
from storage.files.vfs import Vfs, is_out_of_files
from storage.formats import unit
from storage.identifiers import Identifiers
from storage.local import group_offsets, queue_ends
from storage.local.arrivals import Arrivals
from storage.local.consume_queue import ConsumeQueue
from storage.local.deriver import Deriver
from storage.local.event_loop import EventLoopRunner
from storage.local.flusher import Flusher
from storage.local.futures import answering, failing, in_lane, resolve, waking
from storage.local.interval_flush import IntervalFlush
from storage.local.key_lookup import KeyLookup, Wanted
from storage.local.log_writer import AppendCall, LogWriter
from storage.local.offset_commits import OffsetCommits
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.local.preparer import Preparer
from storage.local.rate_limit import RateLimit
from storage.local.reader import Reader
from storage.local.recovery import Progress
from storage.local.retention import Retention
from storage.local.runner import Lane, Runner
from storage.local.running_verification import WINDOW_BYTES, RunningStoreVerification
from storage.local.scrub import Scrub
from storage.local.store_files import StoreFiles
from storage.local.verify.verification import StoreVerification
from storage.message import Appended, DueEntry, Durability, Message, OffsetRange, QueueId, StoredMessage
from storage.store import (
    ANY_LABEL,
    LAST_MS,
    DiskUsage,
    DueCounts,
    DuePage,
    PutBack,
    RecoveryReport,
    Scanned,
    ScrubStatus,
    SegmentInfo,
    Snapshot,
    StoreStatus,
)

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
            files = await in_lane(used, Lane.READ, lambda: StoreFiles.open(directory, options, vfs, clock, progress))
        except BaseException:
            if own_runner is not None:
                own_runner.close()
            raise
        return cls(options, files, clock, identifiers, used, own_runner, on_failure)

    def __init__(
        self,
        options: LocalStoreOptions,
        files: StoreFiles,
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
        self._runner = runner
        self._own_runner = own_runner
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waits = True
        self._expiring = asyncio.Lock()
        self._drained: asyncio.Future[None] | None = None
        self._kept: asyncio.Future[bool] | None = None
        self._synced: list[tuple[int, asyncio.Future[None]]] = []
        self._queues = recovered.queues
        self._offsets = files.offsets
        self._due_index = files.due_index
        self._arrivals = Arrivals()
        self._log = files.log
        self._preparer = Preparer(
            files.segments,
            runner,
            prepared_end=recovered.end,
            ahead_bytes=options.log_ahead_bytes,
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
            warn_ms=options.warn_sync_ms,
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
            files.delay_files,
            self._offsets,
            files.checkpoint,
            self._writer,
            self._flusher,
            runner,
            clock,
            options,
            indexed_end=recovered.indexed_end,
            on_failure=self._fail,
        )
        self._reader = Reader(self._log, self._queues, files.queue_files, files.queue_check, runner)
        self._lookup = KeyLookup(
            self._log,
            files.key_index,
            runner,
            indexed_end=lambda: self._deriver.indexed_end,
            visible_end=lambda: self._writer.visible_end,
            find_queue=self._queues.find,
        )
        self._identifiers = identifiers
        self._commits = OffsetCommits(self._offsets, self._queues, self._writer, clock, identifiers)
        self._retention = Retention(
            self._log,
            files.segments,
            self._queues,
            files.queue_files,
            files.queue_check,
            files.key_index,
            self._deriver,
            self._writer,
            clock,
            options,
            space=files.space,
            measure=files.measure,
            check_log=files.check_log,
            pause=self._pause,
            in_lane=self._in_lane,
            in_read_lane=self._reader.in_read_lane,
            append=self._append_own,
            put_back_offsets=self._commits.put_back,
            record_beginning=self._record_beginning,
        )
        self._scrub = Scrub(
            files.directory.vfs,
            files.directory.root,
            files.segments,
            files.snapshots,
            clock,
            options,
            in_lane=self._in_lane,
            safe_end=lambda: self._deriver.thorough_end,
        )
        self._verify_limit = RateLimit(options.verify_bytes_per_second, clock)
        self._interval = IntervalFlush(self._writer, self._flusher, runner, clock, options)
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
        queues = [self._queues[message.queue] for message in messages]
        call = AppendCall(
            messages, queues, durability, done=answering(answer), failed=failing(answer), from_reserve=from_reserve
        )
        self._writer.add(call)
        return await answer

    async def read(self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int) -> list[StoredMessage]:
        self._check_readable()
        return await self._reader.read(queue, queue_offset, max_messages=max_messages, max_bytes=max_bytes)

    async def offsets(self, queue: QueueId) -> OffsetRange:
        return self._queues[queue].bounds

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        found = self._queues[queue]
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while found.end <= queue_offset and self._waits and self._queues.find(queue) is found:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            arrival: asyncio.Future[None] = self._loop.create_future()
            wake = waking(arrival)
            forget = self._arrivals.wait(queue, wake)
            timer = self._runner.later(left_ms, wake)
            try:
                await arrival
            finally:
                forget()
                timer.cancel()
        return found.end > queue_offset

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        self._queues[queue]
        return self._offsets.get(group, queue)

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        bounds = self._queues[queue].bounds
        if not 0 <= queue_offset <= bounds.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=bounds)
        await self._commits.commit(group, queue, queue_offset)

    async def forget_offsets(self, group: str) -> None:
        await self._commits.forget(group)

    def committed_queues(self, group: str) -> Collection[QueueId]:
        return self._offsets.queues_of(group)

    def committed_count(self) -> int:
        return len(self._offsets)

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

    async def delete_topic(self, topic: str) -> None:
        """TopicDeletion."""
        self._check_readable()
        # From here on nothing is taken for it; what was taken before is written in front of its deletion.
        queues = self._queues.close(topic)
        if not queues:
            return
        now_ms = self._clock.wall_ms()
        ends = [(queue.id, queue.next_offset) for queue in queues]
        messages = [
            *queue_ends.end_messages(ends, now_ms=now_ms, tag=queue_ends.DELETED),
            group_offsets.deletion_message(topic, message_id=self._identifiers.new("msg"), now_ms=now_ms),
        ]
        self._queues.grow(queue_ends.QUEUE.topic, 1)
        answer: asyncio.Future[list[Appended]] = self._loop.create_future()

        def done(appended: list[Appended]) -> None:
            self._queues.delete(topic)
            self._offsets.drop(topic)
            self._retention.topic_deleted(topic)
            self._arrivals.notify(queues)
            resolve(answer, appended)

        def failed(error: Exception) -> None:
            self._queues.reopen(topic)
            failing(answer)(error)

        written_to = [self._queues[message.queue] for message in messages]
        call = AppendCall(messages, written_to, Durability.SYNCED, done=done, failed=failed, from_reserve=True)
        try:
            self._writer.add(call)
        except Exception:
            self._queues.reopen(topic)
            raise
        appended = await answer
        await self.wait_durable(appended[-1])

    def deleted_queues(self) -> int:
        """TopicDeletion."""
        return self._queues.deleted_count

    def is_durable(self, log_offset: int | None) -> bool:
        """SyncedPosition."""
        return log_offset is not None and log_offset < self._flusher.durable_end

    async def expire(self, now_ms: int, put_back: PutBack, *, keep_ms: int = 0, at_any_hour: bool = False) -> int:
        """Retention."""
        async with self._expiring:  # the loop and an operator
            self._check_readable()
            try:
                return await self._retention.run_once(now_ms, put_back, keep_ms=keep_ms, at_any_hour=at_any_hour)
            except LogTakenAway as error:
                self._fail(error)  # what is acknowledged from now on would be gone with the process
                raise

    async def expired_segments(self, now_ms: int, *, keep_ms: int = 0) -> list[SegmentInfo]:
        """Retention."""
        self._check_readable()
        return await self._retention.expired_segments(now_ms, keep_ms=keep_ms)

    async def oldest_stored_at_ms(self) -> int | None:
        """Retention."""
        return await self._in_lane(Lane.READ, self._retention.oldest_stored_at_ms)

    async def segments(self) -> list[SegmentInfo]:
        """SegmentListing."""
        self._check_readable()
        sealed_end = min(self._flusher.durable_end, self._writer.written_end)
        return await self._in_lane(Lane.READ, lambda: self._retention.segments(sealed_end))

    def disk_usage(self) -> DiskUsage:
        """Retention."""
        return self._retention.usage()

    def owe(self, owed_bytes: int) -> None:
        """Reserve."""
        self._preparer.owe(owed_bytes)

    async def wait_durable(self, appended: Appended) -> None:
        """SyncedPosition."""
        if not appended.durable and appended.log_offset is not None:
            await self._wait_synced(appended.log_offset)

    def stored_offset(self) -> int:
        """SyncedPosition."""
        return self._writer.written_end

    def synced_offset(self) -> int:
        """SyncedPosition."""
        return self._flusher.durable_end

    async def flush(self) -> int:
        """SyncedPosition."""
        self._check_readable()
        await self._wait_synced(self._writer.written_end - 1)
        return self._flusher.durable_end

    async def _wait_synced(self, log_offset: int) -> None:
        if self.is_durable(log_offset):
            return
        if self._failure is not None:
            raise FlushFailed
        synced: asyncio.Future[None] = self._loop.create_future()
        self._synced.append((log_offset, synced))
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
        with_deleted: bool = False,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """KeyLookup."""
        self._check_readable()
        visible_end = self._writer.visible_end
        log_end = visible_end if older_than is None else min(older_than, visible_end)
        wanted = Wanted(key, frozenset(topics), by_id, from_ms, to_ms, log_end, with_deleted)
        return await self._lookup.find(wanted, max_messages=max_messages, max_bytes=max_bytes)

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """ScatteredReads."""
        self._check_readable()
        return await self._reader.read_each(places, max_bytes=max_bytes)

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
        self._check_readable()
        return await self._reader.read_tagged(
            queue,
            queue_offset,
            tag_codes=tag_codes,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )

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

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """DelayProgress. Written with the next thorough round."""
        self._deriver.keep_delay_progress(done_before)

    def delay_progress_by_others(self) -> Mapping[QueueId, int]:
        """DelayProgress."""
        return self._files.delay_files.by_broker

    @property
    def is_prepared(self) -> bool:
        """Has the log all the space ahead of its writer that it is to have?"""
        return self._preparer.is_idle

    @property
    def recovery(self) -> RecoveryReport:
        """Recovery."""
        return self._files.recovered.report

    @property
    def earlier_recoveries(self) -> Sequence[RecoveryReport]:
        """Recovery."""
        return self._files.earlier_recoveries

    def status(self) -> StoreStatus:
        """Status."""
        return StoreStatus(
            first_offset=self._log.first_offset,
            written_end=self._writer.written_end,
            durable_end=self._flusher.durable_end,
            visible_end=self._writer.visible_end,
            queued_bytes=self._writer.queued_bytes,
            replay_backlog_bytes=self._deriver.backlog_bytes,
            last_flush_ms=self._flusher.last_flush_ms,
            syncs=self._flusher.times.statistics(),
            segments=len(list(self._log.segments)),
            mapped_bytes=self._log.segments.mapped_bytes,
            derived_at_ms=self._deriver.last_round_ms,
            derive_lag_ms=self._deriver.lag_ms(),
            derive_error=self._deriver.last_error,
            rebuilt_entries=self._files.queue_check.rebuilt_entries,
            rebuilt_index_files=self._files.key_index.rebuilt_files,
        )

    def pressure(self) -> float:
        """Status."""
        return self._writer.pressure

    def _check_readable(self) -> None:
        if self._is_closed or self._failure is not None:
            raise StoreClosed

    async def begin_verification(self) -> RunningStoreVerification:
        """Verifiable."""
        self._check_readable()
        directory = self._files.directory
        made = await self._in_lane(
            Lane.READ,
            lambda: StoreVerification(directory.vfs, directory.root, is_running=True, window_bytes=WINDOW_BYTES),
        )
        return RunningStoreVerification(
            made, self._verify_limit, check=self._check_readable, pause=self._pause, in_lane=self._in_lane
        )

    async def scrub(self) -> int:
        """Scrubbing."""
        self._check_readable()
        return await self._scrub.run_once()

    def scrub_status(self) -> ScrubStatus:
        """Scrubbing."""
        return self._scrub.status()

    # ------------------------------------------------------------------------------------------- what the parts report

    def _on_visible(self, queues: Iterable[ConsumeQueue]) -> None:
        self._deriver.note_visible(queues)
        self._arrivals.notify(queues)

    def _on_prepared(self) -> None:
        self._writer.on_prepared()

    def _on_full(self, error: Exception) -> None:
        event = "too_many_open_files" if is_out_of_files(error) else "disk_full"
        log.warning(event, directory=str(self._files.directory.root), error=str(error))
        self._writer.on_full()

    def _on_flushed(self) -> None:
        self._writer.on_flushed()
        self._deriver.on_flushed()
        durable_end = self._flusher.durable_end
        for close in self._files.segments.let_go_of_sealed(durable_end):
            self._runner.beside(Lane.PREPARE, close, lambda _: None, self._fail)  # to unmap 1 GiB takes a while
        if self._synced:
            reached = [synced for offset, synced in self._synced if offset < durable_end]
            self._synced = [(offset, synced) for offset, synced in self._synced if offset >= durable_end]
            for synced in reached:
                resolve(synced, None)
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
            failing(waiting)(FlushFailed())
        self._arrivals.wake_all()
        self._check_drained()
        if self._kept is not None:
            resolve(self._kept, False)
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
        await self._scrub.aclose(saves=is_kept)
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
        self._deriver.run_thorough(lambda succeeded: resolve(kept, succeeded))
        return await kept

    def _check_drained(self) -> None:
        if self._drained is not None and (self._writer.is_idle or self._failure is not None):
            resolve(self._drained, None)

    # ------------------------------------------------------------------------------------------------------ retention

    async def _pause(self, delay_ms: int) -> None:
        elapsed: asyncio.Future[None] = self._loop.create_future()
        self._runner.later(delay_ms, waking(elapsed))
        await elapsed

    async def _append_own(self, messages: Sequence[Message]) -> None:
        """Durable on return."""
        self._queues.grow(queue_ends.QUEUE.topic, 1)
        appended = await self.append(messages, durability=Durability.SYNCED, from_reserve=True)
        await self.wait_durable(appended[-1])

    async def _record_beginning(self, first_offset: int) -> None:
        """Durable on return. A failed sync is final, as each one of the checkpoint is."""
        if self._failure is not None:
            raise FlushFailed
        try:
            await self._in_lane(Lane.FLUSH, lambda: self._files.checkpoint.record_beginning(first_offset))
        except OSError as error:
            self._fail(error)
            raise

    async def _in_lane(self, lane: Lane, job: Callable[[], T]) -> T:
        return await in_lane(self._runner, lane, job)
