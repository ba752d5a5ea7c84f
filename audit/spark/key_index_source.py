"""Spark data source `keyindex`: the entries of a store's index files as rows, to be held against
the log.

spark.read.format("keyindex").option("path", "/data/store").load()

file, entry                 which entry of which file
key_hash, log_offset        what it says: a record with such a key is there
is_linked                   is it where who looks up finds it: named by its slot, or by the next
                            entry of the same slot?
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from audit.files.local_files import OpenFile
from audit.log.key_index import IndexFile, entries, index_files
from audit.log.log_files import files_of

NAME = "keyindex"
SCHEMA = "file string, entry bigint, key_hash bigint, log_offset bigint, is_linked boolean"


class KeyIndexSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return KeyIndexReader(self.options["path"], schema)


@dataclass
class IndexFilePartition(InputPartition):
    file: IndexFile


class KeyIndexReader(DataSourceReader):
    def __init__(self, uri: str, schema: StructType) -> None:
        self._uri = uri
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [IndexFilePartition(file) for file in index_files(self._uri) if file.slots]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IndexFilePartition):
            return  # of a store without an index
        files, _ = files_of(self._uri)
        with closing(files.open(partition.file.path)) as opened:
            yield from rows(partition.file, opened, to_arrow_schema(self._schema, timezone="UTC"))


def rows(file: IndexFile, opened: OpenFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of one file, with the columns of the schema."""
    for block in entries(file, opened):
        count = len(block["entry"])
        values = {
            "file": pa.array([file.name]).take(pa.array(np.zeros(count, np.int64))),
            **{name: pa.array(column) for name, column in block.items()},
        }
        yield pa.RecordBatch.from_arrays(
            [values[field.name].cast(field.type) for field in schema], schema=schema
        )
