"""A time by which something must have happened."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `on_expired` when its time has come. Event loop only.

    To set it later, or not at all, is no more than an assignment: the timer that runs finds out
    when it ends. A connection moves its deadline with every request, and a timer for each would
    cost more than the rest of reading it.
    """

    __slots__ = ("_at", "_loop", "_on_expired", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def set(self, timeout_ms: int) -> None:
        """Expire so many milliseconds from now, instead of when it was set to before."""
        self._at = at = self._loop.time() + timeout_ms / 1000
        if self._timer is None or self._timer_at > at:
            self._run_until(at)

    def clear(self) -> None:
        """Never expire, until it is set again."""
        self._at = None

    def close(self) -> None:
        """Let go of everything, and of what was to be called: it owns this deadline."""
        self._at = None
        self._on_expired = _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._timer_at:
            self._run_until(self._at)
        else:
            self._at = None
            self._on_expired()


def _nothing() -> None:
    pass
