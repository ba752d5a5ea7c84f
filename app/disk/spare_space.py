"""Room on the disk for the next start, kept as a file of its own.

A start writes little, but not nothing: the mark of a running service, SQLite's -wal and -shm. On a
full disk there would be no room for them, and a restart would take away what the running service
still did: decisions, acknowledgements, reads.

A replica keeps it for its first start as a service. It needs some for its own start, but not
all of it: its mark, and what it promises.
"""

import errno
import os
from pathlib import Path

import structlog

from storage.files.vfs import is_disk_full

SPARE_BYTES = 1 << 20  # SQLite takes 32 KiB at once, and more with each write

_REPLICA_BYTES = 256 << 10  # enough on XFS, too, which takes more blocks than a file needs
_LEAST_BYTES = SPARE_BYTES // 2  # is left for a service
_LEAST_STEP_BYTES = 4 << 10  # a block of most file systems

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_EFFECT = "on a full disk the next start may lack the space for the files that it writes, and fail"

log = structlog.get_logger()


class SpareSpace:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "spare"
        self._has_warned = False

    def release_if_needed(self) -> None:
        """Give the room back where the disk has no other.

        Called before anything else is written.
        """
        taken = self._taken_bytes()
        if taken and self._free_bytes() < SPARE_BYTES and self._is_usable():
            os.truncate(self._path, 0)
            log.warning("spare_space_released", bytes=taken)

    def release_for_replica(self) -> None:
        """Give a part of the room back where the disk has no other, for the start of a replica; the
        rest of it stays for a service. `keep` takes it again.
        """
        left = max(self._taken_bytes() - _REPLICA_BYTES, _LEAST_BYTES)
        is_less = left < self._taken_bytes()
        if is_less and self._free_bytes() < _REPLICA_BYTES and self._is_usable():
            os.truncate(self._path, left)

    def keep(self) -> None:
        """Take the room that is not taken yet, or as much of it as the disk has.

        On a full disk a start leaves most of what it was given, and the next one needs that. A file
        that cannot be used is logged once.
        """
        taken = self._taken_bytes()
        if not self._is_usable() or taken == SPARE_BYTES:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return
        try:
            step = SPARE_BYTES - taken
            while taken < SPARE_BYTES and step >= _LEAST_STEP_BYTES:
                piece = min(step, SPARE_BYTES - taken)
                if _is_extended(file, taken, piece):
                    taken += piece
                else:
                    step //= 2
        finally:
            os.close(file)

    def _is_usable(self) -> bool:
        reason = ""
        if self._leads_nowhere():
            reason = f"{self._path} is a link that leads to no file"
        elif not self._may_be_written():
            reason = f"{self._path} may not be read and written by this process"
        elif not self._is_own():
            reason = f"{self._path} is another program's"
        if reason and not self._has_warned:
            self._has_warned = True
            log.warning("spare_space_not_kept", reason=reason, effect=_EFFECT)
        return not reason

    def _leads_nowhere(self) -> bool:
        return self._path.is_symlink() and not os.path.isfile(self._path)

    def _may_be_written(self) -> bool:
        """Also true of what is no file."""
        if not self._path.is_file():
            return True
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in _NO_PERMISSION:
                raise
            return False
        return True

    def _is_own(self) -> bool:
        """Ours has zeros alone, or nothing: another program can have a file of the name."""
        if not self._path.exists():
            return True
        if not self._path.is_file() or self._path.stat().st_size > SPARE_BYTES:
            return False
        found = self._path.read_bytes()
        return found == bytes(len(found))

    def _taken_bytes(self) -> int:
        return self._path.stat().st_size if os.path.exists(self._path) else 0

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize


def _is_extended(file: int, size: int, more: int) -> bool:
    """Give the file so much more room; False, and it is as it was, where the disk has none."""
    try:
        os.posix_fallocate(file, size, more)
    except OSError as error:
        os.ftruncate(file, size)
        if not is_disk_full(error):
            raise
        return False
    return True
