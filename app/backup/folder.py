"""The folder that backups are kept in: a path on this machine, or whatever else keeps files that
are written once.

    backups/<time>.json               a backup: where its log begins and ends, its pieces, its files
    log/<begin>-<end>                 a piece of the log, byte for byte; named by its log offsets
    files/<time>-<name>               a small file: the registry, and its identity

A piece belongs to each backup that names it, so a later backup copies what is new alone. A backup
exists once its `.json` does, which is written last.
"""

import re
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Protocol

from storage.errors import DirectoryInUse
from storage.files import durable
from storage.files.vfs import OsVfs, ReadOnlyVfs

_MAKING = "making"

_TIME = r"\d{8}T\d{9}Z"
_WRITTEN = re.compile(
    rf"(\d{{20}}-\d{{20}}|{_TIME}-registry\.db|{_TIME}-registry-id|{_TIME}\.json)(\.part)?",
    re.ASCII,
)


def is_written_by_a_backup(name: str) -> bool:
    """Whether a run may remove a file of this name; on a URI it has `.part` until it is complete.

    The folder may have others: `log` and `files` are names that any folder may have.
    """
    return _WRITTEN.fullmatch(name) is not None


class Folder(Protocol):
    """Files by their paths in the folder, with `/`. Every call may raise OSError."""

    @property
    def name(self) -> str:
        """The path or URI, without secrets."""

    def own(self) -> AbstractContextManager[object]:
        """Keep another run from the folder where that is possible. Raises DirectoryInUse."""

    def sizes(self, path: str) -> dict[str, int]:
        """The names in a folder, with their bytes; empty if it does not exist."""

    def read(self, path: str) -> bytes | None:
        """The whole file; None if it does not exist. From the disk, if it is on one."""

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole or not at all. Durable on return."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""


class LocalFolder:
    """A folder of this machine, which its owner alone can read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._vfs = OsVfs()

    @property
    def name(self) -> str:
        return str(self._root)

    def own(self) -> AbstractContextManager[object]:
        self._make(self._root / _MAKING)
        try:
            lock = self._vfs.lock(self._root)
        except BlockingIOError:
            raise DirectoryInUse(self._root, None) from None
        for name in self.sizes(_MAKING):
            if is_written_by_a_backup(name):  # of a run that was killed
                self.remove(f"{_MAKING}/{name}")
        return closing(lock)

    def sizes(self, path: str) -> dict[str, int]:
        folder = self._root / path
        if not folder.is_dir():
            return {}
        return {one.name: one.stat().st_size for one in folder.iterdir() if one.is_file()}

    def read(self, path: str) -> bytes | None:
        try:
            file = ReadOnlyVfs().open(self._root / path)
        except FileNotFoundError:
            return None
        try:
            file.drop_cache()
            return file.read(0, file.size())
        finally:
            file.close()

    def write(self, path: str, data: bytes) -> None:
        self._make((self._root / path).parent)
        durable.replace(self._vfs, self._root / path, data, scratch=self._root / _MAKING)

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        self._vfs.make_directory(folder)
        for one in missing:
            self._vfs.sync_directory(one.parent)
