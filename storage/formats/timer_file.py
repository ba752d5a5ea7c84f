"""One timer file: entries of what is due when, sorted, in checked blocks of 4096 bytes. Pure.

    block
    at  size  field        (big-endian)
     0     4  crc          crc32c of all that follows in the block
     4     4  entry_count  170, in the last block fewer
     8     4  file_number  the file's own, and
    12     4  block_number its place in it: a block at another place is none
    16  24*n  entries, then zeros

    entry
     0     8  due_ms
     8     8  place
    16     4  version      twice the revision; one more where the entry was taken away again
    20     4  label

A file holds what was added and what was taken away; where both are there of an entry, in whichever
files, it is no more. So files can be merged in any order, and any number of them. A design of our
own: RocketMQ's timer wheel has a slot for each second of seven days.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

BLOCK_BYTES = 4096
_HEAD = struct.Struct(">IIII")
_CRC_BYTES = 4
_STORED = np.dtype([("due_ms", ">i8"), ("place", ">i8"), ("version", ">u4"), ("label", ">u4")])
ENTRY = np.dtype([("due_ms", "i8"), ("place", "i8"), ("version", "u4"), ("label", "u4")])
ENTRY_BYTES = _STORED.itemsize
BLOCK_ENTRIES = (BLOCK_BYTES - _HEAD.size) // ENTRY_BYTES
assert (ENTRY_BYTES, BLOCK_ENTRIES) == (24, 170)

Entries = np.ndarray[Any, np.dtype[np.void]]
NOTHING: Entries = np.empty(0, ENTRY)

_MERGED_AT_ONCE = 4_096  # entries of each source: what a merge holds in memory


class DamagedTimers(ValueError):
    """The bytes are not a block of this file; the text says in which way."""


class Key(NamedTuple):
    """Sort key of the entries."""

    due_ms: int
    place: int
    version: int


FIRST = Key(-(1 << 63), 0, 0)


class Source(Protocol):
    """Sorted entries, each once, by number."""

    @property
    def end(self) -> int:
        """The number behind that of the last entry."""

    def read(self, begin: int, count: int) -> Entries:
        """About so many entries from number `begin` on; at least one if there is one."""

    def find(self, key: Key) -> int:
        """The number of the first entry that is not below the key."""


def encode(entries: Entries, file_number: int, first_block: int) -> bytes:
    """The entries as blocks of the file; only its last one may be less than full."""
    stored = entries.astype(_STORED).tobytes()
    blocks = []
    step = BLOCK_ENTRIES * ENTRY_BYTES
    for block_number, at in enumerate(range(0, len(stored), step), first_block):
        piece = stored[at : at + step]
        body = (
            _HEAD.pack(0, len(piece) // ENTRY_BYTES, file_number, block_number)[_CRC_BYTES:] + piece
        )
        body += bytes(BLOCK_BYTES - _CRC_BYTES - len(body))
        blocks.append(crc32c(body).to_bytes(_CRC_BYTES, "big") + body)
    return b"".join(blocks)


def decode(raw: bytes, file_number: int, first_block: int) -> Entries:
    """The entries of whole blocks that follow one another. Raises DamagedTimers."""
    pieces = []
    for block_number, at in enumerate(range(0, len(raw), BLOCK_BYTES), first_block):
        block = raw[at : at + BLOCK_BYTES]
        if len(block) < BLOCK_BYTES:
            raise DamagedTimers(f"block {block_number} has {len(block)} bytes")
        crc, count, found_file, found_block = _HEAD.unpack_from(block)
        if crc != crc32c(block[_CRC_BYTES:]):
            raise DamagedTimers(f"the crc32c of block {block_number} differs")
        if (found_file, found_block) != (file_number, block_number) or count > BLOCK_ENTRIES:
            raise DamagedTimers(
                f"where block {block_number} is to be lies block {found_block} of file {found_file}"
            )
        pieces.append(np.frombuffer(block, _STORED, count, _HEAD.size))
    return np.concatenate(pieces).astype(ENTRY) if pieces else NOTHING


def file_bytes(count: int) -> int:
    """How long a file of so many entries is."""
    return -(-count // BLOCK_ENTRIES) * BLOCK_BYTES


def made_of(rows: Iterable[tuple[int, int, int, int]], count: int) -> Entries:
    """Sorted entries of so many rows of (due_ms, place, version, label)."""
    return settled(np.fromiter(rows, ENTRY, count))


def settled(entries: Entries) -> Entries:
    """The entries in their order, without those that were added and taken away."""
    if not len(entries):
        return entries
    entries = entries[np.lexsort((entries["version"], entries["place"], entries["due_ms"]))]
    version = entries["version"]
    is_taken = (
        (entries["due_ms"][1:] == entries["due_ms"][:-1])
        & (entries["place"][1:] == entries["place"][:-1])
        & (version[1:] == version[:-1] + 1)
        & (version[:-1] % 2 == 0)
    )
    kept = np.ones(len(entries), np.bool_)
    kept[1:] &= ~is_taken
    kept[:-1] &= ~is_taken
    return entries[kept]


def position(entries: Entries, key: Key) -> int:
    """Index of the first of these sorted entries that is not below the key."""
    begin, end = 0, len(entries)
    for name, value in zip(("due_ms", "place", "version"), key, strict=True):
        part = entries[name][begin:end]
        end = begin + int(np.searchsorted(part, value, "right"))
        begin += int(np.searchsorted(part, value, "left"))
    return begin


def merged(sources: Sequence[Source], after: Key) -> Iterator[Entries]:
    """Merge the entries of all sources after the key, in pieces; some may be empty."""
    numbers = [source.find(after) for source in sources]
    ahead = [NOTHING for _ in sources]
    while True:
        bounds = []
        for index, source in enumerate(sources):
            if len(ahead[index]) < _MERGED_AT_ONCE and numbers[index] < source.end:
                piece = source.read(numbers[index], _MERGED_AT_ONCE)
                numbers[index] += len(piece)
                ahead[index] = np.concatenate([ahead[index], piece])
            if numbers[index] < source.end:
                bounds.append(_key_of(ahead[index][-1]))
        ends = [len(entries) for entries in ahead]
        if bounds:
            # Behind this the sources are not read yet. Both entries of a pair are on one side of
            # it.
            due_ms, place, version = min(bounds)
            behind = Key(due_ms, place, (version | 1) + 1)
            ends = [position(entries, behind) for entries in ahead]
        yield settled(
            np.concatenate(
                [entries[:end] for entries, end in zip(ahead, ends, strict=True)] or [NOTHING]
            )
        )
        ahead = [entries[end:] for entries, end in zip(ahead, ends, strict=True)]
        if not bounds:
            return


def _key_of(entry: np.void) -> Key:
    return Key(int(entry["due_ms"]), int(entry["place"]), int(entry["version"]))
