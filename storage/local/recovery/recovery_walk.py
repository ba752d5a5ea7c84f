"""The walk along the log at a start, to the end of its whole units; every byte is checked."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from storage.files.read_ahead import ReadAhead
from storage.files.segments import Segments
from storage.files.vfs import Vfs
from storage.formats import scan

_FIRST_WINDOW_BYTES = 1 << 20  # after a clean stop it holds nothing but zeros
_WINDOW_BYTES = 4 << 20  # stays in the cache of the processor: half the time of 64 MiB

Progress = Callable[[int, int], None]
"""(bytes of log walked, bytes to walk)"""

Feed = Callable[[bytes, int, scan.Scan], None]
"""(a window, its log offset, what was found in it)"""


class Ending(Enum):
    """The kind of bytes behind the last whole unit."""

    EMPTY = "zeros, or the end of the last segment"
    DAMAGED = "something that is no whole unit"


class Walk(NamedTuple):
    """End of a walk, the reason for it, and what the last unit of ours stated."""

    end: int
    ending: Ending
    reason: str
    epoch: int
    synced_offset: int


def walk_log(segments: Segments, vfs: Vfs, begin: int, feed: Feed, progress: Progress) -> Walk:
    """Walk from `begin`, the border of a unit. Raises UnreadableLog."""
    end = begin
    epoch = synced_offset = 0
    to_walk = segments.end_offset - begin
    window_bytes = _FIRST_WINDOW_BYTES
    with ReadAhead(segments, vfs) as ahead:
        while end < segments.end_offset:
            segment = segments.find(end)
            data, offset = ahead.window(end, window_bytes)
            found = scan.scan(data, offset, begin=end, segment_end=segment.end_offset, epoch=epoch)
            feed(data, offset, found)
            epoch = max(epoch, found.epoch)
            synced_offset = max(synced_offset, found.synced_offset)
            progress(found.end - begin, to_walk)
            if found.stop is scan.Stop.END_OF_FILE:
                end = segment.end_offset
            elif found.stop is scan.Stop.WINDOW_END:
                window_bytes = (
                    max(window_bytes * 2, _WINDOW_BYTES) if found.end == end else _WINDOW_BYTES
                )
                end = found.end
            else:
                ending = Ending.EMPTY if found.stop is scan.Stop.EMPTY else Ending.DAMAGED
                return Walk(found.end, ending, found.reason, epoch, synced_offset)
    return Walk(end, Ending.EMPTY, "", epoch, synced_offset)
