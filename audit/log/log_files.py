"""The files of a log, wherever they lie: a store's folder, an archive of segments, a local path or
a URI that pyarrow knows (then pyarrow is imported).

A log is read up to the place that its store states as synced, which a live service moves on after
every sync. A store that a killed process left is read on to the last whole record, as a start of
the service would (storage/local/recovery/recovery.py).
"""

import os
from typing import NamedTuple

from crc32c import crc32c

from audit.files.local_files import Files, LocalFiles, OpenFile
from audit.files.uris import below as uri_below
from audit.files.uris import is_uri, without_secrets
from audit.log import manifests, store_metadata
from audit.log.store_metadata import StoreMetadata
from storage.formats import checkpoint, names

LOG_FOLDER = "commitlog"
STORE_FOLDER = "store"  # of a data directory
COMPACTED_ENDING = ".parquet"
_TAIL_BYTES = 4_096
_AHEAD_BYTES = 1 << 20  # an object store sends them in the time that it takes to answer at all


class NoBytes(Exception):
    """A compacted segment, whose bytes no folder has."""


class LogNotFound(Exception):
    """There is no log at this place."""


class NoPyarrow(OSError):
    """A URI was given, and pyarrow is not installed."""


class Segment(NamedTuple):
    """`uri` is of the folder that it was found by: it says on which file system.

    Sealed: a manifest beside it says that it is whole and never changes. Compacted: the file has
    rows, not bytes (`compacted.py`); `size` is of the bytes that they were made of.
    """

    path: str
    base_offset: int
    size: int
    uri: str
    is_sealed: bool = False
    is_compacted: bool = False

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


class Dropped(NamedTuple):
    """A range [begin, end) of the log that no folder has any more, and the log before it, which is
    not read therefore.
    """

    begin: int
    end: int
    unread_bytes: int


class Folder(NamedTuple):
    """A folder of segments, and what the store around it states about them. Plain values, which can
    be sent to the workers.

    Of several folders (`merged_log.py`) `uri` is the newest one's.
    """

    uri: str
    segments: tuple[Segment, ...]
    slot: checkpoint.Slot | None
    # by a broker's checkpoint, records stored up to then are on disk; None where there is none
    broker_synced_ms: int | None
    is_abandoned: bool  # its writer ended without closing it, or this is unknown
    dropped: Dropped | None = None
    metadata: StoreMetadata = StoreMetadata()

    @property
    def first_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """Behind the last byte that any file has; the log ends before."""
        return self.segments[-1].end_offset

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


class LogReader:
    """Reads bytes by their log offsets. One file is open at a time: a log is read in order.

    Of a file on another machine more is read than was asked for, where that was little, and kept:
    there each read is a request.
    """

    def __init__(self) -> None:
        self._files: dict[str, Files] = {}
        self._segment: Segment | None = None
        self._file: OpenFile | None = None
        self._is_remote = False
        self._ahead_at, self._ahead = 0, b""

    def read(self, segment: Segment, offset: int, length: int) -> bytes:
        """Fewer bytes at the end of the file. Raises NoBytes."""
        if segment.is_compacted:
            raise NoBytes(f"{segment.path} has the rows of a segment, not its bytes")
        if segment != self._segment or self._file is None:
            self.close()
            if segment.uri not in self._files:
                self._files[segment.uri], _ = files_of(segment.uri)
            files = self._files[segment.uri]
            self._file = files.open(segment.path)
            self._is_remote = files.is_remote
            self._ahead_at, self._ahead = 0, b""
            self._segment = segment
        at = offset - segment.base_offset
        if not self._is_remote or length >= _AHEAD_BYTES:
            return self._file.read_at(length, at)
        if not self._ahead_at <= at <= at + length <= self._ahead_at + len(self._ahead):
            self._ahead_at, self._ahead = at, self._file.read_at(_AHEAD_BYTES, at)
        return self._ahead[at - self._ahead_at :][:length]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def files_of(uri: str) -> tuple[Files, str]:
    """The files that the path or URI belongs to, and the path among them.

    Raises OSError, ValueError, NoPyarrow.
    """
    if not is_uri(uri):
        return LocalFiles(), os.path.abspath(uri)
    try:
        from audit.files.filesystems import files_on, filesystem_of
    except ImportError:
        raise NoPyarrow(
            f"{without_secrets(uri)} is a URI, which is read by pyarrow; it is not installed"
        ) from None
    filesystem, path = filesystem_of(uri)
    return files_on(filesystem), path


