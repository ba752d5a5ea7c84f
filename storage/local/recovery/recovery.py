"""Recovery at a start: finds the end of the log, by offsets and checksums, never by time.

The log is walked from the newest snapshot of the consume queues to the end of its whole units. A
table (`RECOVERY`) decides whether the log ends there, is cut, or is refused: by the bytes at that
offset, by whether the log is known to have been on disk beyond it, and by whether any bytes follow.
docs/durability.md has the reason for each row.
"""

from collections.abc import Iterable
from enum import Enum
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from typing import NamedTuple

from storage.clock import Clock
from storage.errors import CorruptRecord
from storage.files.segments import Segment, Segments
from storage.files.vfs import is_disk_full
from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.checkpoint import Fields, Slot
from storage.formats.epochs import EpochHistory
from storage.local.broker import broker_census
from storage.local.checkpoint_file import CheckpointFile
from storage.local.data_directory import DataDirectory
from storage.local.index.key_index import KeyIndex
from storage.local.index.key_index_file import DoubtfulIndex
from storage.local.log import log_walk
from storage.local.queues.consume_queue import ConsumeQueues
from storage.local.queues.queue_files import QueueFiles
from storage.local.queues.replay import Replay
from storage.local.recovery.queues_snapshot import (
    QUEUES_SNAPSHOT,
    QueuesSnapshot,
    load_queues,
    restore_emptied,
    saved_queues,
)
from storage.local.recovery.recovery_walk import Ending, Progress, Walk, walk_log
from storage.local.recovery.stop_watch import StopWatch
from storage.local.snapshot_files import SnapshotFiles
from storage.store_status import RecoveryReport

_WIPE_BYTES = 4 << 20
_ZEROS = bytes(_WIPE_BYTES)
_UNIT_REACH_BYTES = 32 << 20  # more than the largest request makes


class Verdict(Enum):
    ACCEPT = "the log ends here"
    CUT = "a torn tail: the log ends here, the rest is wiped"
    REFUSE = "damage to what was on disk: start only after an operator has looked"


RECOVERY: dict[tuple[Ending, bool, bool], Verdict] = {
    # what is there, before the synced position?, anything behind?
    (Ending.EMPTY, False, False): Verdict.ACCEPT,
    (Ending.EMPTY, False, True): Verdict.CUT,  # the torn unit left no trace, units behind it did
    (Ending.EMPTY, True, False): Verdict.REFUSE,  # bytes that were on disk are gone
    (Ending.EMPTY, True, True): Verdict.REFUSE,
    (Ending.DAMAGED, False, False): Verdict.CUT,
    (Ending.DAMAGED, False, True): Verdict.CUT,
    (Ending.DAMAGED, True, False): Verdict.REFUSE,
    (Ending.DAMAGED, True, True): Verdict.REFUSE,
}


class Recovered(NamedTuple):
    queues: ConsumeQueues
    walked_from: int  # everything behind was verified
    end: int
    units_end: int  # an end-of-file record may follow
    confirmed_end: int  # of what is known to be on as many disks as had to have it
    epoch: int  # of the units to come
    epochs: EpochHistory  # of those that are there and of those to come
    last_stored_at_ms: int
    report: RecoveryReport
    indexed_end: int  # the key index has everything below
    broker_records: dict[str, int]  # of those walked, by their kinds
    unknown_topics: list[str]  # they have files of queues, and are not known (any more)

    @property
    def has_unit_of_epoch(self) -> bool:
        """Whether the epoch has a unit already, as after an orderly end."""
        return self.epochs.last_begin < self.units_end


