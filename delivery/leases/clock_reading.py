"""The present time on both clocks: the wall clock, whose times are stored, and the monotonic clock,
by which this process waits. Pure.
"""

from typing import NamedTuple


class ClockReading(NamedTuple):
    """The present time on both clocks, in milliseconds."""

    wall_ms: int
    monotonic_ms: int

    def monotonic(self, until_ms: int, length_ms: int) -> int:
        """A wall time on the monotonic clock; whatever the wall clock did, it is at most
        `length_ms` from now.
        """
        return self.monotonic_ms + max(0, min(until_ms - self.wall_ms, length_ms))
