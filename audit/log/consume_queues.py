"""Files of a store's consume queues, and their entries. Without Arrow, unless a URI names them."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from audit.files.local_files import OpenFile
from audit.log.log_files import files_of
from storage.formats import names, queue_entry
from storage.formats.scan import Ints

_FOLDER = "consumequeue"
# formats/queue_entry.py
_ENTRY = np.dtype([("log_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])
_FILLER_BYTES = queue_entry.decode(queue_entry.FILLER).record_bytes
_NONE = np.zeros(0, np.int64)
assert _ENTRY.itemsize == queue_entry.ENTRY_BYTES


class QueueFile(NamedTuple):
    """`stored_bytes`: what is read of its `size`, the rest being holes."""

    path: str
    topic: str
    queue_id: int
    first_entry: int
    size: int
    stored_bytes: int


def queue_files(uri: str) -> list[QueueFile]:
    """Files that have bytes, by their path; without light queues, which repeat those of topics."""
    return sorted(_queue_files(uri))


def has_queue_files(uri: str) -> bool:
    """Whether there is one of them. Where there are many, most are not looked at."""
    return next(_queue_files(uri), None) is not None


def _queue_files(uri: str) -> Iterator[QueueFile]:
    files, path = files_of(uri)
    folder = f"{path.rstrip('/')}/{_FOLDER}"
    for below, size, stored_bytes in files.files_below(folder):
        base = names.base_offset(below.rpartition("/")[2])
        if base is not None and size:
            file = f"{folder}/{below}"
            topic, queue_id = file.split("/")[-3:-1]
            if topic.startswith(names.LIGHT_QUEUE_PREFIX):
                continue
            first_entry = base // queue_entry.ENTRY_BYTES
            yield QueueFile(file, topic, int(queue_id), first_entry, size, stored_bytes)


def entries(uri: str, file: QueueFile) -> dict[str, Ints]:
    """Columns queue_offset, log_offset, record_bytes, tag_hash of the entries of one file.

    Entries that were not written yet, and the fillers in front of a queue that begins later than at
    0, are left out. Holes are not read: most of a file of a queue with few messages is one.
    """
    files, _ = files_of(uri)
    ranges = files.data_ranges(file.path, file.size)
    with closing(files.open(file.path)) as opened:
        parts = [_entries_of(opened, file, begin, end) for begin, end in ranges]
    return {
        name: np.concatenate([_NONE, *[part[name] for part in parts]])
        for name in ("queue_offset", *(_ENTRY.names or ()))
    }


def _entries_of(opened: OpenFile, file: QueueFile, begin: int, end: int) -> dict[str, Ints]:
    """Entries that have a byte in this range of the file. Other ranges have none of them: between
    two is a hole, which is longer than an entry.
    """
    first = begin // _ENTRY.itemsize
    last = min(-(-end // _ENTRY.itemsize), file.size // _ENTRY.itemsize)
    raw = opened.read_at((last - first) * _ENTRY.itemsize, first * _ENTRY.itemsize)
    found: Any = np.frombuffer(raw, _ENTRY, len(raw) // _ENTRY.itemsize)
    written = np.flatnonzero((found["record_bytes"] > 0) & (found["record_bytes"] != _FILLER_BYTES))
    return {
        "queue_offset": written + first + file.first_entry,
        **{name: found[name][written].astype(np.int64) for name in _ENTRY.names or ()},
    }
