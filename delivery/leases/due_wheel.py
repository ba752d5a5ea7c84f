"""When to look at which leases: runs of messages by the moment, in buckets of 16 ms. Pure.

A bucket is an array of numbers, 24 bytes a run. What was extended or settled meanwhile is found in
its old bucket too: who takes a run looks whether the deadline still stands.
"""

import heapq
from array import array
from collections.abc import Iterator

_BUCKET_BITS = 4


class DueWheel:
    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []

    def add(self, due_ms: int, queue_index: int, first: int, count: int) -> None:
        """`due_ms`: on the monotonic clock.

        It is taken then, or up to 16 ms later, never earlier.
        """
        number = (due_ms >> _BUCKET_BITS) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("q")
            heapq.heappush(self._order, number)
        bucket.extend((queue_index, first, count))

    def take(self, now_ms: int) -> Iterator[tuple[int, int, int]]:
        """(queue_index, first, count) of what is due, in the order of time; each comes once."""
        until = now_ms >> _BUCKET_BITS
        while self._order and self._order[0] <= until:
            bucket = self._buckets.pop(heapq.heappop(self._order))
            for at in range(0, len(bucket), 3):
                yield bucket[at], bucket[at + 1], bucket[at + 2]

    def next_ms(self) -> int | None:
        """When there is something to take."""
        return self._order[0] << _BUCKET_BITS if self._order else None
