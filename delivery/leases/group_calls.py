"""Calls that wait for a change of a group's leases: a settlement, an end of a lease, a reset."""

from collections.abc import Callable


class GroupCalls:
    """Callbacks of a group, each called once. Event loop only."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[Callable[[], None], None]] = {}

    def add(self, group: str, call: Callable[[], None]) -> None:
        self._calls.setdefault(group, {})[call] = None

    def remove(self, group: str, call: Callable[[], None]) -> None:
        calls = self._calls.get(group, {})
        calls.pop(call, None)
        if not calls:
            self._calls.pop(group, None)

    def notify(self, group: str) -> None:
        for call in self._calls.pop(group, ()):
            call()

    def notify_all(self) -> None:
        for group in list(self._calls):
            self.notify(group)
