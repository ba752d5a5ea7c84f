"""Conditions by name: callers wait for a named thing (a transaction, a request) to change."""

import asyncio
from collections.abc import Callable


class KeyedConditions:
    """Waiters for changes, by the name of what changes. Event loop only."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[Callable[[], None], None]] = {}

    async def wait(self, name: str, *, timeout_ms: int) -> None:
        """Return after a notification, or once the time is up."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not change.done():
                change.set_result(None)

        self.call_on_change(name, end)
        try:
            await asyncio.wait({change}, timeout=timeout_ms / 1000)
        finally:
            self.forget_call(name, end)

    def call_on_change(self, name: str, call: Callable[[], None]) -> None:
        """Call it once, with the next notification."""
        self._calls.setdefault(name, {})[call] = None

    def forget_call(self, name: str, call: Callable[[], None]) -> None:
        """Do not call it any more."""
        calls = self._calls.get(name, {})
        calls.pop(call, None)
        if not calls:
            self._calls.pop(name, None)

    def is_awaited(self, name: str) -> bool:
        """Whether a caller waits for the next notification."""
        return name in self._calls

    def notify(self, name: str) -> None:
        for call in self._calls.pop(name, {}):
            call()

    def notify_all(self) -> None:
        for name in list(self._calls):
            self.notify(name)
