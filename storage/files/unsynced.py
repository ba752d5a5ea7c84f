"""Writes to a file that are not on disk yet: kept, and repeated after a failed sync.

A full disk fails a sync, too, where a file system looks for space only as it writes back. The page
cache then takes for written what the disk has not, and may forget it: another sync alone would
report success (vfs.py, File.sync). What is derived from the log goes on by writing it again. A sync
that fails otherwise is the user's, who makes another file.
"""

from storage.files.vfs import File

MOST_KEPT_BYTES = 64 << 20  # of the writes to some files: behind it their user syncs


class Unsynced:
    """The writes to one file since its last sync. One thread's."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytearray]] = []  # those that follow each other as one
        self._is_doubtful = False  # has the last sync failed?
        self.kept_bytes = 0

    def write(self, file: File, offset: int, data: bytes) -> None:
        """Raises OSError: nothing is kept of it, and the caller writes it again."""
        file.write(offset, data)
        self.kept_bytes += len(data)
        if self._pieces:
            begin, piece = self._pieces[-1]
            if begin + len(piece) == offset:
                piece += data
                return
        self._pieces.append((offset, bytearray(data)))

    def repeat(self, file: File) -> None:
        """Write all that is kept into the file, or into a copy of it. Raises OSError."""
        for offset, data in self._pieces:
            file.write(offset, bytes(data))

    def sync(self, file: File) -> None:
        """Everything written is durable on return. Raises OSError: it can be called again."""
        if self._is_doubtful:
            self.repeat(file)
        self._is_doubtful = True
        file.sync()
        self._is_doubtful = False
        self._pieces.clear()
        self.kept_bytes = 0
