"""The parts of an open store: how they are wired, what they report to each other, how they fail and
how they end.

`LocalMessageStore` answers calls with them; the two are the bridge to asyncio. The event loop that
makes the engine owns it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from storage.callbacks import call_back
from storage.clock import Clock
from storage.errors import CorruptRecord, FlushFailed, StoreClosed
from storage.files.vfs import is_out_of_files
from storage.files.write_pool import WritePool
from storage.identifiers import Identifiers
from storage.local.append.committer import Committer
from storage.local.append.copies import Copies
from storage.local.append.flusher import Flusher
from storage.local.append.interval_flush import IntervalFlush
from storage.local.append.log_writer import LogWriter
from storage.local.append.offset_commits import OffsetCommits
from storage.local.append.received_units import ReceivedUnits
from storage.local.deriver import Deriver
from storage.local.lanes.event_loop import EventLoopRunner
from storage.local.lanes.futures import EndWaits, failing, in_lane, resolve, waking
from storage.local.lanes.rate_limit import RateLimit
from storage.local.lanes.runner import FailingRunner, Lane, Runner, Timer
from storage.local.log.log_tail import LogTail
from storage.local.log.preparer import Preparer
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from storage.local.queues import queue_ends
from storage.local.queues.arrivals import Arrivals
from storage.local.queues.consume_queue import ConsumeQueue
from storage.local.read.key_lookup import KeyLookup
from storage.local.read.offset_lookup import OffsetLookup
from storage.local.read.reader import Reader
from storage.local.retention import Retention
from storage.local.scrub.scrub import DerivedFiles, Scrub
from storage.local.store_files import StoreFiles
from storage.local.topic_deletion import TopicDeletions
from storage.message import Message, Placed
from storage.store_status import PoolStatus

_CONFIRM_MS = 100
_LAST_COPIES_MS = 2_000  # other disks are waited for so long once the store is to end
_NEXT_LOOK_MS = 100  # and behind that, where too few are connected
_LACKS_COPIES = (
    "The service is stopping, and too few replicas have this: whether it stays stored is unknown."
)

T = TypeVar("T")
log = structlog.get_logger()


class Engine:
    """The first failure is final: nothing is acknowledged after it."""

    def __init__(
        self,
        options: LocalStoreOptions,
        files: StoreFiles,
        clock: Clock,
        identifiers: Identifiers,
        runner: Runner,
        *,
        own_runner: EventLoopRunner | None,
        on_failure: Callable[[Exception], None],
        copies: int = 1,
        is_replica: bool = False,
    ) -> None:
        """`own_runner`: to be closed at the end. `on_failure`: called once.

        `copies`: disks that must have what is safe, the own one among them. `is_replica`: units
        come from a primary, which also says what is safe; nothing is appended.
        """
        self._loop = asyncio.get_running_loop()  # asked once: asking is a system call
        self._files = files
        self._options = options
        self._end_runner = runner  # of what is left to do once the parts' own takes no more jobs
        self._runner = FailingRunner(runner, self.fail)
        self._own_runner = own_runner
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self.is_closed = False
        self.last_epoch = files.recovered.epoch  # which a start after an orderly end goes on with
        self.waits = True
        self._drained: asyncio.Future[None] | None = None
        self._kept: asyncio.Future[bool] | None = None
        self._safe = EndWaits(self._loop)
        self._on_disk = EndWaits(self._loop)  # the own one
        self._given_up_end = 0  # no wait for other disks to have what is before it
        self._giving_up: Timer | None = None
        self._progress: asyncio.Future[None] | None = None
        self._watching: dict[Callable[[], None], None] = {}  # an ordered set
        self._noted_shortage: str | None = None  # event of the line that is logged once for it
        self.queues = files.recovered.queues
        self.arrivals = Arrivals()
        self.preparer = self._make_preparer(options)
        self.pool = None if is_replica else self._make_pool(options)
        self.tail = LogTail(
            files.log,
            self.preparer,
            self._runner,
            segment_bytes=options.segment_bytes,
            last_stored_at_ms=files.recovered.last_stored_at_ms,
            on_failure=self.fail,
            pool=self.pool,
        )
        self.copies = Copies(
            files.recovered.end,
            needed=2 if is_replica else copies,
            safe_end=files.recovered.confirmed_end,
        )
        self._confirmed_end = self.copies.safe_end  # what the checkpoint says of it
        self._confirms = False  # will it say more in a moment?
        self.writer = self._make_writer(clock, options)
        self.flusher = self._make_flusher(clock, options)
        self.writer.attach(self.flusher, self._make_committer(clock, options))
        self.deriver = self._make_deriver(clock, options)
        self.reader = Reader(files, self._runner)
        self.lookup = self._make_lookup()
        self.at_offset = OffsetLookup(files.log, self.reader, self.queues)
        self.commits = OffsetCommits(files.offsets, self.queues, self.writer, clock, identifiers)
        self.retention = self._make_retention(clock, options)
        self.deletion = TopicDeletions(
            files, self.retention, self.arrivals, self.writer, clock, identifiers
        )
        self.scrub = self._make_scrub(clock, options)
        self.verify_limit = RateLimit(options.verify_bytes_per_second, clock)
        self._interval = IntervalFlush(self.tail, self.flusher, self._runner, clock, options)
        self.received = self._make_received() if is_replica else None
        if is_replica:
            self.writer.close(StoreClosed("a replica takes no messages, its primary does"))
        self.preparer.advance(files.recovered.end)
        self.deriver.start()
        if options.flush is FlushPolicy.INTERVAL:
            self._interval.start()

    def _make_preparer(self, options: LocalStoreOptions) -> Preparer:
        return Preparer(
            self._files.segments,
            self._runner,
            prepared_end=self._files.recovered.end,
            segment_bytes=options.segment_bytes,
            ahead_bytes=options.log_ahead_bytes,
            most_held_segments=options.most_held_segments,
            reserve_bytes=options.log_reserve_bytes,
            on_prepared=self._on_prepared,
            on_full=self._on_full,
            on_failure=self.fail,
        )

    def _make_writer(self, clock: Clock, options: LocalStoreOptions) -> LogWriter:
        return LogWriter(
            self.tail,
            self.queues,
            self.copies,
            self._runner,
            clock,
            options,
            epoch=self._files.recovered.epoch,
            on_visible=self._on_visible,
            is_awaited=self.arrivals.are_awaited,
        )

    def _make_pool(self, options: LocalStoreOptions) -> WritePool | None:
        if options.append is not AppendMode.POOL:
            return None
        if options.flush is FlushPolicy.BEFORE_ACK:
            log.warning(
                "write_pool_answers_no_sooner",
                reason="with flush=before_ack every send waits for the sync of its bytes; all that "
                "the pool changes is how long a busy disk holds up the event loop",
            )
        return WritePool(
            self._files.segments,
            end=self._files.recovered.end,
            segment_bytes=options.segment_bytes,
            buffers=options.pool_buffers,
            buffer_bytes=options.pool_buffer_bytes,
        )

    def _make_committer(self, clock: Clock, options: LocalStoreOptions) -> Committer | None:
        if self.pool is None:
            return None
        return Committer(
            self.pool,
            self._runner,
            clock,
            options,
            on_committed=self._on_committed,
            on_failure=self.fail,
        )

    def _make_flusher(self, clock: Clock, options: LocalStoreOptions) -> Flusher:
        return Flusher(
            self._flush_log,
            self._files.checkpoint,
            self.copies,
            self._runner,
            clock,
            durable_end=self._files.recovered.end,
            epoch=self._files.recovered.epoch,
            warn_ms=options.warn_sync_ms,
            on_flushed=self._on_flushed,
            on_failure=self.fail,
        )

    def _make_deriver(self, clock: Clock, options: LocalStoreOptions) -> Deriver:
        return Deriver(
            self._files,
            self.tail,
            self.flusher,
            self._runner,
            clock,
            options,
            on_failure=self.fail,
        )

    def _make_received(self) -> ReceivedUnits:
        return ReceivedUnits(
            self.tail,
            self.flusher,
            self.queues,
            self._files.offsets,
            self._files.recovered.epochs,
            units_end=self._files.recovered.units_end,
            copies=self.copies,
            on_visible=self._on_visible,
            on_deleted=self._on_deleted,
            read=self._files.segments.read,
        )

    def _make_lookup(self) -> KeyLookup:
        return KeyLookup(
            self._files.log,
            self._files.key_index,
            self._runner,
            indexed_end=lambda: self.deriver.indexed_end,
            visible_end=lambda: self.tail.visible_end,
            find_queue=self.queues.find,
        )

    def _make_retention(self, clock: Clock, options: LocalStoreOptions) -> Retention:
        return Retention(
            self._files,
            self.deriver,
            self.tail,
            clock,
            options,
            pause=self.pause,
            in_lane=self.in_lane,
            in_read_lane=self.reader.in_read_lane,
            append=self._append_own,
            queued_queues=self.writer.queued_queues,
            put_back_offsets=self.commits.put_back,
            record_beginning=self._record_beginning,
        )

    def _make_scrub(self, clock: Clock, options: LocalStoreOptions) -> Scrub:
        return Scrub(
            self._files.directory.vfs,
            self._files.directory.root,
            self._files.segments,
            self._files.snapshots,
            clock,
            options,
            in_lane=self.in_lane,
            safe_end=lambda: self.deriver.thorough_end,
            failing=self._files.failing,
            derived=DerivedFiles(
                lack_entries=lambda: self.deriver.has_start_unwritten,
                has_topic=lambda topic: self.queues.count(topic) > 0,
                index_marks=lambda: self._files.key_index.marks,
                rebuilt_index_files=lambda: self._files.key_index.rebuilt_files,
            ),
        )

    def check_readable(self) -> None:
        if self.is_closed or self._failure is not None:
            raise StoreClosed

    def pool_status(self) -> PoolStatus | None:
        if self.pool is None:
            return None
        return PoolStatus(
            self.pool.buffers,
            self.pool.free_buffers,
            self.pool.locked_bytes,
            self.pool.committed_end,
            self.writer.pool_refusals,
        )

    async def wait_synced(self, log_offset: int) -> None:
        """Return once the byte at this log offset is on as many disks as must have it. Raises
        FlushFailed: also where the store ends while other disks do not have it.
        """
        if log_offset < self.copies.safe_end:
            return
        if self._failure is not None:
            raise FlushFailed
        if log_offset < self._given_up_end:
            raise FlushFailed(_LACKS_COPIES)
        safe = self._safe.wait(log_offset + 1)
        self.flusher.request(self.tail.written_end, self.tail.stored_at_ms)
        await safe

    async def wait_flushed(self) -> None:
        """Return once the own disk has all that is written. Raises FlushFailed."""
        if self._failure is not None:
            raise FlushFailed
        end = self.tail.written_end
        if end > self.flusher.durable_end:
            on_disk = self._on_disk.wait(end)
            self.flusher.request(end, self.tail.stored_at_ms)
            await on_disk

    async def wait_progress(self) -> None:
        """Return when there may be more in the log, more of it safe, or more room for what is
        received, or something ends the wait.
        """
        if self._progress is None:
            self._progress = self._loop.create_future()
            self._listen()
        await asyncio.shield(self._progress)

    def watch(self, moved: Callable[[], None]) -> None:
        """Have this called when there may be more in the log, on the own disk or safe, a turn of
        the event loop later at the most, and when the store fails.
        """
        self._watching[moved] = None
        self._listen()

    def end_watch(self, moved: Callable[[], None]) -> None:
        """Have it called no more."""
        self._watching.pop(moved, None)

    def _listen(self) -> None:
        self.tail.on_grown = self._note_grown

    def _note_grown(self) -> None:
        """Note that there is more: before its sync begins where an append waits for the copy, too,
        and behind that where it does not.
        """
        if self.copies.needed > 1:
            self._note_progress()
        else:
            self._runner.soon(self._note_progress)

    def _note_progress(self) -> None:
        for moved in tuple(self._watching):
            call_back(moved)
        if self._progress is not None:
            resolve(self._progress, None)
            self._progress = None
        if not self._watching:
            self.tail.on_grown = None

    # -------------------------------------------------------------------------------------------
    # what the parts report

    def _on_visible(self, queues: Iterable[ConsumeQueue]) -> None:
        self.deriver.note_visible(queues)
        self.arrivals.notify(queues)

    def _show_received(self, received: ReceivedUnits) -> None:
        try:
            received.show_safe()
        except (CorruptRecord, OSError) as damage:
            # whole units that do not follow one another, which is no log of a primary's; or units
            # that the disk does not give back
            self.fail(damage)

    def _on_deleted(self, topic: str, queues: list[ConsumeQueue]) -> None:
        self.retention.topic_deleted(topic)
        self.arrivals.notify(queues)

    def _on_prepared(self) -> None:
        if self._noted_shortage is not None and not self.preparer.is_full:
            self._noted_shortage = None
            log.info("log_has_room_again", directory=str(self._files.directory.root))
        self.writer.on_prepared()
        self._note_progress()

    def _on_full(self, error: Exception) -> None:
        event = "too_many_open_files" if is_out_of_files(error) else "disk_full"
        if event != self._noted_shortage:
            # once, and not at each try: the lines of a log on the same disk would fill it
            log.warning(event, directory=str(self._files.directory.root), error=str(error))
            self._noted_shortage = event
        self.writer.on_full()

    def _flush_log(self, begin: int, end: int) -> None:
        """Write and sync the log between these offsets. Flush lane only."""
        if self.pool is not None:
            self.pool.commit(end)
        self._files.segments.flush(begin, end)

    def _on_committed(self) -> None:
        self.writer.on_committed()
        if self._options.flush is FlushPolicy.INTERVAL:
            self._interval.on_committed()
        self._check_drained()

    def _on_flushed(self) -> None:
        durable_end = self.flusher.durable_end
        self.copies.note_own(durable_end)
        self._on_safe()
        for close in self._files.segments.let_go_of_sealed(durable_end):
            # to unmap 1 GiB takes a while
            self._runner.beside(Lane.PREPARE, close, lambda _: None, self.fail)
        self.preparer.on_flushed(durable_end)
        self._on_disk.reach(durable_end)

    def note_copy(self, node: str, synced_end: int) -> None:
        """Note that another node has the log up to this offset on its disk; on a replica, that its
        primary calls it safe.
        """
        self.copies.note_other(node, synced_end)
        self._runner.run(self._on_safe)

    def forget_copy(self, node: str) -> None:
        """Leave out a node that is not connected any more."""
        self.copies.forget(node)

    def go_alone(self) -> None:
        """See `Copies.go_alone`."""
        self.copies.go_alone()
        self._runner.run(self._on_safe)

    def end_alone(self) -> None:
        """See `Copies.end_alone`."""
        self.copies.end_alone(self.tail.written_end)

    def _on_safe(self) -> None:
        """More of the log is on as many disks as must have it, or the own disk is free again."""
        if self.received is not None:
            self._show_received(self.received)
        self.writer.on_flushed()
        self.deriver.on_flushed()
        self._safe.reach(self.copies.safe_end)
        self._note_progress()
        self._check_drained()
        if self.copies.needed > 1 and not self._confirms:
            self._confirms = True
            self._runner.later(_CONFIRM_MS, self._confirm)

    def _confirm(self) -> None:
        """Note what is safe: a flush does, but what it has synced is safe only after it."""
        self._confirms = False
        safe_end = self.copies.safe_end
        if safe_end > self._confirmed_end and not self.is_closed and self._failure is None:
            self._confirmed_end = safe_end
            confirm = partial(self._files.checkpoint.confirm, safe_end)
            self._runner.beside(Lane.FLUSH, confirm, lambda _: None, self.fail)

    def fail(self, error: Exception) -> None:
        """The log, or what belongs to it, could not be written: nothing is acknowledged any
        more.
        """
        if self._failure is not None:
            return
        self._failure = error
        self.writer.fail(error)
        self.preparer.stop()
        self._safe.fail(FlushFailed())
        self._on_disk.fail(FlushFailed())
        self.arrivals.wake_all()
        self._check_drained()
        if self._kept is not None:
            resolve(self._kept, False)
        self._on_failure(error)
        self._note_progress()  # those whom it wakes know of the failure then

    # ----------------------------------------------------------------------------------------------
    # closing

    def stop_waiting(self) -> None:
        """Every reader that waits, or will, returns at once; and other disks are waited for no
        longer than a moment: the store is to end.
        """
        if self.waits and self.copies.needed > 1:
            self._giving_up = self._runner.later(_LAST_COPIES_MS, self._give_up_copies)
        self.waits = False
        self.arrivals.wake_all()
        self._note_progress()

    async def close(self) -> None:
        """Finish what was taken, and close everything. Raises the error of a step: all others are
        made, but the next start recovers.
        """
        is_kept = False
        try:
            is_kept = await self._finish()
        except Exception as error:
            self.fail(error)
            raise
        finally:
            try:
                await self._close_files(in_order=is_kept and self._failure is None)
            finally:
                if self._own_runner is not None:
                    self._own_runner.close()

    async def _finish(self) -> bool:
        """Answer what was taken, and end the parts; whether all that is derived is on disk."""
        self.stop_waiting()
        if not self.writer.is_idle and self._failure is None:
            self._drained = self._loop.create_future()
            if self.copies.is_short:
                self._give_up_copies()
            await self._drained
        with suppress(FlushFailed):
            # An end of a segment may be written behind the last unit.
            await self.wait_flushed()
        if self._giving_up is not None:
            self._giving_up.cancel()
        is_kept = self._failure is None and await self._keep_derived()
        await self.scrub.aclose(saves=is_kept)
        return is_kept

    async def _close_files(self, *, in_order: bool) -> None:
        self._interval.stop()
        self.preparer.stop()
        self.deriver.stop()
        # One after another, behind all jobs of the lanes: one leaves a job for the next.
        lanes = (Lane.PREPARE, Lane.DERIVE, Lane.READ)
        for lane in lanes:
            await self.in_lane(lane, lambda: None)
        self.is_closed = True
        self._runner.close()
        # Behind what readers had done meanwhile: then no file is in use any more.
        for lane in lanes:
            await in_lane(self._end_runner, lane, lambda: None)
        close = partial(
            self._files.close,
            self.tail.written_end,
            self.tail.stored_at_ms,
            self.last_epoch,
            safe_end=self.copies.safe_end,
            in_order=in_order,
        )
        await in_lane(self._end_runner, Lane.FLUSH, close)

    async def _keep_derived(self) -> bool:
        kept: asyncio.Future[bool] = self._loop.create_future()
        self._kept = kept
        self.deriver.run_thorough(lambda succeeded: resolve(kept, succeeded))
        return await kept

    def _give_up_copies(self) -> None:
        """End each wait for other disks to have what the own one has: appends are answered as what
        they are, other waits fail.
        """
        if self._failure is not None:
            return
        self._given_up_end = end = self.flusher.durable_end
        error = FlushFailed(_LACKS_COPIES)
        self.writer.give_up_waiting(end, error)
        self._safe.fail(error, until=end)
        if self._drained is not None and end >= self.tail.written_end:
            self.writer.leave_unseen()
            self._check_drained()
        if self._giving_up is not None:
            self._giving_up.cancel()
        delay_ms = _NEXT_LOOK_MS if self.copies.is_short else _LAST_COPIES_MS
        self._giving_up = self._runner.later(delay_ms, self._give_up_copies)

    def _check_drained(self) -> None:
        if self._drained is not None and (self.writer.is_idle or self._failure is not None):
            resolve(self._drained, None)

    # ------------------------------------------------------------------------------------------
    # what the parts ask for

    async def pause(self, delay_ms: int) -> None:
        elapsed: asyncio.Future[None] = self._loop.create_future()
        self._runner.later(delay_ms, waking(elapsed))
        await elapsed

    async def _append_own(
        self, messages: Sequence[Message], written: Callable[[Placed], None]
    ) -> None:
        """Durable on return. `written` is called in the turn in which readers see them."""
        self.queues.grow(queue_ends.QUEUE.topic, 1)
        answer: asyncio.Future[None] = self._loop.create_future()

        def done(placed: Placed) -> None:
            written(placed)
            resolve(answer, None)

        self.writer.add_own(messages, done=done, failed=failing(answer))
        await answer

    async def record_epoch(self, epoch: int) -> None:
        """Let the next start continue in this epoch, or a later one: durable on return, so that it
        does not depend on an orderly end.

        Called when no more appends arrive. Raises FlushFailed, OSError.
        """
        await self.wait_flushed()  # a flush would note the old one again
        self.last_epoch = epoch
        await self._record(partial(self._files.checkpoint.record_epoch, epoch))

    async def _record_beginning(self, first_offset: int) -> None:
        await self._record(partial(self._files.checkpoint.record_beginning, first_offset))

    async def _record(self, record: Callable[[], None]) -> None:
        """Durable on return. A failed sync is final, as each one of the checkpoint is."""
        if self._failure is not None:
            raise FlushFailed
        try:
            await self.in_lane(Lane.FLUSH, record)
        except OSError as error:
            self.fail(error)
            raise

    async def in_lane(self, lane: Lane, job: Callable[[], T]) -> T:
        return await in_lane(self._runner, lane, job)
