"""A derived table in a checked file of its own. Pure.

    at   size  field
     0      8  magic "EMQSNAP1"
     8      4  crc32c of what follows (big-endian)
    12      n  msgpack: [[[topic, queue number, queue offset], ...], bytes of the table]

The positions are those up to which the table reflects each queue. A damaged or unknown one is no
error: its table is replayed.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from storage.formats import parts
from storage.message import QueueId

MAGIC = b"EMQSNAP1"
_CRC = struct.Struct(">I")
HEAD_BYTES = len(MAGIC) + _CRC.size
_PAIR = b"\x92"  # msgpack: a list of two
_decoder = msgspec.msgpack.Decoder(tuple[list[tuple[str, int, int]], memoryview])


class StoredTable(NamedTuple):
    """The content of a snapshot file."""

    data: bytes
    positions: dict[QueueId, int]


def begin(positions: Mapping[QueueId, int], pieces: Iterable[bytes], size_bytes: int) -> bytes:
    """The bytes of the file before the table. `pieces`, `size_bytes`: of the table."""
    rows = [(queue.topic, queue.number, offset) for queue, offset in positions.items()]
    body = _PAIR + msgspec.msgpack.encode(rows) + parts.frame(size_bytes)
    crc = crc32c(body)
    for piece in pieces:
        crc = crc32c(piece, crc)
    return MAGIC + _CRC.pack(crc) + body


def decode(raw: bytes) -> StoredTable | None:
    """The content of a file; None where it is damaged or unknown."""
    if len(raw) < HEAD_BYTES or not raw.startswith(MAGIC):
        return None
    body = memoryview(raw)[HEAD_BYTES:]
    if stated_crc(raw) != crc32c(body):
        return None
    try:
        rows, data = _decoder.decode(body)
    except msgspec.DecodeError:
        return None
    positions = {QueueId(topic, number): queue_offset for topic, number, queue_offset in rows}
    return StoredTable(bytes(data), positions)


def stated_crc(head: bytes) -> int:
    """The crc32c that the head of a file states of all behind it."""
    return int(_CRC.unpack_from(head, len(MAGIC))[0])
