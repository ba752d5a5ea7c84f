"""The files of consume queues.

Only entries of records that are durable are written, so the files never say more than the log. The
derive lane writes files, the read lane reads.
"""

import errno
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from itertools import groupby
from pathlib import PurePath

import structlog

from storage.files import durable
from storage.files.handles import Handles
from storage.files.unreadable import Unreadable, page_of, read_readable
from storage.files.unsynced import MOST_KEPT_BYTES, Unsynced
from storage.files.vfs import PAGE_BYTES, Vfs, is_failed_sync, is_unreadable
from storage.formats import names, queue_entry
from storage.formats.queue_entry import ENTRY_BYTES, QueueEntry
from storage.local.queues.consume_queue import ConsumeQueue, Unflushed
from storage.local.queues.zeroed_entries import ZeroedEntries, ZeroedRange
from storage.message import OffsetRange, QueueId

_COPIED_BYTES = 1 << 20

log = structlog.get_logger()


class QueueFiles:
    """The files of all queues: sparse, of one length, `<topic>/<queue>/<20 digits of the byte
    address>`.
    """

    def __init__(
        self,
        vfs: Vfs,
        directory: PurePath,
        *,
        entries_per_file: int,
        max_open: int,
        scratch: PurePath,
        zeroed: ZeroedEntries | None = None,
    ) -> None:
        """`zeroed`: the note of a store; None: nothing is noted on disk."""
        self._vfs = vfs
        self._directory = directory
        self._entries_per_file = entries_per_file
        self._file_bytes = entries_per_file * ENTRY_BYTES
        self._scratch = scratch
        self._handles = Handles(vfs, limit=max_open)
        # In the order of their first writes: to sort ten thousand paths takes 50 ms.
        self._unsynced: dict[PurePath, Unsynced] = {}
        self._kept_bytes = 0  # by them
        self.zeroed = ZeroedEntries() if zeroed is None else zeroed

    def entries(self, queue: ConsumeQueue, queue_offset: int, count: int) -> list[QueueEntry]:
        """Some of these entries, at least the first: from memory, or from one file, whichever has
        it. Read lane only.
        """
        in_memory_from = queue.recent_from
        if queue_offset < in_memory_from:
            # No further than what is written: behind that the file has zeros.
            return self.read(queue.id, queue_offset, min(count, in_memory_from - queue_offset))
        recent = queue.recent(queue_offset, count)
        return (
            list(queue_entry.decode_all(recent))
            if recent
            else self.read(queue.id, queue_offset, count)
        )

    def read(self, queue: QueueId, queue_offset: int, count: int) -> list[QueueEntry]:
        """Up to `count` entries of one file, none where the disk does not give them back. Read
        lane only.
        """
        return list(queue_entry.decode_all(self.read_bytes(queue, queue_offset, count)))

    def read_bytes(self, queue: QueueId, queue_offset: int, count: int) -> bytes:
        """Read entries as `read` does, as they are stored; in any lane.

        They end before the first page that the disk does not give back.
        """
        path, at = self._place(queue, queue_offset)
        length = min(count * ENTRY_BYTES, self._file_bytes - at)
        with self._handles.use(path) as file:
            raw, _ = read_readable(file, at, length)
        return raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES]

    def entries_now(
        self, queue: ConsumeQueue, queue_offset: int, count: int
    ) -> list[queue_entry.Fields] | None:
        """Entries as of `entries`, in the owner's thread; None where the disk must be asked."""
        raw = self.bytes_now(queue, queue_offset, count)
        return None if raw is None else queue_entry.fields_of_all(raw)

    def bytes_now(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes | None:
        """Entries as of `entries_now`, as they are stored."""
        recent = queue.recent(queue_offset, count)
        if recent is not None:
            return recent
        path, at = self._place(queue.id, queue_offset)
        length = min(
            min(count, queue.recent_from - queue_offset) * ENTRY_BYTES, self._file_bytes - at
        )
        handle = self._handles.acquire_open(path)
        if handle is None:
            return None
        try:
            return handle.file.read_cached(at, length)
        finally:
            self._handles.release(handle)

    def read_now(
        self, queue: ConsumeQueue, queue_offsets: Iterable[int]
    ) -> list[QueueEntry | None]:
        """The entry at each of these offsets; None where the disk must be asked."""
        found: list[QueueEntry | None] = []
        for file_number, in_file in groupby(
            queue_offsets, key=lambda queue_offset: queue_offset // self._entries_per_file
        ):
            with self._handles.use_open(self._path(queue.id, file_number)) as file:
                for queue_offset in in_file:
                    recent = queue.recent(queue_offset, 1)
                    if recent is None and file is not None:
                        recent = file.read_cached(
                            queue_offset * ENTRY_BYTES % self._file_bytes, ENTRY_BYTES
                        )
                    found.append(queue_entry.decode(recent) if recent else None)
        return found

    def stored_entry(self, queue: QueueId, queue_offset: int) -> QueueEntry | None:
        """The entry in the file; None if that ends before it.

        Raises FileNotFoundError, Unreadable.
        """
        path, at = self._place(queue, queue_offset)
        with self._handles.use(path) as file:
            raw, failure = read_readable(file, at, ENTRY_BYTES)
        if failure is not None:
            raise Unreadable(failure, path, at + len(raw))
        return queue_entry.decode(raw) if len(raw) == ENTRY_BYTES else None

    def first_stored_at(self, queue: QueueId, bounds: OffsetRange, log_offset: int) -> int | None:
        """The first of the queue's messages that is stored at or behind this place in the log, or
        its end, by the files alone.

        None if they do not have what it takes. Raises FileNotFoundError, Unreadable.
        """
        low, high = bounds
        middle = low  # nearly always it is the first
        while low < high:
            entry = self.stored_entry(queue, middle)
            if entry is None or entry.record_bytes <= 0:  # zeros, since a page was unreadable
                return None
            if entry.physical_offset >= log_offset:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low

    def emptied(self, log_begin: int) -> Iterator[tuple[QueueId, int | Unreadable]]:
        """Queues that have files, and of whose messages none is stored at or behind this place in
        the log, each with its end; also those whose files the disk does not give back.
        """
        for topic in self.topics():
            for number in self._names(self._directory / topic):
                if number.isascii() and number.isdigit():
                    queue = QueueId(topic, int(number))
                    try:
                        newest = self._newest_entry(queue)
                    except Unreadable as error:
                        yield queue, error
                        continue
                    if newest is not None and newest[1].physical_offset < log_begin:
                        yield queue, newest[0] + 1

    def topics(self) -> list[str]:
        """The topics that have a folder."""
        return list(filter(names.is_stored_name, self._names(self._directory)))

    def _names(self, folder: PurePath) -> list[str]:
        try:
            return self._vfs.list_directory(folder)
        except NotADirectoryError:  # a file of another program
            return []

    def _newest_entry(self, queue: QueueId) -> tuple[int, QueueEntry] | None:
        """The last entry that was written, with its queue offset; None where there is none."""
        folder = self._directory / queue.topic / str(queue.number)
        bases = [
            base
            for base in map(names.base_offset, self._names(folder))
            if base is not None and base % self._file_bytes == 0
        ]
        for base in sorted(bases, reverse=True):  # the last file may have been made ahead
            first = base // ENTRY_BYTES
            missing_at = partial(self._is_missing, queue, first)
            count = bisect_left(range(self._entries_per_file), True, key=missing_at)
            entry = self.stored_entry(queue, first + count - 1) if count else None
            if entry is not None:
                return first + count - 1, entry
        return None

    def _is_missing(self, queue: QueueId, first: int, number: int) -> bool:
        entry = self.stored_entry(queue, first + number)
        return entry is None or entry.record_bytes <= 0

    def drop_before(self, queue: QueueId, queue_offset: int) -> None:
        """Remove the files that have only entries before this one; never the last.

        Derive lane only.
        """
        folder = self._directory / queue.topic / str(queue.number)
        if not self._vfs.exists(folder):
            return
        bases = sorted(
            base
            for base in map(names.base_offset, self._vfs.list_directory(folder))
            if base is not None
        )
        going = [
            base for base in bases[:-1] if base + self._file_bytes <= queue_offset * ENTRY_BYTES
        ]
        for base in going:
            path = folder / names.file_name(base)
            self._forget(path)
            self._vfs.remove(path)
        if going:
            self._vfs.sync_directory(folder)

    def remove(self, topic: str, *, kept: int = 0) -> None:
        """Remove the folder of a deleted topic, but for what other programs have there. Derive lane
        only.

        `kept`: of so many queues, which the topic has again, the files stay.
        """
        of_topic = self._directory / topic
        if not self._vfs.exists(of_topic):
            return
        for number in self._names(of_topic):
            if kept and not (number.isascii() and number.isdigit() and int(number) >= kept):
                continue
            folder = of_topic / number
            for name in self._names(folder):
                if names.base_offset(name) is not None:
                    self._forget(folder / name)
                    self._vfs.remove(folder / name)
            self._remove_folder(folder)
        self._remove_folder(of_topic)
        self._vfs.sync_directory(self._directory)

    def _remove_folder(self, folder: PurePath) -> None:
        try:
            self._vfs.remove_directory(folder)
        except NotADirectoryError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._vfs.sync_directory(folder)

    def write(self, unflushed: Unflushed) -> None:
        """Write new entries; not durable before `sync`. Derive lane only."""
        queue, queue_offset, entries = unflushed.queue.id, unflushed.queue_offset, unflushed.entries
        while entries:
            path, at = self._place(queue, queue_offset)
            piece = entries[: self._file_bytes - at]
            if not self._vfs.exists(path):
                self._make(path, fillers=unflushed.queue.first - (queue_offset - at // ENTRY_BYTES))
            self._write(path, at, piece)
            queue_offset += len(piece) // ENTRY_BYTES
            entries = entries[len(piece) :]
        if self._kept_bytes > MOST_KEPT_BYTES:  # a start makes all files again
            self.sync()

    def replace_unreadable(self, queue: QueueId, queue_offset: int) -> None:
        """Replace the file of this entry if the disk does not give the entry back. Derive lane
        only.

        Raises Unreadable, where the new file is not given back either.
        """
        try:
            self.stored_entry(queue, queue_offset)
        except FileNotFoundError:
            return
        except Unreadable as error:
            self._replace(error.path)
            self.stored_entry(queue, queue_offset)

    def rewrite(self, unflushed: Unflushed) -> None:
        """Entries that the file should have, in one file; a file that is missing or cut is made
        whole. Derive lane only.
        """
        self.write(unflushed)
        path, _ = self._place(unflushed.queue.id, unflushed.queue_offset)
        with self._handles.use(path) as file:
            if file.size() < self._file_bytes:
                file.extend(self._file_bytes)

    def sync(self) -> None:
        """Sync everything written; durable on return. Derive lane only. Raises OSError: it can be
        called again, unless the disk failed the sync of the copy that replaces a file, too.
        """
        for path, unsynced in list(self._unsynced.items()):
            kept_bytes = unsynced.kept_bytes
            try:
                with self._handles.use(path) as file:
                    unsynced.sync(file)
            except OSError as error:
                if not is_failed_sync(error):
                    raise
                self._replace(path, is_unsynced=True)
                continue
            del self._unsynced[path]
            self._kept_bytes -= kept_bytes
        self.zeroed.note_synced()

    def close(self) -> None:
        self._handles.close()

    def _make(self, path: PurePath, *, fillers: int) -> None:
        if not self._vfs.exists(path.parent):
            self._vfs.make_directory(path.parent)
            self._vfs.sync_directory(path.parent.parent)
            self._vfs.sync_directory(self._directory)
        durable.in_another_file(
            partial(durable.make_sized, self._vfs, path, self._file_bytes, scratch=self._scratch)
        )
        self._handles.forget(path)  # of a file that was removed by another program
        if fillers > 0:
            self._write(path, 0, queue_entry.FILLER * min(fillers, self._entries_per_file))

    def _write(self, path: PurePath, at: int, data: bytes) -> None:
        try:
            with self._handles.use(path) as file:
                self._unsynced.setdefault(path, Unsynced()).write(file, at, data)
        except OSError as error:
            if not is_unreadable(error):
                raise
            self._replace(path)
            with self._handles.use(path) as file:
                self._unsynced.setdefault(path, Unsynced()).write(file, at, data)
        self._kept_bytes += len(data)

    def _replace(self, path: PurePath, *, is_unsynced: bool = False) -> None:
        """Put a copy in the place of a file: of what the disk has of it, and what was written since
        it was synced. Durable on return.

        Pages that the disk does not give back are zeros there: their entries are made again when
        they are read, or soon. `is_unsynced`: the disk has failed the sync of the file, not a read:
        then the copy is the other file that a failed sync is survived by, and there is no third.
        """
        make_copy = partial(
            self._copy_readable, path, self._scratch / f"{path.parent.name}-{path.name}"
        )
        try:
            if is_unsynced:
                make_copy()
            else:
                durable.in_another_file(make_copy)
        except OSError:
            self._handles.forget(path)  # the copy may have the name, and its folder not be synced
            raise
        self._forget(path)
        reason = "a sync of it has failed" if is_unsynced else "the disk does not give it back"
        log.error("queue_file_replaced", file=str(path), reason=reason)

    def _copy_readable(self, path: PurePath, made: PurePath) -> None:
        with self._handles.use(path) as file, durable.making(self._vfs, path, made) as copy:
            file.drop_cache()  # which may show what a failed sync has not brought to the disk
            copy.extend(self._file_bytes)
            zeroed: list[ZeroedRange] = []
            for begin, end in file.data_ranges(0):
                at = begin
                while at < end:
                    data, failure = read_readable(file, at, min(_COPIED_BYTES, end - at))
                    if data:
                        copy.write(at, data)
                    at += len(data)
                    if failure is not None:  # no entry stays that was read in part
                        first = at // ENTRY_BYTES
                        copy.write(first * ENTRY_BYTES, bytes(at % ENTRY_BYTES))
                        at = page_of(at) + PAGE_BYTES
                        at += -at % ENTRY_BYTES
                        zeroed.append(_range_of(path, first, at // ENTRY_BYTES))
                    elif not data:
                        break
            if path in self._unsynced:
                self._unsynced[path].repeat(copy)
            if zeroed:
                self.zeroed.add(zeroed)  # before the copy gets its name

    def _forget(self, path: PurePath) -> None:
        """The file is to be removed."""
        self._handles.forget(path)
        unsynced = self._unsynced.pop(path, None)
        if unsynced is not None:
            self._kept_bytes -= unsynced.kept_bytes

    def _place(self, queue: QueueId, queue_offset: int) -> tuple[PurePath, int]:
        file_number, number = divmod(queue_offset, self._entries_per_file)
        return self._path(queue, file_number), number * ENTRY_BYTES

    def _path(self, queue: QueueId, file_number: int) -> PurePath:
        return _file_path(self._directory, queue, file_number * self._file_bytes)


def _range_of(path: PurePath, begin: int, end: int) -> ZeroedRange:
    """`begin`, `end`: numbers of entries in the file."""
    queue = QueueId(path.parent.parent.name, int(path.parent.name))
    first = (names.base_offset(path.name) or 0) // ENTRY_BYTES
    return ZeroedRange(queue, OffsetRange(first + begin, first + end))


@lru_cache(maxsize=16_384)
def _file_path(directory: PurePath, queue: QueueId, base: int) -> PurePath:
    """Kept, as each read of a queue asks for it: to join a path takes longer than to read a
    message.
    """
    return directory / queue.topic / str(queue.number) / names.file_name(base)
