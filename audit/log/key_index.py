"""Files of a store's key index, and their entries. Without Arrow, unless a URI names them."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from audit.files.local_files import OpenFile
from audit.log.log_files import files_of
from storage.formats import index_file
from storage.formats.index_file import ENTRY, HEADER_BYTES, SLOT, Header

_FOLDER = "index"
_AT_ONCE = 1 << 16
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class IndexFile(NamedTuple):
    """`slots` is 0 where the file cannot be read: its header does not fit what it holds."""

    path: str
    header: Header
    slots: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def index_files(uri: str) -> list[IndexFile]:
    """Files with entries, oldest first, and files that cannot be read."""
    files, path = files_of(uri)
    folder = f"{path.rstrip('/')}/{_FOLDER}"
    found = []
    for name, size in sorted(files.sizes(folder).items()):
        if not index_file.is_file_name(name) or not size:
            continue
        with closing(files.open(f"{folder}/{name}")) as opened:
            raw = opened.read_at(min(HEADER_BYTES, size), 0)
            if len(raw) < HEADER_BYTES:
                found.append(IndexFile(f"{folder}/{name}", Header(0, 0, 0, 0, 0, 0), 0))
                continue
            header = index_file.decode_header_as_stated(raw)
            if header.next_entry not in (0, 1):  # of a file without an entry
                slots = _slots(opened, size, header) or 0
                found.append(IndexFile(f"{folder}/{name}", header, slots))
    return found


def entries(file: IndexFile, opened: OpenFile) -> Iterator[dict[str, Any]]:
    """Columns entry, key_hash, log_offset, is_linked of the entries of one file, in blocks."""
    is_linked = linked(file, opened)
    for first, found in _blocks(file, opened):
        yield {
            "entry": np.arange(first, first + len(found)),
            "key_hash": found["key_hash"].astype(np.int64),
            "log_offset": found["log_offset"].astype(np.int64),
            "is_linked": is_linked[first : first + len(found)],
        }


def linked(file: IndexFile, opened: OpenFile) -> Flags:
    """Whether each entry, by its number, is named by the next one of its slot, or by the slot
    itself.
    """
    found_linked = np.ones(file.header.next_entry, bool)
    chains = index_file.Chains(file.slots)
    for first, found in _blocks(file, opened):
        before = chains.add(found["key_hash"].astype(np.int64), first)
        found_linked[before[found["previous"] != before]] = False
    heads = np.frombuffer(opened.read_at(SLOT.itemsize * file.slots, index_file.slot_at(0)), SLOT)
    # A slot that names an entry behind the last one is of a service that goes on: its chain leads
    # back to these.
    found_linked[chains.newest[(heads != chains.newest) & (heads < file.header.next_entry)]] = False
    return found_linked


def _blocks(file: IndexFile, opened: OpenFile) -> Iterator[tuple[int, Any]]:
    """(number of the first, entries), a block at a time."""
    for first in range(1, file.header.next_entry, _AT_ONCE):
        count = min(_AT_ONCE, file.header.next_entry - first)
        raw = opened.read_at(ENTRY.itemsize * count, index_file.entry_at(file.slots, first))
        yield first, np.frombuffer(raw, ENTRY)


def _slots(opened: OpenFile, size: int, header: Header) -> int | None:
    """Number of slots of the file; None if its header does not fit its content."""
    return index_file.slots_of(size, header, lambda at, length: opened.read_at(length, at))
