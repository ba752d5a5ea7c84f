"""Who is to be looked at when: a heap for the next two seconds, and what comes later by the two seconds, 8 bytes each. Pure.

An entry is a number, and counts only while its owner says the same time of it: so what has become pointless need not be looked
for. It is passed over when its time comes, or before that where there is more of it than of what counts.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator

_BITS = 11  # 2,048 ms
_LOOKED_AT = 64  # entries at least, when some are dropped


class DueTimes:
    def __init__(self, look_at: Callable[[int], int | None]) -> None:
        """`look_at` says when this number is to be looked at; None: no more."""
        self._look_at = look_at
        self._near: list[tuple[int, int]] = []
        self._far: dict[int, array[int]] = {}  # by bucket
        self._buckets: list[int] = []  # of those a heap
        self._opened = -(1 << 62)  # up to this bucket all is near
        self._to_clean: list[int] = []  # buckets
        self._count = 0

    def __len__(self) -> int:
        """With those that do not count any more."""
        return self._count

    def add(self, at_ms: int, number: int) -> None:
        bucket = at_ms >> _BITS
        self._count += 1
        if bucket <= self._opened:
            heapq.heappush(self._near, (at_ms, number))
            return
        found = self._far.get(bucket)
        if found is None:
            found = self._far[bucket] = array("q")
            heapq.heappush(self._buckets, bucket)
        found.append(number)

    def take(self, now_ms: int) -> Iterator[int]:
        """Those whose time has come, the earliest first."""
        while True:
            if self._near and self._near[0][0] <= now_ms:
                at_ms, number = heapq.heappop(self._near)
                self._count -= 1
                if self._look_at(number) == at_ms:
                    yield number
            elif self._buckets and self._buckets[0] <= now_ms >> _BITS:
                self._open(heapq.heappop(self._buckets))
            else:
                return

    def next_ms(self) -> int | None:
        """Nobody is to be looked at before."""
        if self._near:
            return self._near[0][0]
        return self._buckets[0] << _BITS if self._buckets else None

    def drop_some(self) -> None:
        """Some of those that do not count any more. Called again and again, it comes to all of them."""
        looked_at = 0
        while looked_at < _LOOKED_AT and self._far:
            if not self._to_clean:
                self._to_clean = list(self._far)
            bucket = self._to_clean.pop()
            numbers = self._far.get(bucket)
            if numbers is not None:
                looked_at += len(numbers) + 1  # it may be empty, and all of them may be
                kept = array("q", [number for _, number in self._counting(bucket, numbers)])
                self._count -= len(numbers) - len(kept)
                self._far[bucket] = kept

    def _open(self, bucket: int) -> None:
        numbers = self._far.pop(bucket)
        self._count -= len(numbers)
        self._opened = bucket
        for entry in self._counting(bucket, numbers):
            heapq.heappush(self._near, entry)
            self._count += 1

    def _counting(self, bucket: int, numbers: "array[int]") -> Iterator[tuple[int, int]]:
        for number in dict.fromkeys(numbers):
            at_ms = self._look_at(number)
            if at_ms is not None and at_ms >> _BITS == bucket:
                yield at_ms, number
