"""The timer files: sorted, checked, never changed once they have their name.

Files are made whole and named by number; which of them count, and from which entry on, says the
list that is kept with them (`due_index.py`). What the list does not name is a rest, and is removed.
So a crash leaves the old list or the new one.
"""

from collections.abc import Iterable
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecord
from storage.files import durable
from storage.files.unreadable import read_readable
from storage.files.vfs import Vfs
from storage.formats import names, timer_file
from storage.formats.timer_file import BLOCK_BYTES, BLOCK_ENTRIES, DamagedTimers, Entries, Key

_ENCODED_AT_ONCE = 100 * BLOCK_ENTRIES


class TimerFile:
    """A file that is open; any lane reads."""

    def __init__(self, vfs: Vfs, path: PurePath, number: int, count: int) -> None:
        """Raises FileNotFoundError."""
        self.path = path
        self.number = number
        self.count = count
        self._file = vfs.open(path)

    @property
    def has_its_length(self) -> bool:
        return self._file.size() == timer_file.file_bytes(self.count)

    def blocks(self, first: int, count: int) -> Entries:
        """The entries of these blocks. Raises CorruptRecord."""
        raw, failure = read_readable(self._file, first * BLOCK_BYTES, count * BLOCK_BYTES)
        if failure is not None:
            reason = f"unreadable: {failure.strerror}"
            raise CorruptRecord(self.path, first * BLOCK_BYTES + len(raw), reason)
        try:
            return timer_file.decode(raw, self.number, first)
        except DamagedTimers as damage:
            raise CorruptRecord(self.path, first * BLOCK_BYTES, str(damage)) from None

    def close(self) -> None:
        self._file.close()


class Part(NamedTuple):
    """The entries of a file from one on; those before it are over.

    Raises CorruptRecord wherever it reads.
    """

    file: TimerFile
    begin: int = 0

    @property
    def end(self) -> int:
        return self.file.count

    @property
    def live_count(self) -> int:
        return self.end - self.begin

    def read(self, begin: int, count: int) -> Entries:
        if begin == self.end:
            return timer_file.NOTHING
        first, last = begin // BLOCK_ENTRIES, (min(begin + count, self.end) - 1) // BLOCK_ENTRIES
        return self.file.blocks(first, last - first + 1)[begin - first * BLOCK_ENTRIES :][:count]

    def find(self, key: Key) -> int:
        low, high = self.begin // BLOCK_ENTRIES, -(-self.end // BLOCK_ENTRIES)
        if low == high:
            return self.end
        while high - low > 1:  # the key is not behind the first entry of block `high`
            middle = (low + high) // 2
            if timer_file.position(self.file.blocks(middle, 1)[:1], key):
                low = middle
            else:
                high = middle
        return max(
            self.begin, low * BLOCK_ENTRIES + timer_file.position(self.file.blocks(low, 1), key)
        )


class Memory:
    """Sorted entries that no file has yet."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self.end = len(entries)

    def read(self, begin: int, count: int) -> Entries:
        return self._entries[begin : begin + count]

    def find(self, key: Key) -> int:
        return timer_file.position(self._entries, key)


class TimerFolder:
    """Makes, opens and removes the files."""

    def __init__(self, vfs: Vfs, directory: PurePath, *, scratch: PurePath) -> None:
        self._vfs = vfs
        self._directory = directory
        self._scratch = scratch

    def open(self, listed: Iterable[tuple[int, int, int]]) -> tuple[Part, ...] | None:
        """The parts of files by (number, count, begin); None where a file is missing or has not its
        length.
        """
        parts: list[Part] = []
        is_whole = True
        try:
            for number, count, begin in listed:
                file = TimerFile(self._vfs, self._path(number), number, count)
                parts.append(Part(file, begin))
                is_whole &= file.has_its_length
        except FileNotFoundError:
            is_whole = False
        if is_whole:
            return tuple(parts)
        for part in parts:
            part.file.close()
        return None

    def make(self, number: int, pieces: Iterable[Entries]) -> TimerFile | None:
        """A file of these entries; None where there are none. Durable on return."""
        path, count = self._path(number), 0
        blocks = iter(_in_blocks(pieces))
        first = next(blocks, None)
        if first is None:
            return None
        try:
            with durable.making(self._vfs, path, self._scratch / path.name) as file:
                for entries in chain((first,), blocks):
                    file.write(
                        timer_file.file_bytes(count),
                        timer_file.encode(entries, number, count // BLOCK_ENTRIES),
                    )
                    count += len(entries)
            return TimerFile(self._vfs, path, number, count)
        except OSError:
            if self._vfs.exists(path):
                self._vfs.remove(path)
            raise

    def remove(self, files: Iterable[TimerFile]) -> None:
        """Close and remove them."""
        for file in files:
            file.close()
            self._vfs.remove(file.path)

    def remove_all_but(self, kept: Iterable[Part]) -> None:
        named = {part.file.path.name for part in kept}
        surplus = [
            name
            for name in self._vfs.list_directory(self._directory)
            if names.base_offset(name) is not None and name not in named
        ]
        for name in surplus:
            self._vfs.remove(self._directory / name)
        if surplus:
            self._vfs.sync_directory(self._directory)

    def _path(self, number: int) -> PurePath:
        return self._directory / names.file_name(number)


def _in_blocks(pieces: Iterable[Entries]) -> Iterable[Entries]:
    """The same entries in pieces that fill blocks, but for the last one."""
    waiting: list[Entries] = []
    waiting_count = 0
    for piece in pieces:
        waiting.append(piece)
        waiting_count += len(piece)
        if waiting_count >= _ENCODED_AT_ONCE:
            together = np.concatenate(waiting)
            whole = waiting_count - waiting_count % BLOCK_ENTRIES
            yield together[:whole]
            waiting, waiting_count = [together[whole:]], waiting_count - whole
    if waiting_count:
        yield np.concatenate(waiting)
