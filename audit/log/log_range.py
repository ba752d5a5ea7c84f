"""The range of a log to read, and its parts."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from audit.decode.walk import WINDOW_BYTES, Piece, Read, What, first_anchor, walk, whole_unit
from audit.log.log_files import Folder, LogReader, Segment, find_folder
from audit.log.merged_log import unite
from storage.formats import record as records
from storage.formats import scan, unit

SPLIT_BYTES = 64 << 20


class Span(NamedTuple):
    """The range of a log that is read, for each task: a `Log` without its segments."""

    begin: int
    end: int
    limit: int


class Log(NamedTuple):
    """A log, or a stretch of one. Plain values.

    `begin` and `end` are borders of units. `limit` is the end of the whole log, `torn_bytes` the
    bytes behind it, written by appends that were never answered.
    """

    folder: Folder
    begin: int
    end: int
    limit: int
    torn_bytes: int = 0

    @property
    def uri(self) -> str:
        return self.folder.uri

    @property
    def span(self) -> Span:
        return Span(self.begin, self.end, self.limit)


class Part(NamedTuple):
    """Input of one task: the records that begin in [begin, end). No segment: no file has them."""

    begin: int
    end: int
    segment: Segment | None


def find_log(
    where: str | Sequence[str], *, begin: int | None = None, end: int | None = None
) -> Log:
    """The log in a folder, or in several that are merged; or so much of it as is asked for.

    Raises LogNotFound, DifferentLogs.
    """
    folder = (
        find_folder(where) if isinstance(where, str) else unite([find_folder(uri) for uri in where])
    )
    if folder.slot is not None and not folder.is_abandoned:
        limit = max(folder.slot.synced_offset, folder.first_offset)
        log = Log(folder, folder.first_offset, limit, limit)
    else:
        log = _walk_to_the_end(folder)
    if begin is not None:
        log = log._replace(begin=border_at(log, begin))
    if end is not None:
        log = log._replace(end=max(log.begin, border_at(log, end)))
    return log


def border_at(log: Log, offset: int) -> int:
    """The border of a place: the first one at or after it."""
    for segment in log.folder.segments:
        limit = min(segment.end_offset, log.limit)
        if offset <= segment.base_offset:
            return min(segment.base_offset, log.limit)
        if offset < limit and segment.is_compacted:
            from audit.log import compacted

            return compacted.first_from(segment, offset)
        if offset < limit:
            reader = LogReader()
            try:
                return first_anchor(
                    partial(reader.read, segment), offset, limit, segment.end_offset
                )
            finally:
                reader.close()
    return log.limit


def parts(log: Log, *, split_bytes: int = SPLIT_BYTES) -> list[Part]:
    """The whole log in parts, in order; each within one segment."""
    found: list[Part] = []
    at = log.begin
    for segment in log.folder.segments:
        if at < min(segment.base_offset, log.end):
            found.append(Part(at, min(segment.base_offset, log.end), None))
            at = found[-1].end
        end = min(segment.end_offset, log.end)
        while at < end:
            border = min(end, at - (at - segment.base_offset) % split_bytes + split_bytes)
            found.append(Part(at, border, segment))
            at = border
    if at < log.end:
        found.append(Part(at, log.end, None))
    return found


def pieces(log: Log | Span, part: Part, reader: LogReader) -> Iterator[Piece]:
    """The pieces of the log in this part."""
    segment = part.segment
    if segment is None:
        yield Piece(What.MISSING, part.begin, part.end - part.begin, "the bytes are in no file")
        return
    yield from walk(
        partial(reader.read, segment),
        begin=part.begin,
        end=part.end,
        limit=min(segment.end_offset, log.limit),
        segment_end=segment.end_offset,
        begins_at_border=part.begin in (segment.base_offset, log.begin),
        ends_at_border=part.end in (segment.end_offset, log.end),
    )


# -------------------------------------------------------------------------------------- the end of


def _walk_to_the_end(folder: Folder) -> Log:
    """The end of the log, as recovery finds it: whole units, until bytes follow that are not one
    and were not known to be on disk. Sealed segments are known to be on disk.
    """
    if folder.segments[-1].is_sealed:
        return Log(folder, folder.first_offset, folder.end_offset, folder.end_offset)
    reader = LogReader()
    try:
        begin = folder.first_offset
        if folder.slot is not None:
            begin = max(begin, folder.slot.synced_offset)
        else:
            begin = max(
                [
                    segment.base_offset
                    for segment in folder.segments
                    if _is_written(reader, segment)
                ],
                default=begin,
            )
        end = _last_whole(folder, reader, begin)
        return Log(folder, folder.first_offset, end, end, _torn_bytes(folder, reader, end))
    finally:
        reader.close()


def _is_written(reader: LogReader, segment: Segment) -> bool:
    return segment.is_sealed or any(
        reader.read(segment, segment.base_offset, records.END_OF_FILE_BYTES)
    )


def _last_whole(folder: Folder, reader: LogReader, begin: int) -> int:
    at = begin
    for segment in folder.segments:
        if segment.is_sealed and segment.base_offset <= at:
            at = max(at, segment.end_offset)
            continue
        read = partial(reader.read, segment)
        while segment.base_offset <= at < segment.end_offset:
            halt = _first_halt(read, segment, at)
            if halt == segment.end_offset or not _is_known_synced(folder, read, segment, halt):
                at = halt
                break
            at = first_anchor(read, halt + 1, segment.end_offset, segment.end_offset)
        if at < segment.end_offset:
            return at
    return at


def _first_halt(read: Read, segment: Segment, begin: int) -> int:
    """The first place after a border at which there is no whole unit; the segment's end if there is
    none.
    """
    end = segment.end_offset
    found = walk(read, begin=begin, end=end, limit=end, segment_end=end, begins_at_border=True)
    return next(
        (piece.offset for piece in found if piece.what is What.DAMAGE or not piece.is_verified), end
    )


def _is_known_synced(folder: Folder, read: Read, segment: Segment, halt: int) -> bool:
    """Whether a later unit proves that the place had been on disk. Then the damage is inside the
    log.
    """
    at = first_anchor(read, halt + 1, segment.end_offset, segment.end_offset)
    while at < segment.end_offset:
        found = whole_unit(read, at, segment.end_offset, segment.end_offset)
        assert found is not None
        if found.item is not None:
            if found.item.synced_offset > halt:
                return True
        elif folder.slot is None and _is_synced_by_broker(folder, read, at, found):
            return True
        at = first_anchor(read, at + found.end, segment.end_offset, segment.end_offset)
    return False


def _is_synced_by_broker(folder: Folder, read: Read, at: int, found: scan.Unit) -> bool:
    if folder.broker_synced_ms is None:
        return True
    return records.decode(read(at, found.end)).stored_at_ms <= folder.broker_synced_ms


def _torn_bytes(folder: Folder, reader: LogReader, end: int) -> int:
    """Number of bytes from the end to the last byte after it that is not zero."""
    last = end
    for segment in folder.segments:
        for at in range(max(end, segment.base_offset), segment.end_offset, WINDOW_BYTES):
            window = reader.read(segment, at - at % unit.ALIGNMENT, WINDOW_BYTES)
            written = np.flatnonzero(np.frombuffer(window, np.uint8))
            if len(written):
                last = max(last, at - at % unit.ALIGNMENT + int(written[-1]) + 1)
    return last - end
