"""Spark data source `consumequeue`: the entries of a store's consume queues as rows, to be held
against the log.

    spark.read.format("consumequeue").option("path", "/data/store").load()

    topic, queue_id, queue_offset    which entry
    log_offset, record_bytes         where it says that the record lies
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
        """Files bundled, so that a store of thousands of short queues is not as many tasks."""
        bundles: list[QueueFiles] = []
        room = 0
        for file in queue_files(self._uri):
            if file.size > room:
                bundles.append(QueueFiles([]))
                room = max(_TASK_BYTES, file.size)
            bundles[-1].files.append(file)
            room -= file.size
        return list(bundles)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueueFiles):
            return  # of a store without queues
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for file in partition.files:
            yield _rows(file, entries(self._uri, file), schema)


def _rows(file: QueueFile, found: Mapping[str, Ints], schema: pa.Schema) -> pa.RecordBatch:
    """The entries of one file, with the columns of the schema."""
    count = len(found["queue_offset"])
    values = {
        "topic": pa.array([file.topic]).take(pa.array(np.zeros(count, np.int64))),
        "queue_id": pa.array(np.full(count, file.queue_id)),
        **{name: pa.array(column) for name, column in found.items()},
    }
    return pa.RecordBatch.from_arrays(
        [values[field.name].cast(field.type) for field in schema], schema=schema
    )
