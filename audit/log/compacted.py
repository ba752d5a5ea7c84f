"""Segments as rows: what the reader makes of a sealed segment (`columns.py`), kept as Parquet
(`compact.py` writes it).

    FOLDER/00000000000000000000.parquet        one row for each record and stretch, in log order;
                                               bodies only if asked
    FOLDER/00000000000000000000.parquet.json   its manifest, written last: what it is made of, and
                                               that it is whole

The manifest has of the segment its length, crc32c and the digests of its blocks (`digest.py`), of
the file its length and columns. An audit reads rows where it would read bytes, with the same
findings. Checksums were checked when the rows were made: damage is rows of its own, and cannot be
checked again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit import arrow_columns
from audit.decode.batches import BATCH_RECORDS
from audit.files.filesystems import filesystem_of
from audit.log import manifest_files
from audit.log.log_files import Segment


class NotInRows(Exception):
    """The compacted rows lack a requested column."""


def rows(segment: Segment, begin: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows that begin in [begin, end), with the columns of the schema. Raises NotInRows if a column
    is missing.
    """
    for batch in _read(segment, begin, end, schema):
        offsets = batch.column("log_offset")
        found = batch.filter(pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end)))
        if found.num_rows:
            yield _as(found, schema)


def rows_at(
    segment: Segment, offsets: Iterable[int], wanted: Iterable[str]
) -> dict[int, dict[str, Any]]:
    """The records at these log offsets, with these columns."""
    asked = sorted(offsets)
    names = list(wanted)
    found: dict[int, dict[str, Any]] = {}
    if asked:
        schema = arrow_columns.schema(dict.fromkeys((*names, "log_offset")))
        for batch in _read(segment, asked[0], asked[-1] + 1, schema):
            of_these = batch.filter(
                pc.is_in(batch.column("log_offset"), pa.array(asked, pa.int64()))
            )
            found |= {
                row["log_offset"]: {name: row[name] for name in names}
                for row in of_these.to_pylist()
            }
    return found


def first_from(segment: Segment, offset: int) -> int:
    """Log offset of the first row at or after `offset`; the segment's end if there is none."""
    found = rows(segment, offset, segment.end_offset, arrow_columns.schema(("log_offset",)))
    return min(
        (pc.min(batch.column("log_offset")).as_py() for batch in found), default=segment.end_offset
    )


def manifest_of(segment: Segment) -> dict[str, Any]:
    """Raises NotInRows where it is gone."""
    filesystem, _ = filesystem_of(segment.uri)
    manifest = manifest_files.read(filesystem, segment.path, size_in="file_bytes")
    if manifest is None:
        raise NotInRows(f"{segment.path} has no manifest any more")
    return manifest


def _read(segment: Segment, begin: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that begin in [begin, end), at least, with their log offsets."""
    filesystem, _ = filesystem_of(segment.uri)
    with filesystem.open_input_file(segment.path) as opened:
        file = pq.ParquetFile(opened)
        missing = set(schema.names) - set(file.schema_arrow.names)
        if missing:
            raise NotInRows(
                f"{segment.path} was made without {', '.join(sorted(missing))}: compact it again"
            )
        groups = [
            group for group in range(file.num_row_groups) if _overlaps(file, group, begin, end)
        ]
        wanted = list(dict.fromkeys((*schema.names, "log_offset")))
        yield from file.iter_batches(BATCH_RECORDS, row_groups=groups, columns=wanted)


def _overlaps(file: pq.ParquetFile, group: int, begin: int, end: int) -> bool:
    offsets = (
        file.metadata.row_group(group)
        .column(file.schema_arrow.names.index("log_offset"))
        .statistics
    )
    return offsets is None or (offsets.min < end and offsets.max >= begin)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        return batch.select([])  # just their number
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in schema], schema=schema
    )
