"""Those who wait for a transaction to leave its state."""

import asyncio


class Watchers:
    """The event loop's."""

    def __init__(self) -> None:
        self._parked: dict[str, dict[int, asyncio.Future[None]]] = {}

    async def wait(self, transaction_id: str, *, timeout_ms: int) -> None:
        """Return when it is woken, or the time is up."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.setdefault(transaction_id, {})[id(change)] = change
        try:
            await asyncio.wait({change}, timeout=timeout_ms / 1000)
        finally:
            parked = self._parked.get(transaction_id, {})
            parked.pop(id(change), None)
            if not parked:
                self._parked.pop(transaction_id, None)

    def wake(self, transaction_id: str) -> None:
        for change in self._parked.pop(transaction_id, {}).values():
            if not change.done():
                change.set_result(None)

    def wake_all(self) -> None:
        for transaction_id in list(self._parked):
            self.wake(transaction_id)
