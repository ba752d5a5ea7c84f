"""The log between two borders, window by window: for those who read all of it after it is known to
be whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecord
from storage.files.segments import Segments
from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.index_file import Ints
from storage.formats.scan import Scan, Stop

_WINDOW_BYTES = 4 << 20


class Window(NamedTuple):
    """Bytes of the log from `offset` on, and the records that begin in them."""

    data: bytes
    offset: int
    scan: Scan


def windows(segments: Segments, begin: int, end: int) -> Iterator[Window]:
    """The windows between two borders of units. Raises CorruptRecord if what is there is no longer
    whole.
    """
    at = begin
    window_bytes = _WINDOW_BYTES
    while at < end:
        segment = segments.find(at)
        offset = at - at % unit.ALIGNMENT
        length = min(window_bytes, min(end, segment.end_offset) - offset)
        data = segment.read_sequential(offset - segment.base_offset, length)
        found = scan.scan(data, offset, begin=at, segment_end=segment.end_offset)
        yield Window(data, offset, found)
        if found.stop is Stop.END_OF_FILE:
            at = segment.end_offset
        elif found.stop is Stop.WINDOW_END and offset + length < min(end, segment.end_offset):
            # a unit may be larger than a window
            window_bytes = _WINDOW_BYTES if found.end > at else window_bytes * 2
            at = found.end
        elif found.end < min(end, segment.end_offset):
            raise CorruptRecord(segment.path, found.end, found.reason or "zeros where a unit was")
        else:
            at = found.end


class Stated(NamedTuple):
    """Bytes of the log from `offset` on, and the records in them by what they state of
    themselves.
    """

    data: bytes
    offset: int
    record_offsets: Ints
    record_bytes: Ints


def stated(segments: Segments, begin: int, end: int) -> Iterator[Stated]:
    """The records of [begin, end), damage passed over; nothing but their magics and places is
    checked.

    `begin` is the border of a record. Where no record follows another, the next one is the next
    place in the file that names itself. Raises IndexError where a segment was dropped meanwhile.
    """
    at = begin
    wanted = _WINDOW_BYTES
    while at < end:
        left = min(end, segments.find(at).end_offset) - at
        data, _ = segments.read_filled(at, min(wanted, left))
        found, step = _stated_in(data, at, is_all=len(data) < wanted)
        wanted = _WINDOW_BYTES
        if found:
            yield Stated(data, at, *np.array(found, np.int64).T)
        elif step > len(data):  # one record, larger than a window
            wanted = step
            continue
        at += left if len(data) == left or not data else step


def _stated_in(data: bytes, offset: int, *, is_all: bool) -> tuple[list[tuple[int, int]], int]:
    """((log offset, length) of each whole record, how far to go on).

    A step beyond the data: a record that begins it.
    """
    found: list[tuple[int, int]] = []
    at = last = 0
    while 0 <= at < len(data):
        total = records.stated_bytes(data, at, offset + at)
        if total and at + total <= len(data):
            found.append((offset + at, total))
            last, at = at, at + total
        elif at + max(total, records.FIXED_BYTES) > len(data) and not is_all:
            return found, at or total
        elif records.is_end_of_file(data, at):
            break
        else:
            # Not from `at` on: the length that led here may be what is damaged.
            at = last = _next_stated(data, max(last, at if total else last) + 1, offset)
    return found, at if at == len(data) else max(1, len(data) - records.FIXED_BYTES)


def _next_stated(data: bytes, begin: int, offset: int) -> int:
    """The next record that states its own place; -1 if there is none."""
    at = data.find(records.MAGICS_START, begin + records.MAGIC_AT)
    while at >= 0:
        if records.stated_bytes(data, at - records.MAGIC_AT, offset + at - records.MAGIC_AT):
            return at - records.MAGIC_AT
        at = data.find(records.MAGICS_START, at + 1)
    return -1
