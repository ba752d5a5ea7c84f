"""The checkpoint page: how far what has reached the disk. 4,096 bytes, its tail zeros.

       at  size  field                                            (big-endian)
        0     8  physic_ms          store time up to which the log is on disk           RocketMQ's five fields
        8     8  logics_ms          store time up to which the consume queues are
       16     8  index_ms           end time of the last full index file
       24     8  master_flushed     not used by one broker alone: 0
       32     8  confirm_offset     log offset up to which readers may look
      512   512  slot 0             ours, see below
     1024   512  slot 1

    slot: two of them, written in turn, each in a sector of its own, so that one is always whole
        0     4  magic "EMQ1"
        4     8  sequence           the higher one counts
       12     8  synced_offset      the log is on disk up to here
       20     8  epoch              of the store
       28     1  is_clean           1 when the store was closed in order and the log ends at synced_offset
       29     3  zeros
       32     4  crc32c of the 32 bytes before

Source: RocketMQ StoreCheckpoint; the slots are ours and lie where RocketMQ has nothing.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

PAGE_BYTES = 4096
SLOT_AT = (512, 1024)
MAGIC = b"EMQ1"

_FIELDS = struct.Struct(">qqqqq")
_SLOT = struct.Struct(">4sQQQB3x")
_CRC = struct.Struct(">I")
SLOT_BYTES = _SLOT.size + _CRC.size
FIELDS_BYTES = _FIELDS.size
assert FIELDS_BYTES == 40
assert SLOT_BYTES == 36


class Fields(NamedTuple):
    """RocketMQ's own part of the page."""

    physic_ms: int
    logics_ms: int
    index_ms: int
    master_flushed: int
    confirm_offset: int


class Slot(NamedTuple):
    sequence: int
    synced_offset: int
    epoch: int
    is_clean: bool


def encode_fields(fields: Fields) -> bytes:
    return _FIELDS.pack(*fields)


def decode_fields(page: bytes) -> Fields:
    return Fields._make(_FIELDS.unpack_from(page))


def encode_slot(slot: Slot) -> bytes:
    body = _SLOT.pack(MAGIC, *slot)
    return body + _CRC.pack(crc32c(body))


def decode_slot(page: bytes, at: int) -> Slot | None:
    """The slot at `at`; None where it was never written or is not whole."""
    raw = page[at : at + SLOT_BYTES]
    if len(raw) < SLOT_BYTES or _CRC.unpack_from(raw, _SLOT.size)[0] != crc32c(raw[: _SLOT.size]):
        return None
    magic, sequence, synced_offset, epoch, is_clean = _SLOT.unpack_from(raw)
    if magic != MAGIC or is_clean > 1:
        return None
    return Slot(sequence, synced_offset, epoch, bool(is_clean))


def newest_slot(page: bytes) -> Slot | None:
    slots = [slot for at in SLOT_AT if (slot := decode_slot(page, at)) is not None]
    return max(slots, default=None)
