"""Several folders read as one log: an archive and the store whose retention has dropped what the
archive has.

The newest folder, whose log goes on furthest, says how far the log is on disk; what lies beside a
log (consume queues, the key index) is looked for there. Segments are merged by the log offset at
which they begin. Where several folders have the same one it is read once, in the newest folder if
that has it. The copies must be of one length and begin with the same record, else it is refused:
they are of different logs. No more of them is compared: that would read each copy a second time,
and what is not read changes no verdict.

A stretch that is missing inside of one folder is a finding. One between two folders is what
retention dropped before it was archived. Then the log begins behind it: what a transaction that was
begun before became of is not known.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from audit.log.log_files import Dropped, Folder, LogReader, Segment
from storage.formats import record as records


class DifferentLogs(Exception):
    """The folders are not of one log."""


def unite(folders: Sequence[Folder]) -> Folder:
    """Several folders as one. Raises DifferentLogs."""
    newest = max(folders, key=_reach)
    found: dict[int, Segment] = {}
    for segment in _newest_first(folders, newest):
        known = found.setdefault(segment.base_offset, segment)
        if known is not segment:
            _compare(known, segment)
    segments = sorted(found.values(), key=lambda segment: segment.base_offset)
    for one, other in pairwise(segments):
        if one.end_offset > other.base_offset:
            raise DifferentLogs(
                f"{one.path} ends at {one.end_offset:,}, within {other.path}: they are of "
                "different logs"
            )
    return _behind_the_last_gap(newest._replace(segments=tuple(segments)), folders)


def _reach(folder: Folder) -> tuple[int, int]:
    """The last segment of a folder, and the offset up to which it is known to be written: a broker
    states a time, an archive nothing.
    """
    synced = folder.broker_synced_ms if folder.slot is None else folder.slot.synced_offset
    return folder.segments[-1].base_offset, -1 if synced is None else synced


def _newest_first(folders: Iterable[Folder], newest: Folder) -> Iterable[Segment]:
    yield from newest.segments
    others = [segment for folder in folders if folder is not newest for segment in folder.segments]
    yield from sorted(others, key=lambda segment: segment.is_compacted)  # rather bytes than rows


def _compare(one: Segment, other: Segment) -> None:
    if one.size != other.size:
        raise DifferentLogs(
            f"{one.path} has {one.size:,} bytes, {other.path} {other.size:,}: they are of "
            "different logs"
        )
    if one.is_compacted or other.is_compacted:
        return
    begins = [_first_bytes(each) for each in (one, other)]
    if all(any(begin) for begin in begins) and begins[0] != begins[1]:  # or unwritten
        raise DifferentLogs(
            f"{one.path} and {other.path} begin with different records: they are of different logs"
        )


def _first_bytes(segment: Segment) -> bytes:
    """The first bytes of the segment's first record: lengths, checksum, place and times. Two logs
    never have the same ones.
    """
    reader = LogReader()
    try:
        return reader.read(segment, segment.base_offset, records.FIXED_BYTES)
    finally:
        reader.close()


def _behind_the_last_gap(merged: Folder, folders: Iterable[Folder]) -> Folder:
    """The segments after the last range that no folder has, unless it is inside a segment."""
    for number in range(len(merged.segments) - 1, 0, -1):
        before, behind = merged.segments[number - 1 : number + 1]
        is_gap = before.end_offset < behind.base_offset
        if is_gap and not any(
            one.first_offset < before.end_offset and behind.base_offset < one.end_offset
            for one in folders
        ):
            unread = sum(segment.size for segment in merged.segments[:number])
            dropped = Dropped(before.end_offset, behind.base_offset, unread)
            return merged._replace(segments=merged.segments[number:], dropped=dropped)
    return merged
