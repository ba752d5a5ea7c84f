"""The copy of a broker's log in a folder: its segments, and a note of what is on the disk.

The segments have the names and lengths of the broker's. One that is not full is a sparse file, so
how far the copy is cannot be seen from the files: the note says it. Blocking.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from storage.files import durable
from storage.files.vfs import File, OsVfs
from storage.formats import record as records

COMMIT_LOG, CONFIG, NOTE = "commitlog", "config", "followed.json"
_MAKING = "making"
_MOST_NOTE_BYTES = 1 << 16


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log it is; log offsets of what is on the disk."""

    cluster: str
    broker: str
    segment_bytes: int
    begin: int
    end: int

    @property
    def log(self) -> str:
        """Which log it is, for a person."""
        return f"{self.cluster}/{self.broker} with segments of {self.segment_bytes:,} bytes"


class BadNote(Exception):
    """The note cannot be read, or says more than the files have."""


class CopyFailed(Exception):
    """The disk of the copy has failed, or is full."""


def read_note(folder: Path) -> Followed | None:
    """The note in the folder; None if nothing was copied there yet. Raises BadNote, OSError."""
    raw = durable.read_whole(OsVfs(), folder / NOTE, most_bytes=_MOST_NOTE_BYTES)
    if raw is None:
        return None
    try:
        note = msgspec.json.decode(raw, type=Followed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadNote(f"{folder / NOTE} cannot be read: {error}") from None
    if not 0 <= note.begin <= note.end or note.segment_bytes < 1:
        raise BadNote(f"{folder / NOTE} has offsets that cannot be")
    return note


class FollowedLog:
    """The copy, open to be continued."""

    def __init__(self, folder: Path, note: Followed) -> None:
        """Raises BadNote, CopyFailed."""
        self._vfs = OsVfs()
        self._folder = folder
        self._note = note
        self._file: File | None = None
        self._file_begin = -1
        self._has_failed = False  # no sync is to be trusted any more
        self.end = note.end  # of what was written, on disk or not
        with self._failing():
            (folder / _MAKING).mkdir(exist_ok=True)
            # before all else, so that the folder is known as a copy, of nothing yet
            self._put(folder / NOTE, msgspec.json.encode(note))
            for made in (COMMIT_LOG, CONFIG):
                (folder / made).mkdir(exist_ok=True)
            for path in (folder / COMMIT_LOG).iterdir():
                if path.name.isdigit() and int(path.name) >= note.end:
                    path.unlink()  # of a run that was killed: it was not noted
            self._vfs.sync_directory(folder)
            self._check_segments()
            if note.end % note.segment_bytes:
                self._segment()

    @property
    def begin(self) -> int:
        return self._note.begin

    @property
    def synced_end(self) -> int:
        return self._note.end

    def write(self, data: bytes) -> None:
        """Bytes from the end on. Raises CopyFailed."""
        rest = memoryview(data)
        with self._failing():
            while rest:
                at = self.end % self._note.segment_bytes
                piece = rest[: self._note.segment_bytes - at]
                self._segment().write(at, piece)
                self.end += len(piece)
                rest = rest[len(piece) :]

    def sync(self) -> None:
        """Everything that was written is on the disk on return, unless the disk has failed before.

        Raises CopyFailed.
        """
        if self._note.end == self.end or self._has_failed:
            return
        note = msgspec.structs.replace(self._note, end=self.end)
        with self._failing():
            if self._file is not None:
                self._file.sync()
            self._put(self._folder / NOTE, msgspec.json.encode(note))
        self._note = note

    def write_config(self, files: dict[str, bytes]) -> None:
        """Files of `config/`, by their names. Raises CopyFailed."""
        with self._failing():
            for name, content in files.items():
                self._put(self._folder / CONFIG / name, content)

    def read_last_record(self) -> tuple[int, bytes] | None:
        """(log offset, bytes) of the last whole record of the segment in which the copy ends, or of
        the one before.

        None where it has none there. Raises CopyFailed.
        """
        note = self._note
        end = note.end
        for _ in range(2):
            begin = (end - 1) - (end - 1) % note.segment_bytes
            if end <= note.begin:
                return None
            with self._failing():
                file = self._vfs.open(self._folder / COMMIT_LOG / f"{begin:020}")
                try:
                    data = file.read(0, end - begin)
                finally:
                    file.close()
            found = last_record(data, begin, max(0, note.begin - begin))
            if found is not None:
                return found
            end = begin
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        with suppress(OSError):  # what is left there is harmless
            for left in (self._folder / _MAKING).iterdir():
                left.unlink()
            (self._folder / _MAKING).rmdir()

    def _check_segments(self) -> None:
        """Raises BadNote where one is missing, or was cut; OSError."""
        size = self._note.segment_bytes
        for begin in range(self._note.begin // size * size, self._note.end, size):
            path = self._folder / COMMIT_LOG / f"{begin:020}"
            if not path.is_file() or path.stat().st_size != size:
                raise BadNote(f"{path} is missing, or has another length than {size:,} bytes")

    def _segment(self) -> File:
        """The one in which the copy ends; the one before it is synced."""
        begin = self.end - self.end % self._note.segment_bytes
        if self._file is None or begin != self._file_begin:
            if self._file is not None:
                self._file.sync()
                self._file.close()
                self._file = None
            path = self._folder / COMMIT_LOG / f"{begin:020}"
            self._file = self._vfs.open(path, create=True)
            self._file_begin = begin
            # what a run that was killed had written behind the end is gone
            self._file.extend(self.end - begin)
            self._file.extend(self._note.segment_bytes)
            self._file.sync()
            self._vfs.sync_directory(path.parent)
        return self._file

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._has_failed = True
            raise CopyFailed(str(error)) from error

    def _put(self, path: Path, content: bytes) -> None:
        durable.replace(self._vfs, path, content, scratch=self._folder / _MAKING)


def last_record(data: bytes, base: int, at: int) -> tuple[int, bytes] | None:
    """(log offset, bytes) of the last whole record in bytes that begin at `base`, from `at` on.

    The record that ends a segment is none that a broker answers.
    """
    found = None
    while at + records.END_OF_FILE_BYTES <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size < records.END_OF_FILE_BYTES or at + size > len(data):
            break
        if records.is_end_of_file(data, at):
            break
        found = base + at, data[at : at + size]
        at += size
    return found
