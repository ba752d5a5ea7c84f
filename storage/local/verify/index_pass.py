"""Compare the key index with the log: every key has its entry, in the order of the log, and a
look-up comes to each entry.

Entries are in the files in the order of their records, so both are read once, side by side. Memory
is 4 bytes for each slot of one file. Where the store has a snapshot, it says how far the files are
to reach; what is newer is fed again by a start.
"""

from collections.abc import Generator, Iterator
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from storage.files.vfs import File, Vfs
from storage.formats import index_file, key_scan
from storage.formats.index_file import ENTRY, HEADER_BYTES, SLOT, Chains, Entries, Header, Ints
from storage.formats.key_scan import Flags, Keys
from storage.local.verify import scope as scopes
from storage.local.verify.log_pass import Piece
from storage.local.verify.scope import KEY_INDEX, Scope
from storage.store_status import Finding

_AT_ONCE = 1 << 13  # entries; numpy holds the interpreter's lock for some milliseconds
_SLOTS_AT_ONCE = 1 << 18
# written behind those that are compared, in a file that grows; of more the slots are left out
_MOST_NEWER = 1 << 20
_MOST_DIFFERING = 1_000  # in one piece: then the file does not follow the log at all
_REMEDY = (
    "Stop the service and run `escrowmq store repair DIR --rebuild-derived`: the next start "
    "rebuilds the key index."
)


class IndexMark(NamedTuple):
    """A place between two entries of the index files: all before it were compared."""

    file_name: str
    next_entry: int


