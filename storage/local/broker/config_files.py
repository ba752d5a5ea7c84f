"""Files in `config/` that a broker and EscrowMQ both read and write, each with a copy of its
content before the last change (`.bak`).

A broker renames a file to its copy and then writes the new one. So after a crash the file can be
missing, empty or cut, and the copy counts. A file that cannot be read, without a copy that can, is
an error here; a broker would begin with empty tables, and without one topic or offset.

Source: RocketMQ ConfigManager.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from typing import TypeVar

from storage.errors import UnreadableConfig
from storage.files import durable
from storage.files.unreadable import read_derived
from storage.files.vfs import Vfs, is_unreadable
from storage.formats.config_json import MOST_BYTES, WRITER, Backup, FileContent
from storage.local.data_directory import DataDirectory

T = TypeVar("T")
_BACKUP = ".bak"
_TAIL_BYTES = 128
_OUR_TAIL = re.compile(rb'"writtenBy"\s*:\s*"%s"\s*\}\s*' % WRITER.encode())


class ConfigFiles:
    """The files of one store. Blocking."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        """Read a file; see `read`."""
        return read(self._directory.vfs, self._directory.config / name, decode)

    def find(self, name: str, decode: Callable[[bytes], T]) -> FileContent[T]:
        """As `read`, and whether the copy was read."""
        return find(self._directory.vfs, self._directory.config / name, decode)

    def is_ours(self, name: str) -> bool:
        """Was EscrowMQ the last to write the file? By its end, where EscrowMQ says so."""
        try:
            file = self._directory.vfs.open(self._directory.config / name)
        except FileNotFoundError:
            return False
        try:
            size = file.size()
            tail = file.read(max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
        except OSError as error:
            if not is_unreadable(error):
                raise
            return False
        finally:
            file.close()
        found = _OUR_TAIL.search(tail)
        return found is not None and found.end() == len(tail)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file; its content before becomes the copy. Durable on return.

        The file is whole at any time. The copy is written after it: until then the copy before it
        may be the only one that can be read.
        """
        directory = self._directory
        vfs, path = directory.vfs, directory.config / name
        before = read_derived(vfs, path, lambda: durable.read_whole(vfs, path))
        durable.replace(vfs, path, data, scratch=directory.making)
        if before:
            durable.replace(vfs, path.with_name(name + _BACKUP), before, scratch=directory.making)


def read(vfs: Vfs, path: PurePath, decode: Callable[[bytes], T]) -> T | None:
    """The content of the file, or of its copy; None where there is neither.

    `decode` raises ValueError. Raises UnreadableConfig.
    """
    return find(vfs, path, decode).value


def find(vfs: Vfs, path: PurePath, decode: Callable[[bytes], T]) -> FileContent[T]:
    """As `read`, and whether the copy was read."""
    backup = path.with_name(path.name + _BACKUP)
    reason = damage = ""
    for one in (path, backup):
        raw = read_derived(vfs, one, partial(durable.read_whole, vfs, one, most_bytes=MOST_BYTES))
        if raw is None and vfs.exists(one):
            damage = damage or "the disk does not give it back"
            reason = reason or "unreadable"
            continue
        if raw:
            try:
                value = decode(raw)
            except ValueError as error:
                damage = damage or str(error)
                reason = reason or f"damaged ({error})"
                continue
            written_ms = vfs.modified_ms(one)
            return FileContent(value, None if one == path else Backup(reason, written_ms))
        reason = reason or ("missing" if raw is None else "empty")
    if damage:
        raise UnreadableConfig(path, damage)
    return FileContent(None)
