"""A `MessageStore` on this machine: the bridge between asyncio above and the plain parts below.

The event loop on which it is opened owns it; every method is called there.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from pathlib import PurePath
from typing import ClassVar, Self

from storage.clock import Clock
from storage.errors import (
    CorruptRecord,
    InvalidRequest,
    LogTakenAway,
    NotEnoughCopies,
    OffsetBeyondEnd,
    OffsetExpired,
    RejectedError,
    StorageFull,
    StoreClosed,
    UnknownTopic,
)
from storage.files.vfs import Vfs
from storage.formats import unit
from storage.formats.epochs import EpochHistory
from storage.formats.record_block import RecordBlock
from storage.formats.row import rows_of
from storage.identifiers import Identifiers
from storage.local import epoch_begin
from storage.local.broker.config_files import ConfigFiles
from storage.local.engine import Engine
from storage.local.lanes.event_loop import EventLoopRunner
from storage.local.lanes.futures import answering, failing, in_lane, waking
from storage.local.lanes.runner import Lane, Runner
from storage.local.options import LocalStoreOptions
from storage.local.recovery.recovery_walk import Progress
from storage.local.scrub.running_verification import WINDOW_BYTES, RunningStoreVerification
from storage.local.store_files import StoreFiles
from storage.local.verify.verification import StoreVerification
from storage.message import (
    Appended,
    DueEntry,
    Durability,
    Message,
    OffsetRange,
    Placed,
    QueueId,
    Row,
    StoredMessage,
    Sureness,
)
from storage.store import (
    ANY_LABEL,
    DueCounts,
    DuePage,
    KeyQuery,
    Scanned,
    ScannedRecords,
    Snapshot,
    WaitingTimers,
)
from storage.store_admin import PutBack, StoreAdmin
from storage.store_status import (
    DiskUsage,
    RecoveryReport,
    ScrubStatus,
    SegmentInfo,
    StartStep,
    StoreStatus,
)

_HOT_BYTES = 1 << 20  # of the newest log: it is in the page cache


class LocalMessageStore:
    """The store in local files, made by `open`."""

    _is_replica: ClassVar[bool] = False

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
        copies: int = 1,
        progress: Progress = lambda walked, to_walk: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> Self:
        """Take the store's directory, recover what is there, get ready to append.

        `copies`: disks that must have a message before it is safe, this machine's and those of the
        nodes of `note_copy`.

        `on_failure` is called once when the store can no longer be trusted to keep anything; the
        process should end then. Raises DirectoryInUse, UnknownFormat, CorruptRecord.
        """
        own_runner = EventLoopRunner() if runner is None else None
        used = runner or own_runner
        assert used is not None
        try:
            files = await in_lane(
                used,
                Lane.READ,
                lambda: StoreFiles.open(
                    directory, options, vfs, clock, progress, is_replica=cls._is_replica
                ),
            )
        except BaseException:
            if own_runner is not None:
                own_runner.close()
            raise
        return cls(
            options,
            files,
            clock,
            identifiers,
            used,
            own_runner=own_runner,
            copies=copies,
            on_failure=on_failure,
        )

    def __init__(
        self,
        options: LocalStoreOptions,
        files: StoreFiles,
        clock: Clock,
        identifiers: Identifiers,
        runner: Runner,
        *,
        own_runner: EventLoopRunner | None,
        copies: int,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()  # asked once: asking is a system call
        self._options = options
        self._clock = clock
        self._runner = runner
        self._expiring = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._engine = engine = Engine(
            options,
            files,
            clock,
            identifiers,
            runner,
            own_runner=own_runner,
            on_failure=on_failure,
            copies=copies,
            is_replica=self._is_replica,
        )
        self._check_readable = engine.check_readable
        self._in_lane = engine.in_lane
        # Not looked up in the engine at each call: an append is counted in microseconds.
        self._files = files
        self._log = files.log
        self._due_index = files.due_index
        self._offsets = files.offsets
        self._queues = engine.queues
        self._arrivals = engine.arrivals
        self._preparer = engine.preparer
        self._tail = engine.tail
        self._copies = engine.copies
        self._writer = engine.writer
        self.before_write = engine.writer.before_write
        self._flusher = engine.flusher
        self._deriver = engine.deriver
        self._reader = engine.reader
        self._lookup = engine.lookup
        self._at_offset = engine.at_offset
        self._commits = engine.commits
        self._retention = engine.retention
        self._scrub = engine.scrub
        self._deletion = engine.deletion

    async def aclose(self) -> None:
        if self._closing is None:
            self._writer.close(StoreClosed())
            self._closing = asyncio.ensure_future(self._engine.close())
        await asyncio.shield(self._closing)

    @property
    def first_offset(self) -> int:
        """First offset of the log."""
        return self._log.first_offset

    @property
    def epochs(self) -> EpochHistory:
        """The epochs of the stored log."""
        return self._files.recovered.epochs

    @property
    def admin(self) -> StoreAdmin:
        return self

    # ----------------------------------------------------------------------------------------------
    # topics

    async def create_topic(self, topic: str, *, queue_count: int) -> None:
        known = self._queues.count(topic)
        if queue_count < known:
            raise InvalidRequest(
                f"topic {topic} has {known} queues; their number cannot shrink to {queue_count}"
            )
        self._queues.grow(topic, queue_count)

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        count = self._queues.count(topic)
        if not count:
            raise UnknownTopic(f"topic {topic} does not exist")
        return tuple(QueueId(topic, number) for number in range(count))

    async def topics(self) -> Mapping[str, int]:
        return {
            topic: count
            for topic, count in self._queues.counts.items()
            if self._queues.holds_messages(topic)
        }

    async def delete_topic(self, topic: str) -> None:
        self._check_readable()
        answer: asyncio.Future[Placed] = self._loop.create_future()
        if self._deletion.begin(topic, answering(answer), failing(answer)):
            await answer

    def deleted_queues(self) -> int:
        return self._queues.deleted_count

    # ----------------------------------------------------------------------------------------------
    # appends

    async def append(
        self,
        messages: Sequence[Message],
        *,
        durability: Durability | None = None,
        from_reserve: bool = False,
    ) -> list[Appended]:
        if not messages:
            return []
        answer: asyncio.Future[Placed] = self._loop.create_future()
        done, failed = answering(answer), failing(answer)
        self.append_rows(
            rows_of(messages),
            durability=durability,
            done=done,
            failed=failed,
            from_reserve=from_reserve,
        )
        placed = await answer
        queues = [message.queue for message in messages]
        return list(
            map(
                Appended,
                queues,
                placed.queue_offsets,
                placed.log_offsets,
                repeat(placed.stored_at_ms),
                repeat(placed.sureness),
            )
        )

    def append_rows(
        self,
        rows: Sequence[Row],
        *,
        durability: Durability | None,
        done: Callable[[Placed], None],
        failed: Callable[[Exception], None],
        written: Callable[[Placed], None] | None = None,
        from_reserve: bool = False,
    ) -> None:
        if durability is Durability.REPLICATED:
            if self._copies.needed == 1:
                raise InvalidRequest(
                    "replicated is not available: the store does not wait for replicas"
                )
            if self._copies.is_alone:
                raise NotEnoughCopies("this machine acknowledges alone: its replicas are missing")
            durability = Durability.SYNCED
        if self._retention.refuses_new and not from_reserve:
            raise StorageFull
        if self._copies.is_short and not from_reserve:
            raise NotEnoughCopies
        if not 0 < len(rows) <= unit.MAX_RECORDS:
            raise InvalidRequest(f"{len(rows)} messages in one append, not 1 to {unit.MAX_RECORDS}")
        self._writer.add(
            rows,
            durability=durability,
            done=done,
            failed=failed,
            written=written,
            from_reserve=from_reserve,
        )

    def set_reserve(self, owed_bytes: int) -> None:
        self._preparer.set_reserve(owed_bytes)

    def append_limit_bytes(self) -> int:
        return self._tail.unit_capacity

    def pressure(self) -> float:
        return self._writer.pressure

    # ----------------------------------------------------------------------------------------------
    # durability

    def stored_offset(self) -> int:
        return self._tail.written_end

    def synced_offset(self) -> int:
        return self._copies.safe_end

    async def flush(self) -> int:
        self._check_readable()
        await self._engine.wait_synced(self._tail.written_end - 1)
        return self._copies.safe_end

    async def end_appends(self) -> None:
        """Refuse every append from now on; return once all that were taken have their offsets."""
        self._writer.close(StoreClosed())
        while self._writer.has_queued:
            await self._engine.wait_progress()

    async def read_log(self, begin: int, end: int) -> bytes:
        """Bytes of the log as they are in its files, of the segment in which they begin, so they
        may end before `end`; none behind its last unit there.

        Raises OffsetExpired where retention has dropped them.
        """
        found = self._read_hot(begin, end)
        if found is not None:
            return found
        length = min(end, self._in_files_end()) - begin
        try:
            return await self._in_lane(Lane.READ, lambda: self._log.segments.read(begin, length))
        except IndexError:
            available = OffsetRange(self._log.first_offset, self._in_files_end())
            raise OffsetExpired(requested=begin, available=available) from None

    def read_log_now(self, begin: int, end: int) -> bytes | None:
        """As `read_log`; None where that would have to wait, or would fail."""
        try:
            return self._read_hot(begin, end)
        except (StoreClosed, OSError):
            return None

    def _read_hot(self, begin: int, end: int) -> bytes | None:
        """As `read_log_now`. Raises StoreClosed, OSError."""
        self._check_readable()
        length = min(end, self._in_files_end()) - begin
        if length <= 0:
            return b""
        if begin < max(self._tail.file_end - _HOT_BYTES, self._log.first_offset):
            return None
        return self._log.segments.read_cached(begin, length)

    def copyable_end(self) -> int:
        """Replicas may be sent everything before this log offset.

        What a power cut may still take is among it, but not before the own disk has a unit of this
        epoch: else the next start could give its number to other units.
        """
        on_disk_end = self._flusher.durable_end
        has_epoch = on_disk_end > self._files.recovered.end
        return self._in_files_end() if has_epoch else on_disk_end

    def _in_files_end(self) -> int:
        """Not of what is in a pool; the end of a closed segment counts once that is synced."""
        return max(self._tail.file_end, self._flusher.durable_end)

    async def begin_epoch(self, node: str) -> None:
        """Begin to lead, as this node: what is in the log is safe together with a unit of this
        epoch, and not before. To call before any node of `note_copy` is there.
        """
        recovered = self._files.recovered
        has_epoch = recovered.has_unit_of_epoch or self._tail.written_end > recovered.end
        if not has_epoch:
            await self.create_topic(epoch_begin.QUEUE.topic, queue_count=1)
            begin = epoch_begin.begin_message(recovered.epoch, node, now_ms=self._clock.wall_ms())
            await self.append([begin], durability=Durability.BUFFERED, from_reserve=True)
        self._copies.keep_together(self._tail.written_end)

    def on_disk_end(self) -> int:
        """Everything before this log offset is on the disk of this machine."""
        return self._flusher.durable_end

    def note_copy(self, node: str, synced_end: int) -> None:
        """The disk of a connected node has everything before this log offset."""
        self._engine.note_copy(node, synced_end)

    def forget_copy(self, node: str) -> None:
        """The node is not connected any more: what comes is not safe by its disk."""
        self._engine.forget_copy(node)

    def copied_end(self) -> int:
        """Log offset up to which as many disks as required have the log, even while the own one is
        enough; 0 if too few are connected.
        """
        return self._copies.common_end

    def go_alone(self) -> None:
        """Call safe what the own disk has. To call once no other node can lead."""
        self._engine.go_alone()

    def end_alone(self) -> None:
        """Have other disks count again: nothing more is safe before they have all that is
        written.
        """
        self._engine.end_alone()

    @property
    def is_alone(self) -> bool:
        """Is the own disk enough for now?"""
        return self._copies.is_alone

    @property
    def is_together(self) -> bool:
        """Is everything that is safe on as many disks as must have it?"""
        return self._copies.is_together

    @property
    def lacks_copies(self) -> bool:
        """Whether new messages are refused because too few nodes are connected."""
        return self._copies.is_short

    @property
    def unsafe_bytes(self) -> int:
        """Log that is not on as many disks as must have it, or is not known to be."""
        return self._tail.written_end - self._copies.safe_end

    async def wait_progress(self) -> None:
        """Return when more may be stored or safe than was, or there is more space, or the store
        ends.
        """
        await self._engine.wait_progress()

    def watch(self, moved: Callable[[], None]) -> None:
        """Have this called when one of the ends may have moved, a turn of the event loop later at
        the most, and when the store fails.
        """
        self._engine.watch(moved)

    def end_watch(self, moved: Callable[[], None]) -> None:
        """Have it called no more."""
        self._engine.end_watch(moved)

    def sureness_of(self, log_offset: int | None) -> Sureness:
        assert log_offset is not None, "the store has a log"
        return self._writer.sureness_of(log_offset + 1)

    async def wait_durable(self, log_offset: int | None) -> None:
        assert log_offset is not None, "the store has a log"
        await self._engine.wait_synced(log_offset)

    # ----------------------------------------------------------------------------------------------
    # reads

    async def offsets(self, queue: QueueId) -> OffsetRange:
        return self._queues[queue].bounds

    def bounds(self, queue: QueueId) -> OffsetRange:
        return self._queues[queue].bounds

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        self._check_readable()
        return await self._reader.read(
            queue, queue_offset, max_messages=max_messages, max_bytes=max_bytes
        )

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
        self._check_readable()
        return await self._reader.read_tagged(
            queue,
            queue_offset,
            tag_codes=tag_codes,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )

    async def read_records(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int] | None = None,
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> ScannedRecords:
        self._check_readable()
        return await self._reader.read_records(
            queue,
            queue_offset,
            tag_codes=tag_codes,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        self._check_readable()
        return await self._reader.read_each(places, max_bytes=max_bytes)

    def block_now(
        self, queue: QueueId, queue_offset: int, *, count: int, max_bytes: int
    ) -> RecordBlock | None:
        self._check_readable()
        return self._reader.block_now(queue, queue_offset, count, max_bytes=max_bytes)

    # ----------------------------------------------------------------------------------------------
    # arrivals

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        found = self._queues[queue]
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while (
            found.end <= queue_offset and self._engine.waits and self._queues.find(queue) is found
        ):
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            arrival: asyncio.Future[None] = self._loop.create_future()
            wake = waking(arrival)
            self._arrivals.wait(queue, wake)
            timer = self._runner.later(left_ms, wake)
            try:
                await arrival
            finally:
                self._arrivals.forget(queue, wake)
                timer.cancel()
        return found.end > queue_offset

    def call_on_arrival(self, queue: QueueId, queue_offset: int, call: Callable[[], None]) -> None:
        if self._queues[queue].end > queue_offset or not self._engine.waits:
            call()
        else:
            self._arrivals.wait(queue, call)

    def forget_call(self, queue: QueueId, call: Callable[[], None]) -> None:
        self._arrivals.forget(queue, call)

    def stop_waiting(self) -> None:
        """Every reader that waits, or will, returns at once: the service stops."""
        self._engine.stop_waiting()

    # ----------------------------------------------------------------------------------------------
    # committed offsets

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

    # ----------------------------------------------------------------------------------------------
    # messages by their keys

    async def find_messages(self, query: KeyQuery) -> list[StoredMessage]:
        self._check_readable()
        return await self._lookup.find(query)

    async def read_at(
        self, log_offset: int, *, topics: Collection[str], store_host: bytes | None = None
    ) -> list[StoredMessage]:
        self._check_readable()
        return await self._at_offset.find(log_offset, topics=topics, store_host=store_host)

    # ----------------------------------------------------------------------------------------------
    # snapshots of derived tables

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Written with the next thorough round; nothing waits for it."""
        self._deriver.keep(name, snapshot)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        if self._engine.is_closed:
            raise StoreClosed
        waiting = self._deriver.waiting_snapshot(name)
        if waiting is not None:
            return waiting
        return await self._in_lane(
            Lane.READ, lambda: self._files.load_snapshot(name, self._queues.bounds_of)
        )

    # ----------------------------------------------------------------------------------------------
    # index of times

    def due_positions(self) -> Mapping[QueueId, int]:
        return dict(self._due_index.positions)

    def change_due(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        """Change the index of times, which is written with the next thorough round; nothing waits
        for it.
        """
        self._due_index.change(added, taken, positions)

    async def read_due(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        self._check_readable()
        read = self._due_index.reading(
            after, until_ms=until_ms, max_entries=max_entries, labels=labels
        )
        return await self._in_lane(Lane.READ, read)

    async def holds_due(self, entry: DueEntry) -> bool:
        self._check_readable()
        known = self._due_index.is_due(entry)
        if known is not None:
            return known
        return await self._in_lane(Lane.READ, self._due_index.holding(entry))

    async def count_due(self, *, until_ms: int) -> int:
        self._check_readable()
        return await self._in_lane(Lane.READ, self._due_index.counting(until_ms=until_ms))

    def due_counts(self) -> DueCounts:
        return self._due_index.counts

    async def forget_due(self) -> None:
        surplus = self._due_index.forget()
        await self._in_lane(Lane.DERIVE, lambda: None)  # it may be making a file of them
        await self._in_lane(Lane.READ, self._due_index.dispose(surplus))

    # ----------------------------------------------------------------------------------------------
    # progress of the delay queues

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """Written with the next thorough round."""
        self._deriver.keep_delay_progress(done_before)

    @property
    def config_files(self) -> ConfigFiles:
        """The files in `config/`, for where waiting is allowed."""
        return self._files.config_files

    def keep_config(self, write: Callable[[], None]) -> None:
        """Call `write` in the derive lane once the log that is visible now is durable.

        It comes before the store is closed, or with the next snapshots; of several calls before
        that the last one counts.
        """
        self._deriver.keep_config(write)

    def keep_waiting_timers(self, timers: WaitingTimers) -> None:
        self._deriver.keep_waiting_timers(timers)

    def delay_progress_by_others(self) -> Mapping[QueueId, int] | None:
        by_broker = self._files.delay_files.by_broker
        return {} if by_broker is None and self._files.broker_timers.were_a_brokers else by_broker

    # ----------------------------------------------------------------------------------------------
    # StoreAdmin

    def status(self) -> StoreStatus:
        return StoreStatus(
            first_offset=self._log.first_offset,
            written_end=self._tail.written_end,
            durable_end=self._flusher.durable_end,
            visible_end=self._tail.visible_end,
            queued_bytes=self._writer.queued_bytes,
            replay_backlog_bytes=self._deriver.backlog_bytes,
            last_flush_ms=self._flusher.last_flush_ms,
            syncs=self._flusher.times.statistics(),
            reads=self._reader.statistics(),
            segments=len(list(self._log.segments)),
            mapped_bytes=self._log.segments.mapped_bytes,
            derived_at_ms=self._deriver.last_round_ms,
            derive_lag_ms=self._deriver.lag_ms(),
            derive_error=self._deriver.last_error,
            rebuilt_entries=self._files.queue_check.rebuilt_entries,
            rebuilt_index_files=self._files.key_index.rebuilt_files,
            pool=self._engine.pool_status(),
        )

    @property
    def recovery(self) -> RecoveryReport:
        return self._files.report

    @property
    def earlier_recoveries(self) -> Sequence[RecoveryReport]:
        return self._files.earlier_recoveries

    async def note_ready(self, steps: Sequence[StartStep]) -> None:
        """Complete the report of this start, once the parts above have their tables back.

        `steps`: what these took. Durable on return.
        """
        await self._in_lane(Lane.DERIVE, lambda: self._files.note_ready(steps))

    async def segments(self) -> list[SegmentInfo]:
        self._check_readable()
        sealed_end = min(self._copies.safe_end, self._tail.written_end)
        return await self._in_lane(Lane.READ, lambda: self._retention.segments(sealed_end))

    def disk_usage(self) -> DiskUsage:
        return self._retention.usage()

    async def expire(
        self,
        now_ms: int,
        put_back: PutBack,
        *,
        keep_ms: int = 0,
        ahead_ms: int = 0,
        at_any_hour: bool = False,
    ) -> int:
        async with self._expiring:  # the loop and an operator
            self._check_readable()
            try:
                return await self._retention.run_once(
                    now_ms,
                    put_back,
                    keep_ms=keep_ms,
                    ahead_ms=ahead_ms,
                    at_any_hour=at_any_hour,
                )
            except LogTakenAway as error:
                # what is acknowledged from now on would be gone with the process
                self._engine.fail(error)
                raise

    async def expired_segments(
        self, now_ms: int, *, keep_ms: int = 0, ahead_ms: int = 0
    ) -> list[SegmentInfo]:
        self._check_readable()
        return await self._retention.expired_segments(now_ms, keep_ms=keep_ms, ahead_ms=ahead_ms)

    async def oldest_stored_at_ms(self) -> int | None:
        return await self._in_lane(Lane.READ, self._retention.oldest_stored_at_ms)

    async def begin_verification(self) -> RunningStoreVerification:
        self._check_readable()
        directory = self._files.directory
        made = await self._in_lane(
            Lane.READ,
            lambda: StoreVerification(
                directory.vfs, directory.root, is_running=True, window_bytes=WINDOW_BYTES
            ),
        )
        return RunningStoreVerification(
            made,
            self._engine.verify_limit,
            check=self._check_readable,
            pause=self._engine.pause,
            in_lane=self._in_lane,
        )

    async def scrub(self) -> int:
        self._check_readable()
        return await self._scrub.run_once()

    def scrub_status(self) -> ScrubStatus:
        return self._scrub.status()

    @property
    def is_prepared(self) -> bool:
        """Has the log all the space ahead of its writer that it is to have?"""
        return self._preparer.is_idle
