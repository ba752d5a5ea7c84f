"""A part of a log as Arrow batches. It needs no Spark."""

from collections.abc import Iterator

import pyarrow as pa

from audit import columns
from audit.decode import batches
from audit.decode.walk import What
from audit.log import compacted, log_range
from audit.log.log_files import LogReader
from audit.log.log_range import Log, Part, Span

_STRETCH_KINDS = {
    What.DAMAGE: columns.DAMAGED,
    What.FILLER: columns.FILLER,
    What.MISSING: columns.MISSING,
}


def rows(log: Log | Span, part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one part, with the columns of the schema, of which none means just their
    number.
    """
    base = part.segment.base_offset if part.segment is not None else part.begin
    if part.segment is not None and part.segment.is_compacted:
        yield from compacted.rows(part.segment, part.begin, part.end, schema)
        return
    reader = LogReader()
    try:
        for piece in log_range.pieces(log, part, reader):
            if piece.what is What.RECORDS:
                yield from batches.of_records(piece, base, schema)
            else:
                stretch = (_STRETCH_KINDS[piece.what], piece.offset, piece.length, piece.reason)
                yield from batches.of_stretches([stretch], base, schema)
    finally:
        reader.close()