def find_folder(uri: str) -> Folder:
    """The log of a store's folder (the one that holds `commitlog/`), of the data directory around
    it, or of a folder that holds the segments themselves.

    Raises LogNotFound.
    """
    if not uri:
        raise LogNotFound("no folder of a log was named")
    files, path = files_of(uri)
    below = f"{path.rstrip('/')}/{LOG_FOLDER}"
    is_store = files.is_folder(below)
    if not is_store and _is_store_in(files, path):  # whatever else that directory has
        return find_folder(uri_below(uri, STORE_FOLDER))
    # First what it says, then what is there: a service that goes on meanwhile has made the segments
    # before it says so.
    metadata = (
        store_metadata.read(lambda name: files.read(f"{path}/{name}"))
        if is_store
        else StoreMetadata()
    )
    page = files.read(f"{path}/checkpoint") if is_store else None
    segments = tuple(_segments(uri, files, below if is_store else path))
    if not segments:
        text = (
            f"{uri} has no segments of a log (files named by {names.FILE_NAME_DIGITS} digits that "
            f"are not empty), nor has {below}"
        )
        raise LogNotFound(without_secrets(text))
    if page is None or len(page) < checkpoint.FIELDS_BYTES:
        return Folder(uri, segments, None, None, is_abandoned=True, metadata=metadata)
    slot = checkpoint.newest_slot(page)
    owner = files.read(f"{path}/abort")
    if slot is not None and owner is None:
        is_abandoned = not slot.is_clean
    else:
        is_abandoned = files.is_remote or not _is_locked(path)
    fields = checkpoint.decode_fields(page)
    synced_ms = fields.physic_ms if slot is None else None
    return Folder(
        uri, segments, slot, synced_ms, is_abandoned, metadata=metadata._replace(fields=fields)
    )


def is_of_a_store(uri: str) -> bool:
    """Whether the folder is that of a store, the data directory around one, or its `commitlog/`."""
    files, path = files_of(uri)
    path = path.rstrip("/")
    is_log = path.endswith(f"/{LOG_FOLDER}")
    return is_log or files.is_folder(f"{path}/{LOG_FOLDER}") or _is_store_in(files, path)


def _is_store_in(files: Files, path: str) -> bool:
    return files.is_folder(f"{path.rstrip('/')}/{STORE_FOLDER}/{LOG_FOLDER}")


def tail_sum(folder: Folder, offset: int) -> str | None:
    """The crc32c of the last bytes before an offset, by which a log is known again.

    None where no file has them, or has their rows alone.
    """
    segment = next(
        (one for one in folder.segments if one.base_offset < offset <= one.end_offset), None
    )
    if segment is None or segment.is_compacted:
        return None
    begin = max(segment.base_offset, offset - _TAIL_BYTES)
    reader = LogReader()
    try:
        found = reader.read(segment, begin, offset - begin)
    except FileNotFoundError:  # dropped meanwhile
        return None
    finally:
        reader.close()
    return f"{crc32c(found):08x}"


def _segments(uri: str, files: Files, folder: str) -> list[Segment]:
    """The segments in the order of the log. If a folder has bytes and rows of one, the bytes are
    read.
    """
    sizes = files.sizes(folder)
    segments: dict[int, Segment] = {}
    for name, size in sizes.items():
        base = names.base_offset(name.removesuffix(COMPACTED_ENDING))
        is_sealed = name + manifests.ENDING in sizes
        path = f"{folder.rstrip('/')}/{name}"
        if base is None or not size:
            continue
        if not name.endswith(COMPACTED_ENDING):
            segments[base] = Segment(path, base, size, uri, is_sealed)
        elif is_sealed and base not in segments:
            raw = files.read(path + manifests.ENDING)
            manifest = None if raw is None else manifests.parse(raw, size, size_in="file_bytes")
            if manifest is not None:
                segments[base] = Segment(
                    path, base, manifest["bytes"], uri, is_sealed=True, is_compacted=True
                )
    return [segments[base] for base in sorted(segments)]


def _is_locked(directory: str) -> bool:
    """Whether a process owns the store, by the kernel's table: a lock taken to find out could keep
    a service from starting.
    """
    try:
        with open("/proc/locks", encoding="ascii") as table:
            held = {line.split()[5].rpartition(":")[2] for line in table if "FLOCK" in line}
    except OSError:
        return False
    return str(os.stat(directory).st_ino) in held