def recover(
    directory: DataDirectory,
    segments: Segments,
    checkpoint: CheckpointFile,
    queue_files: QueueFiles,
    key_index: KeyIndex,
    snapshots: SnapshotFiles,
    clock: Clock,
    progress: Progress,
    *,
    is_replica: bool,
) -> Recovered:
    """Find the end of the log and restore the consume queues.

    `is_replica`: the units come from another machine, and state its epoch and its disk; the disk
    here is known from the checkpoint alone.

    Raises CorruptRecord if an operator must look, and UnreadableLog if a part of the log that is
    read here is unreadable: its bytes are unknown, so nothing is cut.
    """
    watch = StopWatch(clock)
    slot = checkpoint.slot
    _check_beginning(directory, segments, checkpoint, snapshots)
    is_new = slot is None and not segments.end_offset
    was_closed = slot is not None and slot.is_clean and not directory.is_marked
    queues = ConsumeQueues()
    snapshot = load_queues(snapshots, queue_files, key_index, queues, segments.first_offset)
    begin = snapshot.log_offset if snapshot is not None else segments.first_offset
    if snapshot is None:
        key_index.clear()  # what is fed from the beginning must not be taken for known
    synced_offset = _checkpointed_end(directory, segments, slot, begin)
    watch.note("snapshot")
    if not was_closed:
        _see_the_disk(directory, segments, begin)
        watch.note("sync")

    derived = _Derived(queues, queue_files, key_index, snapshot, begin)
    walk = walk_log(segments, directory.vfs, begin, derived.feed, progress)
    if snapshot is None:
        restore_emptied(queue_files, queues, segments.first_offset, derived.replay.forgotten)
    watch.note("walk")

    was_clean = was_closed and walk.end == synced_offset
    behind = _Behind([] if was_clean else segments, walk.end, walk.epoch)
    known_synced = _known_synced(checkpoint, synced_offset, walk, behind, is_replica=is_replica)
    verdict = RECOVERY[walk.ending, walk.end < known_synced, behind.is_anything]
    if verdict is Verdict.REFUSE:
        raise _refusal(directory, segments, walk, behind, known_synced, slot)
    is_cut = verdict is Verdict.CUT
    wiped_bytes = behind.wipe() if is_cut else 0

    # A new life of the store: units of this one can never be taken for what an earlier one left
    # behind.
    epochs = derived.epochs
    epoch = max(slot.epoch if slot is not None else 0, walk.epoch, epochs.history.last_epoch)
    epoch += 0 if is_replica or was_clean else 1
    epochs.history.note(epoch, epochs.units_end)
    replay = derived.replay
    buffered_records = (
        replay.record_count
        if known_synced == begin
        else _count_records(segments, known_synced, walk.end)
    )
    watch.note("end")
    report = RecoveryReport(
        was_clean=was_clean or is_new,
        walked_bytes=walk.end - begin,
        replayed_records=replay.record_count,
        cut_at=walk.end if is_cut else None,
        wiped_bytes=wiped_bytes,
        took_ms=watch.total_ms,
        started_at_ms=clock.wall_ms(),
        first_offset=segments.first_offset,
        end_offset=walk.end,
        synced_offset=known_synced,
        checkpoint_offset=None if slot is None else slot.synced_offset,
        buffered_records=buffered_records,
        cut_end=behind.found_end if is_cut else None,
        cut_records=behind.record_count if is_cut else 0,
        snapshot_offset=None if snapshot is None else begin,
        queues=len(list(queues)),
        rebuilt_queues=len(replay.queue_ids),
        indexed_keys=derived.indexing.key_count,
        steps=watch.steps,
    )
    if snapshot is None:
        # The files do not bear it out, and a verification would miss in them what it counts until
        # they are written again.
        snapshots.remove(QUEUES_SNAPSHOT)
    confirmed = checkpoint.fields.confirm_offset
    return Recovered(
        queues=queues,
        walked_from=begin,
        end=walk.end,
        units_end=epochs.units_end,
        confirmed_end=walk.end if confirmed >= epochs.units_end else confirmed,
        epoch=epoch,
        epochs=epochs.history,
        last_stored_at_ms=max(
            snapshot.stored_at_ms if snapshot is not None else 0, replay.last_stored_at_ms
        ),
        report=report,
        indexed_end=walk.end
        if derived.indexing.stopped_at is None
        else derived.indexing.stopped_at,
        broker_records=broker_census.ordered(replay.broker_records),
        unknown_topics=[topic for topic in queue_files.topics() if not queues.count(topic)],
    )


def _checkpointed_end(
    directory: DataDirectory, segments: Segments, slot: Slot | None, begin: int
) -> int:
    """Log offset up to which the log was on disk by the checkpoint; at least `begin`, where the
    walk begins.

    Raises CorruptRecord where the log ends before it.
    """
    synced_offset = max(slot.synced_offset if slot is not None else 0, begin)
    if synced_offset > segments.end_offset:
        reason = f"the log was on disk up to {synced_offset}, it ends here"
        repair = (
            f"--cut-log-at {segments.end_offset}" if segments.end_offset else "--accept-beginning"
        )
        raise CorruptRecord(directory.commit_log, segments.end_offset, reason, repair=repair)
    return synced_offset


def _known_synced(
    checkpoint: CheckpointFile,
    checkpointed_end: int,
    walk: Walk,
    behind: "_Behind",
    *,
    is_replica: bool,
) -> int:
    """Log offset up to which the log is known to have been on disk, by the checkpoint and by units
    that were written after a sync.

    The units of a replica state the disk of another machine, so there the checkpoint alone counts.
    """
    if is_replica:
        return checkpointed_end
    known = max(checkpointed_end, walk.synced_offset, behind.synced_offset)
    if checkpoint.slot is None:
        known = max(known, behind.broker_synced_offset(checkpoint.fields.physic_ms))
    return known


