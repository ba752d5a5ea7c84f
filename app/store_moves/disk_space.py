"""The space that a hand-over needs on a disk, and a disk that is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.exc import DatabaseError

from app.store_moves.plan import Plan
from app.store_moves.store_folder import allocated_bytes
from storage.errors import StorageFull
from storage.files.vfs import is_disk_full

_SQLITE_FULL = "SQLITE_FULL"


class DiskFull(Exception):
    """A disk has too little space; the reason, for a person."""


class Space(NamedTuple):
    """Bytes on the disk of the target: needed for copies, and free before them."""

    needed_bytes: int
    free_bytes: int


def check_space(source: Path, plan: Plan, folder: Path) -> Space:
    """Raises DiskFull if the disk of the folder has no space for the copies; OSError.

    On another disk than the source's, files cannot be linked, and are copied.
    """
    is_one_disk = source.stat().st_dev == folder.stat().st_dev
    paths = plan.copied if is_one_disk else plan.paths
    needed = sum(allocated_bytes(source / path) for path in paths)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise DiskFull(
            f"The disk of {folder} is too full: {needed:,} bytes are needed for copies, and "
            f"{free:,} are free"
        )
    return Space(needed, free)


@contextmanager
def full_disk_is_named(folder: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Raise DiskFull for each error that says that a disk is full. `needed_bytes`: for copies."""
    try:
        yield
    except (StorageFull, DatabaseError, OSError) as error:
        if not _is_full(error):
            raise
        sentence = f"The disk of {folder} is full"
        if needed_bytes is not None:
            sentence += (
                f": {needed_bytes:,} bytes are needed for copies, and more for what is derived "
                "from the log"
            )
        raise DiskFull(sentence) from error


def _is_full(error: Exception) -> bool:
    if isinstance(error, DatabaseError):
        return getattr(error.orig, "sqlite_errorname", "") == _SQLITE_FULL
    return isinstance(error, StorageFull) or is_disk_full(error)
