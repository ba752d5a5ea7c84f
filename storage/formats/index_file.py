"""An index file: from the hash of a message key to the log offsets of the messages with such a key.

    at                  size  field
     0                     8  begin_stored_at_ms   of the first entry
     8                     8  end_stored_at_ms     of the last one
    16                     8  begin_offset         log offset of the first entry's record
    24                     8  end_offset           log offset of the last entry's record
    32                     4  used_slots
    36                     4  next_entry           entries are numbered from 1
    40             4 * slots  for each slot the number of its newest entry, 0 where it has none
    40 + 4 * slots  20 * n    the entries; entry n at 20 * n, so the first 20 bytes stay empty

    entry
     0     4  key_hash     Java's hashCode of "topic#key", made positive
     4     8  log_offset
    12     4  seconds      stored_at_ms - begin_stored_at_ms, in whole seconds
    16     4  previous     the next older entry of the same slot, 0 at the end of the chain

A key belongs to slot `key_hash % slots`. Different keys may share a hash: who looks one up compares
the message itself. Source: RocketMQ IndexHeader, IndexFile, IndexService#buildIndex, #buildKey.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint32]]
Entries = np.ndarray[Any, np.dtype[np.void]]

_HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = _HEADER.size
SLOT = np.dtype(">i4")
ENTRY = np.dtype(
    [("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert HEADER_BYTES == 40
assert ENTRY.itemsize == 20

_USUAL_ENTRIES = 4  # for each slot
_MOST_SLOTS_TRIED = 1 << 16
_MOST_SLOTS = 1 << 26  # 13 times RocketMQ's; a file with more would take gigabytes to follow
_MAX_SECONDS = 0x7FFFFFFF
_MAX_KEY_UNITS = 1 << 16  # of UTF-16; more than a property string holds
# 31 to the power of 0, 1, 2 ... modulo 2 to the power of 32.
_POWERS = np.cumprod(
    np.concatenate([[1], np.full(_MAX_KEY_UNITS - 1, 31)]).astype(np.uint32), dtype=np.uint32
)


class Header(NamedTuple):
    """Times are wall milliseconds, offsets log offsets."""

    begin_stored_at_ms: int
    end_stored_at_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int

    @property
    def is_empty(self) -> bool:
        return self.next_entry <= 1


def encode_header(header: Header) -> bytes:
    return _HEADER.pack(*header)


def decode_header(raw: bytes) -> Header:
    """An unwritten file counts as empty."""
    header = decode_header_as_stated(raw)
    return header._replace(next_entry=max(1, header.next_entry))


def decode_header_as_stated(raw: bytes) -> Header:
    """Decode a header without checking its values."""
    return Header._make(_HEADER.unpack_from(raw))


def file_bytes(slots: int, entries: int) -> int:
    """The length of a file."""
    return HEADER_BYTES + SLOT.itemsize * slots + ENTRY.itemsize * entries


def slot_at(slot: int) -> int:
    """Position of the slot in the file."""
    return HEADER_BYTES + SLOT.itemsize * slot


def entry_at(slots: int, entry: int) -> int:
    """Position of the entry in the file."""
    return HEADER_BYTES + SLOT.itemsize * slots + ENTRY.itemsize * entry


def slots_of(size: int, header: Header, read: Callable[[int, int], bytes]) -> int | None:
    """How many slots a file has, which is not written down: RocketMQ's ratio where it fits, or what
    the file bears out.

    Nothing protects the header: what it says is held against the length of the file before anything
    is done with it. None where no number of slots fits it. `read(at, length)` returns bytes of the
    file.
    """
    room = size - HEADER_BYTES
    usual, left = divmod(room, SLOT.itemsize + _USUAL_ENTRIES * ENTRY.itemsize)
    if not left and _has_room(usual, size, header):
        return usual
    most, step = room // SLOT.itemsize, ENTRY.itemsize // SLOT.itemsize
    others = range(most % step, min(most, _MOST_SLOTS_TRIED), step)
    return next(
        (
            slots
            for slots in others
            if _has_room(slots, size, header) and _bears_out(read, slots, header)
        ),
        None,
    )


def _has_room(slots: int, size: int, header: Header) -> bool:
    """Whether a file of this size, with so many slots, has room for the entries that its header
    counts.
    """
    is_in_order = 0 < slots <= _MOST_SLOTS and 0 < header.next_entry <= _USUAL_ENTRIES * _MOST_SLOTS
    return is_in_order and entry_at(slots, header.next_entry) <= size


def _bears_out(read: Callable[[int, int], bytes], slots: int, header: Header) -> bool:
    """Whether the place before the first entry is empty, and the first and the last one name what
    the header says.
    """
    ends = ((0, 0), (1, header.begin_offset), (header.next_entry - 1, header.end_offset))
    for number, log_offset in ends:
        raw = read(entry_at(slots, number), ENTRY.itemsize)
        if len(raw) < ENTRY.itemsize or any(raw) != (number > 0):
            return False
        if np.frombuffer(raw, ENTRY)[0]["log_offset"] != log_offset:
            return False
    return True


class Chains:
    """The chains of a file's slots, followed entry by entry: what `previous` of each must be, and
    the slots at the end.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.newest = np.zeros(slots, np.int32)  # of each slot, the number of its newest entry

    def add(self, key_hashes: Ints, first_number: int) -> Ints:
        """The next entries by their hashes; the `previous` of each."""
        order, sorted_slots = by_slot(key_hashes, self._slots)
        numbers = order + first_number
        is_first = np.append(True, sorted_slots[1:] != sorted_slots[:-1])
        before = np.append(0, numbers[:-1])
        before[is_first] = self.newest[sorted_slots[is_first]]
        is_last = np.append(is_first[1:], True)
        self.newest[sorted_slots[is_last]] = numbers[is_last]
        previous = np.empty(len(key_hashes), np.int64)
        previous[order] = before
        return previous


