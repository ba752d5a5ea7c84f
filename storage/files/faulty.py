"""A file system that fails: a wrapper around another one whose calls raise OSError when a plan says
so.
"""

from collections.abc import Callable, Sequence
from pathlib import PurePath

from storage.files.vfs import Background, File, Lock, MappedRegion, Space, Vfs, is_unreadable

# Called before each call that reaches the disk, with its name ("write", "sync", ...) and the file's
# path; raises to fail it.
Plan = Callable[[str, PurePath], None]


class FaultyFile:
    def __init__(self, inner: File, path: PurePath, plan: Plan) -> None:
        self._inner = inner
        self._path = path
        self._plan = plan

    def size(self) -> int:
        return self._inner.size()

    def read(self, offset: int, length: int) -> bytes:
        self._plan("read", self._path)
        return self._inner.read(offset, length)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        return self._inner.read_cached(offset, length) if self._is_cached() else None

    def read_each_cached(self, places: Sequence[tuple[int, int]], buffer: bytearray) -> list[bytes]:
        return self._inner.read_each_cached(places, buffer) if self._is_cached() else []

    def _is_cached(self) -> bool:
        """False if the disk does not give it back: then the page cache does not have it."""
        try:
            self._plan("read", self._path)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return False
        return True

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return self._inner.data_ranges(offset)

    def write(self, offset: int, data: bytes) -> None:
        self._plan("write", self._path)
        self._inner.write(offset, data)

    def allocate(self, begin: int, end: int) -> None:
        self._plan("allocate", self._path)
        self._inner.allocate(begin, end)

    def extend(self, length: int) -> None:
        self._plan("extend", self._path)
        self._inner.extend(length)

    def sync(self) -> None:
        self._plan("sync", self._path)
        self._inner.sync()

    def drop_cache(self) -> None:
        self._inner.drop_cache()

    def fetch(self, offset: int, length: int) -> None:
        self._inner.fetch(offset, length)

    def map(self) -> MappedRegion:
        self._plan("map", self._path)
        return self._inner.map()

    def close(self) -> None:
        """The descriptor is free, whatever the plan raises, as Linux has it."""
        self._inner.close()
        self._plan("close", self._path)


class FaultyVfs:
    def __init__(self, inner: Vfs, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    def open(self, path: PurePath, *, create: bool = False) -> FaultyFile:
        self._plan("open", path)
        return FaultyFile(self._inner.open(path, create=create), path, self._plan)

    def make_directory(self, path: PurePath) -> None:
        self._plan("make_directory", path)
        self._inner.make_directory(path)

    def list_directory(self, path: PurePath) -> list[str]:
        return self._inner.list_directory(path)

    def exists(self, path: PurePath) -> bool:
        return self._inner.exists(path)

    def identity(self, path: PurePath) -> tuple[int, int] | None:
        return self._inner.identity(path)

    def modified_ms(self, path: PurePath) -> int:
        return self._inner.modified_ms(path)

    def rename(self, source: PurePath, target: PurePath) -> None:
        self._plan("rename", target)
        self._inner.rename(source, target)

    def remove(self, path: PurePath) -> None:
        self._plan("remove", path)
        self._inner.remove(path)

    def remove_directory(self, path: PurePath) -> None:
        self._plan("remove_directory", path)
        self._inner.remove_directory(path)

    def sync_directory(self, path: PurePath) -> None:
        self._plan("sync_directory", path)
        self._inner.sync_directory(path)

    def lock(self, path: PurePath) -> Lock:
        return self._inner.lock(path)

    def space(self, path: PurePath) -> Space:
        self._plan("space", path)
        return self._inner.space(path)

    def background(self) -> Background:
        return self._inner.background()

    def process_id(self) -> int:
        return self._inner.process_id()

    def pause(self, ms: int) -> None:
        self._inner.pause(ms)
