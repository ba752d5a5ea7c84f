"""The key index: where the messages with a key are stored in the log, in RocketMQ's index files.

Derived: it can be rebuilt from the log. A file of it is in `key_index_file.py`.

A reader of the log: the derive lane feeds it what has become durable, a piece at a time, so that an
append costs nothing more. What is newer than the files is looked for in the log itself
(`key_lookup.py`). The read lane asks while the derive lane writes.

Files are written in an order that a crash cannot spoil: the entries, then the slots that point at
them, then the header that counts them, each synced before the next, then the sums of that state
(`index_sums.py`). A start leads slots that point past it back along their chains, and is fed again
from where the state ends. Each block that a lookup reads is compared with its sum; a file that
differs is made again from the log before the lookup is answered. What this process has written is
trusted.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath

import numpy as np
import structlog

from storage.clock import Clock
from storage.files import durable
from storage.files.handles import Handles
from storage.files.unreadable import FailingPages, read_derived
from storage.files.vfs import Vfs
from storage.formats import index_file, key_scan
from storage.formats import record as records
from storage.formats.index_file import Header, Ints
from storage.formats.key_scan import Keys
from storage.formats.record import DamagedRecord
from storage.formats.scan import Scan
from storage.local.index.index_sums import IndexSums
from storage.local.index.key_index_file import DoubtfulIndex, IndexFile
from storage.local.log import log_walk
from storage.local.log.commit_log import CommitLog
from storage.local.log.log_walk import Stated
from storage.local.snapshot_files import SnapshotFiles
from storage.store import Snapshot

log = structlog.get_logger()


class KeyIndex:
    """Finds the records with a key. Derive lane only, but for `find`: read lane.

    A recovery may feed it before there are lanes.
    """

    def __init__(
        self,
        vfs: Vfs,
        directory: PurePath,
        clock: Clock,
        snapshots: SnapshotFiles,
        *,
        slots: int,
        entries: int,
        max_open: int,
        scratch: PurePath,
    ) -> None:
        """Reads what the files that exist say of themselves.

        `max_open`: files that are kept open.
        """
        self._vfs = vfs
        self._handles = Handles(vfs, limit=max_open)
        self._directory = directory
        self._clock = clock
        self._snapshots = snapshots
        self._slots = slots
        self._entries = entries
        self._scratch = scratch
        self._files: tuple[IndexFile, ...] = ()
        self._failing = FailingPages(clock, is_derived=True)
        self._rebuilding: dict[IndexFile, Generator[None, None, None]] = {}
        self.rebuilt_files = 0
        names = self._file_names()
        for name in names:
            file = self._open(directory / name, self._load_sums(name))
            if file is not None and file.has_its_length:
                self._files = (*self._files, file)
            elif file is not None:
                file.close()
        # Files of other sizes (the settings have changed, or a broker had others), or without their
        # sums, are made again.
        self.is_whole = len(self._files) == len(names) and all(
            file.has_sums for file in self._files
        )
        if self._files:
            newest = self._files[-1]
            self.is_whole &= read_derived(vfs, newest.path, newest.load) or False

    @property
    def doubtful(self) -> IndexFile | None:
        """The file that the disk has not taken, or that the index has left, until it is made again:
        until then nothing is fed. Any thread.
        """
        return next((one for one in self._files if one.failure or one.is_left), None)

    @property
    def marks(self) -> dict[str, int]:
        """The length of each file: by its name the number that its next entry gets."""
        return {file.path.name: file.header.next_entry for file in self._files}

    def bears_out(self, marks: Mapping[str, int]) -> bool:
        """Do the files hold at least what they held then?"""
        held = self.marks
        return self.is_whole and all(
            held.get(name, 0) >= next_entry for name, next_entry in marks.items()
        )

    def clear(self) -> None:
        """Forget everything: it will be fed from the beginning of the log."""
        self.close()
        for name in self._file_names():
            self._vfs.remove(self._directory / name)
            self._snapshots.remove(_sums_name(name))
        self._vfs.sync_directory(self._directory)
        self.is_whole = True

    def _file_names(self) -> list[str]:
        return list(filter(index_file.is_file_name, self._vfs.list_directory(self._directory)))

    def feed(self, window: bytes, window_offset: int, scan: Scan | Stated) -> int:
        """Add the keys of the records found in `window`, without those that it has; return their
        number. Raises DoubtfulIndex.
        """
        self._check_doubt()
        indexed_offset = max(
            [file.header.end_offset for file in self._files if not file.header.is_empty], default=-1
        )
        is_new = scan.record_offsets > indexed_offset
        found = _keys(window, window_offset, scan.record_offsets[is_new], scan.record_bytes[is_new])
        self._add(found.hashes, found.log_offsets, found.stored_at_ms)
        return len(found.hashes)

    def sync(self) -> None:
        """Everything fed is durable on return. Raises DoubtfulIndex."""
        self._check_doubt()
        if self._files:
            self._sync(self._files[-1])

    def rebuild(self, old: IndexFile, log_: CommitLog) -> Generator[None, None, None]:
        """Make the file again from the records whose keys it has; a window of the log for each
        step.

        Those who want the same file take the steps of one rebuilding together, and one that was
        given up is continued.
        """
        steps = self._rebuilding.get(old)
        if steps is None:
            steps = self._rebuilding[old] = self._rebuild(old, log_)
        for _ in steps:  # no `yield from`, which would end them with this generator
            yield

    def _rebuild(self, old: IndexFile, log_: CommitLog) -> Generator[None, None, None]:
        try:
            if old not in self._files:
                return  # dropped, or made again, meanwhile
            if old is self._files[-1]:
                self._roll(of_whole=False)
                old.is_left = True
            try:
                yield from self._rebuild_in_one(old, log_)
            except DoubtfulIndex as doubt:
                if not isinstance(doubt.file.failure, durable.SyncFailed) or isinstance(
                    old.failure, durable.SyncFailed
                ):
                    raise doubt.file.failure or doubt from None
                # as `durable.in_another_file`, a step at a time
                log.error("file_made_again", file=str(old.path), error=str(doubt.file.failure))
                try:
                    yield from self._rebuild_in_one(old, log_)
                except DoubtfulIndex as again:
                    raise again.file.failure or again from None
        finally:
            del self._rebuilding[old]

    def _rebuild_in_one(self, old: IndexFile, log_: CommitLog) -> Generator[None, None, None]:
        """Raises DoubtfulIndex: the disk does not take the new file, of which nothing is left."""
        made = self._make(
            self._scratch / f"rebuilt-{old.path.name}",
            old.header._replace(used_slots=0, next_entry=1),
        )
        try:
            yield from self._rebuild_as(made, old, log_)
        finally:
            made.close()

    def _rebuild_as(
        self, made: IndexFile, old: IndexFile, log_: CommitLog
    ) -> Generator[None, None, None]:
        path = old.path
        begin, end = max(old.header.begin_offset, log_.first_offset), old.header.end_offset
        try:
            # First: a full disk fails it before the log is read, however often it is tried again.
            made.allocate(old.header.next_entry)
            walked_end = begin if old.header.is_empty else log_.written_end
            for piece in log_walk.stated(log_.segments, begin, walked_end):
                kept = piece.record_offsets <= end
                found = _keys(
                    piece.data, piece.offset, piece.record_offsets[kept], piece.record_bytes[kept]
                )
                made.add(*[column[: made.room] for column in found])
                if not kept.all():
                    break
                yield
            made.sync()
            if old not in self._files:
                raise IndexError(f"{path.name} was dropped")
            self._snapshots.save(_sums_name(path.name), Snapshot((made.sums.encode(),), {}))
            self._vfs.rename(made.path, path)
        except IndexError:  # its first segment was dropped meanwhile
            self._vfs.remove(made.path)
            return  # the next try begins behind it
        except DoubtfulIndex:
            self._vfs.remove(made.path)
            raise
        except OSError:
            self._vfs.remove(made.path)  # else it takes the space that a full disk lacks
            raise
        old.close()
        made.close()
        made.path = path
        made.unload()
        made.trust()
        self._failing.forget(path)
        self._files = tuple(made if file is old else file for file in self._files)
        self._vfs.sync_directory(self._directory)
        self.rebuilt_files += 1
        log.error("key_index_rebuilt", file=str(path))

    def find(self, topic: str, key: str, *, from_ms: int, to_ms: int) -> Iterator[int]:
        """Log offsets of records that may have the key, stored in about [from_ms, to_ms], newest
        first.

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

    def forget_before(self, log_offset: int) -> list[IndexFile]:
        """The oldest files, that lead to nothing at or behind this place; never the last.

        `remove` them, then close them.
        """
        count = 0
        while count < len(self._files) - 1 and self._files[count].header.end_offset < log_offset:
            count += 1
        forgotten, self._files = self._files[:count], self._files[count:]
        return list(forgotten)

    def remove(self, files: Sequence[IndexFile]) -> None:
        """Forgotten ones, durably on return."""
        for file in files:
            if self._vfs.exists(file.path):
                self._vfs.remove(file.path)
            self._snapshots.remove(_sums_name(file.path.name))
        if files:
            self._vfs.sync_directory(self._directory)

    def close(self) -> None:
        for steps in list(self._rebuilding.values()):  # that were given up
            with suppress(ValueError):  # a lookup takes one of them now, and finds no file any more
                steps.close()
        files, self._files = self._files, ()
        for file in files:
            file.close()

    def _check_doubt(self) -> None:
        """Raises DoubtfulIndex: more in later files would hide from a start what is missing in this
        one.
        """
        doubtful = self.doubtful
        if doubtful is not None:
            raise DoubtfulIndex(doubtful)

    def _add(self, hashes: Ints, log_offsets: Ints, times_ms: Ints) -> None:
        at = 0
        while at < len(hashes):
            if not self._files or not self._files[-1].room:
                self._roll()
            newest = self._files[-1]
            end = min(at + newest.room, len(hashes))
            while at < end < len(hashes) and log_offsets[end] == log_offsets[end - 1]:
                # all keys of a record are in one file: the one that has the first
                end -= 1
            if end == at and not newest.header.is_empty:
                self._roll()
                continue
            end = end if end > at else min(at + newest.room, len(hashes))
            newest.add(hashes[at:end], log_offsets[at:end], times_ms[at:end])
            at = end

    def _open(self, path: PurePath, sums: IndexSums | None) -> IndexFile | None:
        """Open an index file; None if the disk does not give it back."""
        return read_derived(self._vfs, path, lambda: self._file(path, sums))

    def _file(self, path: PurePath, sums: IndexSums | None) -> IndexFile:
        return IndexFile(
            self._handles,
            path,
            self._failing,
            slots=self._slots,
            entries=self._entries,
            sums=sums,
        )

    def _roll(self, *, of_whole: bool = True) -> None:
        """Begin a file. `of_whole` is False if the one before is made again from the log: until
        then it stays as it is in memory.
        """
        name = index_file.file_name(self._clock.wall_ms())
        inherited = Header(0, 0, 0, 0, 0, 1)
        last = self._files[-1] if self._files else None
        if last is not None:
            if of_whole:
                self._sync(last)
            end_ms, end_offset = last.header.end_stored_at_ms, last.header.end_offset
            inherited = Header(end_ms, end_ms, end_offset, end_offset, 0, 1)
            name = max(name, index_file.name_behind(last.path.name))
        # The sums first: a file without its sums is not believed by a start.
        self._snapshots.save(
            _sums_name(name), Snapshot((IndexSums.of_empty(inherited, self._slots).encode(),), {})
        )
        made = self._make(self._directory / name, inherited)
        if last is not None and of_whole:
            last.unload()  # not before: without space for the next file, it grows on
        self._files = (*self._files, made)

    def _make(self, path: PurePath, header: Header) -> IndexFile:
        length = index_file.file_bytes(self._slots, self._entries)
        durable.in_another_file(
            partial(durable.make_sized, self._vfs, path, length, scratch=self._scratch)
        )
        self._handles.forget(path)  # of a file that was not finished, and is replaced
        made = self._file(path, IndexSums.of_empty(header, self._slots))
        made.load()
        return made

    def _sync(self, file: IndexFile) -> None:
        if file.has_changed:
            file.sync()
            self._snapshots.save(_sums_name(file.path.name), Snapshot((file.sums.encode(),), {}))
            file.has_changed = False

    def _load_sums(self, name: str) -> IndexSums | None:
        kept = self._snapshots.load(_sums_name(name))
        return None if kept is None else IndexSums.decode(kept.data, self._slots)


def _sums_name(name: str) -> str:
    """The name of the snapshot with the sums of an index file."""
    return f"key_index-{name}"


def _keys(window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints) -> Keys:
    """The keys of these records, without those of a damaged one."""
    try:
        return key_scan.keys(window, window_offset, record_offsets, record_bytes)
    except (DamagedRecord, ValueError, IndexError):
        pass
    is_whole = np.zeros(len(record_offsets), np.bool_)
    for number, (offset, length) in enumerate(
        zip(record_offsets.tolist(), record_bytes.tolist(), strict=True)
    ):
        try:
            records.decode(window[offset - window_offset : offset - window_offset + length])
            is_whole[number] = True
        except DamagedRecord:
            pass
    return key_scan.keys(window, window_offset, record_offsets[is_whole], record_bytes[is_whole])
