"""A circuit breaker: an endpoint that fails again and again gets no requests for a while.

Pure: time is an argument.
"""

from dataclasses import dataclass

_FAILURES_TO_OPEN = 10
_SHORTEST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 30_000


@dataclass
class Circuit:
    """A circuit breaker for one endpoint. It opens after ten failures in a row; then one try at a
    time follows, after pauses that double from 1 s to 30 s.
    """

    failures: int = 0
    closed_again_ms: int = 0  # until then nothing is sent

    def room(self, now_ms: int, *, concurrency: int, under_way: int) -> int:
        """How many more tries may begin now."""
        if self.failures < _FAILURES_TO_OPEN:
            return max(0, concurrency - under_way)
        return 1 if now_ms >= self.closed_again_ms and not under_way else 0

    def note(self, now_ms: int, *, has_failed: bool) -> None:
        """Count the result of a try."""
        if not has_failed:
            self.failures = 0
            return
        self.failures += 1
        if self.failures >= _FAILURES_TO_OPEN:
            pause_ms = _SHORTEST_PAUSE_MS << min(self.failures - _FAILURES_TO_OPEN, 5)
            self.closed_again_ms = now_ms + min(pause_ms, _LONGEST_PAUSE_MS)
