"""The locks of a store's folder for the time of a hand-over; without them where a dry run may only
read.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from app.store_moves.opened_copy import StoreRefused
from app.store_moves.work_folder import unfinished_in
from storage.errors import DirectoryInUse
from storage.files.vfs import OsVfs, ReadOnlyVfs
from storage.local.data_directory import DataDirectory

_NO_PERMISSION = (errno.EROFS, errno.EACCES, errno.EPERM)


class Ownership(NamedTuple):
    """`warnings`: a sentence if nothing keeps a broker or a service from opening the store."""

    close: Callable[[], None]
    warnings: tuple[str, ...] = ()


def is_permission_error(error: Exception) -> bool:
    """Is a file system read-only, or a file one of another user?"""
    return isinstance(error, OSError) and error.errno in _NO_PERMISSION


def own(root: Path, *, dry_run: bool) -> Ownership:
    """Keep a broker and a service from opening the store until it is closed.

    A dry run does without it where the lock file cannot be written to. Raises DirectoryInUse,
    StoreRefused, OSError.
    """
    if not root.is_dir():
        raise StoreRefused([f"{root} is not a folder"])
    if reason := unfinished_in(root):
        raise StoreRefused([reason])
    try:
        return Ownership(DataDirectory(OsVfs(), root, is_made=False).close)
    except OSError as error:
        if not (dry_run and is_permission_error(error)):
            raise
        return _watched(root, error.strerror or "")


def _watched(root: Path, reason: str) -> Ownership:
    """Own the folder, and check that no process on this machine owns its lock file."""
    vfs = ReadOnlyVfs()
    try:
        lock = vfs.lock(root)
    except BlockingIOError:
        raise DirectoryInUse(root, None) from None
    try:
        if vfs.is_locked(root / "lock"):
            raise DirectoryInUse(root, None)
    except BaseException:
        lock.close()
        raise
    sentence = (
        f"The lock {root / 'lock'} could not be taken ({reason}), so that no broker was kept from "
        "starting on the store. Without --dry-run this file has to be writable"
    )
    return Ownership(lock.close, (sentence,))
