"""The folder of a service or of a replica, whose files a copy-on-write file system writes in place.

Such a one writes an overwrite elsewhere, which needs space: so it can fail on a full disk although
the file has all its blocks, and where the file is mapped, it kills the process.
"""

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


def make_data_folder(data_dir: Path) -> None:
    """Make it where it is not there. One that has a store stays as it is. Raises OSError."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (data_dir / _STORE).exists():
        write_in_place(data_dir)


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
