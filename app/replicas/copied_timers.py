"""Timer files that a replica has received, and the list that says which of them count.

A file of the same number can be in the folder already, of another service that was followed
before: so the list in force is removed before files get their names. A machine that is lost
meanwhile has no list, and its next service reads schedules from the log.
"""

from pathlib import Path

import msgspec

from storage.files.vfs import OsVfs
from storage.formats import names, snapshot_file, timer_list

_WAITING = "copied-timers-"  # and the name of the file


class CopiedTimers:
    """Timer files copied over one connection. One thread at a time, blocking."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "timers"
        self._making = store / "making"
        self._is_first = True
        self._waiting: dict[str, Path] = {}  # by name: whole, on disk, and in no list yet
        self._in_place: set[str] = set()

    def add(self, name: str, path: Path) -> None:
        """Take a file that is whole and on disk, until a list names it. Raises OSError."""
        if self._is_first:
            self._is_first = False
            for rest in self._making.glob(f"{_WAITING}*"):  # of an earlier connection
                rest.unlink()
        self._waiting[name] = path.replace(self._making / f"{_WAITING}{name}")

    def put_in_place(self, listed: set[str], *, before: Path) -> None:
        """Give the files of a list their names, and remove all others. The caller then puts the
        list in place of the one `before`.

        Raises FileNotFoundError where one had no space when it arrived: nothing is changed.
        Raises OSError: there is no list until the next one.
        """
        if missing := sorted(listed - self._in_place - self._waiting.keys()):
            raise FileNotFoundError(f"there was no space for timer file {missing[0]}")
        vfs = OsVfs()
        before.unlink(missing_ok=True)
        vfs.sync_directory(before.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for name, path in list(self._waiting.items()):
            if name in listed:
                path.replace(self._folder / name)
                self._in_place.add(name)
            else:
                path.unlink()
            del self._waiting[name]
        for path in self._folder.iterdir():
            if path.name not in listed:
                path.unlink()
                self._in_place.discard(path.name)
        vfs.sync_directory(self._folder)


def names_in(data: bytes) -> set[str] | None:
    """The names of the files that a list of timer files names; None where it is damaged."""
    snapshot = snapshot_file.decode(data)
    if snapshot is None:
        return None
    try:
        return {names.file_name(number) for number, _, _ in timer_list.decode(snapshot.data).files}
    except msgspec.DecodeError:
        return None
