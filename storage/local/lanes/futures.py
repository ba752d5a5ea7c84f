"""Between callbacks and futures: a future may have been cancelled before its result arrives."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage.local.lanes.runner import Lane, Runner

T = TypeVar("T")


async def in_lane(runner: Runner, lane: Lane, job: Callable[[], T]) -> T:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    runner.beside(lane, job, answering(answer), failing(answer))
    return await answer


def resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def answering(future: asyncio.Future[T]) -> Callable[[T], None]:
    return lambda result: resolve(future, result)


def waking(future: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: resolve(future, None)


def failing(future: asyncio.Future[T]) -> Callable[[Exception], None]:
    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    return fail


class Repairs:
    """Runs repairs in the derive lane, a step at a time, one after another.

    What is damaged as a whole is met by many readers at once, and repaired by the first of them.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = asyncio.Lock()

    async def run(self, begin: Callable[[], Iterator[None]]) -> None:
        """Take all steps of the repair that `begin` returns."""
        async with self._lock:
            steps = begin()
            while not await in_lane(self._runner, Lane.DERIVE, lambda: next(steps, steps) is steps):
                pass


class EndWaits:
    """Waits until the log has come so far. Owner's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[asyncio.Future[None], int] = {}  # to where each waits

    def wait(self, end: int) -> asyncio.Future[None]:
        """A future with a result once `end` is reached. One that is cancelled is forgotten."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self._waiting[reached] = end
        reached.add_done_callback(self._forget)
        return reached

    def reach(self, end: int) -> None:
        for reached in self._up_to(end):
            resolve(reached, None)

    def fail(self, error: Exception, *, until: int | None = None) -> None:
        """Fail every wait; with `until`, those up to there."""
        for reached in [*self._waiting] if until is None else self._up_to(until):
            failing(reached)(error)

    def _up_to(self, end: int) -> list[asyncio.Future[None]]:
        return [reached for reached, wanted in self._waiting.items() if wanted <= end]

    def _forget(self, reached: asyncio.Future[None]) -> None:
        del self._waiting[reached]
