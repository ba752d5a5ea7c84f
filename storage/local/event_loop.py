"""The engine's turns, timers and lanes on asyncio: the owner is the running event loop, a lane is a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from storage.local.runner import Lane, Timer

T = TypeVar("T")


class EventLoopRunner:
    def __init__(self) -> None:
        """Called on the loop that will own the store."""
        self._loop = asyncio.get_running_loop()
        # Own threads: the loop's default executor is shared with name resolution and whatever else is slow.
        self._lanes = {lane: ThreadPoolExecutor(1, thread_name_prefix=f"store-{lane.value}") for lane in Lane}

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, call)

    def beside(self, lane: Lane, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        def report(future: Future[T]) -> None:
            error = future.exception()
            if error is None:
                self._loop.call_soon_threadsafe(done, future.result())
            elif isinstance(error, Exception):
                self._loop.call_soon_threadsafe(failed, error)
            else:
                raise error

        self._lanes[lane].submit(job).add_done_callback(report)

    def close(self) -> None:
        """After the last job's report; the threads end."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False)
