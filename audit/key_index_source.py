"""Spark data source `keyindex`: the entries of a store's index files as rows, to be held against
the log.

spark.read.format("keyindex").option("path", "/data/store").load()

file, entry                 which entry of which file
key_hash, log_offset        what it says: a record with such a key lies there
is_linked                   is it where who looks up finds it: named by its slot, or by the next
                            entry of the same slot?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from audit.filesystems import filesystem_of
from storage.formats import index_file
from storage.formats.index_file import ENTRY, HEADER_BYTES, SLOT, Header

NAME = "keyindex"
SCHEMA = "file string, entry bigint, key_hash bigint, log_offset bigint, is_linked boolean"

_FOLDER = "index"
_AT_ONCE = 1 << 16
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class IndexFile(NamedTuple):
    """`slots` is 0 where the file cannot be read: its header does not fit what it holds."""

    path: str
    header: Header
    slots: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


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
        filesystem, _ = filesystem_of(self._uri)
        with filesystem.open_input_file(partition.file.path) as opened:
            yield from entries(
                partition.file, opened, to_arrow_schema(self._schema, timezone="UTC")
            )


def index_files(uri: str) -> list[IndexFile]:
    """Those with entries, oldest first, and those that cannot be read."""
    filesystem, path = filesystem_of(uri)
    found = filesystem.get_file_info(
        fs.FileSelector(f"{path.rstrip('/')}/{_FOLDER}", allow_not_found=True)
    )
    files = []
    for info in sorted(found, key=lambda info: info.base_name):
        if (
            info.type is not fs.FileType.File
            or not index_file.is_file_name(info.base_name)
            or not info.size
        ):
            continue
        with filesystem.open_input_file(info.path) as opened:
            raw = opened.read_at(min(HEADER_BYTES, info.size), 0)
            if len(raw) < HEADER_BYTES:
                files.append(IndexFile(info.path, Header(0, 0, 0, 0, 0, 0), 0))
                continue
            header = index_file.decode_header_as_stated(raw)
            if header.next_entry not in (0, 1):  # of a file without an entry
                files.append(IndexFile(info.path, header, _slots(opened, info.size, header) or 0))
    return files


def entries(file: IndexFile, opened: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of one file, with the columns of the schema."""
    is_linked = linked(file, opened)
    for first, found in _blocks(file, opened):
        values = {
            "file": pa.array([file.name]).take(pa.array(np.zeros(len(found), np.int64))),
            "entry": pa.array(np.arange(first, first + len(found))),
            "key_hash": pa.array(found["key_hash"].astype(np.int64)),
            "log_offset": pa.array(found["log_offset"].astype(np.int64)),
            "is_linked": pa.array(is_linked[first : first + len(found)]),
        }
        yield pa.RecordBatch.from_arrays(
            [values[field.name].cast(field.type) for field in schema], schema=schema
        )


def linked(file: IndexFile, opened: pa.NativeFile) -> Flags:
    """Of each entry by its number: is it named by the next one of its slot, or by the slot
    itself?
    """
    found_linked = np.ones(file.header.next_entry, bool)
    chains = index_file.Chains(file.slots)
    for first, found in _blocks(file, opened):
        before = chains.add(found["key_hash"].astype(np.int64), first)
        found_linked[before[found["previous"] != before]] = False
    heads = np.frombuffer(opened.read_at(SLOT.itemsize * file.slots, index_file.slot_at(0)), SLOT)
    # A slot that names an entry behind the last one is of a service that goes on: its chain leads
    # back to these.
    found_linked[chains.newest[(heads != chains.newest) & (heads < file.header.next_entry)]] = False
    return found_linked


def _blocks(file: IndexFile, opened: pa.NativeFile) -> Iterator[tuple[int, Any]]:
    """(number of the first, entries), a block at a time."""
    for first in range(1, file.header.next_entry, _AT_ONCE):
        count = min(_AT_ONCE, file.header.next_entry - first)
        raw = opened.read_at(ENTRY.itemsize * count, index_file.entry_at(file.slots, first))
        yield first, np.frombuffer(raw, ENTRY)


def _slots(opened: pa.NativeFile, size: int, header: Header) -> int | None:
    """How many slots the file has; None where its header does not fit what it holds."""
    return index_file.slots_of(size, header, lambda at, length: opened.read_at(length, at))
