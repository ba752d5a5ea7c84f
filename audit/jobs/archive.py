"""Sealed segments copied to where they stay: a folder or an object store that pyarrow knows.

    TARGET/00000000000000000000         the segment, byte for byte
    TARGET/00000000000000000000.json    its manifest: where it begins, bytes, crc32c, records, first
                                        and last time

Of each segment in this order, each step on disk before the next (`whole_files.py`):

1. the copy, as `.part`, read back: its crc32c is that of the bytes that were written;
2. its name;
3. its manifest, in the same way. A manifest that exists vouches for a copy that outlives a
   power cut.

A segment counts as copied where its manifest parses and states the size that the copy has; else it
is copied again. The folder can be audited as it is.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyarrow import fs

from audit import arrow_columns, columns
from audit.files import whole_files
from audit.files.filesystems import filesystem_of
from audit.log import log_range, log_rows, manifest_files
from audit.log.log_files import LogReader, Segment
from audit.log.log_range import Log
from storage.formats import names

_BLOCK_BYTES = 16 << 20
_COUNTED = ("kind", "stored_ms")


class NotCopied(Exception):
    """The copy read back differs from what was written, or it is a segment of another log."""


def sealed_segments(log: Log) -> list[Segment]:
    """Segments that never change again: they have a manifest, or are on disk as a whole and
    followed by another segment.
    """
    segments = log.folder.segments
    followed = {one.base_offset for one in segments[:-1] if one.end_offset <= log.limit}
    return [
        one
        for one in segments
        if not one.is_compacted and (one.is_sealed or one.base_offset in followed)
    ]


def archive(
    log: Log, target: str, *, on_copied: Callable[[dict[str, Any]], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Copy each sealed segment that is not there yet; the manifests of those that were copied.

    Raises NotCopied, OSError. What was copied before stays.
    """
    filesystem, folder = filesystem_of(target)
    whole_files.make_folder(filesystem, folder)
    made = []
    for segment in sealed_segments(log):
        name = names.file_name(segment.base_offset)
        path = f"{folder}/{name}"
        if _is_copied(filesystem, path, segment):
            continue
        manifest = {
            "segment": name,
            "begin": segment.base_offset,
            "bytes": segment.size,
            **_about(log, segment),
        }
        manifest["crc32c"] = f"{_copy(segment, filesystem, path):08x}"
        manifest_files.write(filesystem, path, manifest)
        made.append(manifest)
        on_copied(manifest)
    return made


def _is_copied(filesystem: fs.FileSystem, path: str, segment: Segment) -> bool:
    manifest = manifest_files.read(filesystem, path, size_in="bytes")
    if manifest is not None and manifest["bytes"] != segment.size:
        raise NotCopied(
            f"{path} has {manifest['bytes']:,} bytes, the segment {segment.size:,}: it is of "
            "another log"
        )
    return manifest is not None


def _copy(segment: Segment, filesystem: fs.FileSystem, path: str) -> int:
    """The crc32c of all its bytes."""
    reader = LogReader()
    written = 0

    def blocks() -> Iterator[bytes]:
        nonlocal written
        for block in _blocks(
            partial(reader.read, segment), segment.base_offset, segment.end_offset
        ):
            written = crc32c(block, written)
            yield block

    try:
        part = whole_files.write_part(filesystem, path, blocks())
    finally:
        reader.close()
    read_back = 0
    with filesystem.open_input_file(part) as file:
        for block in _blocks(
            lambda offset, length: bytes(file.read_at(length, offset)), 0, segment.size
        ):
            read_back = crc32c(block, read_back)
    if read_back != written:
        raise NotCopied(
            f"{path}: crc32c is {read_back:08x} when read back, {written:08x} was written"
        )
    whole_files.name(filesystem, path)
    return written


def _blocks(read: Callable[[int, int], bytes], begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, _BLOCK_BYTES):
        length = min(_BLOCK_BYTES, end - at)
        block = read(at, length)
        if len(block) != length:
            raise NotCopied(f"{length} bytes are to be read at {at}, {len(block)} are there")
        yield block


def _about(log: Log, segment: Segment) -> dict[str, Any]:
    """Record count and storage times of a segment, in wall-clock milliseconds."""
    schema = arrow_columns.schema(_COUNTED)
    count, times = 0, []
    for part in log_range.parts(log._replace(begin=segment.base_offset, end=segment.end_offset)):
        for batch in log_rows.rows(log, part, schema):
            of_records = pc.is_in(batch.column("kind"), pa.array(columns.KINDS))
            found = batch.column("stored_ms").filter(of_records)
            count += len(found)
            if len(found):
                times += [pc.min(found).as_py(), pc.max(found).as_py()]
    return {
        "records": count,
        **({"first_stored_ms": min(times), "last_stored_ms": max(times)} if times else {}),
    }
