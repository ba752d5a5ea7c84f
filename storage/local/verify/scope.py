"""The scope of a verification: the files, and how far they were on disk when it began.

A store that runs changes meanwhile. What was durable at the beginning stays as it is until
retention drops it, so everything is held against that: the log below the synced position, queues
and key index below the newest snapshot.
"""

from pathlib import PurePath
from typing import NamedTuple

from storage.errors import StoreRecovering
from storage.files import durable
from storage.files.vfs import Vfs
from storage.formats import checkpoint, names, snapshot_file
from storage.local.recovery.queues_snapshot import QUEUES_SNAPSHOT, QueuesSnapshot, decode_queues
from storage.message import OffsetRange, QueueId
from storage.store_status import Finding

COMMIT_LOG, CONSUME_QUEUES, KEY_INDEX = "commitlog", "consumequeue", "index"
SNAPSHOTS, TIMERS, CONFIG, CHECKPOINT, ABORT = (
    "snapshots",
    "timers",
    "config",
    "checkpoint",
    "abort",
)


class FoundAt(NamedTuple):
    """A finding, and the log offset of a record that it concerns."""

    log_offset: int
    finding: Finding


class SegmentFile(NamedTuple):
    path: PurePath
    begin: int
    end: int


class Scope(NamedTuple):
    """`durable_end`: the log is known to have been on disk up to here.

    `is_closed`: the store was closed in order.
    """

    vfs: Vfs
    root: PurePath
    is_running: bool
    is_closed: bool
    durable_end: int
    physic_ms: int
    segments: list[SegmentFile]
    queues: QueuesSnapshot | None

    def name(self, path: PurePath) -> str:
        return path.relative_to(self.root).as_posix()

    def log_begin(self) -> int:
        """The present beginning of the log: retention may have dropped segments since."""
        found = [
            base
            for name in listed(self.vfs, self.root / COMMIT_LOG)
            if (base := names.base_offset(name)) is not None
        ]
        return min(found, default=0)

    def bounds_now(self) -> dict[QueueId, OffsetRange]:
        """The bounds of each queue in the newest snapshot; empty where there is none."""
        found = newest_queues(self.vfs, self.root)
        return bounds_of(found)


def look(vfs: Vfs, root: PurePath, *, is_running: bool) -> Scope:
    """Raises StoreRecovering where another process owns the store and does not say yet how far it
    is on disk.
    """
    # before the checkpoint: it never knows more than the log that is on disk
    queues = newest_queues(vfs, root)
    page = durable.read_whole(vfs, root / CHECKPOINT) or b""
    page = page.ljust(checkpoint.PAGE_BYTES, b"\0")
    slot = checkpoint.newest_slot(page)
    if is_running and slot is None:
        raise StoreRecovering(
            f"{root} is being opened by another process, or is a RocketMQ broker's: stop it first"
        )
    known = (0 if slot is None else slot.synced_offset, 0 if queues is None else queues.log_offset)
    is_closed = (
        slot is not None and slot.is_clean and not is_running and not vfs.exists(root / ABORT)
    )
    physic_ms = checkpoint.decode_fields(page).physic_ms if slot is None else 0
    return Scope(
        vfs, root, is_running, is_closed, max(known), physic_ms, _segments(vfs, root), queues
    )


def newest_queues(vfs: Vfs, root: PurePath) -> QueuesSnapshot | None:
    """The newest snapshot of the consume queues; None where there is none, or it is damaged."""
    raw = durable.read_whole(vfs, root / SNAPSHOTS / QUEUES_SNAPSHOT)
    kept = None if raw is None else snapshot_file.decode(raw)
    return None if kept is None else decode_queues(kept.data)


def bounds_of(queues: QueuesSnapshot | None) -> dict[QueueId, OffsetRange]:
    rows = [] if queues is None else queues.queues
    return {QueueId(topic, number): OffsetRange(first, end) for topic, number, first, end in rows}


def listed(vfs: Vfs, folder: PurePath) -> list[str]:
    """The names in a folder, sorted; none where it does not exist."""
    try:
        return vfs.list_directory(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(vfs: Vfs, path: PurePath) -> int | None:
    """Size of the file; None if it is missing."""
    try:
        file = vfs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.size()
    finally:
        file.close()


def _segments(vfs: Vfs, root: PurePath) -> list[SegmentFile]:
    """The segments in log order; files of other names are left out."""
    found: list[SegmentFile] = []
    for name in listed(vfs, root / COMMIT_LOG):
        begin = names.base_offset(name)
        path = root / COMMIT_LOG / name
        size = None if begin is None else size_of(vfs, path)
        if begin is not None and size is not None:
            found.append(SegmentFile(path, begin, begin + size))
    return found
