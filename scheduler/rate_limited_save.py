"""Saves a table as often as its size allows, so that the bytes written stay below a rate.

A table of a million undecided transactions takes 338 MB. Saved every ten seconds it would use a
tenth of a core and of a disk while anything changes; at this rate it uses a few hundredths,
whatever its size. A start after a kill replays the messages since the last save: as many seconds of
them as the table has times `BYTES_PER_SECOND`.
"""

from collections.abc import Awaitable, Callable

from storage.clock import Clock

BYTES_PER_SECOND = 8 << 20  # 30 ms of processor time, encoded, checked and written


class RateLimitedSave:
    """A `run_once` for a ticker with a short interval."""

    def __init__(self, save: Callable[[], Awaitable[int]], clock: Clock) -> None:
        """`save` returns how many bytes it had to write."""
        self._save = save
        self._clock = clock
        self._not_before_ms = clock.monotonic_ms()

    async def run_once(self) -> int:
        """Save the table; the number of bytes written, 0 if it is too early."""
        if self._clock.monotonic_ms() < self._not_before_ms:
            return 0
        saved_bytes = await self._save()
        self._not_before_ms = self._clock.monotonic_ms() + saved_bytes * 1_000 // BYTES_PER_SECOND
        return saved_bytes
