"""The folder of a service or of a replica: its name is on disk, and a copy-on-write file system
writes its files in place.

Such a file system writes an overwrite elsewhere, which needs space: so it can fail on a full disk
although the file has all its blocks, and where the file is mapped, it kills the process.
"""

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_STORE = "store"
# of Linux, include/uapi/linux/fs.h; chattr +C sets the flag
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_NO_COPY_ON_WRITE = 0x00800000
_flags = struct.Struct("=l")
_NO_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)


# the path is wrong, and not the disk
_WRONG_PATH = (
    errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
)  # fmt: skip


class CannotBeMade(Exception):
    """There can be no folder at the path that the setting names."""


def make_data_folder(data_dir: Path) -> None:
    """Make it where it is not there; durable on return. One that has a store stays as it is.

    Raises CannotBeMade, OSError.
    """
    data_dir = data_dir.absolute()
    try:
        new = [folder for folder in data_dir.parents if not folder.exists()]
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _WRONG_PATH:
            raise
        raise CannotBeMade(f"{data_dir} cannot be made: {error.strerror}") from error
    if not (data_dir / _STORE).exists():
        write_in_place(data_dir)
        for folder in {data_dir.parent, *new, *[one.parent for one in new]}:
            _sync(folder)


def _sync(folder: Path) -> None:
    """Return once the names in it are on disk; at once where it may not be read, or its file system
    has no sync of folders.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_in_place(folder: Path) -> None:
    """Have all files and folders that are made in this one from now on written in place.

    Nothing on a file system that does so anyway, or cannot.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            (flags,) = _flags.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_flags.size)))
            fcntl.ioctl(descriptor, _SET_FLAGS, _flags.pack(flags | _NO_COPY_ON_WRITE))
    finally:
        os.close(descriptor)
