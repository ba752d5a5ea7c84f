"""Single records of a log, and what its beginning shows, by Arrow without Spark."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from audit import arrow_columns, columns
from audit.decode import batches
from audit.log import compacted, log_range, log_rows
from audit.log.log_files import LogReader, Segment
from audit.log.log_range import Log
from storage.formats import record as records

_BEGINNING_BYTES = 64 << 20
_STEP_BYTES = 8 << 20


def rows_at(log: Log, offsets: Iterable[int], wanted: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The records at these log offsets, where records were found before, with these columns."""
    reader = LogReader()
    found = {}
    in_rows: dict[Segment, list[int]] = {}
    try:
        for offset in sorted(set(offsets)):
            segment = next(
                one for one in log.folder.segments if one.base_offset <= offset < one.end_offset
            )
            if segment.is_compacted:
                in_rows.setdefault(segment, []).append(offset)
                continue
            read = partial(reader.read, segment)
            total, _ = records.start(read(offset, records.END_OF_FILE_BYTES))
            row = batches.row_at(read(offset, total), offset, wanted)
            if row is not None:
                found[offset] = row
    finally:
        reader.close()
    for segment, of_segment in in_rows.items():
        found |= compacted.rows_at(segment, of_segment, wanted)
    return found


def first_half_number(log: Log) -> tuple[int | None, bool]:
    """(the number of the first half that the log has, is that known?); so far as the log's
    beginning shows it.

    Numbers rise along the log: no half behind it has a smaller one.
    """
    wanted = arrow_columns.schema(("kind", "queue_offset"))
    for part in log_range.parts(log, split_bytes=_STEP_BYTES):
        if part.begin - log.begin >= _BEGINNING_BYTES:
            return None, False
        for batch in log_rows.rows(log, part, wanted):
            kinds, numbers = (column.to_pylist() for column in batch.columns)
            if columns.HALF in kinds:
                return numbers[kinds.index(columns.HALF)], True
    return None, True
