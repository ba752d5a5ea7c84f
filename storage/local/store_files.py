"""Everything of the store that is open on disk; opened and closed where waiting is allowed."""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import PurePath

import msgspec
import structlog

from storage.clock import Clock
from storage.errors import CorruptRecord, LogTakenAway
from storage.files.segments import Segments
from storage.files.unreadable import FailingPages
from storage.files.vfs import Space, Vfs, is_disk_full
from storage.formats.record import to_message
from storage.formats.timer_list import SNAPSHOT as TIMERS_SNAPSHOT
from storage.journal import leave_out, read_event
from storage.local.broker import broker_census
from storage.local.broker.broker_timers import BrokerTimers
from storage.local.broker.config_files import ConfigFiles
from storage.local.broker.delay_files import DelayFiles
from storage.local.checkpoint_file import CheckpointFile
from storage.local.data_directory import DataDirectory
from storage.local.index.key_index import KeyIndex
from storage.local.log.commit_log import CommitLog
from storage.local.options import LocalStoreOptions
from storage.local.queues import group_offsets
from storage.local.queues.group_offsets import GroupOffsets
from storage.local.queues.queue_check import QueueCheck
from storage.local.queues.queue_files import QueueFiles
from storage.local.queues.zeroed_entries import ZeroedEntries
from storage.local.recovery import recovery_reports
from storage.local.recovery.recovery import Recovered, recover
from storage.local.recovery.recovery_walk import Progress
from storage.local.recovery.stop_watch import StopWatch
from storage.local.repair.repair_folder import finish_replacements
from storage.local.snapshot_files import SnapshotFiles
from storage.local.timers.due_index import LocalDueIndex
from storage.local.timers.timer_files import TimerFolder
from storage.message import OffsetRange, QueueId
from storage.store import Snapshot
from storage.store_status import RecoveryReport, StartStep, TableStart

_QUEUE_FILES = 512  # open at once where the settings leave it to us
log = structlog.get_logger()


