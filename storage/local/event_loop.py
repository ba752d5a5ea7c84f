"""The engine's turns, timers and lanes on asyncio: the owner is the running event loop, a lane is a
thread of its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from storage.local.runner import Lane, Timer

T = TypeVar("T")


class EventLoopRunner:
    def __init__(self) -> None:
        """Called on the loop that will own the store."""
        self._loop = asyncio.get_running_loop()
        # Own threads: the loop's default executor is shared with name resolution and whatever else
        # is slow.
        self._lanes = {lane: _LaneThread(self._loop, f"store-{lane.value}") for lane in Lane}

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, call)

    def beside(
        self,
        lane: Lane,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._lanes[lane].put(_Job(job, done, failed))

    def close(self) -> None:
        """After the last job's report; the threads end."""
        for lane in self._lanes.values():
            lane.close()


class _Job(NamedTuple):
    run: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class _LaneThread:
    """Runs jobs in their order, and reports each to the loop.

    The thread begins with the first of them.

    An executor makes a future for each job, with a lock and a condition: as much work again as that
    of a small flush.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def put(self, job: _Job) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = job.run()
            except Exception as error:  # noqa: BLE001 - reported to the caller
                self._report(job.failed, error)
            else:
                self._report(job.done, result)
            del job

    def _report(self, to: Callable[[Any], None], what: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            self._loop.call_soon_threadsafe(to, what)
