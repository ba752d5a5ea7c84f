"""Between callbacks and futures: a future may have been cancelled before its result arrives."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage.local.runner import Lane, Runner

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
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def wait(self, end: int) -> asyncio.Future[None]:
        """A future with a result once `end` is reached."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((end, reached))
        return reached

    def reach(self, end: int) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for wanted, reached in waiting:
            if wanted <= end:
                resolve(reached, None)
            else:
                self._waiting.append((wanted, reached))

    def fail(self, error: Exception, *, until: int | None = None) -> None:
        """Fail every wait; with `until`, those up to there."""
        waiting, self._waiting = self._waiting, []
        for wanted, reached in waiting:
            if until is None or wanted <= until:
                failing(reached)(error)
            else:
                self._waiting.append((wanted, reached))