class StoreFiles:
    """Made by `open`, which recovers what is there."""

    def __init__(
        self, directory: PurePath, options: LocalStoreOptions, vfs: Vfs, clock: Clock
    ) -> None:
        self.directory = DataDirectory(vfs, directory)
        self.recovered: Recovered
        self.report: RecoveryReport  # of this start, as far as it is
        self.earlier_recoveries: list[RecoveryReport] = []
        self.tells_cached = False  # whether the file system says what the page cache has
        self._tables: dict[str, TableStart] = {}
        self.log: CommitLog
        self.queue_check: QueueCheck
        self.offsets = GroupOffsets()
        self.due_index: LocalDueIndex
        self._open = ExitStack()  # each is closed, whatever the others raise; the locks last
        self._open.callback(self.directory.close)
        try:
            finish_replacements(vfs, directory)
            self.segments = Segments(
                vfs,
                self.directory.commit_log,
                segment_bytes=options.segment_bytes,
                max_open=options.max_open_segments,
                scratch=self.directory.making,
            )
            self._open.callback(self.segments.close)
            self._log_identity = vfs.identity(self.directory.commit_log)
            self.checkpoint = CheckpointFile(self.directory)
            self._open.callback(self.checkpoint.close)
            self.snapshots = SnapshotFiles(self.directory)
            self.queue_files = QueueFiles(
                vfs,
                self.directory.consume_queues,
                entries_per_file=options.queue_file_entries,
                max_open=options.max_open_queue_files or _QUEUE_FILES,
                scratch=self.directory.making,
                zeroed=ZeroedEntries(self.snapshots),
            )
            self._open.callback(self.queue_files.close)
            self.key_index = KeyIndex(
                vfs,
                self.directory.key_index,
                clock,
                self.snapshots,
                slots=options.index_slots,
                entries=options.index_file_entries,
                max_open=options.max_open_index_files,
                scratch=self.directory.making,
            )
            self._open.callback(self.key_index.close)
            self.delay_files = DelayFiles(self.directory, clock)
            self.config_files = ConfigFiles(self.directory)
            self.broker_timers = BrokerTimers(
                self.directory, self.queue_files, clock, file_bytes=options.timer_log_file_bytes
            )
            self.space = self.measure()
        except BaseException:
            self._open.close()
            raise

    @classmethod
    def open(
        cls,
        directory: PurePath,
        options: LocalStoreOptions,
        vfs: Vfs,
        clock: Clock,
        progress: Progress,
        *,
        is_replica: bool = False,
    ) -> "StoreFiles":
        files = cls(directory, options, vfs, clock)
        try:
            files._recover(clock, progress, is_replica=is_replica)
        except BaseException:
            files._open.close()
            raise
        return files

    def measure(self) -> Space:
        return self.directory.vfs.space(self.directory.root)

    def check_log(self, removed: Collection[str]) -> None:
        """Raises LogTakenAway where the folder of the log was replaced, or a segment is missing
        that is not `removed`.
        """
        folder = self.directory.commit_log
        expected = {segment.path.name for segment in self.segments}.difference(removed)
        try:
            there = self.directory.vfs.list_directory(folder)
        except FileNotFoundError:
            raise LogTakenAway(folder) from None
        if self.directory.vfs.identity(folder) != self._log_identity:
            raise LogTakenAway(folder)
        if missing := min(expected.difference(there), default=""):
            raise LogTakenAway(folder / missing)

    def load_snapshot(
        self, name: str, bounds_of: Callable[[QueueId], OffsetRange]
    ) -> Snapshot | None:
        """The kept one, unless it reflects more than the log holds, or the log has dropped what
        came after it: then it is discarded.
        """
        snapshot = self.snapshots.load(name)
        later = 0
        if snapshot is not None:
            for queue, queue_offset in snapshot.positions.items():
                bounds = bounds_of(queue)
                later += bounds.end - queue_offset
                if not bounds.first <= queue_offset <= bounds.end:
                    # For good: the log may grow up to what it knows, with other events.
                    self.snapshots.discard(name)
                    snapshot = None
                    break
        has_snapshot = snapshot is not None
        self._tables.setdefault(
            name, TableStart(name, has_snapshot, later if has_snapshot else None)
        )
        return snapshot

    def note_ready(self, steps: Sequence[StartStep]) -> None:
        """Complete the report of this start with the steps that came after the store's own."""
        self.report = msgspec.structs.replace(
            self.report,
            took_ms=self.report.took_ms + sum(step.took_ms for step in steps),
            tables=tuple(self._tables.values()),
            steps=(*self.report.steps, *steps),
            reached_ready=True,
        )
        recovery_reports.keep(self.directory, self.report, self.earlier_recoveries)

    def close(
        self, end: int, stored_at_ms: int, epoch: int, *, safe_end: int, in_order: bool
    ) -> None:
        """Close the files; after `in_order` the next start has nothing to recover.

        Raises OSError: the next start recovers. All files are closed and the lock is free then,
        too.
        """
        with self._open:
            if in_order:
                self.checkpoint.note(
                    synced_offset=end,
                    epoch=epoch,
                    stored_at_ms=stored_at_ms,
                    is_clean=True,
                    confirm_offset=safe_end,
                )
                self.checkpoint.force()
                if not self.directory.is_marked_by_another:
                    self.directory.unmark()

    def _recover(self, clock: Clock, progress: Progress, *, is_replica: bool) -> None:
        broker_census.refuse_other_logs(self.directory, self.segments)
        recovered = self.recovered = recover(
            self.directory,
            self.segments,
            self.checkpoint,
            self.queue_files,
            self.key_index,
            self.snapshots,
            clock,
            progress,
            is_replica=is_replica,
        )
        if recovered.broker_records:
            log.info("records_of_a_broker", **recovered.broker_records)
        self.segments.failing = self.failing = FailingPages(clock)
        self.log = CommitLog(
            self.segments, trusted_from=recovered.walked_from, written_end=recovered.end
        )
        self.queue_check = QueueCheck(self.log, self.queue_files)
        watch = StopWatch(clock)
        self._replay_offsets()
        self._open_timers()
        watch.note("offsets_and_timers")
        self._mark()
        end, epoch, stored_at_ms = recovered.end, recovered.epoch, recovered.last_stored_at_ms
        first_offset = self.segments.first_offset
        self.checkpoint.note(
            synced_offset=end,
            epoch=epoch,
            stored_at_ms=stored_at_ms,
            first_offset=first_offset,
            confirm_offset=recovered.confirmed_end,
        )
        self.tells_cached = self.checkpoint.is_cached()
        self.checkpoint.force()
        self.report = msgspec.structs.replace(
            recovered.report,
            took_ms=recovered.report.took_ms + watch.total_ms,
            tables=tuple(self._tables.values()),
            steps=(*recovered.report.steps, *watch.steps),
        )
        self.earlier_recoveries = recovery_reports.load_for_start(
            self.directory.vfs, self.directory.root
        )
        recovery_reports.keep(self.directory, self.report, self.earlier_recoveries)

    def _open_timers(self) -> None:
        folder = TimerFolder(
            self.directory.vfs, self.directory.timers, scratch=self.directory.making
        )
        self.due_index = LocalDueIndex(
            folder, self.load_snapshot(TIMERS_SNAPSHOT, self.recovered.queues.bounds_of)
        )
        self._open.callback(self.due_index.close)

    def _mark(self) -> None:
        """Replace the mark of a broker once `delayOffset.json` says that it had the store."""
        try:
            if self.directory.is_marked_by_another:
                self.delay_files.note_broker()
        except OSError as error:
            if is_disk_full(error):
                return  # its mark stays for the next start, also if the store is closed in order
            raise
        self.directory.mark()

    def _replay_offsets(self) -> None:
        queue = group_offsets.QUEUE
        queues = self.recovered.queues
        queues.grow(queue.topic, 1)
        snapshot = self.load_snapshot(group_offsets.SNAPSHOT, queues.bounds_of)
        found = queues[queue]
        at = found.first
        if snapshot is not None and self.offsets.restore(snapshot.data):
            at = snapshot.positions[queue]
        for place in range(at, found.end):
            try:
                record = self.queue_check.repaired(found, place)
            except CorruptRecord as damage:
                leave_out(queue, place, damage, may_leave_out=False)
            else:
                read_event(to_message(record), self.offsets.apply)
