"""Durations of the steps of a start."""

from storage.clock import Clock
from storage.store_status import StartStep


class StopWatch:
    """Counts from when it is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_ms = self._noted_ms = clock.monotonic_ms()
        self.steps: tuple[StartStep, ...] = ()

    @property
    def total_ms(self) -> int:
        return self._clock.monotonic_ms() - self._begun_ms

    def note(self, step: str) -> None:
        """End a step, which began where the one before ended."""
        now_ms = self._clock.monotonic_ms()
        self.steps = (*self.steps, StartStep(step, max(0, now_ms - self._noted_ms)))
        self._noted_ms = now_ms
