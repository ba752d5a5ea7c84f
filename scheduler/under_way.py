"""What is under way: deliveries and changes that go on to their end, and the messages nobody else may begin with meanwhile."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class UnderWay:
    """The event loop's."""

    def __init__(self) -> None:
        self._ends: dict[int, asyncio.Future[None]] = {}  # by place
        self._running: set[asyncio.Task[Any]] = set()

    def __contains__(self, place: int) -> bool:
        return place in self._ends

    def begin(self, places: Iterable[int]) -> None:
        """Of places of which none is under way."""
        self._ends |= dict.fromkeys(places, asyncio.get_running_loop().create_future())

    def end(self, place: int) -> None:
        ended = self._ends.pop(place)
        if not ended.done():
            ended.set_result(None)

    async def wait(self, place: int) -> None:
        """Return when it is not under way."""
        while (ended := self._ends.get(place)) is not None:
            await ended

    async def to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """It goes on when the one who asked for it has gone: an append cannot be taken back."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        while self._running:
            await asyncio.wait(self._running)
