"""Keeps what is derived from the log on disk: consume queues every second, snapshots every ten or
every 32 MiB of log.

Nothing derived is written before the log below it is durable, so after a power cut no queue file
and no snapshot knows more than the log. One round runs at a time: collect in the owner's thread,
wait until that much of the log is durable, write in the derive lane.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import structlog

from storage.clock import Clock
from storage.errors import CorruptRecord, reason_of
from storage.files.durable import SyncFailed
from storage.files.unreadable import UnreadableLog
from storage.files.vfs import is_disk_full, is_out_of_files
from storage.formats.timer_list import SNAPSHOT as TIMERS_SNAPSHOT
from storage.local.append.flusher import Flusher
from storage.local.index.key_index_file import DoubtfulIndex, IndexFile
from storage.local.lanes.runner import Lane, Runner, Timer, take_steps
from storage.local.log import log_walk
from storage.local.log.log_tail import LogTail
from storage.local.mending import Mending
from storage.local.options import LocalStoreOptions
from storage.local.queues.consume_queue import ConsumeQueue, Unflushed
from storage.local.queues.group_offsets import QUEUE as OFFSET_QUEUE
from storage.local.queues.group_offsets import SNAPSHOT as OFFSETS_SNAPSHOT
from storage.local.recovery.queues_snapshot import QUEUES_SNAPSHOT, QueuesSnapshot
from storage.local.store_files import StoreFiles
from storage.local.timers.due_index import Made, Pending
from storage.message import QueueId
from storage.store import Snapshot, WaitingTimers

log = structlog.get_logger()


class _Kept(msgspec.Struct):
    """Registered by the parts above for the next thorough round; of each kind, and of each name of
    a snapshot, the last one counts.
    """

    snapshots: dict[str, Snapshot] = {}  # by name
    delay_progress: Mapping[QueueId, int] | None = None
    write_config: Callable[[], None] | None = None
    waiting_timers: WaitingTimers | None = None

    @property
    def is_anything(self) -> bool:
        return bool(self.snapshots) or any(
            kept is not None
            for kept in (self.delay_progress, self.write_config, self.waiting_timers)
        )

    def replaced_by(self, later: "_Kept") -> "_Kept":
        """The last one of each that is registered here or in `later`."""
        return _Kept(
            {**self.snapshots, **later.snapshots},
            self.delay_progress if later.delay_progress is None else later.delay_progress,
            later.write_config or self.write_config,
            self.waiting_timers if later.waiting_timers is None else later.waiting_timers,
        )


class _Thorough(NamedTuple):
    """The part of a thorough round that other rounds do not have."""

    kept: _Kept
    queues: QueuesSnapshot
    due: Pending | None


class _Round(NamedTuple):
    """The entries of queues that one round writes, and more where it is a thorough one."""

    log_end: int
    stored_at_ms: int
    unflushed: list[Unflushed]
    thorough: _Thorough | None


class Deriver:
    """Writes derived files behind the log, in rounds. Owner's thread only."""

    def __init__(
        self,
        files: StoreFiles,
        tail: LogTail,
        flusher: Flusher,
        runner: Runner,
        clock: Clock,
        options: LocalStoreOptions,
        *,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._queues = files.recovered.queues
        self._epochs = files.recovered.epochs
        self._recovered = files.recovered
        self._queue_files = files.queue_files
        self._queue_check = files.queue_check
        self._key_index = files.key_index
        self._due_index = files.due_index
        self._segments = files.segments
        self._mending = Mending(files)
        self._is_mending = self._is_stopped = False
        self._mending_error: str | None = None  # of the last try, if that failed
        self._snapshots = files.snapshots
        self._delay_files = files.delay_files
        self._broker_timers = files.broker_timers
        self._offsets = files.offsets
        self._checkpoint = files.checkpoint
        self._tail = tail
        self._flusher = flusher
        self._runner = runner
        self._clock = clock
        self._options = options
        self._on_failure = on_failure
        # A dict as an ordered set: a simulation must be able to have every order of events again.
        self._dirty: dict[ConsumeQueue, None] = dict.fromkeys(
            queue for queue in self._queues if queue.has_unflushed
        )
        # entries that the start has read from the log, and that no round has written yet
        self.has_start_unwritten = bool(self._dirty)
        self._kept = _Kept()  # not on disk yet, nor part of the round that is under way
        self._round: _Round | None = None
        self._is_writing = False
        # the key index has everything below this log offset; the derive lane moves it
        self.indexed_end = files.recovered.indexed_end
        # the last file whose sync has failed, until a thorough round has synced the index
        self._unsynced_index: IndexFile | None = None
        self._waiting: list[Callable[[bool], None]] = []
        self._thorough_ms = clock.monotonic_ms()
        self.thorough_end = tail.visible_end  # all below is in the files, and snapshots say so
        self.thorough_begun = self.thorough_ended = 0  # rounds, by number
        self._timer: Timer | None = None
        self.last_round_ms: int | None = None  # wall time of its beginning
        self.last_error: str | None = None  # of the last round, if that failed
        self._behind_ms: int | None = None  # since when something is to be written

    @property
    def backlog_bytes(self) -> int:
        """How much log a start would have to replay."""
        return self._tail.visible_end - self.thorough_end

    def lag_ms(self) -> int:
        """Milliseconds that a round has been overdue: while one hangs, or the disk is full, they
        grow.
        """
        if self._behind_ms is None:
            return 0
        return max(
            0, self._clock.monotonic_ms() - self._behind_ms - self._options.queue_flush_interval_ms
        )

    def note_visible(self, queues: Iterable[ConsumeQueue]) -> None:
        self._dirty.update(dict.fromkeys(queues))
        if self._behind_ms is None:
            self._behind_ms = self._clock.monotonic_ms()

    def keep(self, name: str, snapshot: Snapshot) -> None:
        """Save the snapshot with the next thorough round, in place of an older one of the name."""
        self._kept.snapshots[name] = snapshot

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """Register a progress, as `keep` does, for a broker that opens the files after EscrowMQ. It
        may state only what the visible log has.
        """
        self._kept.delay_progress = done_before

    def keep_config(self, write: Callable[[], None]) -> None:
        """Register a function, as `keep_delay_progress` does: `write` is called in the derive
        lane.
        """
        self._kept.write_config = write

    def keep_waiting_timers(self, timers: WaitingTimers) -> None:
        self._kept.waiting_timers = timers

    def waiting_snapshot(self, name: str) -> Snapshot | None:
        """The snapshot of this name that may not be on disk yet; None if there is none."""
        thorough = None if self._round is None else self._round.thorough
        being_written = {} if thorough is None else thorough.kept.snapshots
        return self._kept.snapshots.get(name) or being_written.get(name)

    def start(self) -> None:
        self._timer = self._runner.later(self._options.queue_flush_interval_ms, self._tick)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def run_thorough(self, done: Callable[[bool], None]) -> None:
        """Write and sync everything derived, then call `done`: with False where the disk has no
        space for it.
        """
        self._waiting.append(done)
        self._begin(is_thorough=True)
        self._flusher.request(self._tail.visible_end, self._tail.visible_stored_at_ms)

    def on_flushed(self) -> None:
        """The log is durable a piece further."""
        if (
            self._round is not None
            and not self._is_writing
            and self._flusher.durable_end >= self._round.log_end
        ):
            self._write(self._round)

    def _tick(self) -> None:
        self.start()
        self._mend()
        now_ms = self._clock.monotonic_ms()
        is_thorough = (self.backlog_bytes > 0 or self._kept.write_config is not None) and (
            now_ms - self._thorough_ms >= self._options.snapshot_interval_ms
            or self.backlog_bytes >= self._options.snapshot_log_bytes
        )
        is_thorough |= self._due_index.is_large
        is_thorough &= self._key_index.doubtful is None  # no snapshot can be made until then
        if self._dirty or self._kept.snapshots or is_thorough:
            self._begin(is_thorough=is_thorough)

    def _begin(self, *, is_thorough: bool) -> None:
        if self._round is not None:
            return
        dirty, self._dirty = self._dirty, {}
        self.last_round_ms = self._clock.wall_ms()
        log_end, stored_at_ms = self._tail.visible_end, self._tail.visible_stored_at_ms
        thorough = self._collect(log_end, stored_at_ms) if is_thorough else None
        unflushed = [queue.take_unflushed() for queue in dirty]
        self._round = _Round(log_end, stored_at_ms, unflushed, thorough)
        if is_thorough:
            self._flusher.request(log_end, stored_at_ms)  # the others wait until it comes by itself
        self.on_flushed()

    def _collect(self, log_end: int, stored_at_ms: int) -> _Thorough:
        """Take all that a thorough round is to have; it reflects the log up to `log_end`."""
        kept, self._kept = self._kept, _Kept()
        if self._offsets.has_changed:
            kept.snapshots[OFFSETS_SNAPSHOT] = Snapshot(
                (self._offsets.encode(),), {OFFSET_QUEUE: self._queues[OFFSET_QUEUE].end}
            )
        self.thorough_begun += 1
        queues = QueuesSnapshot.of(
            self._queues,
            self._epochs,
            log_begin=self._segments.first_offset,
            log_offset=self._walk_begin(log_end),
            stored_at_ms=stored_at_ms,
        )
        return _Thorough(kept, queues, self._due_index.freeze())

    def _write(self, round_: _Round) -> None:
        self._is_writing = True
        take_steps(
            self._runner,
            Lane.DERIVE,
            self._steps(round_, is_last=bool(self._waiting)),
            lambda made: self._written(round_, made),
            self._failed,
            goes_on=lambda: not self._is_stopped,
        )

    def _steps(
        self, round_: _Round, *, is_last: bool
    ) -> Generator[None, None, Made | CorruptRecord | None]:
        """Write and sync what the round has. Derive lane only.

        Raises DoubtfulIndex: the round can be made again once the index has its file again.
        """
        for unflushed in round_.unflushed:
            self._queue_files.write(unflushed)
        if is_last:
            yield from self._mending.steps(is_last=True)
        if round_.thorough is not None or self._key_index.doubtful is None:
            yield from self._index_up_to(round_.log_end)
        return None if round_.thorough is None else self._save(round_.thorough)

    def _save(self, thorough: _Thorough) -> Made | CorruptRecord | None:
        """Sync what was written, then write the rest of a thorough round. Derive lane only."""
        self._queue_files.sync()
        self._key_index.sync()
        kept = thorough.kept
        for name, snapshot in kept.snapshots.items():
            self._snapshots.save(name, snapshot)
        if kept.delay_progress is not None:
            self._delay_files.save(kept.delay_progress)
        if kept.write_config is not None:
            kept.write_config()
        if kept.waiting_timers is not None:
            self._broker_timers.hand_over(kept.waiting_timers)
        elif kept.delay_progress is not None:
            self._broker_timers.save(kept.delay_progress)
        made = None if thorough.due is None else self._due_index.make(thorough.due)
        if isinstance(made, Made):
            self._snapshots.save(TIMERS_SNAPSHOT, made.snapshot)
            self._due_index.note_named()
        # The last one: it moves the place where a start begins to replay.
        reflected = msgspec.structs.replace(thorough.queues, index=self._key_index.marks)
        self._snapshots.save(QUEUES_SNAPSHOT, reflected.wrap())
        return made

    def _index_up_to(self, log_end: int) -> Iterator[None]:
        """Feed the key index, a window of the log for each step. Derive lane only."""
        try:
            for window in log_walk.windows(self._segments, self.indexed_end, log_end):
                self._key_index.feed(window.data, window.offset, window.scan)
                if window.scan.end < log_end:
                    yield
        except (CorruptRecord, UnreadableLog) as damage:
            # It is found again by a read of that message; the records around it can be looked up
            # all the same.
            for piece in log_walk.stated(self._segments, self.indexed_end, log_end):
                self._key_index.feed(piece.data, piece.offset, piece)
                yield
            # Not before: what the disk does not give back may be indexed by a later round.
            if isinstance(damage, UnreadableLog):
                log_offset, reason = damage.log_offset, damage.strerror
            else:
                log_offset, reason = damage.physical_offset, damage.reason
            log.error("not_indexed", file=str(damage.path), log_offset=log_offset, reason=reason)
        self.indexed_end = log_end

    def _walk_begin(self, log_end: int) -> int:
        """Where the next start walks from: behind the last unit, which it has to know.

        Where the log ended with a closed segment at the start, and has no unit since, that is in
        front of the record that closes it.
        """
        recovered = self._recovered
        if log_end == recovered.end:
            return max(recovered.units_end, self._segments.first_offset)
        return log_end

    def _written(self, round_: _Round, made: Made | CorruptRecord | None) -> None:
        self._round = None
        self._is_writing = False
        self.has_start_unwritten = False
        self.last_error = None
        self._behind_ms = self._clock.monotonic_ms() if self._dirty else None
        if made is not None:
            surplus = self._due_index.made(made)
            # In the lane of those who may still read them.
            self._runner.beside(
                Lane.READ, self._due_index.dispose(surplus), lambda _: None, self._on_failure
            )
        for unflushed in round_.unflushed:
            unflushed.queue.note_flushed(unflushed.end)
        if round_.thorough is not None:
            self._thorough_ms = self._clock.monotonic_ms()
            self.thorough_end = round_.log_end
            self.thorough_ended = self.thorough_begun
            self._unsynced_index = None
            self._runner.beside(
                Lane.FLUSH, lambda: self._checkpoint.note_queues(round_.stored_at_ms),
                lambda _: None, self._on_failure
            )  # fmt: skip
        if self._waiting:
            # What was kept while this round was under way waits for the next one, as what is to
            # be made again.
            is_more = self.backlog_bytes > 0 or self._kept.is_anything or self._mending.is_needed
            if is_more or round_.thorough is None:
                self._begin(is_thorough=True)
            else:
                self._finish(True)

    def _failed(self, error: Exception) -> None:
        """Wait out a full disk, a limit of open files, and a place of the log that the disk does
        not give back, until that counts as damage: what is derived stays in memory, and the next
        tick tries again.

        An index file that the disk does not take is made again first. Any other failure leaves
        files that cannot be trusted.
        """
        round_, self._round = self._round, None
        self._is_writing = False
        if isinstance(error, DoubtfulIndex):
            error = self._doubt(error.file)
        if round_ is None or not _passes(error):
            self._on_failure(error)
            return
        if self.last_error is None:
            log.warning("derived_files_wait", error=str(error))
        self.last_error = reason_of(error)
        self._dirty.update(dict.fromkeys(unflushed.queue for unflushed in round_.unflushed))
        if round_.thorough is not None:
            self._kept = round_.thorough.kept.replaced_by(self._kept)
            if round_.thorough.due is not None:
                self._due_index.give_back(round_.thorough.due)
        if not isinstance(error, DoubtfulIndex):
            self._finish(False)
        elif self._waiting:
            self._begin(is_thorough=True)
        else:
            self._mend()

    def _doubt(self, file: IndexFile) -> Exception:
        """Note that the disk has not taken an index file; the error of the round by that.

        If the sync of the file in which the index went on fails as well, that is the disk's.
        """
        if isinstance(file.failure, SyncFailed):
            if self._unsynced_index not in (None, file):
                return file.failure
            self._unsynced_index = file
        return DoubtfulIndex(file)

    def _mend(self) -> None:
        """Make again what the disk has failed, in steps beside the rounds."""
        if self._is_mending or not self._mending.is_needed:
            return
        self._is_mending = True
        take_steps(
            self._runner,
            Lane.DERIVE,
            self._mending.steps(),
            self._mended,
            self._mending_failed,
            goes_on=lambda: not self._is_stopped,
        )

    def _mended(self, _: None) -> None:
        self._is_mending = False
        self._mending_error = None

    def _mending_failed(self, error: Exception) -> None:
        self._is_mending = False
        if not _passes(error):
            self._on_failure(error)
            return
        if self._mending_error is None:
            log.warning("derived_files_wait", error=str(error))
        self._mending_error = str(error)

    def _finish(self, succeeded: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(succeeded)


def _passes(error: Exception) -> bool:
    """Is it over by itself, or once an index file is made again?"""
    return (
        is_disk_full(error)
        or is_out_of_files(error)
        or isinstance(error, (UnreadableLog, DoubtfulIndex))
    )
