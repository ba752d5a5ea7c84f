"""The engine's turns, timers and lanes on asyncio: the owner is the running event loop, a lane is a
thread of its own.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from storage.errors import StoreClosed
from storage.local.lanes.runner import Lane, Timer

T = TypeVar("T")


class EventLoopRunner:
    def __init__(self) -> None:
        """Called on the loop that will own the store."""
        self._loop = asyncio.get_running_loop()
        self._reports = _Reports()
        self._loop.add_reader(self._reports.descriptor, self._reports.deliver)
        # Own threads: the loop's default executor is shared with name resolution and whatever else
        # is slow.
        self._lanes = {lane: _LaneThread(self._reports, f"store-{lane.value}") for lane in Lane}
        self._is_closed = False

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
        if self._is_closed:
            self._loop.call_soon(failed, StoreClosed())
            return
        self._reports.expect()
        self._lanes[lane].put(_Job(job, done, failed))
        if lane is Lane.FLUSH:
            # Let the sync begin: it needs the interpreter's lock for that, which the loop keeps for
            # the rest of its turn, and what that does can be done while the disk works.
            os.sched_yield()

    def close(self) -> None:
        """Take no more jobs: each is answered with StoreClosed. Those that were taken run, and are
        reported; then the threads end.
        """
        self._is_closed = True
        for lane in self._lanes.values():
            lane.close()
        self._reports.after_last(self._stop_listening)

    def _stop_listening(self) -> None:
        self._loop.remove_reader(self._reports.descriptor)


class _Job(NamedTuple):
    run: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class _Reports:
    """Results of jobs on their way from the lanes to the loop, which an eventfd wakes.

    The write to it lets go of the interpreter's lock, so the loop goes on at once.
    `call_soon_threadsafe` keeps the lock meanwhile: the loop wakes up, waits for it, and a sync
    comes back 10 us later.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._expected = 0  # jobs that were not reported yet
        self._on_last: Callable[[], None] | None = None

    def __del__(self) -> None:
        """Close the descriptor when neither the loop nor a lane can use it any more."""
        os.close(self.descriptor)

    def expect(self) -> None:
        """Count a job whose result is to come. Event loop only."""
        self._expected += 1

    def after_last(self, call: Callable[[], None]) -> None:
        """Call this once no result is to come any more. Event loop only."""
        self._on_last = call
        self._check_last()

    def add(self, to: Callable[[Any], None], what: Any) -> None:
        """Have `to` called with the result on the loop. Any thread."""
        self._waiting.append((to, what))
        os.eventfd_write(self.descriptor, 1)

    def deliver(self) -> None:
        """Call what waits; what arrives meanwhile has the next turn. Event loop only."""
        os.eventfd_read(self.descriptor)
        try:
            for _ in range(len(self._waiting)):
                to, what = self._waiting.popleft()
                self._expected -= 1
                to(what)
        finally:
            if self._waiting:  # a call raised: those behind it have a turn of their own
                os.eventfd_write(self.descriptor, 1)
            self._check_last()

    def _check_last(self) -> None:
        if not self._expected and self._on_last is not None:
            call, self._on_last = self._on_last, None
            call()


class _LaneThread:
    """Runs jobs in their order, and reports each to the loop.

    The thread begins with the first of them.

    An executor makes a future for each job, with a lock and a condition: as much work again as that
    of a small flush.
    """

    def __init__(self, reports: _Reports, name: str) -> None:
        self._reports = reports
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._name = name
        self._has_begun = False

    def put(self, job: _Job) -> None:
        if not self._has_begun:
            self._has_begun = True
            Thread(target=self._run, name=self._name, daemon=True).start()
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = job.run()
            except Exception as error:  # noqa: BLE001 - reported to the caller
                self._reports.add(job.failed, error)
            else:
                self._reports.add(job.done, result)
            del job
