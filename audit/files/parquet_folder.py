"""Spark data source `parquetfolder`: a table as Parquet files in a folder, wherever pyarrow
reaches.

    FOLDER/part-00000-1f0c....parquet    one of each task that has rows, or an empty one where there
                                         is none
    FOLDER/_SUCCESS                      written last: all of them are there

Spark's own Parquet goes through Hadoop's file systems. They know S3 by a jar of half a gigabyte,
under another scheme, with an endpoint and credentials of their own. This one goes where the log
comes from, by the same URI.

A task writes its file as `.part`; the driver names those of the tasks that count, when all have
ended.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from audit.files import parquet_file, whole_files
from audit.files.filesystems import filesystem_of
from audit.files.parquet_file import ENDING
from audit.files.uris import absolute

NAME = "parquetfolder"
SUCCESS = "_SUCCESS"  # readers of Parquet pass over names that begin so

_BATCH_ROWS = 1 << 14


class NotShared(Exception):
    """The rows of a task are missing: its machine has another folder of that name."""


def write(frame: DataFrame, uri: str) -> None:
    """Write the rows of the frame, in place of the content of the folder. Raises NotShared, by way
    of Spark.
    """
    uri = absolute(uri)
    filesystem, path = filesystem_of(uri)
    if filesystem.get_file_info(path).type is fs.FileType.Directory:
        filesystem.delete_dir(path)
    whole_files.make_folder(filesystem, path)
    frame.write.format(NAME).option("path", uri).mode("append").save()


def read(spark: SparkSession, uri: str, columns: Sequence[str] | None = None) -> DataFrame:
    """The rows in the folder, or these columns of them, which is all that is read then."""
    schema = _schema(uri)
    if columns is not None:
        schema = StructType([schema[name] for name in columns])
    return spark.read.format(NAME).option("path", uri).schema(schema).load()


class ParquetFolderSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _schema(self.options["path"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return ParquetFolderReader(self.options["path"], schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return ParquetFolderWriter(self.options["path"], schema)


# --------------------------------------------------------------------------------------------------
# reading


@dataclass
class ParquetFilePartition(InputPartition):
    path: str


class ParquetFolderReader(DataSourceReader):
    def __init__(self, uri: str, schema: StructType) -> None:
        self._uri = uri
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        filesystem, path = filesystem_of(self._uri)
        return [ParquetFilePartition(file) for file in _files(filesystem, path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ParquetFilePartition)
        filesystem, _ = filesystem_of(self._uri)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with filesystem.open_input_file(partition.path) as opened:
            for batch in pq.ParquetFile(opened).iter_batches(_BATCH_ROWS, columns=schema.names):
                yield pa.RecordBatch.from_arrays(
                    [batch.column(field.name).cast(field.type) for field in schema], schema=schema
                )


def _schema(uri: str) -> StructType:
    filesystem, path = filesystem_of(uri)
    with filesystem.open_input_file(_files(filesystem, path)[0]) as opened:
        found: StructType = from_arrow_schema(pq.read_schema(opened))
    return found


def _files(filesystem: fs.FileSystem, path: str) -> list[str]:
    """The files of the folder. Raises FileNotFoundError if there is none."""
    found = [
        info.path
        for info in filesystem.get_file_info(fs.FileSelector(path))
        if info.base_name.endswith(ENDING)
    ]
    if not found:
        raise FileNotFoundError(f"{path} has no Parquet files")
    return sorted(found)


# --------------------------------------------------------------------------------------------------
# writing


@dataclass
class Written(WriterCommitMessage):
    """The file of a task; None of one without rows."""

    path: str | None


class ParquetFolderWriter(DataSourceArrowWriter):
    def __init__(self, uri: str, schema: StructType) -> None:
        self._uri = uri
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(None)
        context = TaskContext.get()
        assert context is not None
        filesystem, folder = filesystem_of(self._uri)
        # where it is not there, the driver's is another: `commit` says so
        whole_files.make_folder(filesystem, folder)
        path = f"{folder}/part-{context.partitionId():05}-{uuid.uuid4().hex}{ENDING}"
        parquet_file.write_part(filesystem, path, _and_then(first, batches), first.schema)
        return Written(path)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        filesystem, folder = filesystem_of(self._uri)
        written = [
            one.path for one in messages if isinstance(one, Written) and one.path is not None
        ]
        if not written:
            written = [f"{folder}/part-00000-{uuid.uuid4().hex}{ENDING}"]
            parquet_file.write_part(
                filesystem, written[0], [], to_arrow_schema(self._schema, timezone="UTC")
            )
        for path in written:
            if filesystem.get_file_info(whole_files.part_of(path)).type is not fs.FileType.File:
                raise NotShared(
                    f"{path} is not there, where the driver looks for what a worker has written: "
                    "all must share it"
                )
            whole_files.name(filesystem, path)
        _drop_parts(filesystem, folder)
        whole_files.write(filesystem, f"{folder}/{SUCCESS}", b"")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _drop_parts(*filesystem_of(self._uri))


def _drop_parts(filesystem: fs.FileSystem, folder: str) -> None:
    """Delete files of tasks that were abandoned and repeated."""
    for info in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if info.type is fs.FileType.File and whole_files.is_part(info.base_name):
            filesystem.delete_file(info.path)


def _and_then(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others
