"""Changes of transactions: one at a time of each, and each goes on to its end."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """The event loop's."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def of(self, transaction_id: str) -> AsyncIterator[None]:
        """Nobody else changes this transaction meanwhile."""
        lock, users = self._locks.get(transaction_id, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[transaction_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._locks[transaction_id][1] - 1
            if users:
                self._locks[transaction_id] = (lock, users)
            else:
                del self._locks[transaction_id]

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
