"""The queues of a broker, read beside it while it runs: their bounds, and the message at an offset.
Reads, and changes nothing.

The files may come from anywhere, and the broker appends to them and removes expired ones in the
meantime: no file is a symbolic link, and a record has to state its queue, offset and place.
"""

import os
from bisect import bisect_left
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, Self

from app.store_moves.store_folder import COMMIT_LOG, CONSUME_QUEUES, base_offset
from storage.formats import names, queue_entry, stored_record
from storage.formats.queue_entry import ENTRY_BYTES, FILLER, QueueEntry
from storage.message import OffsetRange, QueueId, StoredMessage

_MOST_RECORD_BYTES = 128 << 20
_FILLER_BYTES = queue_entry.decode(FILLER).record_bytes


class NotReadable(Exception):
    """The files do not have the message, or not as a whole."""


class MessageIdentity(NamedTuple):
    """The fields that a message and its copy in an imported store share, and no other message has.

    Messages of one batch may have the same: they are stored together. The id
    alone is not enough: a delayed message has the same one wherever it is delivered.
    """

    message_id: str
    born_at_ms: int
    stored_at_ms: int

    @classmethod
    def of(cls, message: StoredMessage) -> Self:
        return cls(message.message_id, message.born_at_ms, message.stored_at_ms)


class BrokerQueues:
    """The queues in a broker's store folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def exist(self) -> bool:
        """Has the folder a log and queues, or only configuration?"""
        return all((self._root / name).is_dir() for name in (COMMIT_LOG, CONSUME_QUEUES))

    def queues_of(self, topic: str) -> list[QueueId]:
        """The queues that the topic has files of."""
        folder = self._root / CONSUME_QUEUES / topic
        if not names.is_stored_name(topic) or not folder.is_dir():
            return []
        numbers = [name for name in os.listdir(folder) if name.isascii() and name.isdigit()]
        return [QueueId(topic, number) for number in sorted(map(int, numbers))]

    def bounds(self, queue: QueueId) -> OffsetRange:
        """The offsets of the messages that the log still has. Raises NotReadable, OSError."""
        files = self._queue_files(queue)
        for path, begin, size in reversed(files):
            indexes = range(size // ENTRY_BYTES)
            written = bisect_left(indexes, True, key=partial(_is_unwritten, path))
            if written:
                end = begin // ENTRY_BYTES + written
                break
        else:
            return OffsetRange(0, 0)
        log = _files(self._root / COMMIT_LOG)
        log_begin = log[0][1] if log else 0

        def is_kept(offset: int) -> bool:
            entry = _entry_at(files, offset)
            return entry.record_bytes != _FILLER_BYTES and entry.physical_offset >= log_begin

        first = files[0][1] // ENTRY_BYTES
        return OffsetRange(first + bisect_left(range(first, end), True, key=is_kept), end)

    def identity(self, queue: QueueId, offset: int) -> MessageIdentity:
        """The identity of the message at this offset. Raises NotReadable, OSError."""
        entry = _entry_at(self._queue_files(queue), offset)
        if not 0 < entry.record_bytes <= _MOST_RECORD_BYTES:
            raise NotReadable(f"no entry at {offset}")
        path, at = _place(_files(self._root / COMMIT_LOG), entry.physical_offset)
        data = _read(path, at, entry.record_bytes)
        for found in stored_record.of_queue(queue, [offset], [entry], [data]):
            return MessageIdentity.of(found.message())
        raise NotReadable(f"no whole record at {entry.physical_offset}")

    def _queue_files(self, queue: QueueId) -> "list[_File]":
        if not names.is_stored_name(queue.topic):
            raise NotReadable(f"{queue.topic[:100]!r} is no topic")
        return _files(self._root / CONSUME_QUEUES / queue.topic / str(queue.number))


class _File(NamedTuple):
    path: Path
    begin: int  # the address of its first byte
    size: int


def _files(folder: Path) -> list[_File]:
    """The numbered files of a folder, in order."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                begin = base_offset(entry.name)
                if begin is not None and entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    found.append(_File(folder / entry.name, begin, size))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotReadable(str(error)) from None
    return sorted(found, key=lambda file: file.begin)


def _place(files: list[_File], address: int) -> tuple[Path, int]:
    """The file that has this address, and where in it."""
    for path, begin, size in files:
        if begin <= address < begin + size:
            return path, address - begin
    raise NotReadable(f"no file has {address}")


def _entry_at(files: list[_File], offset: int) -> QueueEntry:
    path, at = _place(files, offset * ENTRY_BYTES)
    return _entry(path, at // ENTRY_BYTES)


def _entry(path: Path, index: int) -> QueueEntry:
    return queue_entry.decode(_read(path, index * ENTRY_BYTES, ENTRY_BYTES))


def _is_unwritten(path: Path, index: int) -> bool:
    return _entry(path, index).record_bytes <= 0


def _read(path: Path, at: int, length: int) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:  # expired in the meantime
        raise NotReadable(str(error)) from None
    try:
        if not S_ISREG(os.fstat(file).st_mode):
            raise NotReadable(f"{path} is no file")
        data = os.pread(file, length, at)
    finally:
        os.close(file)
    if len(data) < length:
        raise NotReadable(f"{path} ends before {at + length}")
    return data
