"""Derived files as a verification reads them: what the disk does not give back (EIO) is filled with
bytes that no such file has, so it is a finding where it is compared.
"""

from pathlib import PurePath
from typing import Any, cast

from storage.files.unreadable import Unreadable, page_of, read_readable
from storage.files.vfs import PAGE_BYTES, File, Vfs
from storage.local.verify.log_pass import CountsAsDamage

_FILLER = b"\x5a" * PAGE_BYTES  # no place of a log, nor "dropped" (below 0), nor "none" (0)


def filled(vfs: Vfs, counts_as_damage: CountsAsDamage = lambda *_: True) -> Vfs:
    """The same files. A read of them raises Unreadable until the place counts as damage."""
    return cast("Vfs", _FilledVfs(vfs, counts_as_damage))


class _FilledVfs:
    """Opens files for reading, and leaves all else to another Vfs."""

    def __init__(self, inner: Vfs, counts_as_damage: CountsAsDamage) -> None:
        self._inner = inner
        self._counts_as_damage = counts_as_damage

    def open(self, path: PurePath, *, create: bool = False) -> File:
        file = self._inner.open(path, create=create)
        return cast("File", _FilledFile(file, path, self._counts_as_damage))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _FilledFile:
    def __init__(self, inner: File, path: PurePath, counts_as_damage: CountsAsDamage) -> None:
        self._inner = inner
        self._path = path
        self._counts_as_damage = counts_as_damage

    def read(self, offset: int, length: int) -> bytes:
        """As `File.read`."""
        pieces: list[bytes] = []
        at, end = offset, offset + length
        while True:
            data, failure = read_readable(self._inner, at, end - at)
            pieces.append(data)
            if failure is None:
                return b"".join(pieces)
            at += len(data)
            if not self._counts_as_damage(self._inner, self._path, at):
                raise Unreadable(failure, self._path, at)
            page_end = min(end, self._inner.size(), page_of(at) + PAGE_BYTES)
            pieces.append(_FILLER[: page_end - at])
            at = page_end
            if at >= end or at >= self._inner.size():
                return b"".join(pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
