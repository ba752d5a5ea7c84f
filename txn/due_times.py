"""Times at which transactions are checked: within the next two seconds by the millisecond, later
ones in steps of two seconds, in 8 bytes each. Pure.

An entry is a number, and is valid only while its owner has the same time for it, so no entry has to
be searched and removed. An invalid entry is dropped when its time comes, or earlier if most entries
are invalid.

A million entries may have one time. Methods that handle many of them work in pieces, so that the
caller can let other work run.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator

_BITS = 11  # 2,048 ms
_PIECE = 500  # entries that are looked at without a pause
_LOOKED_AT = 64  # entries at least, when some are dropped


class DueTimes:
    def __init__(self, look_at: Callable[[int], int | None]) -> None:
        """`look_at` says when this number is to be looked at; None: no more."""
        self._look_at = look_at
        self._near: dict[int, _Row] = {}  # by millisecond
        self._moments: list[int] = []  # of those a heap
        self._far: dict[int, array[int]] = {}  # by bucket
        self._buckets: list[int] = []  # of those a heap
        self._opened = -(1 << 62)  # up to this bucket all is near, but for
        self._opening: _Row | None = None  # what is left of it
        # what came out of that: no set, which the garbage collector would walk
        self._seen: dict[int, None] = {}
        self._cleaning: _Cleaning | None = None
        self._to_clean: list[int] = []  # buckets
        self._count = 0

    def __len__(self) -> int:
        """Number of entries, including those that are no longer valid."""
        return self._count

    def add(self, at_ms: int, number: int) -> None:
        bucket = at_ms >> _BITS
        self._count += 1
        if bucket <= self._opened:
            self._add_near(at_ms, number)
            return
        found = self._far.get(bucket)
        if found is None:
            found = self._far[bucket] = array("q")
            heapq.heappush(self._buckets, bucket)
        found.append(number)

    def take(self, now_ms: int) -> Iterator[int | None]:
        """Entries whose time has come, earliest first. None at times, so that the caller lets other
        work run before it continues.
        """
        looked_at = 0
        while True:
            if self._opening is not None:
                self._open_some(self._opening)
                if self._opening is not None:
                    yield None
            elif self._moments and self._moments[0] <= now_ms:
                at_ms = self._moments[0]
                number = self._take_near(at_ms)
                if self._look_at(number) == at_ms:
                    yield number
                looked_at += 1
                if looked_at % _PIECE == 0:
                    yield None
            elif self._buckets and self._buckets[0] <= now_ms >> _BITS:
                self._opened = heapq.heappop(self._buckets)
                self._opening = _Row(self._far.pop(self._opened))
            else:
                return

    def next_ms(self) -> int | None:
        """The earliest time of an entry, in ms; None if there is no entry."""
        moments = [self._moments[0]] if self._moments else []
        if self._opening is not None:
            moments.append(self._opened << _BITS)
        elif not moments and self._buckets:
            moments.append(self._buckets[0] << _BITS)
        return min(moments, default=None)

    def drop_some(self) -> None:
        """Drop some entries that are no longer valid. Repeated calls examine all entries."""
        looked_at = 0
        while looked_at < _LOOKED_AT and self._far:
            cleaning = self._cleaning
            if cleaning is None or self._far.get(cleaning.bucket) is not cleaning.row.numbers:
                self._to_clean = self._to_clean or list(self._far)
                bucket = self._to_clean.pop()
                if bucket in self._far:
                    self._cleaning = _Cleaning(bucket, self._far[bucket])
                continue
            looked_at += 1
            if cleaning.row.is_empty:
                self._count -= len(cleaning.row.numbers) - len(cleaning.kept)
                self._far[cleaning.bucket] = cleaning.kept
                self._cleaning = None
            else:
                number = cleaning.row.pop()
                at_ms = self._look_at(number)
                if (
                    at_ms is not None
                    and at_ms >> _BITS == cleaning.bucket
                    and number not in cleaning.seen
                ):
                    cleaning.seen[number] = None
                    cleaning.kept.append(number)

    def _open_some(self, opening: "_Row") -> None:
        """Distribute the next entries of the bucket."""
        for _ in range(_PIECE):
            if opening.is_empty:
                self._opening = None
                self._seen = {}
                return
            number = opening.pop()
            at_ms = self._look_at(number)
            if at_ms is not None and at_ms >> _BITS == self._opened and number not in self._seen:
                self._seen[number] = None
                self._add_near(at_ms, number)
            else:
                self._count -= 1

    def _add_near(self, at_ms: int, number: int) -> None:
        row = self._near.get(at_ms)
        if row is None:
            row = self._near[at_ms] = _Row(array("q"))
            heapq.heappush(self._moments, at_ms)
        row.numbers.append(number)

    def _take_near(self, at_ms: int) -> int:
        row = self._near[at_ms]
        number = row.pop()
        if row.is_empty:
            del self._near[at_ms]
            heapq.heappop(self._moments)
        self._count -= 1
        return number


class _Row:
    """A queue of numbers."""

    __slots__ = ("_taken", "numbers")

    def __init__(self, numbers: "array[int]") -> None:
        self.numbers = numbers
        self._taken = 0

    @property
    def is_empty(self) -> bool:
        return self._taken == len(self.numbers)

    def pop(self) -> int:
        number = self.numbers[self._taken]
        self._taken += 1
        return number


class _Cleaning:
    """A bucket whose entries are examined one by one, and those that are still valid."""

    __slots__ = ("bucket", "kept", "row", "seen")

    def __init__(self, bucket: int, numbers: "array[int]") -> None:
        self.bucket = bucket
        self.row = _Row(numbers)
        self.kept = array("q")
        self.seen: dict[int, None] = {}
