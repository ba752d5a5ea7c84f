"""Derived tables on disk, each a checked file of its own.

A damaged or unknown one is no error: its table is replayed.

    at   size  field
     0      8  magic "EMQSNAP1"
     8      4  crc32c of what follows (big-endian)
    12      n  msgpack: [[[topic, queue number, queue offset], ...], bytes of the table]

The positions are those up to which the table reflects each queue. A snapshot is kept only once
everything it reflects is on disk, so a power cut can never leave one that knows more than the log.
"""

import struct

import msgspec
from crc32c import crc32c

from storage.files import durable
from storage.formats import parts
from storage.local.data_directory import DataDirectory
from storage.message import QueueId
from storage.store import Snapshot

MAGIC = b"EMQSNAP1"
_CRC = struct.Struct(">I")
HEAD_BYTES = len(MAGIC) + _CRC.size
_PAIR = b"\x92"  # msgpack: a list of two
_decoder = msgspec.msgpack.Decoder(tuple[list[tuple[str, int, int]], memoryview])


class SnapshotFiles:
    """The derive lane's while the store is open."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def save(self, name: str, snapshot: Snapshot) -> None:
        """Durable on return.

        A piece at a time: this thread must not keep the others waiting for as long as all of it
        takes.
        """
        positions = [
            (queue.topic, queue.number, queue_offset)
            for queue, queue_offset in snapshot.positions.items()
        ]
        begin = _PAIR + msgspec.msgpack.encode(positions) + parts.frame(snapshot.size_bytes)
        crc = crc32c(begin)
        for piece in snapshot.pieces:
            crc = crc32c(piece, crc)
        durable.replace_by_pieces(
            self._directory.vfs,
            self._directory.snapshots / name,
            [MAGIC + _CRC.pack(crc) + begin, *snapshot.pieces],
            scratch=self._directory.making,
        )

    def remove(self, name: str) -> None:
        """Where there is one; durable with whatever is saved next."""
        path = self._directory.snapshots / name
        if self._directory.vfs.exists(path):
            self._directory.vfs.remove(path)

    def load(self, name: str) -> Snapshot | None:
        raw = durable.read_whole(self._directory.vfs, self._directory.snapshots / name)
        return None if raw is None else decode(raw)


def decode(raw: bytes) -> Snapshot | None:
    """The snapshot that a file holds; None where it is damaged or unknown."""
    if len(raw) < HEAD_BYTES or not raw.startswith(MAGIC):
        return None
    body = memoryview(raw)[HEAD_BYTES:]
    if stated_crc(raw) != crc32c(body):
        return None
    try:
        positions, data = _decoder.decode(body)
    except msgspec.DecodeError:
        return None
    return Snapshot(
        (bytes(data),),
        {QueueId(topic, number): queue_offset for topic, number, queue_offset in positions},
    )


def stated_crc(head: bytes) -> int:
    """The crc32c that the head of a file states of all behind it."""
    return int(_CRC.unpack_from(head, len(MAGIC))[0])
