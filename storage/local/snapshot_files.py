"""Derived tables on disk, each a checked file of its own (`storage/formats/snapshot_file.py`).

One may know more than the log after a power cut, since tables count events that are not on disk
yet. A start discards it: other events will take the places of those that were lost.
"""

from storage.files import durable
from storage.files.unreadable import read_derived
from storage.formats import snapshot_file
from storage.local.data_directory import DataDirectory
from storage.store import Snapshot


class SnapshotFiles:
    """Saves and loads snapshots, each in a file. Derive lane only while the store is open."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def save(self, name: str, snapshot: Snapshot) -> None:
        """Durable on return.

        A piece at a time: this thread must not keep the others waiting for as long as all of it
        takes.
        """
        pieces = snapshot.pieces
        durable.replace_by_pieces(
            self._directory.vfs,
            self._directory.snapshots / name,
            [snapshot_file.begin(snapshot.positions, pieces, snapshot.size_bytes), *pieces],
            scratch=self._directory.making,
        )

    def remove(self, name: str) -> None:
        """Where there is one; durable with whatever is saved next."""
        path = self._directory.snapshots / name
        if self._directory.vfs.exists(path):
            self._directory.vfs.remove(path)

    def discard(self, name: str) -> None:
        """Remove one that there is. Durable on return."""
        self.remove(name)
        self._directory.vfs.sync_directory(self._directory.snapshots)

    def load(self, name: str) -> Snapshot | None:
        vfs, path = self._directory.vfs, self._directory.snapshots / name
        raw = read_derived(vfs, path, lambda: durable.read_whole(vfs, path))
        found = None if raw is None else snapshot_file.decode(raw)
        return None if found is None else Snapshot((found.data,), found.positions)
