"""Changes of what is stored: each goes on to its end, and of one thing (a transaction, a request)
one goes on at a time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Changes:
    """Those that were begun. Event loop only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._without_task = 0
        self._last_ended = asyncio.Event()

    async def uncancelled(self, change: Coroutine[Any, Any, T]) -> T:
        """A change goes on when the one who asked for it has gone: an append cannot be
        taken back.
        """
        return await asyncio.shield(self.run(change))

    def run(self, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin a change without waiting for it."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def begin_many(self, count: int) -> None:
        """Count so many changes that begin without a task; `end_many` counts their ends."""
        self._without_task += count

    def end_many(self, count: int) -> None:
        self._without_task -= count
        if not self._without_task:
            self._last_ended.set()

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        while self._running or self._without_task:
            if self._running:
                await asyncio.wait(self._running)
            else:
                self._last_ended.clear()
                await self._last_ended.wait()


class Turns(Changes):
    """Changes of things that have a name. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        # by the name of each thing that is being changed
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take(self, name: str) -> bool:
        """Have the turn of what has this name, until `give_back`; False where there is another
        change of it.
        """
        if name in self._waiting:
            return False
        self._waiting[name] = deque()
        return True

    def give_back(self, name: str) -> None:
        """End the turn; the next one who waits has it."""
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Have the changes of this name to oneself for the block."""
        if not self.take(name):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[name].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(name)
                raise
        try:
            yield
        finally:
            self.give_back(name)
