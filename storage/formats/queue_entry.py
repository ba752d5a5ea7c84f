"""One consume-queue entry: 20 big-endian bytes that point into the commit log.

    at  size  field
     0     8  physical_offset  where the record starts
     8     4  record_bytes     how long the record is
    12     8  tag_hash         Java's hashCode of the tag, 0 when the message has none

An entry of zeros has not been written. In front of the first entry of a queue that begins at an
offset above 0 are fillers (offset 0, length 2147483647). Source: RocketMQ
ConsumeQueue.CQ_STORE_UNIT_SIZE, ConsumeQueue#fillPreBlank.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_LAYOUT = struct.Struct(">qiq")
ENTRY_BYTES = _LAYOUT.size
assert ENTRY_BYTES == 20
STORED = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])

FILLER = _LAYOUT.pack(0, 0x7FFFFFFF, 0)

# (physical_offset, record_bytes, tag_hash) -> bytes; the hot path calls it once per message
encode = _LAYOUT.pack


class QueueEntry(NamedTuple):
    physical_offset: int
    record_bytes: int
    tag_hash: int


def decode(raw: bytes, at: int = 0) -> QueueEntry:
    return QueueEntry._make(_LAYOUT.unpack_from(raw, at))


Fields = tuple[int, int, int]
"""The fields of an entry where many are looked at: a named tuple takes three times as long
to make.
"""


def fields_of_all(raw: bytes) -> list[Fields]:
    """The fields of all entries in these bytes, as plain tuples."""
    return list(_LAYOUT.iter_unpack(raw))


def decode_all(raw: bytes) -> Iterator[QueueEntry]:
    """The entries of a whole number of them."""
    return map(QueueEntry._make, _LAYOUT.iter_unpack(raw))


@lru_cache(maxsize=4096)
def tag_hash(tag: str | None) -> int:
    """Java's String.hashCode, sign-extended as RocketMQ stores it: over UTF-16 code units, wrapped
    to 32 bits.
    """
    if not tag:
        return 0
    value = 0
    units = tag.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