def by_slot(key_hashes: Ints, slots: int) -> tuple[Ints, Ints]:
    """(order, slots in that order): the hashes by their slots, those of one slot as they stand."""
    # Numbers of slot and place, sorted: a stable argsort of the slots takes five times as long.
    bits = len(key_hashes).bit_length()
    both = np.sort((key_hashes % slots << bits) | np.arange(len(key_hashes)))
    return both & ((1 << bits) - 1), both >> bits


def index_key(topic: str, key: str) -> str:
    """Text to hash for a key of a message in this topic."""
    return f"{topic}#{key}"


def key_hashes(index_keys: Sequence[str]) -> Ints:
    """The hash of each: Java's String.hashCode (over UTF-16 code units), made positive."""
    if not index_keys:
        return np.empty(0, np.int64)
    text = "".join(index_keys)
    if text.isascii():
        units = np.frombuffer(text.encode("ascii"), np.uint8).astype(np.uint32)
        lengths = np.fromiter(map(len, index_keys), np.int64, len(index_keys))
    else:
        units = np.frombuffer(text.encode("utf-16-be"), ">u2").astype(np.uint32)
        lengths = np.fromiter(
            [len(key.encode("utf-16-be")) // 2 for key in index_keys], np.int64, len(index_keys)
        )
    return positive(sums(units, lengths))


def sums(units: Words, lengths: Ints) -> Words:
    """Java's hashCode, unsigned, of several texts in one array: their UTF-16 code units, and the
    number of units of each.
    """
    ends = np.cumsum(lengths)
    # hashCode is the sum of unit * 31 ** (units behind it); all of it wraps at 32 bits.
    behind = np.repeat(ends, lengths) - np.arange(1, len(units) + 1)
    totals = np.concatenate([[0], np.cumsum(units * _POWERS[behind], dtype=np.uint32)]).astype(
        np.uint32
    )
    found: Words = totals[ends] - totals[ends - lengths]
    return found


def hashes_of_rows(units: np.ndarray[Any, np.dtype[np.uint8]]) -> Words:
    """Java's hashCode, unsigned, of texts of one length, not 0: a row for each, with its bytes,
    which are ASCII.
    """
    found: Words = np.einsum("ij,j->i", units.astype(np.uint32), _POWERS[units.shape[1] - 1 :: -1])
    return found


def continued(hashes: Words, lengths: Ints, behind: Words) -> Ints:
    """The hashes of texts, each with another text of so many code units and that hash behind it;
    made positive.
    """
    return positive(hashes * _POWERS[np.clip(lengths, 0, _MAX_KEY_UNITS - 1)] + behind)


def positive(hashes: Words) -> Ints:
    """The hash as IndexFile makes it positive: the smallest integer, which has no counterpart,
    becomes 0.
    """
    made = np.abs(hashes.astype(np.uint32).view(np.int32).astype(np.int64))
    made[made > _MAX_SECONDS] = 0
    return made


def seconds_between(begin_stored_at_ms: int, stored_at_ms: Ints) -> Ints:
    """The `seconds` of entries."""
    return np.clip((stored_at_ms - begin_stored_at_ms) // 1000, 0, _MAX_SECONDS)


def file_name(wall_ms: int) -> str:
    """Files are named by when they were made, UTC to the millisecond, and sort by it."""
    return "".join(filter(str.isdigit, str(np.datetime64(wall_ms, "ms"))))


def name_behind(name: str) -> str:
    """The next name in their order, whatever the clock says: it may have been set back by weeks."""
    return f"{int(name) + 1:017}"


def is_file_name(name: str) -> bool:
    return len(name) == 17 and name.isascii() and name.isdigit()
