"""Messages that are due soon, in memory: the part of the index that delivery reads. Pure.

    overdue                  | the window                      | later
    before `begin_ms`        | from there up to `end`          | behind it
    in the index, read on    | all of it is in memory,         | in the index, read when its
    behind `overdue_after`   | so far as memory has room       | time comes near

What is long overdue is the backlog, which is delivered at its own rate; it must not keep what is
due now from memory.
"""

import heapq
from collections.abc import Iterable

from storage.message import DueEntry

_LARGEST = (1 << 31) - 1
_FIRST_MS = -(1 << 62)


class DueWindow:
    def __init__(self, *, max_entries: int) -> None:
        """`max_entries`: maximum number of entries in memory; the window ends earlier if it is
        reached.
        """
        self._max_entries = max_entries
        self._open: dict[int, DueEntry] = {}  # by place; with those that are just being delivered
        # with stale ones in between: those that are not in `_open` as they are
        self._heap: list[DueEntry] = []
        self.begin_ms = _FIRST_MS
        self.end = before(_FIRST_MS)
        self.overdue_after = before(_FIRST_MS)
        # the index has nothing behind the end that is due before that; None: nothing at all
        self.later_ms: int | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_overdue(self) -> bool:
        """Whether the index may have an overdue entry."""
        return self.overdue_after < before(self.begin_ms)

    def overdue_until_ms(self, now_ms: int) -> int:
        """Limit of delivery as overdue: earlier than the window where the clock was set back."""
        return min(self.begin_ms, now_ms + 1)

    @property
    def room(self) -> int:
        return max(0, self._max_entries - len(self._open))

    @property
    def has_room(self) -> bool:
        """Whether there is room for so many entries that a read is worthwhile."""
        return 2 * self.room >= self._max_entries

    def next_due_ms(self) -> int | None:
        """The next time at which an entry is due, without overdue ones: exact if it is in memory,
        otherwise a lower bound.
        """
        first = self._first()
        return self.later_ms if first is None else first.due_ms

    def _first(self) -> DueEntry | None:
        while self._heap and not self.is_waiting(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def is_waiting(self, entry: DueEntry) -> bool:
        return self._open.get(entry.place) == entry

    # --------------------------------------------------------------------------------------------
    # as the index changes

    def change(self, added: Iterable[DueEntry], taken: Iterable[DueEntry]) -> None:
        """Apply changes, which the index gets, too."""
        for entry in added:
            if entry.due_ms < self.begin_ms:
                self._rewind(entry)
            elif entry <= self.end:
                self._add(entry)
            else:
                self._note_later(entry.due_ms)
        for entry in taken:
            if self.is_waiting(entry):
                del self._open[entry.place]
        if len(self._open) > self._max_entries:
            self._shrink()

    def extend(self, entries: Iterable[DueEntry], end: DueEntry, *, later_ms: int | None) -> None:
        """Add all entries of the index from the end of the window to a new end, and note when the
        next one after it is due.
        """
        for entry in entries:
            self._add(entry)
        self.end, self.later_ms = end, later_ms

    def clear(self) -> None:
        """Clear the window before the index is rebuilt."""
        self._open.clear()
        self._heap.clear()
        self.end = before(self.begin_ms)
        self.overdue_after = before(_FIRST_MS)
        self.later_ms = None

    # ----------------------------------------------------------------------------------------------
    # as time goes on

    def advance(self, begin_ms: int) -> None:
        """Move the begin of the window. A clock that is set back does not move it."""
        if begin_ms <= self.begin_ms:
            return
        if not self.has_overdue:
            self.overdue_after = before(begin_ms)
        while (first := self._first()) is not None and first.due_ms < begin_ms:
            heapq.heappop(self._heap)
            del self._open[first.place]
            self._rewind(first)
        if self.end < before(begin_ms):
            # What is between was never in memory: it is overdue too.
            self.overdue_after = min(self.overdue_after, self.end)
            self.end = before(begin_ms)
        self.begin_ms = begin_ms

    def take(self, now_ms: int, *, max_entries: int) -> list[DueEntry]:
        """Take due entries, earliest first. Each is taken once; `requeue` undelivered ones."""
        taken: list[DueEntry] = []
        while (
            len(taken) < max_entries
            and (first := self._first()) is not None
            and first.due_ms <= now_ms
        ):
            taken.append(heapq.heappop(self._heap))
        return taken

    def requeue(self, entry: DueEntry) -> None:
        """Add an entry again, unless it has changed meanwhile."""
        if entry.due_ms < self.begin_ms:
            if self.is_waiting(entry):
                del self._open[entry.place]
            self._rewind(entry)
        elif self.is_waiting(entry):
            heapq.heappush(self._heap, entry)

    def requeue_at(self, place: int) -> None:
        """Add the entries of this message that are in memory again."""
        entry = self._open.get(place)
        if entry is not None:
            self.requeue(entry)

    def _add(self, entry: DueEntry) -> None:
        self._open[entry.place] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._open) + 64:
            self._heap = sorted(
                {one.place: one for one in self._heap if self.is_waiting(one)}.values()
            )

    def _shrink(self) -> None:
        """Keep the earlier half of the entries."""
        waiting = sorted({one.place: one for one in self._heap if self.is_waiting(one)}.values())
        kept, left = waiting[: self._max_entries // 2], waiting[self._max_entries // 2 :]
        for entry in left:
            del self._open[entry.place]
        self._heap = kept
        for entry in left[:1]:
            self.end = min(self.end, before_entry(entry))
            self._note_later(entry.due_ms)

    def _note_later(self, due_ms: int) -> None:
        self.later_ms = due_ms if self.later_ms is None else min(self.later_ms, due_ms)

    def _rewind(self, entry: DueEntry) -> None:
        """Read the backlog from this entry on, or from an earlier one."""
        self.overdue_after = min(self.overdue_after, before_entry(entry))


def before(due_ms: int) -> DueEntry:
    """A position before all entries that are due at this time or later."""
    return DueEntry(due_ms, -1, 0, 0)


def before_entry(entry: DueEntry) -> DueEntry:
    """A position directly before this entry."""
    return DueEntry(entry.due_ms, entry.place, entry.revision - 1, _LARGEST)
