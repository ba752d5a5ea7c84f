"""All loops of the service: runs them, and reports their state to readiness, metrics and
operators.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from scheduler.ticker import LONGEST_WAIT_MS, Ticker
from storage.clock import Clock


class ParkedItems(NamedTuple):
    """Items that a loop could not process and skipped; each is tried again after a while, or by an
    operator.
    """

    total: int = 0
    some: Sequence[tuple[str, str]] = ()  # (id, reason)


class LoopReport(NamedTuple):
    """The state of a loop. `last_error`: of the last run, if it failed; `waits_for`: why due items
    wait, which is not a failure.
    """

    loop: str
    last_run_ms: int | None
    lag_ms: int
    failures: int
    last_error: str | None
    parked: ParkedItems = ParkedItems()
    waits_for: str | None = None


class Loop(NamedTuple):
    """A periodic task for `Loops` to run. `check`: the check of readiness that it belongs to."""

    name: str
    run_once: Callable[[], Awaitable[object]]
    interval_ms: int
    check: str
    parked: Callable[[], ParkedItems] = ParkedItems
    waits_for: Callable[[], str | None] = lambda: None
    longest_wait_ms: int = LONGEST_WAIT_MS


class WatchedLoop(NamedTuple):
    """A loop that its component runs itself."""

    report: Callable[[], LoopReport]
    check: str


class Loops:
    """Runs the periodic tasks of the service. Event loop only."""

    def __init__(self, clock: Clock, *, random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._watched: list[WatchedLoop] = []
        self.tickers: list[Ticker] = []

    def add(self, loop: Loop | WatchedLoop) -> None:
        """Register a loop. Before `start`."""
        self._watched.append(self._with_ticker(loop) if isinstance(loop, Loop) else loop)

    def _with_ticker(self, loop: Loop) -> WatchedLoop:
        ticker = Ticker(
            loop.name,
            loop.run_once,
            interval_ms=loop.interval_ms,
            clock=self._clock,
            random=self._random,
            longest_wait_ms=loop.longest_wait_ms,
        )
        self.tickers.append(ticker)

        def report() -> LoopReport:
            return LoopReport(
                loop.name,
                ticker.last_run_ms,
                ticker.lag_ms(),
                ticker.failures,
                ticker.last_error,
                loop.parked(),
                loop.waits_for(),
            )

        return WatchedLoop(report, loop.check)

    def start(self) -> None:
        for ticker in self.tickers:
            ticker.start()

    async def stop(self) -> None:
        """Stop the loops, the last one first."""
        for ticker in reversed(self.tickers):
            await ticker.stop()

    def reports(self) -> Iterator[LoopReport]:
        return (loop.report() for loop in self._watched)

    def failing(self, check: str) -> list[str]:
        """The loops of this check whose last run failed."""
        return [
            report.loop
            for loop in self._watched
            if loop.check == check and (report := loop.report()).last_error
        ]
