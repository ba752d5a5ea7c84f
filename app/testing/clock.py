"""A clock that goes as the system's does, and can be moved ahead."""

import asyncio
import heapq
from itertools import count

from storage.clock import Clock


class VirtualClock:
    """A clock that tests move. Event loop only.

    Both times are moved together: a wait on either is over when it would be.
    """

    def __init__(self, system: Clock, *, ahead_ms: int = 0) -> None:
        self._system = system
        self._numbers = count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return self._system.wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms() + self.ahead_ms

    def move(self, ms: int) -> None:
        """Advance by this time; sleeps that end by then wake."""
        self.ahead_ms += ms
        now_ms = self.monotonic_ms()
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            _wake(heapq.heappop(self._sleepers)[2])

    async def sleep(self, ms: int) -> None:
        """Wait until this clock has advanced by so much, by itself or because it was moved."""
        until_ms = self.monotonic_ms() + ms
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (until_ms, next(self._numbers), waking))
        timer = asyncio.get_running_loop().call_later(ms / 1000, _wake, waking)
        try:
            await waking
        finally:
            timer.cancel()
            _wake(waking)

    def sleeping(self) -> int:
        """How many sleep."""
        return sum(not waking.done() for _, _, waking in self._sleepers)

    def next_wake_ms(self) -> int | None:
        """When the next one wakes, on the monotonic clock."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


class EngineClock:
    """Clock of the store: timestamps in virtual time, waits for the disk in real time."""

    def __init__(self, virtual: VirtualClock, system: Clock) -> None:
        self._virtual = virtual
        self._system = system

    def wall_ms(self) -> int:
        return self._virtual.wall_ms()

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms()


def _wake(waking: asyncio.Future[None]) -> None:
    if not waking.done():
        waking.set_result(None)
