"""Open files by path, at most so many at once: a store may have more files than a process
may open.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import PurePath
from threading import Lock

from storage.files.vfs import File, Vfs


class Handle:
    """An open file and the number of its users."""

    __slots__ = ("file", "is_forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_forgotten = False


class Handles:
    """Threads may share it.

    A file in use is never closed under its user; the least recently used of the others goes first.
    """

    def __init__(self, vfs: Vfs, *, limit: int) -> None:
        """`limit`: files that are kept open. Files in use stay open beyond it."""
        self._vfs = vfs
        self._limit = limit
        self._lock = Lock()
        self._handles: OrderedDict[PurePath, Handle] = OrderedDict()

    def __len__(self) -> int:
        """Number of open files."""
        return len(self._handles)

    def acquire(self, path: PurePath) -> Handle:
        """Open the file, unless it is open, and keep it so until `release`.

        Raises FileNotFoundError, OSError.
        """
        handle = self.acquire_open(path)
        if handle is not None:
            return handle
        opened = Handle(self._vfs.open(path))  # outside of the lock: to open may wait for the disk
        with self._lock:
            handle = self._handles.setdefault(path, opened)
            handle.users += 1
            closing = self._take_surplus()
        if handle is not opened:  # another thread was faster
            closing.append(opened)
        for surplus in closing:
            surplus.file.close()
        return handle

    def acquire_open(self, path: PurePath) -> Handle | None:
        """The open file, as from `acquire`; None if it is not open, since opening it may wait for
        the disk.
        """
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)
                handle.users += 1
        return handle

    def release(self, handle: Handle) -> None:
        """The user has ended. Closes what was forgotten, or is too much, meanwhile."""
        with self._lock:
            handle.users -= 1
            closing = [handle] if handle.is_forgotten and not handle.users else self._take_surplus()
        for surplus in closing:
            surplus.file.close()

    @contextmanager
    def use(self, path: PurePath) -> Iterator[File]:
        """Raises FileNotFoundError where there is no such file."""
        handle = self.acquire(path)
        try:
            yield handle.file
        finally:
            self.release(handle)

    @contextmanager
    def use_open(self, path: PurePath) -> Iterator[File | None]:
        """The open file, as from `use`; None if it is not open, since opening it may wait for the
        disk.
        """
        handle = self.acquire_open(path)
        if handle is None:
            yield None
            return
        try:
            yield handle.file
        finally:
            self.release(handle)

    def forget(self, path: PurePath) -> None:
        """Close a removed file after its last use."""
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is None:
                return
            handle.is_forgotten = True
            is_unused = not handle.users
        if is_unused:
            handle.file.close()

    def close(self) -> None:
        """Close every file, whatever the close of another raises."""
        with self._lock, ExitStack() as closing:
            for handle in self._handles.values():
                closing.callback(handle.file.close)
            self._handles.clear()

    def _take_surplus(self) -> list[Handle]:
        """Remove unused files beyond the limit from the table; the caller closes them."""
        surplus = len(self._handles) - self._limit
        if surplus <= 0:
            return []
        # no further than needed: there are hundreds
        unused = (path for path, handle in self._handles.items() if not handle.users)
        paths = list(islice(unused, surplus))
        return [self._handles.pop(path) for path in paths]
