"""Sealed segments made rows once and for all, by a Spark job: a task for each segment
(`compacted.py` says what is where).

A task writes its file as `.part`, gives it its name, and writes the manifest last, each step on
disk before the next (`whole_files.py`): what is cut off leaves nothing that counts, and the next
run makes what is missing.
"""

from functools import partial
from hashlib import sha256
from typing import Any

from crc32c import crc32c
from pyarrow import fs
from pyspark.sql import SparkSession

from audit import arrow_columns, columns
from audit.files import parquet_file, whole_files
from audit.files.filesystems import filesystem_of
from audit.files.uris import absolute, without_secrets
from audit.jobs.archive import sealed_segments
from audit.log import brokers, log_rows, manifest_files
from audit.log.digest import BLOCK_BYTES
from audit.log.log_files import COMPACTED_ENDING, LogReader, Segment, is_of_a_store
from audit.log.log_range import Log, Part, Span
from storage.formats import names
from storage.formats import record as records

_BODIES = ("body",)


class NotCompacted(Exception):
    """A segment cannot be made rows there."""


def compact(
    spark: SparkSession, log: Log, target: str, *, with_bodies: bool = False
) -> list[dict[str, Any]]:
    """Make the rows of each sealed segment that are not there yet; the manifests of those that were
    made, in log order.

    Raises NotCompacted. What was made before stays.
    """
    target = absolute(target)
    if is_of_a_store(target):
        raise NotCompacted(
            f"{without_secrets(target)} belongs to a store: give rows another folder"
        )
    filesystem, folder = filesystem_of(target)
    whole_files.make_folder(filesystem, folder)
    missing = [
        segment
        for segment in sealed_segments(log)
        if not is_there(segment, target, with_bodies=with_bodies)
    ]
    if not missing:
        return []
    tasks = spark.sparkContext.parallelize(missing, len(missing))
    made: list[dict[str, Any]] = tasks.map(
        partial(write, target=target, with_bodies=with_bodies)
    ).collect()
    for segment in missing:  # an executor whose disk is not shared has made nothing
        if not is_there(segment, target, with_bodies=with_bodies):
            raise NotCompacted(
                f"{target} does not have what was written there: all workers must share it"
            )
    return made


def is_there(segment: Segment, target: str, *, with_bodies: bool) -> bool:
    """Whole, and with these columns? Raises NotCompacted where another log's rows are there."""
    filesystem, path = _place(segment, target)
    manifest = manifest_files.read(filesystem, path, size_in="file_bytes")
    if manifest is None:
        return False
    if manifest["bytes"] != segment.size:
        text = (
            f"{path} is made of {manifest['bytes']:,} bytes, the segment has {segment.size:,}: "
            "it is of another log"
        )
        raise NotCompacted(text)
    return set(columns_of(with_bodies=with_bodies)) <= set(manifest["columns"])


def columns_of(*, with_bodies: bool) -> list[str]:
    return [name for name in columns.COLUMNS if with_bodies or name not in _BODIES]


def write(segment: Segment, target: str, *, with_bodies: bool) -> dict[str, Any]:
    """Make the rows of one segment, in a folder that is there; their manifest.

    Raises NotCompacted where its bytes are not those that its own manifest vouches for.
    """
    filesystem, path = _place(segment, target)
    of_bytes = _about(segment)
    schema = arrow_columns.schema(columns_of(with_bodies=with_bodies))
    span = Span(segment.base_offset, segment.end_offset, segment.end_offset)
    found = log_rows.rows(span, Part(segment.base_offset, segment.end_offset, segment), schema)
    count = parquet_file.write_part(filesystem, path, found, schema)
    whole_files.name(filesystem, path)
    manifest = {
        "segment": names.file_name(segment.base_offset),
        "begin": segment.base_offset,
        "bytes": segment.size,
        **of_bytes,
        "rows": count,
        "file_bytes": filesystem.get_file_info(path).size,
        "columns": schema.names,
    }
    manifest_files.write(filesystem, path, manifest)
    return manifest


def _place(segment: Segment, target: str) -> tuple[fs.FileSystem, str]:
    filesystem, folder = filesystem_of(target)
    return (
        filesystem,
        f"{folder.rstrip('/')}/{names.file_name(segment.base_offset)}{COMPACTED_ENDING}",
    )


def _about(segment: Segment) -> dict[str, Any]:
    """Checksum and digests of a segment, for the manifest of its rows."""
    reader = LogReader()
    checksum, digests = 0, []
    try:
        begin = reader.read(segment, segment.base_offset, records.FIXED_BYTES)
        for at in range(segment.base_offset, segment.end_offset, BLOCK_BYTES):
            block = reader.read(segment, at, min(BLOCK_BYTES, segment.end_offset - at))
            checksum = crc32c(block, checksum)
            digests.append(sha256(block).hexdigest())
    finally:
        reader.close()
    filesystem, _ = filesystem_of(segment.uri)
    known = manifest_files.read(filesystem, segment.path, size_in="bytes")
    if known is not None and known["crc32c"] != f"{checksum:08x}":
        raise NotCompacted(
            f"{segment.path}: its crc32c is {checksum:08x}, its manifest says {known['crc32c']}"
        )
    return {
        "crc32c": f"{checksum:08x}",
        "digests": digests,
        "is_brokers": any(begin) and not brokers.is_ours(begin),
    }
