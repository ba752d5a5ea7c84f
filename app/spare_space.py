"""Room on the disk for the next start, kept as a file of its own.

A start writes little, but not nothing: the mark of a running service, SQLite's -wal and -shm. On a
full disk there would be no room for them, and a restart would take away what the running service
still did: decisions, acknowledgements, reads.
"""

import os
from pathlib import Path

import structlog

from storage.files.vfs import is_disk_full

SPARE_BYTES = 1 << 20  # SQLite takes 32 KiB at once, and more with each write

log = structlog.get_logger()


class SpareSpace:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "spare"

    def release_if_needed(self) -> None:
        """Give the room back where the disk has no other.

        Called before anything else is written.
        """
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < SPARE_BYTES and self._path.exists():
            self._path.unlink()
            log.warning("spare_space_released", bytes=SPARE_BYTES)

    def keep(self) -> None:
        """Take the room, if the disk has it and it is not taken yet."""
        if self._path.exists() and self._path.stat().st_size == SPARE_BYTES:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, SPARE_BYTES)
            finally:
                os.close(file)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._path.unlink(missing_ok=True)
