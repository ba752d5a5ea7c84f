"""Single records of a log, without Arrow."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from audit.decode import plain_rows
from audit.log.log_files import LogReader
from audit.log.log_range import Log
from storage.formats import record as records


def rows_at(log: Log, offsets: Iterable[int], wanted: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The records at these log offsets, where records were found before, in log order."""
    reader = LogReader()
    found = {}
    try:
        for offset in sorted(set(offsets)):
            segment = next(
                one for one in log.folder.segments if one.base_offset <= offset < one.end_offset
            )
            read = partial(reader.read, segment)
            total, _ = records.start(read(offset, records.END_OF_FILE_BYTES))
            row = plain_rows.row_at(read(offset, total), offset, wanted)
            if row is not None:
                found[offset] = row
    finally:
        reader.close()
    return found
