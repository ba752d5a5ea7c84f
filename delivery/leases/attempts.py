"""Receives that can be repeated by their attempt id, and their messages: those of which some are
still leased. Pure.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from delivery.leases.queue import QueueLeases

_MOST_KEPT = 100_000
_LOOKED_AT = 4  # for each that is added


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A receive: its lease, the end of the lease on both clocks, and its messages by (queue index,
    offset).
    """

    lease: int
    until_ms: int
    deadline_ms: int
    places: list[tuple[int, int]]


class Attempts:
    """The attempts of one group; the queues are those of the group."""

    def __init__(self, queues: Sequence[QueueLeases]) -> None:
        self._queues = queues
        self._kept: OrderedDict[str, Attempt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[tuple[str, Attempt]]:
        return iter(self._kept.items())

    def find(self, attempt_id: str) -> Attempt | None:
        return self._kept.get(attempt_id)

    def note(self, attempt_id: str, attempt: Attempt, now_ms: int) -> None:
        """Add an attempt, and forget some whose messages are no longer leased: as many are kept as
        are in use, however long leases are.
        """
        self._kept[attempt_id] = attempt
        for _ in range(min(_LOOKED_AT, len(self._kept))):
            at, oldest = self._kept.popitem(last=False)
            is_alive = any(True for _ in self.still_leased(oldest, now_ms))
            if is_alive and len(self._kept) < _MOST_KEPT:
                self._kept[at] = oldest  # the others have their turn before it is looked at again

    def forget(self, attempt_id: str) -> None:
        self._kept.pop(attempt_id, None)

    def still_leased(self, attempt: Attempt, now_ms: int) -> Iterator[tuple[QueueLeases, int]]:
        """The messages of a receive that are still leased to it, by queue and offset."""
        for index, offset in attempt.places:
            queue = self._queues[index]
            if queue.slots.is_leased(offset, attempt.lease, now_ms):
                yield queue, offset

    def load(self, kept: Iterable[tuple[str, Attempt]]) -> None:
        self._kept = OrderedDict(kept)