def _refusal(
    directory: DataDirectory,
    segments: Segments,
    walk: Walk,
    behind: "_Behind",
    known_synced: int,
    slot: Slot | None,
) -> CorruptRecord:
    """The error for damage to bytes that were on disk, with the repair that fits."""
    reason = f"{walk.reason or 'zeros'}; the log is known to have been on disk up to {known_synced}"
    is_damaged = behind.holds_units or (walk.ending is Ending.DAMAGED and slot is not None)
    repair = f"{'--blank-unit' if is_damaged else '--cut-log-at'} {walk.end}"
    return CorruptRecord(_path_of(segments, walk.end, directory), walk.end, reason, repair=repair)


class _Derived:
    """Feeds everything that is derived from the log along one walk."""

    def __init__(
        self,
        queues: ConsumeQueues,
        queue_files: QueueFiles,
        key_index: KeyIndex,
        snapshot: QueuesSnapshot | None,
        begin: int,
    ) -> None:
        self.replay = Replay(queues, queue_files)
        self.epochs = _Epochs((snapshot and snapshot.epochs) or (), begin)
        self.indexing = _Indexing(key_index, begin)

    def feed(self, window: bytes, window_offset: int, found: scan.Scan) -> None:
        self.replay.feed(window, window_offset, found)
        self.indexing.feed(window, window_offset, found)
        self.epochs.feed(found)


class _Epochs:
    """Notes where epochs begin along a walk."""

    def __init__(self, known: Iterable[tuple[int, int]], begin: int) -> None:
        """`known`: of the log before `begin`, where the walk begins."""
        self.history = EpochHistory(known)
        self.units_end = begin  # behind the last whole unit

    def feed(self, found: scan.Scan) -> None:
        for begun in found.epoch_begins:
            # the first one of a segment begins where the segment before it was closed
            is_first = begun.offset == found.record_offsets[0]
            self.history.note(begun.epoch, self.units_end if is_first else begun.offset)
        if len(found.record_offsets):  # else it is where the next segment begins
            self.units_end = found.end


class _Indexing:
    """Feeds the key index while the disk has space for it and takes it; the deriver continues later
    from where that ended.
    """

    def __init__(self, key_index: KeyIndex, begin: int) -> None:
        self._key_index = key_index
        self._end = begin
        self.key_count = 0
        # the index has everything below this log offset; None: everything
        self.stopped_at: int | None = None

    def feed(self, window: bytes, window_offset: int, found: scan.Scan) -> None:
        if self.stopped_at is None:
            try:
                self.key_count += self._key_index.feed(window, window_offset, found)
            except DoubtfulIndex:
                self.stopped_at = self._end
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self.stopped_at = self._end
        self._end = found.end


def _check_beginning(
    directory: DataDirectory,
    segments: Segments,
    checkpoint: CheckpointFile,
    snapshots: SnapshotFiles,
) -> None:
    """Raises CorruptRecord where the log begins later than it may: segments are gone that retention
    did not drop.

    It may begin earlier than was recorded: retention records the new beginning, then drops the
    segments before it.
    """
    slot, first_offset = checkpoint.slot, segments.first_offset
    if slot is None:
        # A broker's store, or one whose checkpoint is lost. It may begin anywhere, but it must
        # begin.
        if not segments.end_offset and (
            known := known_of_a_log(directory, checkpoint.fields, snapshots)
        ):
            raise CorruptRecord(
                directory.commit_log,
                0,
                f"the log is empty, but {known}",
                repair="--accept-beginning",
            )
        return
    if slot.first_offset is not None:
        latest, reason = slot.first_offset, f"it was recorded to begin at {slot.first_offset}"
    # a version wrote it that did not record the beginning; it never dropped the segment that it
    # wrote to
    else:
        latest, reason = slot.synced_offset, f"it was on disk up to {slot.synced_offset}"
    if first_offset > latest:
        raise CorruptRecord(
            directory.commit_log,
            latest,
            f"the log begins at {first_offset}, {reason}",
            repair="--accept-beginning",
        )


def known_of_a_log(directory: DataDirectory, fields: Fields, snapshots: SnapshotFiles) -> str:
    """The trace that shows that there was a log here once; empty where there is none."""
    if fields.physic_ms:
        return "the checkpoint names a time up to which it was on disk"
    vfs = directory.vfs
    for topic in (
        vfs.list_directory(directory.consume_queues) if vfs.exists(directory.consume_queues) else ()
    ):
        for number in vfs.list_directory(directory.consume_queues / topic):
            if vfs.list_directory(directory.consume_queues / topic / number):
                return f"there are files of queue {number} of topic {topic}"
    snapshot = saved_queues(snapshots)
    if snapshot is not None and snapshot.log_offset:
        return f"a snapshot reflects it up to {snapshot.log_offset}"
    return ""


