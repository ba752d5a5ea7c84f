"""Offsets of one queue that are done with, in any order: kept as a prefix, and what lies ahead of it. Pure."""

from collections.abc import Iterable


class OffsetSet:
    """Offsets of a queue: all below `prefix`, and some above."""

    def __init__(self, prefix: int = 0, ahead: Iterable[int] = ()) -> None:
        self.prefix = prefix
        self.ahead = set(ahead)

    def __contains__(self, offset: int) -> bool:
        return offset < self.prefix or offset in self.ahead

    def add(self, offset: int) -> None:
        if offset >= self.prefix:
            self.ahead.add(offset)
            while self.prefix in self.ahead:
                self.ahead.remove(self.prefix)
                self.prefix += 1

    def add_below(self, end: int) -> None:
        if end > self.prefix:
            self.prefix = end
            ahead, self.ahead = self.ahead, set()
            for offset in sorted(ahead):
                self.add(offset)
