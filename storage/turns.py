"""Changes of what is stored: each goes on to its end, and of one thing (a transaction, a request) one goes on at a time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Changes:
    """The event loop's. Those that were begun."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def uncancelled(self, change: Coroutine[Any, Any, T]) -> T:
        """A change goes on when the one who asked for it has gone: an append cannot be taken back."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        while self._running:
            await asyncio.wait(self._running)


class Turns(Changes):
    """The event loop's. Changes of things that have a name."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Nobody else changes what has this name meanwhile."""
        lock, users = self._locks.get(name, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._locks[name][1] - 1
            if users:
                self._locks[name] = (lock, users)
            else:
                del self._locks[name]
