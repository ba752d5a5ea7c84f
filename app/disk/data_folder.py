"""The folder of a service or of a replica: its name is on disk, and a copy-on-write file system
writes its files in place.

Such a file system writes an overwrite elsewhere, which needs space: so it can fail on a full disk
although the file has all its blocks, and where the file is mapped, it kills the process.
"""

import errno
import fcntl
import os
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

_STORE = "store"
_LOG = "commitlog"
_REGISTRY = "registry.db"
# what a start makes in a store before the log is there, or what can be left where that was lost
_OF_A_STORE = frozenset(
    "consumequeue consumequeue_ext batchconsumequeue compaction index config timers timerlog"
    " timerwheel snapshots making checkpoint abort lock registry-id recovery-reports.json"
    " lost+found".split()
)
_BEGINNINGS = (".", "repair-", "dledger-")  # hidden; of a repair; another log of a broker
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
    """There can be no data directory at the path that the setting names."""


def make_data_folder(data_dir: Path) -> None:
    """Make it where it is not there; durable on return. One that has a store stays as it is.

    Raises CannotBeMade, also where it has a store or a registry of another program; OSError.
    """
    data_dir = data_dir.absolute()
    if _is_of_another(data_dir / _REGISTRY):
        raise CannotBeMade(
            f"{data_dir / _REGISTRY} is a database of another program. Choose another data"
            " directory"
        )
    if foreign := foreign_in(data_dir / _STORE):
        raise CannotBeMade(
            f"{data_dir / _STORE} has no {_LOG}, and {foreign} is not part of a store: the folder"
            " belongs to another program. Choose another data directory"
        )
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


def _is_of_another(database: Path) -> bool:
    """Has it tables, and not the one that every registry has? One that cannot be read has not."""
    if not database.is_file():
        return False
    address = f"{database.as_uri()}?mode=ro&immutable=1"  # nothing is made beside it
    with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return bool(tables) and "alembic_version" not in tables
    return False


def foreign_in(store: Path) -> str | None:
    """The first name in the folder that no store has; None where there is none, or a log.

    A store is one of the service, or of a broker.
    """
    if not store.is_dir() or (store / _LOG).is_dir():
        return None
    names = {path.name for path in store.iterdir() if not path.name.startswith(_BEGINNINGS)}
    return min(names - _OF_A_STORE, default=None)


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
