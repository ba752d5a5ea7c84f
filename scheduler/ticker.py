"""Runs a `run_once` periodically: never twice at once, never ended by an error, stopped in order.

After a failed run the next one waits longer each time, up to half a minute, less a random part, so
that loops with one cause of failure do not all run at once. Tests call `run_once` themselves and
need no ticker.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from storage.clock import Clock
from storage.errors import FlushFailed, LogTakenAway, StoreClosed, reason_of

log = structlog.get_logger()

LONGEST_WAIT_MS = 30_000


class Ticker:
    """One loop. The interval counts from the end of one run to the beginning of the next."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[object]],
        *,
        interval_ms: int,
        clock: Clock,
        random: Callable[[], float],
        longest_wait_ms: int = LONGEST_WAIT_MS,
    ) -> None:
        """`random`: a new number in [0, 1) each time. `longest_wait_ms`: between failed runs."""
        self.name = name
        self.interval_ms = interval_ms
        self._run_once = run_once
        self._clock = clock
        self._random = random
        self._longest_wait_ms = max(longest_wait_ms, interval_ms)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self._well_ms = clock.monotonic_ms()  # when it was made, or a run last ended well
        self._in_a_row = 0
        self.failures = 0
        self.last_run_ms: int | None = None  # wall time of its beginning
        self.last_error: str | None = None  # of the last run, if that failed

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"ticker-{self.name}")

    async def stop(self) -> None:
        """Let the run in progress end; no other begins."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    def lag_ms(self) -> int:
        """How long a successful run has been overdue: it grows while a run hangs or fails."""
        return max(0, self._clock.monotonic_ms() - self._well_ms - self.interval_ms)

    async def run_now(self) -> object:
        """Run once, out of turn; returns and raises what `run_once` returns and raises."""
        async with self._turn:
            self.last_run_ms = self._clock.wall_ms()
            result = await self._run_once()
            self._well_ms = self._clock.monotonic_ms()
            return result

    async def run_or_note(self) -> int:
        """Run once; the wait before the next run. Raises nothing: a failure is logged and
        counted.
        """
        try:
            await self.run_now()
        except Exception as error:
            self.failures += 1
            self._in_a_row += 1
            self.last_error = reason_of(error)
            if isinstance(error, (StoreClosed, FlushFailed, LogTakenAway)):
                # The service itself says why the store has ended; a traceback would show the next
                # caller.
                log.warning("ticker_without_store", ticker=self.name, error=self.last_error)
            elif self._in_a_row == 1:
                log.exception("ticker_failed", ticker=self.name)
            else:
                log.warning(
                    "ticker_failed_again",
                    ticker=self.name,
                    failures=self._in_a_row,
                    error=self.last_error,
                )
            return self._wait_after_failure_ms()
        if self.last_error is not None:
            log.info("ticker_recovered", ticker=self.name, failures=self._in_a_row)
        self._in_a_row, self.last_error = 0, None
        return self.interval_ms

    def _wait_after_failure_ms(self) -> int:
        wait_ms = min(self._longest_wait_ms, self.interval_ms << min(self._in_a_row, 20))
        return max(self.interval_ms, wait_ms - int(wait_ms / 2 * self._random()))

    async def _run(self) -> None:
        while not self._stopping.is_set():
            wait_ms = await self.run_or_note()
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
            except TimeoutError:
                continue
