"""One file of the key index: its entries, the slots that lead to them, and what of that is on disk.

The order of the writes and the sums are those of `key_index.py`, which has all files.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import PurePath
from typing import Any

import numpy as np
from crc32c import crc32c

from storage.files import durable
from storage.files.handles import Handles
from storage.files.unreadable import FailingPages, Unreadable, read_readable
from storage.files.unsynced import MOST_KEPT_BYTES, Unsynced
from storage.files.vfs import File, is_disk_full, is_failed_sync, is_unreadable
from storage.formats import index_file
from storage.formats.index_file import ENTRY, HEADER_BYTES, SLOT, Ints
from storage.local.index.index_sums import BLOCK_SLOTS, IndexSums

_LOADED_SLOTS = 1 << 20


class DoubtfulIndex(Exception):
    """An index file is not what was written, or the disk does not take it or give it back:
    `rebuild` makes it again.
    """

    def __init__(self, file: "IndexFile") -> None:
        super().__init__(str(file.path))
        self.file = file


class IndexFile:
    """One file; the newest one has its slots in memory."""

    def __init__(
        self,
        handles: Handles,
        path: PurePath,
        failing: FailingPages,
        *,
        slots: int,
        entries: int,
        sums: IndexSums | None,
    ) -> None:
        """`sums`: of the state that the file is led back to; None where none are known, and what it
        says is not checked.
        """
        self.path = path
        self._handles = handles
        self._failing = failing
        self._slots = slots
        self._entries = entries
        with self._use() as file:
            self.has_its_length = file.size() == index_file.file_bytes(slots, entries)
            self.header = (
                index_file.decode_header(file.read(0, HEADER_BYTES))
                if sums is None
                else sums.header
            )
        # of what was written so far
        self.sums = IndexSums.of_empty(self.header, slots) if sums is None else sums
        self._checked = None if sums is None else sums.copy()  # what is read is compared with these
        # of each slot, the number of its newest entry
        self._newest: np.ndarray[Any, np.dtype[np.int32]] | None = None
        self._dirty = np.zeros(0, np.bool_)  # blocks of slots that the file does not have yet
        self._has_stray_slots = False  # on disk some point past what the header counts
        self._unsynced = Unsynced()
        self.has_changed = False  # since its sums were saved
        self.failure: OSError | None = None  # of a write or a sync: nothing is written any more
        self.is_left = False  # to be made again; what is new goes into another file

    @property
    def room(self) -> int:
        """How many entries still fit. Entry 0 is never used."""
        return self._entries - self.header.next_entry

    @property
    def has_sums(self) -> bool:
        return self._checked is not None

    def trust(self) -> None:
        """Compare nothing with the sums any more: this process has written all of the file."""
        self._checked = None

    def load(self) -> bool:
        """Take the slots into memory, to be written to.

        After a crash some may point past what the header counts.

        False where they are not those of the sums.
        """
        begin = index_file.slot_at(0)
        newest = np.zeros(self._slots, np.int32)
        self._dirty = np.zeros(-(-self._slots // BLOCK_SLOTS), np.bool_)
        with self._use() as file:
            for data_begin, data_end in file.data_ranges(begin):
                first, last = (
                    (data_begin - begin) // SLOT.itemsize,
                    -(-(data_end - begin) // SLOT.itemsize),
                )
                for slot in range(first, min(last, self._slots), _LOADED_SLOTS):
                    count = min(_LOADED_SLOTS, last - slot, self._slots - slot)
                    piece = file.read(index_file.slot_at(slot), SLOT.itemsize * count)
                    newest[slot : slot + count] = np.frombuffer(piece, SLOT)
        self._newest = newest
        self._lead_back(newest)
        checked = self._checked
        raw = newest.astype(SLOT).tobytes()
        step = BLOCK_SLOTS * SLOT.itemsize
        return checked is None or all(
            checked.slots_match(at // step, raw[at : at + step]) for at in range(0, len(raw), step)
        )

    def unload(self) -> None:
        """Nothing more is written to it, and everything is synced."""
        self._newest = None
        if self._checked is not None:
            self._checked = self.sums

    def allocate(self, next_entry: int) -> None:
        """Take the space on the disk that the file needs up to this entry. Raises OSError."""
        with self._use() as file:
            file.allocate(0, index_file.entry_at(self._slots, next_entry))

    def add(self, hashes: Ints, log_offsets: Ints, times_ms: Ints) -> None:
        """Entries that fit. Readers see them once the slots point at them.

        Raises DoubtfulIndex.
        """
        newest = self._newest
        assert newest is not None
        if not len(hashes):
            return
        self._check_failure()
        header = self.header
        if header.is_empty:
            header = header._replace(
                begin_stored_at_ms=int(times_ms[0]), begin_offset=int(log_offsets[0])
            )
        count = len(hashes)
        # Entries of one slot, in their order, point each at the one before it; the first at what
        # the slot held.
        order, sorted_slots = index_file.by_slot(hashes, self._slots)
        sorted_numbers = order + header.next_entry
        is_first = np.concatenate([[True], sorted_slots[1:] != sorted_slots[:-1]])
        is_last = np.concatenate([is_first[1:], [True]])
        previous = np.empty(count, np.int64)
        previous[order] = np.where(
            is_first, newest[sorted_slots], np.concatenate([[0], sorted_numbers[:-1]])
        )
        entries = np.empty(count, ENTRY)
        entries["key_hash"] = hashes
        entries["log_offset"] = log_offsets
        entries["seconds"] = index_file.seconds_between(header.begin_stored_at_ms, times_ms)
        entries["previous"] = previous
        raw = entries.tobytes()
        with self._use() as file:
            self._correct_slots(file)
            self._write(file, index_file.entry_at(self._slots, header.next_entry), raw)
            if self._unsynced.kept_bytes > MOST_KEPT_BYTES:  # a start makes all files again
                self._sync(file)
        self.sums.add_entries(header.next_entry, raw)
        touched = sorted_slots[is_last]
        used = int(np.count_nonzero(newest[touched] == 0))
        self.header = header._replace(
            end_stored_at_ms=int(times_ms[-1]),
            end_offset=int(log_offsets[-1]),
            used_slots=header.used_slots + used,
            next_entry=header.next_entry + count,
        )
        newest[touched] = sorted_numbers[is_last]
        self._dirty[touched // BLOCK_SLOTS] = True
        self.has_changed = True

    def sync(self) -> None:
        """Durable on return; the sums are for the caller to save. Raises OSError: it can be called
        again; DoubtfulIndex.
        """
        self._check_failure()
        with self._use() as file:
            self._sync(file)
            self._write_slots(file)
            self._sync(file)
            self._write(file, 0, index_file.encode_header(self.header))
            self._sync(file)
        self.sums.header = self.header

    def chain(self, key_hash: int, *, from_ms: int, to_ms: int) -> Iterator[int]:
        """Log offsets of the entries with this hash and a time in the range, newest first.

        Raises DoubtfulIndex.
        """
        self._check_failure()  # what the disk did not take is at most in the page cache
        begin_ms = self.header.begin_stored_at_ms
        number = self._slot(key_hash % self._slots)
        while 0 < number < self._entries:
            found_hash, log_offset, seconds, previous = np.frombuffer(self._entry(number), ENTRY)[
                0
            ].tolist()
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

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise DoubtfulIndex(self)

    def _use(self) -> AbstractContextManager[File]:
        return self._handles.use(self.path)

    def _slot(self, slot: int) -> int:
        newest = self._newest
        if newest is not None:
            return int(newest[slot])
        if self._checked is None:
            return int.from_bytes(
                self._read(index_file.slot_at(slot), SLOT.itemsize), "big", signed=True
            )
        first = slot - slot % BLOCK_SLOTS
        raw = self._read(
            index_file.slot_at(first), min(BLOCK_SLOTS, self._slots - first) * SLOT.itemsize
        )
        if not self._checked.slots_match(first // BLOCK_SLOTS, raw):
            raise DoubtfulIndex(self)
        at = (slot - first) * SLOT.itemsize
        return int.from_bytes(raw[at : at + SLOT.itemsize], "big", signed=True)

    def _entry(self, number: int) -> bytes:
        checked = self._checked
        if checked is None or number >= checked.header.next_entry:  # this process has written it
            return self._read(index_file.entry_at(self._slots, number), ENTRY.itemsize)
        block, first, count = checked.block_of(number)
        raw = self._read(index_file.entry_at(self._slots, first), count * ENTRY.itemsize)
        if not checked.entries_match(block, raw):
            raise DoubtfulIndex(self)
        at = (number - first) * ENTRY.itemsize
        return raw[at : at + ENTRY.itemsize]

    def _read(self, at: int, length: int) -> bytes:
        """Raises DoubtfulIndex if the disk does not give it back for good, Unreadable until then:
        to make a file again takes long.
        """
        # each time: a search may stop anywhere for as long as its caller likes
        with self._use() as file:
            data, failure = read_readable(file, at, length)
            if failure is None:
                self._failing.note_read(self.path, at, at + length)
                return data
            failed_at = at + len(data)
            if not self._failing.counts_as_damage(file, self.path, failed_at):
                raise Unreadable(failure, self.path, failed_at)
        raise DoubtfulIndex(self)

    def _write(self, file: File, at: int, data: bytes) -> None:
        """Raises DoubtfulIndex if a page that the data begin or end in cannot be read."""
        try:
            self._unsynced.write(file, at, data)
        except OSError as error:
            if not is_unreadable(error):
                raise
            self.failure = error
            raise DoubtfulIndex(self) from error

    def _sync(self, file: File) -> None:
        """Raises DoubtfulIndex if the disk fails it: it is unknown what the disk has of the
        file.
        """
        try:
            self._unsynced.sync(file)
        except OSError as error:
            if not is_failed_sync(error):
                raise
            self.failure = durable.SyncFailed(error.errno, error.strerror, str(self.path))
            raise DoubtfulIndex(self) from error

    def _lead_back(self, newest: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        """Take out of the chains what the header does not count.

        Durable before those entries are written over: now, or with the first ones that are added
        where the disk has no space for it.
        """
        ahead = np.flatnonzero(newest >= self.header.next_entry)
        if not len(ahead):
            return
        with self._use() as file:
            for slot in ahead.tolist():
                number = int(newest[slot])
                while number >= self.header.next_entry:
                    raw = file.read(index_file.entry_at(self._slots, number), ENTRY.itemsize)
                    previous = (
                        int(np.frombuffer(raw, ENTRY)[0]["previous"])
                        if len(raw) == ENTRY.itemsize
                        else 0
                    )
                    number = previous if 0 <= previous < number else 0
                newest[slot] = number
            self._dirty[ahead // BLOCK_SLOTS] = True
            self._has_stray_slots = True
            with suppress(DoubtfulIndex):
                try:
                    self._correct_slots(file)
                except OSError as error:
                    if not is_disk_full(error):
                        raise

    def _correct_slots(self, file: File) -> None:
        """Write those on disk that point past what the header counts; durable on return."""
        if self._has_stray_slots:
            self._write_slots(file)
            self._sync(file)
            self._has_stray_slots = False

    def _write_slots(self, file: File) -> None:
        assert self._newest is not None
        blocks = np.flatnonzero(self._dirty)
        if not len(blocks):
            return
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            begin, end = (
                int(run[0]) * BLOCK_SLOTS,
                min((int(run[-1]) + 1) * BLOCK_SLOTS, self._slots),
            )
            raw = self._newest[begin:end].astype(SLOT).tobytes()
            self._write(file, index_file.slot_at(begin), raw)
            step = BLOCK_SLOTS * SLOT.itemsize
            for at in range(0, len(raw), step):
                self.sums.slots[begin // BLOCK_SLOTS + at // step] = crc32c(raw[at : at + step])
        self._dirty[:] = False
