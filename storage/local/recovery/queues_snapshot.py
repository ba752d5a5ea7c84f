"""The snapshot of the consume queues: their bounds as of a log offset, from which a start walks.

It counts only as far as the files of the queues and of the key index confirm it.
"""

from collections.abc import Collection

import msgspec

from storage.files.unreadable import Unreadable
from storage.formats.epochs import EpochHistory
from storage.local.index.key_index import KeyIndex
from storage.local.queues.consume_queue import NOT_IN_LOG, ConsumeQueues, DeletedQueue
from storage.local.queues.queue_files import QueueFiles
from storage.local.snapshot_files import SnapshotFiles
from storage.message import OffsetRange, QueueId
from storage.store import Snapshot

QUEUES_SNAPSHOT = "consume_queues"


class QueuesSnapshot(msgspec.Struct, frozen=True):
    """The bounds of every queue, and what the key index holds, for records below `log_offset`."""

    log_offset: int
    stored_at_ms: int
    queues: list[tuple[str, int, int, int]]  # topic, number, first, end
    index: dict[str, int] | None = None  # KeyIndex.marks
    # while the log begins there, the queues begin as stated, whatever their files say
    log_begin: int | None = None
    deleted: list[tuple[str, int, int]] = []  # topic, number, end; an earlier version deleted none
    # of each its deleted_at and stated_at; an earlier version did not keep them
    deleted_places: list[tuple[int, int]] | None = None
    # (epoch, log offset of its first unit); an earlier version did not write them down
    epochs: list[tuple[int, int]] | None = None

    @classmethod
    def of(
        cls,
        queues: ConsumeQueues,
        epochs: EpochHistory,
        *,
        log_begin: int,
        log_offset: int,
        stored_at_ms: int,
    ) -> "QueuesSnapshot":
        rows = [
            (queue.id.topic, queue.id.number, queue.first, queue.end)
            for queue in queues
            if queue.end
        ]
        deleted = list(queues.deleted)
        begins = [(begin.epoch, begin.offset) for begin in epochs if begin.offset < log_offset]
        return cls(
            log_offset,
            stored_at_ms,
            rows,
            log_begin=log_begin,
            deleted=[(*queue.id, queue.end) for queue in deleted],
            deleted_places=[(queue.deleted_at, queue.stated_at) for queue in deleted],
            epochs=begins,
        )

    def wrap(self) -> Snapshot:
        return Snapshot((msgspec.msgpack.encode(self),), {})


_snapshot_decoder = msgspec.msgpack.Decoder(QueuesSnapshot)


def decode_queues(data: bytes) -> QueuesSnapshot | None:
    """The snapshot in these bytes; None if they are of another form."""
    try:
        return _snapshot_decoder.decode(data)
    except msgspec.DecodeError:
        return None


def saved_queues(snapshots: SnapshotFiles) -> QueuesSnapshot | None:
    """The newest snapshot of the store; None if there is none, or it is damaged."""
    kept = snapshots.load(QUEUES_SNAPSHOT)
    return None if kept is None else decode_queues(kept.data)


def load_queues(
    snapshots: SnapshotFiles,
    files: QueueFiles,
    key_index: KeyIndex,
    queues: ConsumeQueues,
    log_begin: int,
) -> QueuesSnapshot | None:
    """Restore the queues of the snapshot, without what was dropped since; None, and no queue is
    restored, if there is no valid snapshot.
    """
    snapshot = saved_queues(snapshots)
    if snapshot is None or snapshot.log_offset < log_begin:
        return None
    if snapshot.index is None or not key_index.bears_out(snapshot.index):
        return None
    kept_bounds: dict[QueueId, OffsetRange] = {}
    for topic, number, first, end in snapshot.queues:
        queue = QueueId(topic, number)
        bounds = _confirmed_bounds(files, queue, OffsetRange(first, end), snapshot, log_begin)
        if bounds is None:
            return None
        kept_bounds[queue] = bounds
    for queue, bounds in kept_bounds.items():
        queues.restore(queue, bounds)
    unknown = (snapshot.log_offset, NOT_IN_LOG)
    places = snapshot.deleted_places or [unknown] * len(snapshot.deleted)
    for (topic, number, end), at in zip(snapshot.deleted, places, strict=True):
        queues.note_deleted(DeletedQueue(QueueId(topic, number), end, *at))
    return snapshot


def restore_emptied(
    files: QueueFiles, queues: ConsumeQueues, log_begin: int, forgotten: Collection[QueueId]
) -> None:
    """Restore the ends of queues whose messages have all expired, from their files.

    Retention of EscrowMQ writes these ends to the log, a broker does not, and the offsets of its
    consumers are beyond them. The queues of deleted topics, whose files may still exist, are in the
    log as well, also where it says that they are `forgotten`.

    Raises Unreadable if the end of a queue is in such a file alone.
    """
    deleted = {queue.id for queue in queues.deleted}
    for queue, end in files.emptied(log_begin) if log_begin else ():
        if queue in deleted or queue in forgotten:
            continue
        if not isinstance(end, Unreadable):
            queues.found(queue, end)
        elif not queues.bounds_of(queue).end:
            raise end


def _confirmed_bounds(
    files: QueueFiles,
    queue: QueueId,
    stated: OffsetRange,
    snapshot: QueuesSnapshot,
    log_begin: int,
) -> OffsetRange | None:
    """The bounds that the snapshot states, without what was dropped since; None if the files of the
    queue do not confirm them.
    """
    first: int | None = stated.first
    if snapshot.log_begin != log_begin:
        try:
            first = files.first_stored_at(queue, stated, log_begin)
        except (FileNotFoundError, Unreadable):
            return None
    if first is None:
        return None
    bounds = OffsetRange(first, stated.end)
    is_confirmed = first >= stated.end or _is_borne_out(files, queue, bounds, snapshot.log_offset)
    return bounds if is_confirmed else None


def _is_borne_out(files: QueueFiles, queue: QueueId, bounds: OffsetRange, log_offset: int) -> bool:
    """Do the first and the last entry of the queue point to records before this log offset?"""
    for queue_offset in (bounds.first, bounds.end - 1):
        try:
            entry = files.stored_entry(queue, queue_offset)
        except FileNotFoundError:
            return False
        except Unreadable:
            continue  # a reader has it made again
        if entry is None:
            return False
        if entry.record_bytes <= 0:  # zeros
            if not files.zeroed.holds(queue, queue_offset):
                return False
            continue  # it is made again once the store runs
        if entry.physical_offset + entry.record_bytes > log_offset:
            return False
    return True
