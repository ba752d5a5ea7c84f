"""Those who wait for something that has a name, a transaction or a request, to leave its state."""

import asyncio


class Watchers:
    """Futures that wait for a change of a name. Event loop only."""

    def __init__(self) -> None:
        self._parked: dict[str, dict[int, asyncio.Future[None]]] = {}

    async def wait(self, name: str, *, timeout_ms: int) -> None:
        """Return when it is woken, or the time is up."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.setdefault(name, {})[id(change)] = change
        try:
            await asyncio.wait({change}, timeout=timeout_ms / 1000)
        finally:
            parked = self._parked.get(name, {})
            parked.pop(id(change), None)
            if not parked:
                self._parked.pop(name, None)

    def wake(self, name: str) -> None:
        for change in self._parked.pop(name, {}).values():
            if not change.done():
                change.set_result(None)

    def wake_all(self) -> None:
        for name in list(self._parked):
            self.wake(name)
