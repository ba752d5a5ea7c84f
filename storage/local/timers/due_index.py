"""Index of due times: the newest changes in memory, the rest in timer files.

The owner's thread changes it. With each thorough round of the deriver what is in memory becomes a
file, and files are merged so that each is larger than those after it: some ten of them hold ten
million entries. Which files count, and up to where in each queue they reflect what was read, is
kept in one snapshot, which is replaced whole. Read are the files and the memory together, merged on
the way. What is over at the front of a file is passed over, and the file written again when most of
it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
import structlog

from storage.errors import CorruptRecord
from storage.files import durable
from storage.formats import timer_file, timer_list
from storage.formats.timer_file import Entries, Key, Source
from storage.formats.timer_list import TimerList
from storage.local.timers.timer_files import Memory, Part, TimerFile, TimerFolder
from storage.message import NEVER_MS, DueEntry, QueueId
from storage.store import ANY_LABEL, DueCounts, DuePage, Snapshot

log = structlog.get_logger()

_LARGE = 50_000  # changes in memory: they wait for no round that comes by itself
_MOST_MERGED = 1 << 22  # entries; what is larger is left alone
_READ_AT_ONCE = 200_000  # entries that one call looks at


class _Changes:
    """Since the last file. An entry that comes and goes meanwhile leaves nothing."""

    def __init__(self) -> None:
        self.added: dict[DueEntry, None] = {}
        self.taken: dict[DueEntry, None] = {}
        self.is_frozen = False
        self._memory: Memory | None = None

    def __len__(self) -> int:
        return len(self.added) + len(self.taken)

    def change(self, added: Iterable[DueEntry], taken: Iterable[DueEntry]) -> None:
        for entry in added:
            if entry in self.taken:
                del self.taken[entry]
            else:
                self.added[entry] = None
        for entry in taken:
            if entry in self.added:
                del self.added[entry]
            else:
                self.taken[entry] = None

    def is_due(self, entry: DueEntry) -> bool | None:
        """Is it due? None where these changes do not have it."""
        return True if entry in self.added else False if entry in self.taken else None

    def sorted(self) -> Callable[[], Memory]:
        """A function that returns them as a source, in any lane. Called by the owner."""
        if self.is_frozen and self._memory is not None:
            memory = self._memory
            return lambda: memory
        added, taken = list(self.added), list(self.taken)

        def sort() -> Memory:
            rows = chain(
                ((entry.due_ms, entry.place, 2 * entry.revision, entry.label) for entry in added),
                (
                    (entry.due_ms, entry.place, 2 * entry.revision + 1, entry.label)
                    for entry in taken
                ),
            )
            memory = Memory(timer_file.made_of(rows, len(added) + len(taken)))
            if self.is_frozen:
                self._memory = memory
            return memory

        return sort


class Pending(NamedTuple):
    """The entries that a round writes to files."""

    generation: int
    changes: Callable[[], Memory]
    parts: tuple[Part, ...]
    next_number: int
    counts: DueCounts
    positions: Mapping[QueueId, int]


class Made(NamedTuple):
    """The result of a round: the parts that count from now on, and the snapshot that says so."""

    generation: int
    parts: tuple[Part, ...]
    next_number: int
    snapshot: Snapshot


class LocalDueIndex:
    """Index of delayed messages by their times, in timer files. Owner's thread only, but for
    `make`, `keep_only` and what `reading` and `counting` return.
    """

    def __init__(self, folder: TimerFolder, kept: Snapshot | None) -> None:
        """`kept` is the snapshot; None: nothing is known, and everything will be added again."""
        self._folder = folder
        self._changes = _Changes()
        self._frozen: _Changes | None = None
        self._generation = 0
        self._damage: CorruptRecord | None = None
        self._parts: tuple[Part, ...] = ()
        self._next_number = 0
        self._counts = DueCounts(0, 0)
        self._has_changed = False
        # The derive lane's: the file that is made and not yet in force, the file of a round before
        # that the snapshot on disk names all the same, and the last number of a file.
        self._new: TimerFile | None = None
        self._named: TimerFile | None = None
        self._last_number = -1
        self.positions: dict[QueueId, int] = {}
        if kept is not None:
            self._restore(kept)
        folder.remove_all_but(self._parts)

    @property
    def counts(self) -> DueCounts:
        return self._counts

    @property
    def is_large(self) -> bool:
        """Is there so much in memory that it is time to make a file of it?"""
        return len(self._changes) >= _LARGE and self._frozen is None

    def change(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        self._changes.change(added, taken)
        never = sum([one.due_ms >= NEVER_MS for one in added]) - sum(
            [one.due_ms >= NEVER_MS for one in taken]
        )
        waiting = len(added) - len(taken) - never
        self._counts = DueCounts(self._counts.waiting + waiting, self._counts.never + never)
        self.positions.update(positions)
        self._has_changed = True

    def forget(self) -> tuple[Part, ...]:
        """Drop everything; the files that are not needed any more."""
        parts, self._parts = self._parts, ()
        self._generation += 1
        self._changes, self._frozen, self._damage = _Changes(), None, None
        self._counts = DueCounts(0, 0)
        self.positions.clear()
        self._has_changed = True
        return parts

    # ----------------------------------------------------------------------------------------------
    # reading

    def is_due(self, entry: DueEntry) -> bool | None:
        """Is it due? None where only the files can answer."""
        known = self._changes.is_due(entry)
        return self._frozen.is_due(entry) if known is None and self._frozen is not None else known

    def holding(self, entry: DueEntry) -> Callable[[], bool]:
        """Whether the files have it. Raises CorruptRecord."""
        self._check_damage()
        parts = self._parts
        key = Key(entry.due_ms, entry.place, 2 * entry.revision)

        def hold() -> bool:
            found = [
                _key_of(row) for part in parts for row in part.read(part.find(key), 2).tolist()
            ]
            return key in found and key._replace(version=key.version + 1) not in found

        return hold

    def reading(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> Callable[[], DuePage]:
        sources = self._sources()
        begin = (
            timer_file.FIRST
            if after is None
            else Key(after.due_ms, after.place, 2 * after.revision + 2)
        )

        def read() -> DuePage:
            found: list[DueEntry] = []
            looked_at = 0
            for piece in timer_file.merged(sources(), begin):
                in_time = piece[: np.searchsorted(piece["due_ms"], until_ms)]
                found += _entries(_chosen(in_time, labels)[: max_entries - len(found)])
                if len(found) == max_entries:
                    return DuePage(found, found[-1] if found else after)
                if len(in_time) < len(piece):
                    break
                looked_at += len(piece)
                if looked_at >= _READ_AT_ONCE:
                    return DuePage(found, *_entries(piece[-1:]))
            return DuePage(found, None)

        return read

    def counting(self, *, until_ms: int) -> Callable[[], int]:
        sources = self._sources()

        def count() -> int:
            total = 0
            for piece in timer_file.merged(sources(), timer_file.FIRST):
                in_time = piece[: np.searchsorted(piece["due_ms"], until_ms)]
                total += len(_chosen(in_time, ANY_LABEL))
                if len(in_time) < len(piece):
                    break
            return total

        return count

    def _sources(self) -> Callable[[], list[Source]]:
        """A function that returns all sources as they are now. Raises CorruptRecord."""
        self._check_damage()
        parts = self._parts
        memories = [changes.sorted() for changes in (self._frozen, self._changes) if changes]
        return lambda: [*parts, *[memory() for memory in memories]]

    def _check_damage(self) -> None:
        if self._damage is not None:
            raise self._damage

    # ----------------------------------------------------------------------------------------------
    # files

    def freeze(self) -> Pending | None:
        """The entries that are to become a file; None where nothing has changed.

        `made` or `give_back` ends it.
        """
        if not self._has_changed or self._frozen is not None or self._damage is not None:
            return None
        self._frozen, self._changes = self._changes, _Changes()
        self._frozen.is_frozen = True
        self._has_changed = False
        positions = dict(self.positions)
        return Pending(
            self._generation,
            self._frozen.sorted(),
            self._parts,
            self._next_number,
            self._counts,
            positions,
        )

    def make(self, pending: Pending) -> Made | CorruptRecord:
        """Write and merge the entries. Derive lane only.

        The files are durable on return, the snapshot is still to be kept.
        """
        try:
            return durable.in_another_file(partial(self._make, pending))
        except CorruptRecord as damage:
            return damage

    def note_named(self) -> None:
        """Note that the snapshot on disk is that of the round. Derive lane only."""
        before, self._named = self._named, self._new
        if before is not None:
            self._folder.remove([before])

    def made(self, made: Made | CorruptRecord) -> tuple[Part, ...]:
        """End the round, whose snapshot is on disk; the files that are not needed any more."""
        self._new = self._named = None
        if isinstance(made, CorruptRecord):
            log.error(
                "timers_damaged", file=str(made.path), at=made.physical_offset, reason=made.reason
            )
            self._give_back()
            self._damage = made
            return ()
        if made.generation != self._generation:
            surplus = tuple(part for part in made.parts if part.file.number >= self._next_number)
            self._next_number = made.next_number
            return surplus
        self._frozen = None
        kept = {part.file.number for part in made.parts}
        surplus = tuple(part for part in self._parts if part.file.number not in kept)
        self._parts, self._next_number = made.parts, made.next_number
        return surplus

    def give_back(self, pending: Pending) -> None:
        """Take back entries that could not be written: they stay in memory."""
        if pending.generation == self._generation:
            self._give_back()

    def dispose(self, surplus: Sequence[Part]) -> Callable[[], None]:
        """The function that closes and removes these files, behind all who read them. Read lane
        only.
        """
        folder = self._folder

        return lambda: folder.remove(part.file for part in surplus)

    def close(self) -> None:
        for part in self._parts:
            part.file.close()
        for file in dict.fromkeys((self._new, self._named)):  # of a round that was not finished
            if file is not None:
                file.close()

    def _restore(self, kept: Snapshot) -> None:
        try:
            found = timer_list.decode(kept.data)
        except msgspec.DecodeError:
            return
        parts = self._folder.open(found.files)
        if parts is not None:
            self._parts, self._next_number = parts, found.next_number
            self._counts = DueCounts(found.waiting, found.never)
            self.positions = dict(kept.positions)

    def _give_back(self) -> None:
        if self._frozen is not None:
            together = _Changes()
            together.change(self._frozen.added, self._frozen.taken)
            together.change(self._changes.added, self._changes.taken)
            self._frozen, self._changes = None, together
            self._has_changed = True

    def _make(self, pending: Pending) -> Made:
        changes = pending.changes()
        first = _first_due([*pending.parts, changes])
        parts = [
            Part(part.file, part.file.count if first is None else part.find(first))
            for part in pending.parts
        ]
        kept, merged = _plan(parts, changes.end)
        before, self._new = self._new, None
        if before is not None and before is not self._named:
            self._folder.remove([before])  # the round before could not be finished
        # Never a number again: that round may have come as far as its snapshot.
        number = self._last_number = max(pending.next_number, self._last_number + 1)
        self._new = (
            None
            if first is None
            else self._folder.make(number, timer_file.merged([*merged, changes], first))
        )
        file = self._new
        if file is not None:
            kept.append(Part(file))
        listed = [(part.file.number, part.file.count, part.begin) for part in kept]
        data = timer_list.encode(TimerList(number + 1, *pending.counts, listed))
        return Made(
            pending.generation, tuple(kept), number + 1, Snapshot((data,), pending.positions)
        )


def _first_due(sources: Sequence[Source]) -> Key | None:
    """The first entry that is still due. All before it, in whichever source, is over."""
    for piece in timer_file.merged(sources, timer_file.FIRST):
        for entry in _entries(_chosen(piece, ANY_LABEL)[:1]):
            return Key(entry.due_ms, entry.place, 2 * entry.revision)
    return None


def _plan(parts: Iterable[Part], new_count: int) -> tuple[list[Part], list[Part]]:
    """(files that stay as they are, files that are merged with what is new), by age."""
    kept: list[Part] = []
    merged: list[Part] = []
    for part in parts:
        # Mostly over: it is written again without that.
        (merged if 2 * part.begin > part.end else kept).append(part)
    size = new_count + sum(part.live_count for part in merged)
    while kept and kept[-1].live_count <= 2 * size and kept[-1].live_count + size <= _MOST_MERGED:
        size += kept[-1].live_count
        merged.append(kept.pop())
    return kept, merged


def _chosen(entries: Entries, labels: range) -> Entries:
    is_due = entries["version"] % 2 == 0
    if labels != ANY_LABEL:
        is_due &= (entries["label"] >= labels.start) & (entries["label"] < labels.stop)
    chosen: Entries = entries[is_due]
    return chosen


def _key_of(row: tuple[int, int, int, int]) -> Key:
    return Key(*row[:3])


def _entries(entries: Entries) -> list[DueEntry]:
    columns = (entries["due_ms"], entries["place"], entries["version"] // 2, entries["label"])
    return list(map(DueEntry, *[column.tolist() for column in columns]))
