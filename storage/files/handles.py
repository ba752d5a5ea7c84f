"""Open files by path, at most so many at once: a store may have more queue files than a process may open."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from threading import Lock

from storage.files.vfs import File, Vfs


class _Handle:
    __slots__ = ("file", "is_forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_forgotten = False


class Handles:
    """Threads may share it. A file in use is never closed under its user."""

    def __init__(self, vfs: Vfs, *, limit: int) -> None:
        self._vfs = vfs
        self._limit = limit
        self._lock = Lock()
        self._handles: OrderedDict[PurePath, _Handle] = OrderedDict()

    @contextmanager
    def use(self, path: PurePath) -> Iterator[File]:
        """Raises FileNotFoundError where there is no such file."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = self._handles[path] = _Handle(self._vfs.open(path))
            else:
                self._handles.move_to_end(path)
            handle.users += 1
            self._close_surplus()
        try:
            yield handle.file
        finally:
            with self._lock:
                handle.users -= 1
                if handle.is_forgotten and not handle.users:
                    handle.file.close()

    def forget(self, path: PurePath) -> None:
        """The file is gone: close it, once nobody uses it any more."""
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is not None:
                handle.is_forgotten = True
                if not handle.users:
                    handle.file.close()

    @contextmanager
    def use_open(self, path: PurePath) -> Iterator[File | None]:
        """None where it is not open: to open it may wait for the disk."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                handle.users += 1
        if handle is None:
            yield None
            return
        try:
            yield handle.file
        finally:
            with self._lock:
                handle.users -= 1

    def close(self) -> None:
        with self._lock:
            for handle in self._handles.values():
                handle.file.close()
            self._handles.clear()

    def _close_surplus(self) -> None:
        surplus = len(self._handles) - self._limit
        for path in [path for path, handle in self._handles.items() if not handle.users][: max(0, surplus)]:
            self._handles.pop(path).file.close()
