"""Times at which sessions of members and leases of locks end, on the clock of this process."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Deadlines of things, one for each; a later one replaces it."""

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []  # with replaced ones in between
        self._count = 0  # keeps things of one time in the order in which they were set

    def get(self, thing: K) -> int | None:
        return self._due_ms.get(thing)

    def set(self, thing: K, due_ms: int) -> None:
        self._due_ms[thing] = due_ms
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, thing))
        if len(self._heap) > 2 * len(self._due_ms) + 64:
            self._drop_replaced()

    def drop(self, thing: K) -> None:
        self._due_ms.pop(thing, None)

    def due(self, now_ms: int) -> list[K]:
        """Things whose deadline has passed; each is returned until it is dropped or gets another
        deadline.
        """
        found: dict[K, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, thing = heapq.heappop(self._heap)
            if self._due_ms.get(thing) == due_ms:
                found[thing] = None
        for thing in found:  # it may not be possible to end it now
            self.set(thing, self._due_ms[thing])
        return list(found)

    def next_ms(self) -> int | None:
        while self._heap and self._due_ms.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _drop_replaced(self) -> None:
        self._heap = [entry for entry in self._heap if self._due_ms.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)
