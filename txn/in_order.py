"""Ids in the order of their numbers, many of them in little memory. Pure."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import compress

_GONE, _CLOSED, _OPEN = range(3)


class InOrder:
    """Ids by increasing sequence numbers, with a mark for the open ones; iteration after a number
    is cheap. 17 bytes each.
    """

    def __init__(self) -> None:
        self._sequences = array("q")
        self._ids: list[str] = []  # beside their sequence numbers
        self._states = bytearray()  # beside them too
        self._gone = 0
        self.open_count = 0

    def __len__(self) -> int:
        return len(self._ids) - self._gone

    def get(self, sequence: int) -> str | None:
        at = self._find(sequence)
        return None if at is None else self._ids[at]

    def __getitem__(self, sequence: int) -> str:
        """Raises KeyError."""
        found = self.get(sequence)
        if found is None:
            raise KeyError(sequence)
        return found

    def add(self, sequence: int, identifier: str, *, is_open: bool) -> None:
        state = _OPEN if is_open else _CLOSED
        self.open_count += is_open
        if not self._sequences or sequence > self._sequences[-1]:
            self._sequences.append(sequence)
            self._ids.append(identifier)
            self._states.append(state)
            return
        at = bisect_left(self._sequences, sequence)
        if self._sequences[at] == sequence and self._states[at] == _GONE:
            self._ids[at], self._states[at] = identifier, state
            self._gone -= 1
            return
        self._sequences.insert(at, sequence)
        self._ids.insert(at, identifier)
        self._states.insert(at, state)

    def close(self, sequence: int) -> None:
        """Mark an id as no longer open."""
        self._put(sequence, _CLOSED)

    def discard(self, sequence: int) -> None:
        at = self._put(sequence, _GONE)
        if at is not None:
            self._ids[at] = ""
        if len(self._ids) > 2 * len(self) + 64:
            self._sequences = array("q", compress(self._sequences, self._states))
            self._ids = list(compress(self._ids, self._states))
            self._states = self._states.replace(bytes([_GONE]), b"")
            self._gone = 0

    def after(self, sequence: int, *, only_open: bool = False) -> Iterator[str]:
        """Ids after a sequence number. Ids that are added, closed or discarded during the iteration
        are respected.
        """
        while True:
            at = bisect_right(self._sequences, sequence)
            if only_open:
                at = self._states.find(_OPEN, at)
            else:
                while at < len(self._states) and self._states[at] == _GONE:
                    at += 1
            if not 0 <= at < len(self._ids):
                return
            sequence = self._sequences[at]
            yield self._ids[at]

    def _find(self, sequence: int) -> int | None:
        at = bisect_left(self._sequences, sequence)
        is_there = (
            at < len(self._sequences)
            and self._sequences[at] == sequence
            and self._states[at] != _GONE
        )
        return at if is_there else None

    def _put(self, sequence: int, state: int) -> int | None:
        at = self._find(sequence)
        if at is not None:
            self.open_count -= self._states[at] == _OPEN
            self._gone += state == _GONE
            self._states[at] = state
        return at
