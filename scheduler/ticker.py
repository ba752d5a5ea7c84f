"""Runs a `run_once` again and again: never twice at once, never ended by an error, stopped in order.

Tests call `run_once` themselves and need no ticker.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger()


class Ticker:
    """One loop. The interval counts from the end of one run to the beginning of the next."""

    def __init__(self, name: str, run_once: Callable[[], Awaitable[object]], *, interval_ms: int) -> None:
        self.name = name
        self._run_once = run_once
        self._interval_ms = interval_ms
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self.last_error: str | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"ticker-{self.name}")

    async def stop(self) -> None:
        """Let the run in progress end; no other begins."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def run_now(self) -> object:
        """Once, out of turn; what `run_once` returns. Raises what it raises."""
        async with self._turn:
            return await self._run_once()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.run_now()
                self.last_error = None
            except Exception as error:
                if self.last_error is None:
                    log.exception("ticker_failed", ticker=self.name)
                self.last_error = f"{type(error).__name__}: {error}"
            try:
                await asyncio.wait_for(self._stopping.wait(), self._interval_ms / 1000)
            except TimeoutError:
                continue
