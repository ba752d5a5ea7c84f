"""Saves a table as often as its size allows: the next time waits until what was written last has
been paid for.

A table of a million undecided transactions takes 338 MB. Saved whole every ten seconds it would
have a tenth of a core and of a disk for as long as anything changes; at this rate it has a few
hundredths, whatever its size, and a start after a kill replays what came in since: so many seconds
of messages as the table has times `BYTES_PER_SECOND`.
"""

from collections.abc import Awaitable, Callable

from storage.clock import Clock

BYTES_PER_SECOND = 8 << 20  # 30 ms of processor time, encoded, checked and written


class RateLimitedSave:
    """A `run_once` for a ticker, whose interval stays the least there is."""

    def __init__(self, save: Callable[[], Awaitable[int]], clock: Clock) -> None:
        """`save` returns how many bytes it had to write."""
        self._save = save
        self._clock = clock
        self._not_before_ms = clock.monotonic_ms()

    async def run_once(self) -> int:
        """How many bytes were written; 0 where it is too early, too."""
        if self._clock.monotonic_ms() < self._not_before_ms:
            return 0
        saved_bytes = await self._save()
        self._not_before_ms = self._clock.monotonic_ms() + saved_bytes * 1_000 // BYTES_PER_SECOND
        return saved_bytes
