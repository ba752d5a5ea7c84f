"""Spark data source `consumequeue`: the entries of a store's consume queues as rows, to be held
against the log.

    spark.read.format("consumequeue").option("path", "/data/store").load()

    topic, queue_id, queue_offset    which entry
    log_offset, record_bytes         where it says that the record lies
    tag_hash                         Java's hash of the tag; in a delay topic of a broker the time
                                     of delivery

Entries that were not written yet, and the fillers in front of a queue that begins later than at 0,
are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from audit.filesystems import filesystem_of
from storage.formats import names, queue_entry

NAME = "consumequeue"
SCHEMA = (
    "topic string, queue_id int, queue_offset bigint, log_offset bigint, record_bytes int, "
    "tag_hash bigint"
)

_FOLDER = "consumequeue"
# formats/queue_entry.py
_ENTRY = np.dtype([("log_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])
_FILLER_BYTES = queue_entry.decode(queue_entry.FILLER).record_bytes
_TASK_BYTES = 64 << 20
assert _ENTRY.itemsize == queue_entry.ENTRY_BYTES


class QueueFile(NamedTuple):
    path: str
    topic: str
    queue_id: int
    first_entry: int
    size: int


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
        filesystem, _ = filesystem_of(self._uri)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for file in partition.files:
            with filesystem.open_input_file(file.path) as opened:
                yield entries(file, opened.read(), schema)


def queue_files(uri: str) -> list[QueueFile]:
    filesystem, path = filesystem_of(uri)
    folder = f"{path.rstrip('/')}/{_FOLDER}"
    found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    files = []
    for info in sorted(found, key=lambda info: info.path):
        base = names.base_offset(info.base_name)
        if info.type is fs.FileType.File and base is not None and info.size:
            topic, queue_id = info.path.split("/")[-3:-1]
            files.append(
                QueueFile(
                    info.path, topic, int(queue_id), base // queue_entry.ENTRY_BYTES, info.size
                )
            )
    return files


def entries(file: QueueFile, raw: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The entries of one file, with the columns of the schema."""
    found = np.frombuffer(raw, _ENTRY, len(raw) // queue_entry.ENTRY_BYTES)
    written = np.flatnonzero((found["record_bytes"] > 0) & (found["record_bytes"] != _FILLER_BYTES))
    values = {
        "topic": pa.array([file.topic]).take(pa.array(np.zeros(len(written), np.int64))),
        "queue_id": pa.array(np.full(len(written), file.queue_id)),
        "queue_offset": pa.array(written + file.first_entry),
        **{name: pa.array(found[name][written].astype(np.int64)) for name in _ENTRY.names or ()},
    }
    return pa.RecordBatch.from_arrays(
        [values[field.name].cast(field.type) for field in schema], schema=schema
    )
