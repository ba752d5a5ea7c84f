"""Time as a parameter. The one place of the lower packages that asks the operating system for it.

Stored times are wall-clock milliseconds since 1970 (UTC). Waits, deadlines and leases use the
monotonic clock, which no administrator turns back (guarantee G19).
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump, in both directions."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""


def block_for(ms: int) -> None:
    """Block the calling thread."""
    time.sleep(ms / 1000)


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
