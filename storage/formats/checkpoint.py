"""The checkpoint page: up to where the log and each derived file have reached the disk. 4,096
bytes, its tail zeros.

       at  size  field                                            (big-endian)
        0     8  physic_ms          store time up to which the log is on disk           RocketMQ's
                                    five fields
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
       28     1  is_clean           1 when the store was closed in order and the log ends at
                                    synced_offset
       29     3  zeros
       32     4  crc32c of the 32 bytes before
       36     8  first_offset       where the log begins: raised, and synced, before a segment is
                                    dropped
       44     4  crc32c of the 44 bytes before: a version that does not know first_offset writes 36
                 bytes and leaves these
                 stale, which shows here

Source: RocketMQ StoreCheckpoint; the slots are ours, where RocketMQ has nothing.
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
_FIRST_OFFSET = struct.Struct(">Q")
_SHORT_SLOT_BYTES = _SLOT.size + _CRC.size
SLOT_BYTES = _SHORT_SLOT_BYTES + _FIRST_OFFSET.size + _CRC.size
FIELDS_BYTES = _FIELDS.size
USED_BYTES = SLOT_AT[-1] + SLOT_BYTES
assert FIELDS_BYTES == 40
assert (_SHORT_SLOT_BYTES, SLOT_BYTES) == (36, 48)


class Fields(NamedTuple):
    """RocketMQ's own part of the page."""

    physic_ms: int
    logics_ms: int
    index_ms: int
    master_flushed: int
    confirm_offset: int


class Slot(NamedTuple):
    """`first_offset` is None where a version wrote the slot that did not record it."""

    sequence: int
    synced_offset: int
    epoch: int
    is_clean: bool
    first_offset: int | None = None


def encode_fields(fields: Fields) -> bytes:
    return _FIELDS.pack(*fields)


def decode_fields(page: bytes) -> Fields:
    return Fields._make(_FIELDS.unpack_from(page))


def encode_slot(slot: Slot) -> bytes:
    body = _SLOT.pack(MAGIC, slot.sequence, slot.synced_offset, slot.epoch, slot.is_clean)
    body += _CRC.pack(crc32c(body))
    if slot.first_offset is not None:
        body += _FIRST_OFFSET.pack(slot.first_offset)
        body += _CRC.pack(crc32c(body))
    return body


def decode_slot(page: bytes, at: int) -> Slot | None:
    """The slot at `at`; None where it was never written or is not whole."""
    raw = page[at : at + SLOT_BYTES]
    if len(raw) < _SHORT_SLOT_BYTES or _CRC.unpack_from(raw, _SLOT.size)[0] != crc32c(
        raw[: _SLOT.size]
    ):
        return None
    magic, sequence, synced_offset, epoch, is_clean = _SLOT.unpack_from(raw)
    if magic != MAGIC or is_clean > 1:
        return None
    first_offset = None
    if len(raw) == SLOT_BYTES and _CRC.unpack_from(raw, SLOT_BYTES - _CRC.size)[0] == crc32c(
        raw[: -_CRC.size]
    ):
        (first_offset,) = _FIRST_OFFSET.unpack_from(raw, _SHORT_SLOT_BYTES)
    return Slot(sequence, synced_offset, epoch, bool(is_clean), first_offset)


def newest_slot(page: bytes) -> Slot | None:
    slots = [slot for at in SLOT_AT if (slot := decode_slot(page, at)) is not None]
    return max(slots, key=lambda slot: slot.sequence, default=None)
