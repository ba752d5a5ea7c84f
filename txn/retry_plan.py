"""Backoff of a check without an answer. Pure: time and randomness are arguments."""

LONGEST_WAIT_MS = 30_000
LONGEST_RETRY_AFTER_MS = 3_600_000
_JITTER = 0.1  # of the wait, taken off it: what failed together does not come back together


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
