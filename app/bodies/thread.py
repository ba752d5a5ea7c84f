"""Work on large request and answer bodies beside the event loop.

msgspec holds the GIL for the whole of a call, so a thread alone does not keep the loop responsive:
each call must be short by itself. Between the calls the loop has its turn. There is one thread, so
that the loop contends for the GIL with one other and not with many. What would be one long call is
made in a process (`app/bodies/process.py`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from app.bodies.process import BodyProcess

T = TypeVar("T")

LOOP_BYTES = 64 << 10  # JSON of so many has 30,000 values at most, which take some 5 ms to build
THREAD_BYTES = 512 << 10  # JSON of so many takes some 20 ms at most


class BodyThread:
    """Runs work where it does not hold the event loop. Event loop only."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "large-bodies")
        self._process = BodyProcess()

    async def run(self, byte_count: int, work: Callable[[], T]) -> T:
        """The result of `work`, done here where it is about few bytes and on the thread where they
        are many.
        """
        if byte_count <= LOOP_BYTES:
            return work()
        return await self._run(work)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(copy_context().run, work)
        )

    async def read(
        self, function: Callable[..., T], raw: bytes, *more: Any, is_slow: bool = False
    ) -> T:
        """Parse JSON with a function of a module.

        `is_slow`: slow for its length. Raises its Refusal.
        """
        if is_slow or len(raw) > LOOP_BYTES:
            return await self._run(lambda: self.read_now(function, raw, *more))
        return function(raw, *more)

    def read_now(self, function: Callable[..., T], raw: bytes, *more: Any) -> T:
        """The result of `read`, for callers that run on this thread already."""
        return (
            function(raw, *more)
            if len(raw) <= THREAD_BYTES
            else self._process.call(function, raw, *more)
        )

    async def ahead(self, byte_count: int, make: Callable[[], T]) -> Callable[[], T]:
        """Work for where nothing can be awaited, and which may not be needed: `make` itself, or
        what returns its outcome.
        """
        if byte_count <= LOOP_BYTES:
            return make
        done = self._thread.submit(copy_context().run, make)
        waiting = asyncio.wrap_future(done)
        await asyncio.wait({waiting})
        # it may never be raised, and asyncio logs those that nothing has looked at
        waiting.exception()
        return done.result

    async def aclose(self) -> None:
        """End the thread and the process. Tasks that have not begun are dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._process.close()
