"""Offsets of one queue, added in any order: a prefix without a gap, and the offsets above it.

Pure.
"""

from collections.abc import Iterable


class OffsetSet:
    """A set of queue offsets: all below `prefix`, and those in `ahead`.

    A table that is derived from a queue counts the offsets that it reflects. Appends are answered
    in any order, a buffered one before a synced one in front of it: only `prefix` may be claimed by
    a snapshot.
    """

    def __init__(self, prefix: int = 0, ahead: Iterable[int] = ()) -> None:
        self.prefix = prefix
        self.ahead = set(ahead)

    def __contains__(self, offset: int) -> bool:
        return offset < self.prefix or offset in self.ahead

    def add(self, offset: int) -> None:
        if offset > self.prefix:
            self.ahead.add(offset)
        elif offset == self.prefix:
            self.prefix += 1
            while self.ahead and self.prefix in self.ahead:
                self.ahead.discard(self.prefix)
                self.prefix += 1

    def add_below(self, end: int) -> None:
        """Add all offsets below `end`."""
        if end > self.prefix:
            self.prefix = end
            ahead, self.ahead = self.ahead, set()
            for offset in sorted(ahead):
                self.add(offset)

    def restart(self, prefix: int) -> None:
        """Hold the offsets below `prefix`, and no others."""
        self.prefix = prefix
        self.ahead.clear()
