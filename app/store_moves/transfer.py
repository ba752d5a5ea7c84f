"""Carry out a plan: hard links where the file system allows them, copies elsewhere. Durable on
return.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from app.store_moves.plan import Plan
from app.store_moves.store_folder import allocated_bytes, data_ranges
from storage.files.vfs import OsVfs

_PIECE_BYTES = 4 << 20
# The other side is another device, a file system without links, or a file of another user.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)

Note = Callable[[int, int], None]
"""(bytes done, bytes in all)"""


class Transferred(NamedTuple):
    """Files, and their bytes without holes."""

    linked_files: int
    linked_bytes: int
    copied_files: int
    copied_bytes: int


class FileChanged(Exception):
    """A file has another length than when it was listed: another program writes to the store."""


def carry_out(source: Path, target: Path, plan: Plan, note: Note) -> Transferred:
    """Raises OSError, FileChanged."""
    done = linked = linked_bytes = copied_bytes = 0
    folders = {target}
    for path in plan.paths:
        begin, end = source / path, target / path
        end.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.update((end.parent, *end.parent.parents))
        if path in plan.linked and _link(begin, end):
            linked += 1
            linked_bytes += allocated_bytes(begin)
            done += plan.linked[path]
            note(done, plan.total_bytes)
            continue
        size = plan.linked.get(path, 0) or plan.copied.get(path, 0)
        for piece_bytes in copy(begin, end, size):
            note(done + piece_bytes, plan.total_bytes)
        done += size
        copied_bytes += allocated_bytes(begin)
    for folder in sorted(folder for folder in folders if folder.is_relative_to(target)):
        OsVfs().sync_directory(folder)
    return Transferred(linked, linked_bytes, len(plan.paths) - linked, copied_bytes)


def copy(source: Path, target: Path, size: int) -> Iterator[int]:
    """Copy a file without its holes; yield the bytes that are done, piece by piece.

    Durable at the end. Raises OSError, FileChanged.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    read_from = os.open(source, os.O_RDONLY | flags)
    try:
        found = os.fstat(read_from)
        if found.st_size != size:
            raise FileChanged(f"{source} has changed while it was copied")
        write_to = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
        try:
            os.ftruncate(write_to, size)
            for begin, end in data_ranges(read_from):
                at = begin
                while at < end:
                    piece = os.pread(read_from, min(_PIECE_BYTES, end - at), at)
                    if not piece:
                        raise FileChanged(f"{source} has changed while it was copied")
                    _write(write_to, piece, at)
                    at += len(piece)
                    yield at
            # A broker goes by it when it removes expired files.
            os.utime(write_to, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(write_to)
        finally:
            os.close(write_to)
    finally:
        os.close(read_from)


def _write(file: int, data: bytes, at: int) -> None:
    written = os.pwrite(file, data, at)
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], at + written)


def _link(source: Path, target: Path) -> bool:
    """False where a copy is needed: no link is possible, or it could not be read and written."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    if not os.access(target, os.R_OK | os.W_OK):
        target.unlink()
        return False
    return True
