"""When a check that got no answer is sent again, and when a host is left alone.

Pure: time and randomness are arguments.
"""

from dataclasses import dataclass

LONGEST_WAIT_MS = 30_000
LONGEST_RETRY_AFTER_MS = 3_600_000
_JITTER = 0.1  # of the wait, taken off it: what failed together does not come back together

_FAILURES_TO_OPEN = 10
_SHORTEST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 30_000


def wait_before_retry(
    interval_ms: int, *, failures: int, retry_after_ms: int | None, random: float
) -> int:
    """How long to wait after the nth failed try of one check. `random`: from 0 to below 1.

    Doubles from the interval to at most 30 s, or the interval where that is longer. What the
    endpoint asked for is kept, up to an hour.
    """
    longest_ms = max(LONGEST_WAIT_MS, interval_ms)
    # Past 2^20 intervals the longest wait is reached whatever the interval is.
    wait_ms = min(longest_ms, interval_ms << min(failures - 1, 20))
    wait_ms -= int(wait_ms * _JITTER * random)
    return max(wait_ms, min(retry_after_ms or 0, LONGEST_RETRY_AFTER_MS))


@dataclass
class Circuit:
    """Of one host: open after ten failures in a row, then one try at a time, after pauses that
    double from 1 s to 30 s.
    """

    failures: int = 0
    closed_again_ms: int = 0  # until then nothing is sent

    def room(self, now_ms: int, *, concurrency: int, under_way: int) -> int:
        """How many more checks may be sent now."""
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
