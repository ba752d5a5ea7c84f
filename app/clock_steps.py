"""Jumps of the wall clock, of which retention must not take the time to have passed.

A wrong time, from NTP or an operator, that is days ahead would make a whole log expire in one run.
So the age of what is stored counts without the jumps that this process has seen. Event loop only.
"""

import structlog

from storage.clock import Clock

# between two looks, by which the wall clock may be slewed, and a process be held up between its
# looks at the two clocks
_TOLERANCE_MS = 10_000

log = structlog.get_logger()


class ClockSteps:
    """The sum of the jumps of the wall clock since this was made. It must be asked now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = self._offset()
        self._sum_ms = 0

    def ahead_ms(self) -> int:
        """How far the jumps have brought the wall clock ahead; 0 where they brought it back."""
        offset_ms = self._offset()
        step_ms, self._offset_ms = offset_ms - self._offset_ms, offset_ms
        if abs(step_ms) > _TOLERANCE_MS:
            self._sum_ms += step_ms
            log.warning("clock_jumped", by_ms=step_ms, ahead_ms=self._ahead())
        return self._ahead()

    def reason(self) -> str | None:
        """Why what seems to have expired stays, if it does."""
        ahead_ms = self.ahead_ms()
        if not ahead_ms:
            return None
        return (
            f"the wall clock has jumped {ahead_ms / 1_000:.0f} s ahead since the start; until a "
            "restart messages are not older for that"
        )

    def _ahead(self) -> int:
        return max(0, self._sum_ms)

    def _offset(self) -> int:
        return self._clock.wall_ms() - self._clock.monotonic_ms()
