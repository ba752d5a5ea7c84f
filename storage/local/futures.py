"""Between callbacks and futures: whoever awaited one may have gone before it is answered."""

import asyncio
from collections.abc import Callable
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
