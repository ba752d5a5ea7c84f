"""Work on large request and answer bodies beside the event loop.

msgspec holds the GIL for the whole of a call, so a thread alone does not keep the loop responsive: each call must be short by
itself, which the limits on bytes and values see to. Between the calls the loop has its turn. There is one thread, so that the
loop contends for the GIL with one other and not with many.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")

LOOP_BYTES = 64 << 10  # JSON of so many has 30,000 values at most, which take some 5 ms to build


class BodyThread:
    """Runs work where it does not hold the event loop. Event loop only."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "large-bodies")

    async def run(self, byte_count: int, work: Callable[[], T]) -> T:
        """The result of `work`, done here where it is about few bytes and on the thread where they are many."""
        if byte_count <= LOOP_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(copy_context().run, work))

    async def ahead(self, byte_count: int, make: Callable[[], T]) -> Callable[[], T]:
        """Work for where nothing can be awaited, and which may not be needed: `make` itself, or what returns its outcome."""
        if byte_count <= LOOP_BYTES:
            return make
        done = self._thread.submit(copy_context().run, make)
        waiting = asyncio.wrap_future(done)
        await asyncio.wait({waiting})
        waiting.exception()  # it may never be raised, and asyncio logs those that nothing has looked at
        return done.result

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
