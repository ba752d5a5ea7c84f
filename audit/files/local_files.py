"""Files on this machine by the operating system; what they have in common with those of pyarrow
(`filesystems.py`), which are named by URIs.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Protocol

PART = ".part"  # behind the name of a file until it is complete

_PROCESSES = Path("/proc")
_BLOCK_BYTES = 512  # of `st_blocks`, whatever the disk has
_MOST_LINKS = 40  # as Linux has it


class OpenFile(Protocol):
    def read_at(self, length: int, offset: int) -> bytes:
        """Fewer bytes at the end of the file."""

    def close(self) -> None: ...


class FileBelow(NamedTuple):
    """A file in a folder or below it. `path`: from that folder on. `stored_bytes`: what is there to
    be read of its `size`, the rest being holes.
    """

    path: str
    size: int
    stored_bytes: int


class Files(Protocol):
    """`is_remote`: each read is a request to another machine."""

    is_remote: bool

    def is_folder(self, path: str) -> bool: ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of each file in the folder; empty where there is no folder."""

    def files_below(self, folder: str) -> Iterator[FileBelow]:
        """The files in the folder and in those below it, in no order."""

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    def open(self, path: str) -> OpenFile: ...

    def data_ranges(self, path: str, size: int) -> list[tuple[int, int]]:
        """(begin, end) of all in a file of `size` bytes that may be other than zeros."""


class LocalFiles:
    is_remote = False

    def is_folder(self, path: str) -> bool:
        return Path(path).is_dir()

    def sizes(self, folder: str) -> dict[str, int]:
        found = {}
        if self.is_folder(folder):
            for path in Path(folder).iterdir():
                with suppress(FileNotFoundError):  # a service drops segments meanwhile
                    if path.is_file():
                        found[path.name] = path.stat().st_size
        return found

    def files_below(self, folder: str) -> Iterator[FileBelow]:
        for path, _, names in os.walk(folder):
            for name in names:
                file = os.path.join(path, name)
                with suppress(FileNotFoundError):  # a service drops files meanwhile
                    found = os.stat(file)
                    stored_bytes = min(found.st_size, found.st_blocks * _BLOCK_BYTES)
                    below = file.removeprefix(folder).lstrip("/")
                    yield FileBelow(below, found.st_size, stored_bytes)

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def open(self, path: str) -> OpenFile:
        return LocalFile(path)

    def data_ranges(self, path: str, size: int) -> list[tuple[int, int]]:
        file = os.open(path, os.O_RDONLY)
        try:
            return _data_ranges(file, size)
        finally:
            os.close(file)


def _data_ranges(file: int, size: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    end = 0
    try:
        while end < size:
            begin = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, begin, os.SEEK_HOLE)
            ranges.append((begin, min(end, size)))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return [(0, size)]  # the file system has no holes
        if error.errno != errno.ENXIO:  # the rest is a hole
            raise
    return ranges


class LocalFile:
    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def read_at(self, length: int, offset: int) -> bytes:
        """Fewer bytes at the end of the file."""
        found = b""
        while len(found) < length:  # Linux reads at most 2 GiB at once
            more = os.pread(self._handle, length - len(found), offset + len(found))
            if not more:
                break
            found = found + more if found else more
        return found

    def close(self) -> None:
        os.close(self._handle)


def write_whole(path: str, data: bytes) -> None:
    """Write a file on this machine, whole or not at all; it is on disk on return.

    A device, a pipe, a terminal or an open file of a process (`/dev/stdout`) that has this path is
    written to, and a link is followed: neither is replaced. Raises OSError with this path.
    """
    try:
        file = _followed(path)
        if file.is_relative_to(_PROCESSES) or (file.exists() and not file.is_file()):
            _append(file, data)
        else:
            _replace(file, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _followed(path: str) -> Path:
    """Path that links lead to; an open file of a process has its name in /proc alone, perhaps."""
    file = _with_real_folder(Path(path))
    for _ in range(_MOST_LINKS):
        if file.is_relative_to(_PROCESSES) or not file.is_symlink():
            return file
        file = _with_real_folder(file.parent / file.readlink())
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _with_real_folder(path: Path) -> Path:
    return Path(os.path.realpath(path.parent), path.name)


def _append(path: Path, data: bytes) -> None:
    own = path.parent == _PROCESSES / str(os.getpid()) / "fd" and path.name.isdecimal()
    # by its number, so that what this process writes later comes behind
    with open(int(path.name), "ab", closefd=False) if own else path.open("ab") as file:
        file.write(data)


def _replace(file: Path, data: bytes) -> None:
    part = free_part_of(str(file))
    try:
        with Path(part).open("xb") as stream:
            stream.write(data)
        sync(part)
        os.replace(part, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)  # else it would hold what is left of a full disk
        raise
    sync(str(file.parent))


def free_part_of(path: str) -> str:
    """A name for a file until it is complete, which no other file has: one that a person has named
    can be beside files of other programs. It is short, as that of the file can be as long as the
    disk allows.
    """
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}.{token_hex(4)}{PART}"


def sync(path: str, *, forget: bool = False) -> None:
    """Sync a file or folder; `forget`: the next read takes its bytes from the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        if forget:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
