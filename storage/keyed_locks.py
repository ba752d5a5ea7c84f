"""Tasks that run to their end, and locks by name: changes of one thing (a transaction, a request)
run one after another.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class ShieldedTasks:
    """Tasks that run to their end when their caller is cancelled. Event loop only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._without_task = 0
        self._last_ended = asyncio.Event()

    async def shielded(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end even if the caller is cancelled: an append cannot be undone."""
        return await asyncio.shield(self.start(change))

    def start(self, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a change without waiting for it."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def begin_many(self, count: int) -> None:
        """Count changes that begin without a task; `end_many` counts their ends."""
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


class KeyedLocks(ShieldedTasks):
    """Locks by name, for changes of named things. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        # by name, of each lock that is held
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def try_acquire(self, name: str) -> bool:
        """Acquire the lock of this name until `release`; False if it is held."""
        if name in self._waiting:
            return False
        self._waiting[name] = deque()
        return True

    def release(self, name: str) -> None:
        """Release the lock; the next waiter holds it then."""
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of this name for the block."""
        if not self.try_acquire(name):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[name].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release(name)
                raise
        try:
            yield
        finally:
            self.release(name)
