"""The bounds of queues by derived files of a stopped store: all that is known of messages whose
records are damaged or gone.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from storage.files.unreadable import page_of, read_readable
from storage.files.vfs import PAGE_BYTES, Vfs
from storage.formats import names
from storage.formats.queue_entry import ENTRY_BYTES
from storage.local.data_directory import DataDirectory
from storage.local.recovery.queues_snapshot import saved_queues
from storage.local.snapshot_files import SnapshotFiles
from storage.message import QueueId

_ENTRY = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])


class KnownQueue(NamedTuple):
    """Queue offsets by the derived files; `at_place` of the first message at or behind the place
    that is repaired.
    """

    first: int
    end: int
    at_place: int


def known_queues(directory: DataDirectory, log_offset: int) -> dict[QueueId, KnownQueue]:
    """The queues that a derived file names; `log_offset` is the place of the log that is
    repaired.
    """
    known = dict(_queues_by_files(directory, log_offset))
    snapshot = saved_queues(SnapshotFiles(directory))
    for topic, number, first, end in snapshot.queues if snapshot is not None else ():
        queue = QueueId(topic, number)
        by_files = known.get(queue, KnownQueue(first, end, end))
        known[queue] = KnownQueue(
            max(first, by_files.first), max(end, by_files.end), by_files.at_place
        )
    return known


def _queues_by_files(
    directory: DataDirectory, log_offset: int
) -> Iterator[tuple[QueueId, KnownQueue]]:
    vfs, root = directory.vfs, directory.consume_queues
    for topic in vfs.list_directory(root) if vfs.exists(root) else ():
        for number in vfs.list_directory(root / topic):
            found: list[tuple[int, int]] = []  # (queue offset, log offset)
            for name in vfs.list_directory(root / topic / number) if number.isdigit() else ():
                base = names.base_offset(name)
                if base is None or not names.is_stored_name(topic):
                    continue
                raw = _readable(vfs, root / topic / number / name)
                entries = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], _ENTRY)
                is_entry = (entries["record_bytes"] > 0) & (entries["record_bytes"] < 0x7FFFFFFF)
                places = np.flatnonzero(is_entry)
                if len(places):
                    behind = places[entries["physical_offset"][places] >= log_offset]
                    first_behind = int(behind[0]) if len(behind) else int(places[-1]) + 1
                    at = base // ENTRY_BYTES
                    found += [
                        (at + int(places[0]), at + first_behind),
                        (at + int(places[-1]) + 1, at + first_behind),
                    ]
            if found:
                first, end = found[0][0], found[-1][0]
                # The first file that has an entry behind the place tells; where none has one, the
                # end.
                at_place = next((place for last, place in found[1::2] if place < last), end)
                yield QueueId(topic, int(number)), KnownQueue(first, end, at_place)


def _readable(vfs: Vfs, path: PurePath) -> bytes:
    """The content of a queue file, with zeros for the entries that the disk does not give back."""
    file = vfs.open(path)
    try:
        size = file.size()
        found = bytearray(size)
        at = 0
        while at < size:
            data, failure = read_readable(file, at, size - at)
            found[at : at + len(data)] = data
            at += len(data)
            if failure is None:
                break
            begin, at = at - at % ENTRY_BYTES, page_of(at) + PAGE_BYTES
            at += -at % ENTRY_BYTES
            found[begin : min(at, size)] = bytes(min(at, size) - begin)
        return bytes(found)
    finally:
        file.close()
