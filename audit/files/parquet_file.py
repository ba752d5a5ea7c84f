"""A Parquet file of Arrow batches, written on any file system that pyarrow knows."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from audit.files import whole_files

ENDING = ".parquet"
# so many are compressed together, and read together where one of them is wanted
_GROUP_ROWS = 1 << 16


def write_part(
    filesystem: fs.FileSystem, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> int:
    """Write what is to be the file at this path, `whole_files.name` names it; its number of
    rows.
    """
    count = 0
    with (
        filesystem.open_output_stream(whole_files.part_of(path)) as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for table in _groups(batches, schema):
            writer.write_table(table)
            count += table.num_rows
    whole_files.sync_part(filesystem, path)
    return count


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _GROUP_ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
