"""A limit of bytes a second for work in the background.

What was not used in a second is not made up for.
"""

import math

from storage.clock import Clock

_BURST_MS = 1_000


class RateLimit:
    """Not thread-safe: its owner's thread."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._allowance = 0.0
        self._counted_ms = clock.monotonic_ms()

    @property
    def allowance(self) -> float:
        """Bytes that may be used now; below 0 where the last piece of work was larger than what was
        left.
        """
        now_ms = self._clock.monotonic_ms()
        earned = self._rate * (now_ms - self._counted_ms) / 1_000
        self._allowance = min(self._allowance + earned, self._rate * _BURST_MS / 1_000)
        self._counted_ms = now_ms
        return self._allowance

    def spend(self, used_bytes: int) -> None:
        self._allowance -= used_bytes

    def wait_ms(self) -> int:
        """Milliseconds until more may be used; 0: now."""
        return max(0, math.ceil(-self.allowance * 1_000 / self._rate))