class IndexPass:
    """Feed it every piece of the log in order, and `settle` now and then; at the end `finish`."""

    def __init__(
        self,
        scope: Scope,
        *,
        begin: int = 0,
        mark: IndexMark | None = None,
        drops_cache: bool = False,
    ) -> None:
        """`begin`: the log was walked before up to here, and is fed from here on; `mark`: its place
        in the files, where it is known.

        `drops_cache`: each file is read from the disk, though a copy of it may be in memory.
        """
        self._scope = scope
        self._drops_cache = drops_cache
        log_begin = scope.segments[0].begin if scope.segments else 0
        self._begin = max(begin, log_begin)
        self.compared_to = self._begin  # the log offset of the last record that was compared
        marks = None if scope.queues is None else scope.queues.index
        # Up to where the files must have every key; None: as far as they go.
        self._limit = (
            scope.queues.log_offset if scope.queues is not None and marks is not None else None
        )
        self._findings: list[Finding] = []
        self._missing: list[range] = []  # of the log
        self._pending: list[Keys] = []
        self._pending_count = 0
        self._files: list[_IndexFile] = []
        self._is_over = False  # nothing more is compared
        self._open(marks)
        if self._begin > log_begin:
            self._skip_compared(mark)
        self._is_over = not self._files
        self.total_bytes = sum(
            file.count * ENTRY.itemsize + file.slots * SLOT.itemsize for file in self._files
        )

    def feed(self, piece: Piece) -> Iterator[tuple[str, int]]:
        """(name of the file that was read, bytes)."""
        if piece.missing is not None:
            self._missing.append(piece.missing)
        if piece.scan is None or self._is_over:
            return
        is_wanted = np.ones(len(piece.scan.record_offsets), bool)
        if self._limit is not None:
            is_wanted = piece.scan.record_offsets < self._limit
        keys = key_scan.keys(
            piece.data,
            piece.offset,
            piece.scan.record_offsets[is_wanted],
            piece.scan.record_bytes[is_wanted],
        )
        self._pending.append(keys)
        self._pending_count += len(keys.hashes)
        if self._pending_count >= _AT_ONCE:
            yield from self._compare()

    def settle(self) -> Iterator[tuple[str, int]]:
        """Compare everything that was fed, and note what was found so far in a file that is not
        through. No file is open afterwards.
        """
        yield from self._compare()
        if self._files:
            for finding in self._files[0].differing():
                self._note(self._files[0].path, *finding)
            self._files[0].close()

    @property
    def mark(self) -> IndexMark | None:
        """The position from which a later pass continues, after `settle`; None if only the log has
        it.
        """
        if not self._files or self._files[0].has_gap:
            return None
        return IndexMark(self._files[0].path.name, self._files[0].at)

    def finish(self) -> Iterator[tuple[str, int]]:
        yield from self._compare()
        while self._files:  # entries of which the log has no whole record any more, and the slots
            try:
                yield from self._read_on(_NO_KEYS)
                yield from self._close_first()
            except FileNotFoundError:
                self._note_gone()

    def take_findings(self) -> list[Finding]:
        found, self._findings = self._findings, []
        return found

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    # ----------------------------------------------------------------------------------------------
    # opening

    def _open(self, marks: dict[str, int] | None) -> None:
        names = [
            name
            for name in scopes.listed(self._scope.vfs, self._scope.root / KEY_INDEX)
            if index_file.is_file_name(name)
        ]
        has_gap = False
        for name in names if marks is None else sorted(marks):
            path = self._scope.root / KEY_INDEX / name
            try:
                file = self._scope.vfs.open(path)
            except FileNotFoundError:
                has_gap = True
                if not self._is_dropped(name):
                    self._note(
                        path,
                        None,
                        "index_file_missing",
                        "no file",
                        f"{(marks or {})[name] - 1} entries",
                    )
                continue
            try:
                found = _IndexFile(
                    self._scope.vfs,
                    path,
                    file,
                    None if marks is None else marks[name],
                    has_gap=has_gap,
                    drops_cache=self._drops_cache,
                )
            finally:
                file.close()
            has_gap = not found.slots and not found.is_empty
            if found.slots:
                self._files.append(found)
            elif has_gap:
                size = (
                    f"a header that does not fit the {found.size} bytes of the file: "
                    f"{tuple(found.header)}"
                )
                self._note(path, 0, "index_file_unreadable", size, "a file of slots and entries")
        if has_gap:
            self._limit = None

    def _skip_compared(self, mark: IndexMark | None) -> None:
        """Leave out the files whose entries were all compared, and begin in one at the mark."""
        marked = [
            number
            for number, file in enumerate(self._files)
            if mark is not None and file.path.name == mark.file_name
        ]
        if marked and mark is not None:
            del self._files[: marked[0]]
            self._files[0].resume_at = mark.next_entry
            return
        while len(self._files) > 1 and self._files[1].header.begin_offset <= self._begin:
            del self._files[0]

    def _note_gone(self) -> None:
        """The first file went before it was read: with the segments that it led to, or by other
        hands.
        """
        gone = self._files.pop(0)
        if not self._is_dropped(gone.path.name):
            self._note(gone.path, None, "index_file_missing", "no file", f"{gone.count} entries")
        if self._files:
            self._files[0].has_gap = True
        else:
            self._limit = None

    def _is_dropped(self, name: str) -> bool:
        """Whether the file went with its segments since the verification began."""
        if not self._scope.is_running:
            return False
        now = scopes.newest_queues(self._scope.vfs, self._scope.root)
        return now is None or now.index is None or name not in now.index

    # ----------------------------------------------------------------------------------------------
    # comparing

    def _compare(self) -> Iterator[tuple[str, int]]:
        keys = (
            Keys._make(np.concatenate(parts) for parts in zip(*self._pending, strict=True))
            if self._pending
            else _NO_KEYS
        )
        self._pending, self._pending_count = [], 0
        while len(keys.hashes) and self._files:
            if self._files[0].has_gap:
                behind = keys.log_offsets >= self._files[0].header.begin_offset
                keys = Keys._make(part[behind] for part in keys)
                if not len(keys.hashes):
                    return
                self._files[0].has_gap = False
            try:
                keys = yield from self._read_on(keys)
                if self._files[0].is_through:
                    yield from self._close_first()
            except FileNotFoundError:
                self._note_gone()
        if len(keys.hashes):
            self._is_over = True
            if self._limit is not None:
                what = f"the keys of the records from log offset {keys.log_offsets[0]} on"
                self._note(
                    self._scope.root / KEY_INDEX, None, "index_entry_missing", "no entries", what
                )

    def _read_on(self, keys: Keys) -> Generator[tuple[str, int], None, Keys]:
        """Compare entries of the first file with these keys, until one of them is used up; returns
        the keys that are left.

        Without keys, reads the file to its end.
        """
        file = self._files[0]
        reads_all = not len(keys.hashes)
        while not file.is_through and (reads_all or len(keys.hashes)):
            count = _AT_ONCE if reads_all else min(_AT_ONCE, len(keys.hashes))
            entries = file.read(count)
            offsets = entries["log_offset"].astype(np.int64)
            # What retention has dropped is a beginning, and so is what was compared before; of what
            # is damaged the log has no keys.
            is_gone = (
                file.is_compared(len(offsets))
                if file.resume_at is not None
                else np.logical_and.accumulate(offsets < self._begin)
                if not file.has_matched
                else np.zeros(len(offsets), bool)
            )
            for missing in self._missing:
                is_gone |= (offsets >= missing.start) & (offsets < missing.stop)
            numbers = np.flatnonzero(~is_gone)[: len(keys.hashes)]
            compared = Keys._make(part[: len(numbers)] for part in keys)
            keys = Keys._make(part[len(numbers) :] for part in keys)
            self._check(file, entries, numbers, compared)
            if reads_all and self._limit is not None:
                file.note_stray(int(np.count_nonzero(~is_gone)))
            yield self._scope.name(file.path), len(entries) * ENTRY.itemsize
        return keys

    def _check(self, file: "_IndexFile", entries: Entries, numbers: Ints, keys: Keys) -> None:
        """`numbers`: which of the entries are those of the keys, in their order."""
        hashes = entries["key_hash"].astype(np.int64)
        if len(numbers):
            self.compared_to = int(keys.log_offsets[-1])
        if file.follows_log and len(numbers):
            begin_ms = file.begin_ms(
                keys, is_first=not file.has_matched and numbers[0] == 0 and file.at == 1
            )
            differs = (
                (hashes[numbers] != keys.hashes)
                | (entries["log_offset"][numbers] != keys.log_offsets)
                | (
                    entries["seconds"][numbers]
                    != index_file.seconds_between(begin_ms, keys.stored_at_ms)
                )
            )
            wrong = np.flatnonzero(differs)
            file.has_matched = True
            if len(wrong):
                file.note_differing(
                    file.at + numbers[wrong], entries[numbers[wrong[0]]], keys, int(wrong[0])
                )
                hashes[numbers[wrong]] = keys.hashes[wrong]
            file.follows_log = len(wrong) <= max(_MOST_DIFFERING, len(numbers) // 2)
        ends_with_key = len(numbers) > 0 and numbers[-1] == len(entries) - 1
        file.end_ms = int(keys.stored_at_ms[-1]) if ends_with_key else None
        file.link(hashes, entries)

    def _close_first(self) -> Iterator[tuple[str, int]]:
        file = self._files[0]
        for read_bytes in file.check_slots():
            yield self._scope.name(file.path), read_bytes
        for finding in file.findings(is_full=self._scope.is_closed or len(self._files) > 1):
            self._note(file.path, *finding)
        self._files.pop(0)
        file.close()
        if self._files and not file.follows_log:
            self._files[0].has_gap = True

    def _note(
        self,
        path: PurePath,
        position: int | None,
        code: str,
        found: str,
        expected: str,
        places: int = 1,
    ) -> None:
        place = "the key index" if position is None else f"byte {position}"
        name = self._scope.name(path)
        self._findings.append(
            Finding(code, name, position, place, found, expected, True, _REMEDY, places)
        )


class _IndexFile:
    """One index file, read from its first entry on; open from then to `close`."""

    def __init__(
        self,
        vfs: Vfs,
        path: PurePath,
        file: File,
        mark: int | None,
        *,
        has_gap: bool,
        drops_cache: bool,
    ) -> None:
        """`mark`: the number of the entry behind those that are to be in it; None: the header's.

        `has_gap`: keys before its first one belong to a file in front of it that cannot be read.
        """
        self.path = path
        self.has_gap = has_gap
        self.resume_at: int | None = None  # entries before this one were compared by a pass before
        self._drops_cache = drops_cache
        self._vfs = vfs
        self._opened: File | None = None
        self.size = file.size()
        self.header = Header(0, 0, 0, 0, 0, 0)
        if self.size >= HEADER_BYTES:
            self.header = index_file.decode_header_as_stated(file.read(0, HEADER_BYTES))
        self._mark = mark
        self._end = self.header.next_entry if mark is None else mark
        self.is_empty = self.size >= HEADER_BYTES and self._end <= 1
        stated = self.header._replace(next_entry=self._end)
        # The header of a file that has grown counts entries behind the mark, and names the last.
        slots = (
            None
            if self.is_empty
            else index_file.slots_of(self.size, self.header, file.read)
            or index_file.slots_of(self.size, stated, file.read)
        )
        self.slots = slots or 0
        self.count = max(0, self._end - 1)
        self.at = 1  # the next entry
        self.has_matched = False  # an entry was compared with the log
        self.follows_log = True
        # when the record of the last entry was stored, as the log says
        self.end_ms: int | None = None
        self._begin_ms: int | None = None
        self._begin_offset: int | None = None
        self._end_offset: int | None = None
        self._chains = Chains(self.slots)
        # how many, the first of them, found, expected
        self._differing: tuple[int, int, str, str] | None = None
        self._broken: tuple[int, int] | None = None
        self._stray = 0
        self._wrong_slots: list[int] = []

    @property
    def _file(self) -> File:
        if self._opened is None:
            self._opened = self._vfs.open(self.path)
            if self._drops_cache:
                self._opened.drop_cache()
                self._drops_cache = False
        return self._opened

    @property
    def is_through(self) -> bool:
        return self.at >= self._end

    def read(self, count: int) -> Entries:
        """Up to so many entries; the next call continues after them."""
        count = min(count, self._end - self.at)
        raw = self._file.read(index_file.entry_at(self.slots, self.at), count * ENTRY.itemsize)
        return np.frombuffer(raw.ljust(count * ENTRY.itemsize, b"\0"), ENTRY)

    def is_compared(self, count: int) -> Flags:
        """Has an earlier pass compared the entry? For each of the next ones."""
        assert self.resume_at is not None
        compared: Flags = np.arange(self.at, self.at + count) < self.resume_at
        return compared

    def begin_ms(self, keys: Keys, *, is_first: bool) -> int:
        if is_first:
            self._begin_ms, self._begin_offset = int(keys.stored_at_ms[0]), int(keys.log_offsets[0])
        return self.header.begin_stored_at_ms if self._begin_ms is None else self._begin_ms

    def note_differing(self, numbers: Ints, entry: np.void, keys: Keys, first: int) -> None:
        if self._differing is None:
            key_hash, log_offset, seconds, _ = entry.tolist()
            found = f"key hash {key_hash}, log offset {log_offset}, second {seconds}"
            expected = f"key hash {keys.hashes[first]}, log offset {keys.log_offsets[first]}"
            self._differing = (len(numbers), int(numbers[0]), found, expected)
        else:
            self._differing = (self._differing[0] + len(numbers), *self._differing[1:])

    def note_stray(self, count: int) -> None:
        self._stray += count

    def link(self, hashes: Ints, entries: Entries) -> None:
        """Follow the chains through these entries, whose hashes are these."""
        wrong = np.flatnonzero(entries["previous"] != self._chains.add(hashes, self.at))
        if len(wrong):
            broken = self._broken or (0, self.at + int(wrong[0]))
            self._broken = (broken[0] + len(wrong), broken[1])
        self.at += len(entries)
        self._end_offset = int(entries["log_offset"][-1])

    def check_slots(self) -> Iterator[int]:
        """Each slot names its newest entry.

        One that names a newer one than was read leads back to it; where there are too many newer
        ones to follow, such a slot is not judged.
        """
        newer = yield from self._newer()
        for begin in range(0, self.slots, _SLOTS_AT_ONCE):
            raw = self._file.read(
                index_file.slot_at(begin), min(_SLOTS_AT_ONCE, self.slots - begin) * SLOT.itemsize
            )
            found = np.frombuffer(raw, SLOT)
            newest = self._chains.newest[begin : begin + len(found)]
            differs = np.flatnonzero(found != newest)
            led_back = self._led_back(found[differs].astype(np.int64), newer)
            is_wrong = led_back != newest[differs]
            if newer is None:
                is_wrong &= led_back < self._end
            self._wrong_slots += (begin + differs[is_wrong]).tolist()
            yield len(raw)

    def differing(self) -> Iterator[tuple[int, str, str, str, int]]:
        """The entries that differ among those that were read, as one of the `findings`."""
        if self._differing is not None:
            count, first, found, expected = self._differing
            at = index_file.entry_at(self.slots, first)
            yield at, "index_entry_differs", found, expected, count

    def findings(self, *, is_full: bool) -> Iterator[tuple[int, str, str, str, int]]:
        """(position, code, found, expected, places).

        `is_full`: nothing was written to it behind the mark.
        """
        yield from self.differing()
        if self._stray:
            yield (
                HEADER_BYTES,
                "index_entry_stray",
                f"{self._stray} entries",
                "entries of records of the log only",
                self._stray,
            )
        if self._broken is not None:
            count, first = self._broken
            text = (
                f"the entry before it in its slot: without it {count} entries and those before "
                "them are not found"
            )
            yield (
                index_file.entry_at(self.slots, first),
                "index_chain_broken",
                "another one",
                text,
                count,
            )
        if self._wrong_slots:
            slot, count = self._wrong_slots[0], len(self._wrong_slots)
            expected = f"entry {int(self._chains.newest[slot])}"
            yield (
                index_file.slot_at(slot),
                "index_slot_differs",
                f"another entry in slot {slot}",
                expected,
                count,
            )
        header, right = self.header, self._right_header(is_full=is_full)
        if header != right:
            yield 0, "index_header_differs", str(tuple(header)), str(tuple(right)), 1

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _newer(self) -> Generator[int, None, Ints | None]:
        """Returns the `previous` of each entry behind those that were read; None where they are too
        many.
        """
        stated = index_file.decode_header_as_stated(self._file.read(0, HEADER_BYTES))
        room = (self.size - index_file.entry_at(self.slots, 0)) // ENTRY.itemsize
        end = min(stated.next_entry, room)
        if end - self._end > _MOST_NEWER:
            return None
        pieces = [np.empty(0, np.int64)]
        for at in range(self._end, end, _AT_ONCE):
            length = min(_AT_ONCE, end - at) * ENTRY.itemsize
            raw = self._file.read(index_file.entry_at(self.slots, at), length)
            pieces.append(np.frombuffer(raw, ENTRY)["previous"].astype(np.int64))
            yield len(raw)
        return np.concatenate(pieces)

    def _led_back(self, numbers: Ints, newer: Ints | None) -> Ints:
        """The entries to which the chains from these ones come among those that were read; -1 where
        a chain is broken.
        """
        numbers = numbers.copy()
        while newer is not None and len(at := np.flatnonzero(numbers >= self._end)):
            behind = numbers[at] - self._end
            is_known = behind < len(newer)
            previous = np.full(len(at), -1)
            previous[is_known] = newer[behind[is_known]]
            for unknown in np.flatnonzero(~is_known).tolist():
                previous[unknown] = self._previous(int(numbers[at[unknown]]))
            is_whole = (previous >= 0) & (previous < numbers[at])
            numbers[at] = np.where(is_whole, previous, -1)
        return numbers

    def _previous(self, number: int) -> int:
        """The number of the entry to which this one points back, read from the file; -1 where there
        is none.
        """
        raw = self._file.read(index_file.entry_at(self.slots, number), ENTRY.itemsize)
        return int(np.frombuffer(raw, ENTRY)[0]["previous"]) if len(raw) == ENTRY.itemsize else -1

    def _right_header(self, *, is_full: bool) -> Header:
        """The header as it must be, as far as the log has said it."""
        right = self.header
        if self._begin_ms is not None and self._begin_offset is not None:
            right = right._replace(
                begin_stored_at_ms=self._begin_ms, begin_offset=self._begin_offset
            )
        if right.next_entry < self._end or is_full:
            right = right._replace(next_entry=self._end)
        if (
            right.next_entry == self._end
            and self.follows_log
            and self._differing is None
            and self.end_ms is not None
        ):
            used_slots = int(np.count_nonzero(self._chains.newest))
            right = right._replace(
                end_stored_at_ms=self.end_ms,
                end_offset=self._end_offset or 0,
                used_slots=used_slots,
            )
        return right


_NO_KEYS = Keys(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
