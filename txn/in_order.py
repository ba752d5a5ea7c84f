"""Ids in the order of their numbers, many of them in little memory. Pure."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class InOrder:
    """Ids by an ever-growing sequence number, with a cheap way to go on behind one of them: 16 bytes each."""

    def __init__(self) -> None:
        self._sequences = array("q")
        self._ids: list[str | None] = []  # beside their sequence numbers; None: discarded
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, sequence: int) -> str | None:
        at = bisect_left(self._sequences, sequence)
        return self._ids[at] if at < len(self._sequences) and self._sequences[at] == sequence else None

    def __getitem__(self, sequence: int) -> str:
        """Raises KeyError."""
        found = self.get(sequence)
        if found is None:
            raise KeyError(sequence)
        return found

    def add(self, sequence: int, identifier: str) -> None:
        self._count += 1
        if not self._sequences or sequence > self._sequences[-1]:
            self._sequences.append(sequence)
            self._ids.append(identifier)
            return
        at = bisect_right(self._sequences, sequence)
        self._sequences.insert(at, sequence)
        self._ids.insert(at, identifier)

    def discard(self, sequence: int) -> None:
        at = bisect_left(self._sequences, sequence)
        if at == len(self._sequences) or self._sequences[at] != sequence or self._ids[at] is None:
            return
        self._ids[at] = None
        self._count -= 1
        if len(self._ids) > 2 * self._count + 64:
            kept = [number for number, identifier in enumerate(self._ids) if identifier is not None]
            self._sequences = array("q", [self._sequences[number] for number in kept])
            self._ids = [self._ids[number] for number in kept]

    def after(self, sequence: int) -> Iterator[str]:
        """As it is at each step: what is added and discarded meanwhile counts."""
        at = bisect_right(self._sequences, sequence)
        while at < len(self._ids):
            sequence, identifier = self._sequences[at], self._ids[at]
            at += 1
            if identifier is not None:
                yield identifier
                at = bisect_right(self._sequences, sequence)
