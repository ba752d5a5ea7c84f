"""Pages of a queue as records: a header of 40 bytes, and behind it the records as they are stored.

Pure.

    at  size  field                  (all numbers big-endian and signed)
     0     4  magic           "EMQR"
     4     2  version         1
     6     2  header_bytes    where the first record begins; a later version may have a longer
                              header
     8     8  next_offset     where to read on
    16     8  min_offset      the first offset of the queue that can be read
    24     8  max_offset      behind its last one
    32     4  record_count
    36     4  result          0 found, 1 no_new_message, 2 no_matched_message

A record begins with its own length and is laid out as storage/formats/record.py says: it states its
queue, its queue offset, its log offset and its times, and has the body and the property string.
"""

import struct
from collections.abc import Iterator, Sequence

from storage.formats.stored_record import StoredRecord
from storage.message import OffsetRange

MEDIA_TYPE = "application/vnd.escrowmq.records"
RESULTS = ("found", "no_new_message", "no_matched_message")

_MAGIC = b"EMQR"
_VERSION = 1
_HEADER = struct.Struct(">4shhqqqii")
_AT_ONCE = 64  # records that are joined, unless they have more than
_PART_BYTES = 256 << 10
assert _HEADER.size == 40


def header(count: int, next_offset: int, bounds: OffsetRange, result: str) -> bytes:
    """The header of a page of so many records."""
    return _HEADER.pack(
        _MAGIC,
        _VERSION,
        _HEADER.size,
        next_offset,
        bounds.first,
        bounds.end,
        count,
        RESULTS.index(result),
    )


def parts_of_page(
    records: Sequence[StoredRecord], next_offset: int, bounds: OffsetRange, result: str
) -> Iterator[bytes]:
    """The page in parts of which none takes long to make."""
    yield header(len(records), next_offset, bounds, result)
    for begin in range(0, len(records), _AT_ONCE):
        piece = [record.data for record in records[begin : begin + _AT_ONCE]]
        if sum(map(len, piece)) <= _PART_BYTES:
            yield b"".join(piece)
            continue
        for data in piece:
            for at in range(0, len(data), _PART_BYTES):
                yield data[at : at + _PART_BYTES]
