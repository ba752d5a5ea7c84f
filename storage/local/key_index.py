"""The key index: where the messages with a key lie in the log, in RocketMQ's index files. Derived; the log gives it back.

A reader of the log: the derive lane feeds it what has become durable, a piece at a time, so that an append costs nothing more.
What is newer than the files is looked for in the log itself (`key_lookup.py`). The read lane asks while the derive lane writes.

Files are written in an order that a crash cannot spoil: the entries, then the slots that point at them, then the header that
counts them, each synced before the next. A start believes the header, leads slots that point past it back along their chains,
and is fed again from where the header ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Any

import numpy as np

from storage.clock import Clock
from storage.files import durable
from storage.files.handles import Handles
from storage.files.vfs import File, Vfs
from storage.formats import index_file, key_scan
from storage.formats.index_file import ENTRY, HEADER_BYTES, SLOT, Header, Ints
from storage.formats.scan import Scan

_BLOCK_SLOTS = 1024  # written together; 4 KiB
_LOADED_SLOTS = 1 << 20


class KeyIndex:
    """The derive lane's but for `find`, which is the read lane's. A recovery may feed it before there are lanes."""

    def __init__(
        self, vfs: Vfs, directory: PurePath, clock: Clock, *, slots: int, entries: int, max_open: int, scratch: PurePath
    ) -> None:
        """Looks at what is there. `max_open`: files that are kept open."""
        self._vfs = vfs
        self._handles = Handles(vfs, limit=max_open)
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self._scratch = scratch
        self._files: tuple[IndexFile, ...] = ()
        names = [name for name in vfs.list_directory(directory) if index_file.is_file_name(name)]
        for name in names:
            file = IndexFile(self._handles, directory / name, slots=slots, entries=entries)
            if file.has_its_length:
                self._files = (*self._files, file)
            else:
                file.close()
        # Files of other sizes (the settings have changed, or a broker had others) are made again.
        self.is_whole = len(self._files) == len(names)
        if self._files:
            self._files[-1].load()

    @property
    def marks(self) -> dict[str, int]:
        """What the files hold: by name the number that the next entry gets."""
        return {file.path.name: file.header.next_entry for file in self._files}

    def bears_out(self, marks: Mapping[str, int]) -> bool:
        """Do the files hold at least what they held then?"""
        held = self.marks
        return self.is_whole and all(held.get(name, 0) >= next_entry for name, next_entry in marks.items())

    def clear(self) -> None:
        """Forget everything: it will be fed from the beginning of the log."""
        self.close()
        for name in self._vfs.list_directory(self._directory):
            self._vfs.remove(self._directory / name)
        self._vfs.sync_directory(self._directory)
        self.is_whole = True

    def feed(self, window: bytes, window_offset: int, scan: Scan) -> None:
        """The records of a scan of `window`; those that it has are passed over."""
        indexed_offset = max([file.header.end_offset for file in self._files if not file.header.is_empty], default=-1)
        is_new = scan.record_offsets > indexed_offset
        found = key_scan.keys(window, window_offset, scan.record_offsets[is_new], scan.record_bytes[is_new])
        self._add(found.hashes, found.log_offsets, found.stored_at_ms)

    def sync(self) -> None:
        """Everything fed is durable on return."""
        if self._files:
            self._files[-1].sync()

    def find(self, topic: str, key: str, *, from_ms: int, to_ms: int) -> Iterator[int]:
        """Log offsets of records that may have the key, stored in about [from_ms, to_ms], newest first.

        Not every one has it: keys share hashes, and times are kept in whole seconds.
        """
        (key_hash,) = index_file.key_hashes([index_file.index_key(topic, key)]).tolist()
        for file in reversed(self._files):
            header = file.header
            if header.is_empty or header.begin_stored_at_ms > to_ms:
                continue
            if header.end_stored_at_ms < from_ms:
                return
            try:
                yield from file.chain(key_hash, from_ms=from_ms, to_ms=to_ms)
            except FileNotFoundError:
                if file in self._files:
                    raise
                # It was forgotten meanwhile, and removed: what it leads to has been dropped.

    def forget_before(self, log_offset: int) -> list["IndexFile"]:
        """The oldest files, that lead to nothing at or behind this place; never the last. `remove` them, then close them."""
        count = 0
        while count < len(self._files) - 1 and self._files[count].header.end_offset < log_offset:
            count += 1
        forgotten, self._files = self._files[:count], self._files[count:]
        return list(forgotten)

    def remove(self, files: Sequence["IndexFile"]) -> None:
        """Forgotten ones, durably on return."""
        for file in files:
            if self._vfs.exists(file.path):
                self._vfs.remove(file.path)
        if files:
            self._vfs.sync_directory(self._directory)

    def close(self) -> None:
        files, self._files = self._files, ()
        for file in files:
            file.close()

    def _add(self, hashes: Ints, log_offsets: Ints, times_ms: Ints) -> None:
        at = 0
        while at < len(hashes):
            if not self._files or not self._files[-1].room:
                self._roll()
            newest = self._files[-1]
            end = min(at + newest.room, len(hashes))
            while at < end < len(hashes) and log_offsets[end] == log_offsets[end - 1]:
                end -= 1  # the keys of a record stand in one file: what has its first one has them all
            if end == at and not newest.header.is_empty:
                self._roll()
                continue
            end = end if end > at else min(at + newest.room, len(hashes))
            newest.add(hashes[at:end], log_offsets[at:end], times_ms[at:end])
            at = end

    def _roll(self) -> None:
        name = index_file.file_name(self._clock.wall_ms())
        inherited = Header(0, 0, 0, 0, 0, 1)
        if self._files:
            last = self._files[-1]
            last.sync()
            last.unload()
            end_ms, end_offset = last.header.end_stored_at_ms, last.header.end_offset
            inherited = Header(end_ms, end_ms, end_offset, end_offset, 0, 1)
            name = max(name, index_file.name_behind(last.path.name))
        path = self._directory / name
        length = index_file.file_bytes(self._slots, self._entries)
        durable.make_sized(self._vfs, path, length, scratch=self._scratch, with_space=False)
        made = IndexFile(self._handles, path, slots=self._slots, entries=self._entries)
        made.load()
        made.header = inherited
        self._files = (*self._files, made)


class IndexFile:
    """One file; the newest one has its slots in memory."""

    def __init__(self, handles: Handles, path: PurePath, *, slots: int, entries: int) -> None:
        self.path = path
        self._handles = handles
        self._slots = slots
        self._entries = entries
        with self._use() as file:
            self.has_its_length = file.size() == index_file.file_bytes(slots, entries)
            self.header = index_file.decode_header(file.read(0, HEADER_BYTES))
        self._newest: np.ndarray[Any, np.dtype[np.int32]] | None = None  # of each slot, the number of its newest entry
        self._dirty = np.zeros(0, np.bool_)  # blocks of slots that the file does not have yet

    @property
    def room(self) -> int:
        """How many entries still fit. Entry 0 is never used."""
        return self._entries - self.header.next_entry

    def load(self) -> None:
        """Take the slots into memory, to be written to. After a crash some may point past what the header counts."""
        begin = index_file.slot_at(0)
        newest = np.zeros(self._slots, np.int32)
        self._dirty = np.zeros(-(-self._slots // _BLOCK_SLOTS), np.bool_)
        with self._use() as file:
            for data_begin, data_end in file.data_ranges(begin):
                first, last = (data_begin - begin) // SLOT.itemsize, -(-(data_end - begin) // SLOT.itemsize)
                for slot in range(first, min(last, self._slots), _LOADED_SLOTS):
                    count = min(_LOADED_SLOTS, last - slot, self._slots - slot)
                    piece = file.read(index_file.slot_at(slot), SLOT.itemsize * count)
                    newest[slot : slot + count] = np.frombuffer(piece, SLOT)
        self._newest = newest
        self._lead_back(newest)

    def unload(self) -> None:
        """Nothing more is written to it."""
        self._newest = None

    def add(self, hashes: Ints, log_offsets: Ints, times_ms: Ints) -> None:
        """Entries that fit. Readers see them once the slots point at them."""
        newest = self._newest
        assert newest is not None
        header = self.header
        if header.is_empty:
            header = header._replace(begin_stored_at_ms=int(times_ms[0]), begin_offset=int(log_offsets[0]))
        count = len(hashes)
        numbers = np.arange(header.next_entry, header.next_entry + count)
        slots = hashes % self._slots
        # Entries of one slot, in their order, point each at the one before it; the first at what the slot held.
        order = np.argsort(slots, kind="stable")
        sorted_slots, sorted_numbers = slots[order], numbers[order]
        is_first = np.concatenate([[True], sorted_slots[1:] != sorted_slots[:-1]])
        is_last = np.concatenate([is_first[1:], [True]])
        previous = np.empty(count, np.int64)
        previous[order] = np.where(is_first, newest[sorted_slots], np.concatenate([[0], sorted_numbers[:-1]]))
        entries = np.empty(count, ENTRY)
        entries["key_hash"] = hashes
        entries["log_offset"] = log_offsets
        entries["seconds"] = index_file.seconds_between(header.begin_stored_at_ms, times_ms)
        entries["previous"] = previous
        with self._use() as file:
            file.write(index_file.entry_at(self._slots, header.next_entry), entries.tobytes())
        touched = sorted_slots[is_last]
        used = int(np.count_nonzero(newest[touched] == 0))
        self.header = header._replace(
            end_stored_at_ms=int(times_ms[-1]),
            end_offset=int(log_offsets[-1]),
            used_slots=header.used_slots + used,
            next_entry=header.next_entry + count,
        )
        newest[touched] = sorted_numbers[is_last]
        self._dirty[touched // _BLOCK_SLOTS] = True

    def sync(self) -> None:
        if not self._dirty.any():
            return
        with self._use() as file:
            file.sync()
            self._write_slots(file)
            file.sync()
            file.write(0, index_file.encode_header(self.header))
            file.sync()

    def chain(self, key_hash: int, *, from_ms: int, to_ms: int) -> Iterator[int]:
        """Log offsets of the entries with this hash and a time in the range, newest first."""
        begin_ms = self.header.begin_stored_at_ms
        number = self._slot(key_hash % self._slots)
        while 0 < number < self._entries:
            with self._use() as file:  # for each entry: this may stop at any of them for as long as the caller likes
                raw = file.read(index_file.entry_at(self._slots, number), ENTRY.itemsize)
            found_hash, log_offset, seconds, previous = np.frombuffer(raw, ENTRY)[0].tolist()
            stored_at_ms = begin_ms + seconds * 1000
            if stored_at_ms + 999 < from_ms:
                return
            if found_hash == key_hash and stored_at_ms <= to_ms:
                yield log_offset
            if previous >= number:
                return  # a chain goes back: this one was damaged
            number = previous

    def close(self) -> None:
        self._handles.forget(self.path)

    def _use(self) -> AbstractContextManager[File]:
        return self._handles.use(self.path)

    def _slot(self, slot: int) -> int:
        newest = self._newest
        if newest is not None:
            return int(newest[slot])
        with self._use() as file:
            raw = file.read(index_file.slot_at(slot), SLOT.itemsize)
        return int.from_bytes(raw, "big", signed=True)

    def _lead_back(self, newest: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        """Take out of the chains what the header does not count. Durable, since those entries will be written over."""
        ahead = np.flatnonzero(newest >= self.header.next_entry)
        if not len(ahead):
            return
        with self._use() as file:
            for slot in ahead.tolist():
                number = int(newest[slot])
                while number >= self.header.next_entry:
                    raw = file.read(index_file.entry_at(self._slots, number), ENTRY.itemsize)
                    previous = int(np.frombuffer(raw, ENTRY)[0]["previous"]) if len(raw) == ENTRY.itemsize else 0
                    number = previous if 0 <= previous < number else 0
                newest[slot] = number
            self._dirty[ahead // _BLOCK_SLOTS] = True
            self._write_slots(file)
            file.sync()

    def _write_slots(self, file: File) -> None:
        assert self._newest is not None
        blocks = np.flatnonzero(self._dirty)
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            begin, end = int(run[0]) * _BLOCK_SLOTS, min((int(run[-1]) + 1) * _BLOCK_SLOTS, self._slots)
            file.write(index_file.slot_at(begin), self._newest[begin:end].astype(SLOT).tobytes())
        self._dirty[:] = False
