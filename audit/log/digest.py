"""One number for all bytes that an audit has read: equal bytes, equal number.

block    sha256 of at most 16 MiB of a segment, counted from the segment's beginning
segment  sha256 of its blocks' digests behind one another
chain    sha256 of the chain so far (32 zeros at first), the segment's base offset and its number of
         bytes (8 bytes each,
         big-endian), and its digest; what is in no file is left out
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from audit.log.log_files import LogReader, Segment
from audit.log.log_range import Log

BLOCK_BYTES = 16 << 20
_LINK = struct.Struct(">qq")


class Block(NamedTuple):
    """Bytes [begin, end) of the log, within one segment."""

    segment: Segment
    begin: int
    end: int


Digests = Callable[[Sequence[Block]], Sequence[bytes]]
"""The digest of each block, in their order."""


def blocks(log: Log) -> list[Block]:
    found = []
    for segment in log.folder.segments:
        begin, end = max(segment.base_offset, log.begin), min(segment.end_offset, log.end)
        while begin < end:
            border = min(end, begin - (begin - segment.base_offset) % BLOCK_BYTES + BLOCK_BYTES)
            found.append(Block(segment, begin, border))
            begin = border
    return found


def digest_blocks(some: Iterable[Block]) -> list[bytes]:
    """The digests of the blocks of a segment; those of a compacted one are in its manifest."""
    reader = LogReader()
    noted: dict[Segment, list[str]] = {}
    found = []
    try:
        for block in some:
            segment = block.segment
            if segment.is_compacted:
                from audit.log import compacted

                if segment not in noted:
                    noted[segment] = compacted.manifest_of(segment)["digests"]
                found.append(
                    bytes.fromhex(
                        noted[segment][(block.begin - segment.base_offset) // BLOCK_BYTES]
                    )
                )
            else:
                found.append(
                    sha256(reader.read(segment, block.begin, block.end - block.begin)).digest()
                )
    finally:
        reader.close()
    return found


def chain(log: Log, digests: Digests) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    found = blocks(log)
    of_segment: dict[Segment, list[tuple[Block, bytes]]] = {}
    for block, digest in zip(found, digests(found), strict=True):
        of_segment.setdefault(block.segment, []).append((block, digest))
    so_far = bytes(32)
    for segment, parts in of_segment.items():
        length = sum(block.end - block.begin for block, _ in parts)
        of_parts = sha256(b"".join(digest for _, digest in parts)).digest()
        so_far = sha256(so_far + _LINK.pack(segment.base_offset, length) + of_parts).digest()
    return f"sha256:{so_far.hex()}"