def _see_the_disk(directory: DataDirectory, segments: Segments, begin: int) -> None:
    """Sync, drop the cache, then read from the disk.

    After a failed write-back memory shows what the disk does not have, and what is read from an
    unsynced cache may be gone after the next power cut. So may a segment whose name a killed
    process did not sync.
    """
    directory.vfs.sync_directory(directory.commit_log)
    for segment in segments:
        if segment.end_offset > begin:
            with segment.use() as file:
                file.sync()
                file.drop_cache()


class _Behind:
    """The bytes after the end of the whole units: evidence of what had been synced, to be wiped if
    the log is cut.
    """

    def __init__(self, segments: Iterable[Segment], end: int, epoch: int) -> None:
        self._end = self.found_end = end  # behind the last byte that is not zero
        self._epoch = epoch
        self.record_count = 0  # of the whole units of ours
        self._dirty = [
            place
            for segment in segments
            if segment.end_offset > end
            for place in self._dirty_windows(segment)
        ]
        self.synced_offset = max((self._evidence(*place) for place in self._dirty), default=0)

    @property
    def is_anything(self) -> bool:
        return bool(self._dirty)

    @property
    def holds_units(self) -> bool:
        """Whether a whole unit of EscrowMQ follows that was written to a synced log."""
        return self.synced_offset > 0

    def broker_synced_offset(self, physic_ms: int) -> int:
        """The end of the last whole record that a broker's flush is known to cover, in a store
        without a checkpoint of EscrowMQ.
        """
        return max((self._broker_evidence(*place, physic_ms) for place in self._dirty), default=0)

    def wipe(self) -> int:
        """Overwrite the bytes with zeros, durable on return; their number. Otherwise they could
        become valid again after the next crash.
        """
        for segment, places in groupby(self._dirty, key=itemgetter(0)):
            with segment.use() as file:
                for _, begin, length in places:
                    file.write(begin - segment.base_offset, bytes(length))
                file.sync()
        return sum(length for _, _, length in self._dirty)

    def _dirty_windows(self, segment: Segment) -> list[tuple[Segment, int, int]]:
        """Ranges of the segment behind the end that are not all zeros."""
        dirty = []
        with segment.use() as file:
            for begin, end in file.data_ranges(max(self._end - segment.base_offset, 0)):
                for at in range(begin, end, _WIPE_BYTES):
                    window = segment.read_from(file, at, min(_WIPE_BYTES, end - at))
                    if window != _ZEROS[: len(window)]:
                        dirty.append((segment, segment.base_offset + at, len(window)))
                        self.found_end = segment.base_offset + at + len(window.rstrip(b"\0"))
        return dirty

    def _window(self, segment: Segment, begin: int, length: int) -> tuple[bytes, int]:
        """The range and enough behind it to hold the unit that begins in it, from a word border;
        and where that is.
        """
        aligned = begin - begin % unit.ALIGNMENT
        return segment.read(aligned - segment.base_offset, length + _UNIT_REACH_BYTES), aligned

    def _evidence(self, segment: Segment, begin: int, length: int) -> int:
        window, aligned = self._window(segment, begin, length)
        items = scan.units_between(
            window, aligned, begin, begin + length, segment_end=segment.end_offset,
            epoch=self._epoch
        )  # fmt: skip
        synced_offset = 0
        for item in items:
            synced_offset = max(synced_offset, item.synced_offset)
            self.record_count += item.record_count
        return synced_offset

    def _broker_evidence(self, segment: Segment, begin: int, length: int, physic_ms: int) -> int:
        window, aligned = self._window(segment, begin, length)
        found = 0
        # A record of a damaged unit that was stored by then proves it too: the whole unit was.
        for at in scan.record_places(window, begin - aligned, begin - aligned + length):
            step = scan.judge(window, at, aligned, segment_end=segment.end_offset)
            if (
                isinstance(step, scan.Unit)
                and records.decode(window[at : step.end]).stored_at_ms <= physic_ms
            ):
                found = aligned + step.end
        return found


def _count_records(segments: Segments, begin: int, end: int) -> int:
    """Whole records of the verified log from `begin` to `end`."""
    return sum(len(window.record_offsets) for window in log_walk.stated(segments, begin, end))


def _path_of(segments: Segments, offset: int, directory: DataDirectory) -> PurePath:
    try:
        return segments.find(offset).path
    except IndexError:
        return directory.commit_log
