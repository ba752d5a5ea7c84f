"""The lengths of a store's files, which both sides have as settings: found from the files. Pure but
for the head of an index file, which it is given a way to read.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from app.store_moves.store_folder import CONSUME_QUEUES, KEY_INDEX, Listing, base_offset
from storage.formats import index_file
from storage.formats.queue_entry import ENTRY_BYTES
from storage.local.options import LocalStoreOptions

TIMER_LOG = "timerlog"
_DEFAULT_TIMER_LOG_BYTES = 100 << 20
_INDEX_NAME_DIGITS = 17

Read = Callable[[str, int, int], bytes]
"""(path in the store, at, length) -> bytes"""


class Geometry(NamedTuple):
    """Lengths of files; None where the store has no file that shows one: the default will do."""

    segment_bytes: int | None = None
    queue_file_bytes: int | None = None
    index_slots: int | None = None
    index_file_entries: int | None = None
    timer_log_bytes: int | None = None

    @property
    def queue_file_entries(self) -> int | None:
        return None if self.queue_file_bytes is None else self.queue_file_bytes // ENTRY_BYTES

    def applied_to(self, options: LocalStoreOptions) -> LocalStoreOptions:
        """The options with all that the files show, also where it is a default."""
        values: dict[str, Any] = {
            name: value for name, value in self._found().items() if value is not None
        }
        return dataclasses.replace(options, **values)

    def options(self) -> dict[str, int]:
        """Settings of the local store that are not the defaults, by their names."""
        defaults = LocalStoreOptions()
        return {
            name: value
            for name, value in self._found().items()
            if value is not None and value != getattr(defaults, name)
        }

    def _found(self) -> dict[str, int | None]:
        return {
            "segment_bytes": self.segment_bytes,
            "queue_file_entries": self.queue_file_entries,
            "index_slots": self.index_slots,
            "index_file_entries": self.index_file_entries,
        }


def geometry_of(listing: Listing, read: Read) -> tuple[Geometry, list[str]]:
    """The geometry, and a sentence for each kind of file that has none."""
    problems: list[str] = []

    def size_of(files: dict[str, int], what: str) -> int | None:
        sizes = sorted(set(files.values()))
        if len(sizes) > 1:
            lengths = ", ".join(f"{size:,}" for size in sizes[:4])
            problems.append(f"{what} have different lengths: {lengths} bytes ({_odd_one(files)})")
        return sizes[0] if len(sizes) == 1 else None

    segments = list(listing.segments().items())
    segment_bytes = size_of(listing.segments(), "The files of commitlog/")
    queue_bytes = size_of(_numbered(listing, CONSUME_QUEUES), "The files of consumequeue/")
    index_bytes = size_of(_index_files(listing), "The files of index/")
    timer_bytes = size_of(_numbered(listing, TIMER_LOG), "The files of timerlog/")
    slots, entries = None, None
    if index_bytes is not None:
        slots, entries = _index_shape(listing, index_bytes, read)
        if slots is None:
            problems.append(f"index/ has files of {index_bytes:,} bytes, which is no index file")
    if segment_bytes is not None or queue_bytes is not None:
        try:
            _options(segment_bytes, queue_bytes)
        except ValueError as error:
            named = "".join(f" ({path} has {size:,} bytes)" for path, size in segments[:1])
            problems.append(f"The log cannot be served: {error}{named}")
    if queue_bytes is not None and queue_bytes % ENTRY_BYTES:
        problems.append(
            f"consumequeue/ has files of {queue_bytes:,} bytes, no multiple of {ENTRY_BYTES}: "
            "they are no queue files"
        )
    return Geometry(segment_bytes, queue_bytes, slots, entries, timer_bytes), problems


def _odd_one(files: dict[str, int]) -> str:
    """Name a file of the rarest length, as of one that was cut off."""
    counts = Counter(files.values())
    path, size = min(files.items(), key=lambda file: (counts[file[1]], file[1]))
    return f"{path} has {size:,}"


def _options(segment_bytes: int | None, queue_bytes: int | None) -> LocalStoreOptions:
    """Raises ValueError."""
    defaults = LocalStoreOptions()
    return LocalStoreOptions(
        segment_bytes=defaults.segment_bytes if segment_bytes is None else segment_bytes,
        queue_file_entries=defaults.queue_file_entries
        if queue_bytes is None
        else queue_bytes // ENTRY_BYTES,
    )


def _numbered(listing: Listing, folder: str) -> dict[str, int]:
    found = listing.within(folder)
    return {path: size for path, size in found.items() if base_offset(path) is not None}


def _index_files(listing: Listing) -> dict[str, int]:
    return {
        path: size
        for path, size in listing.within(KEY_INDEX).items()
        if (name := path.rpartition("/")[2]).isdigit() and len(name) == _INDEX_NAME_DIGITS
    }


def _index_shape(listing: Listing, size: int, read: Read) -> tuple[int | None, int | None]:
    """Slots and entries of a file, by one that has entries if there is one."""
    slots = None
    if size > index_file.HEADER_BYTES:
        for path in _index_files(listing):
            header = index_file.decode_header(read(path, 0, index_file.HEADER_BYTES))
            found = index_file.slots_of(size, header, partial(read, path))
            slots = slots or found
            if found is not None and not header.is_empty:
                slots = found
                break
    if not slots:
        return None, None
    return slots, (size - index_file.slot_at(slots)) // index_file.ENTRY.itemsize


def broker_settings(geometry: Geometry) -> dict[str, int]:
    """Settings of a broker that are not its defaults, by RocketMQ's names."""
    defaults = LocalStoreOptions()
    found = {
        "mappedFileSizeCommitLog": (geometry.segment_bytes, defaults.segment_bytes),
        "mappedFileSizeConsumeQueue": (
            geometry.queue_file_bytes,
            defaults.queue_file_entries * ENTRY_BYTES,
        ),
        "maxHashSlotNum": (geometry.index_slots, defaults.index_slots),
        "maxIndexNum": (geometry.index_file_entries, defaults.index_file_entries),
        "mappedFileSizeTimerLog": (geometry.timer_log_bytes, _DEFAULT_TIMER_LOG_BYTES),
    }
    return {
        name: value
        for name, (value, default) in found.items()
        if value is not None and value != default
    }
