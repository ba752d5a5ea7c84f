"""Spark data source `consumequeue`: the entries of a store's consume queues as rows, to be held
against the log.

    spark.read.format("consumequeue").option("path", "/data/store").load()

    topic, queue_id, queue_offset    which entry
    log_offset, record_bytes         where it says that the record is
    tag_hash                         Java's hash of the tag; in a delay topic of a broker the time
                                     of delivery
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from audit.log.consume_queues import QueueFile, entries, queue_files
from storage.formats.scan import Ints

NAME = "consumequeue"
SCHEMA = (
    "topic string, queue_id int, queue_offset bigint, log_offset bigint, record_bytes int, "
    "tag_hash bigint"
)

_TASK_BYTES = 64 << 20
_OPENING_BYTES = 16 << 10  # opening a file takes as long as reading so much
_BATCH_ROWS = 1 << 14


class ConsumeQueueSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ConsumeQueueReader(self.options["path"], schema)


@dataclass
class QueueFiles(InputPartition):
    files: list[QueueFile]


class ConsumeQueueReader(DataSourceReader):
    def __init__(self, uri: str, schema: StructType) -> None:
        self._uri = uri
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Files bundled by what is to be read of them, so that a store of thousands of short queues
        is not as many tasks.

        A file of a queue with few messages is large, and a hole but for one block.
        """
        bundles: list[QueueFiles] = []
        room = 0
        for file in queue_files(self._uri):
            cost = max(file.stored_bytes, _OPENING_BYTES)
            if cost > room:
                bundles.append(QueueFiles([]))
                room = max(_TASK_BYTES, cost)
            bundles[-1].files.append(file)
            room -= cost
        return list(bundles)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueueFiles):
            return  # of a store without queues
        schema = to_arrow_schema(self._schema, timezone="UTC")
        read: list[tuple[QueueFile, Mapping[str, Ints]]] = []
        rows = 0
        for file in partition.files:
            found = entries(self._uri, file)
            read.append((file, found))
            rows += len(found["queue_offset"])
            if rows >= _BATCH_ROWS:
                yield _rows(read, schema)
                read, rows = [], 0
        if rows:
            yield _rows(read, schema)


def _rows(
    read: Sequence[tuple[QueueFile, Mapping[str, Ints]]], schema: pa.Schema
) -> pa.RecordBatch:
    """The entries of some files, with the columns of the schema."""
    files, found = zip(*read, strict=True)
    file_of = np.repeat(np.arange(len(read)), [len(columns["queue_offset"]) for columns in found])
    values = {
        "topic": pa.array([file.topic for file in files]).take(pa.array(file_of)),
        "queue_id": pa.array(np.array([file.queue_id for file in files])[file_of]),
        **{name: pa.array(np.concatenate([of[name] for of in found])) for name in found[0]},
    }
    return pa.RecordBatch.from_arrays(
        [values[field.name].cast(field.type) for field in schema], schema=schema
    )
