"""The log between two borders, window by window: for those who read all of it after it is known to be whole."""

from collections.abc import Iterator
from typing import NamedTuple

from storage.errors import CorruptRecord
from storage.files.segments import Segments
from storage.formats import scan, unit
from storage.formats.scan import Scan, Stop

_WINDOW_BYTES = 4 << 20


class Window(NamedTuple):
    """Bytes of the log from `offset` on, and the records that begin in them."""

    data: bytes
    offset: int
    scan: Scan


def windows(segments: Segments, begin: int, end: int) -> Iterator[Window]:
    """Both are borders of units. Raises CorruptRecord where what lies there is no longer whole."""
    at = begin
    window_bytes = _WINDOW_BYTES
    while at < end:
        segment = segments.find(at)
        offset = at - at % unit.ALIGNMENT
        length = min(window_bytes, min(end, segment.end_offset) - offset)
        data = segment.file.read(offset - segment.base_offset, length)
        found = scan.scan(data, offset, begin=at, segment_end=segment.end_offset)
        yield Window(data, offset, found)
        if found.stop is Stop.END_OF_FILE:
            at = segment.end_offset
        elif found.stop is Stop.WINDOW_END and offset + length < min(end, segment.end_offset):
            window_bytes = _WINDOW_BYTES if found.end > at else window_bytes * 2  # a unit may be larger than a window
            at = found.end
        elif found.end < min(end, segment.end_offset):
            raise CorruptRecord(segment.path, found.end, found.reason or "zeros where a unit was")
        else:
            at = found.end
