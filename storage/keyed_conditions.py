"""Conditions by name: callers wait for a named thing (a transaction, a request) to change."""

import asyncio


class KeyedConditions:
    """Waiters for changes, by the name of what changes. Event loop only."""

    def __init__(self) -> None:
        self._parked: dict[str, dict[int, asyncio.Future[None]]] = {}

    async def wait(self, name: str, *, timeout_ms: int) -> None:
        """Return after a notification, or once the time is up."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.setdefault(name, {})[id(change)] = change
        try:
            await asyncio.wait({change}, timeout=timeout_ms / 1000)
        finally:
            parked = self._parked.get(name, {})
            parked.pop(id(change), None)
            if not parked:
                self._parked.pop(name, None)

    def notify(self, name: str) -> None:
        for change in self._parked.pop(name, {}).values():
            if not change.done():
                change.set_result(None)

    def notify_all(self) -> None:
        for name in list(self._parked):
            self.notify(name)
