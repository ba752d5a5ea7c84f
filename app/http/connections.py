"""Which connections are open, which of them wait for a request, and what they may ask for.

Event loop only.

Up to `limit` a connection may ask for anything. Beyond it some more are accepted, which are served
where they ask for a probe or as operators, and for anything as soon as there is room. For each of
those the connection that has been idle for longest is closed; where none has been for a second,
nothing is accepted once the reserve is used up, too.
"""

import time
from collections.abc import Callable
from typing import Protocol

RESERVED = 64  # beyond the limit, for probes and operators
_ALWAYS = ("/livez", "/readyz", "/metrics")
_OPERATORS = "/v1/admin/"
IDLE_SECONDS = 1.0  # what has just been opened, or answered, is about to ask


class Connection(Protocol):
    def close_idle(self) -> bool:
        """Close the connection, which has no request in progress.

        False: one has arrived and is not read yet.
        """


class Connections:
    """Counts connections from `opened` to `lost`; each is idle unless `busy`."""

    def __init__(
        self, limit: int, *, reserved: int = RESERVED, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.reserved = reserved
        self._now = now
        self.on_lost: Callable[[], None] = lambda: None
        self._open: set[Connection] = set()
        # of the open ones, those that may ask for probes only
        self._beyond: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # since when, the oldest first

    def __len__(self) -> int:
        return len(self._open)

    @property
    def most(self) -> int:
        """Maximum number of open connections, including those for probes and operators."""
        return self.limit + self.reserved

    def opened(self, connection: Connection) -> None:
        if len(self._open) - len(self._beyond) >= self.limit:
            self.close_one()
            self._beyond.add(connection)
        self._open.add(connection)
        self._idle[connection] = self._now()

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._beyond.discard(connection)
        self._idle.pop(connection, None)
        self.on_lost()

    def serves(self, connection: Connection, path: str) -> bool:
        """A request begins: may it be served?"""
        self._idle.pop(connection, None)
        if connection not in self._beyond:
            return True
        if len(self._open) - len(self._beyond) < self.limit:
            self._beyond.discard(connection)
            return True
        return path in _ALWAYS or path.startswith(_OPERATORS)

    def answered(self, connection: Connection) -> None:
        """The request is answered; the connection waits for the next one."""
        if connection in self._open:
            self._idle[connection] = self._now()

    def close_one(self) -> None:
        """Close the connection that has been idle for longest, where one is."""
        now = self._now()
        for oldest in [
            connection for connection, since in self._idle.items() if now - since >= IDLE_SECONDS
        ]:
            del self._idle[oldest]
            if oldest.close_idle():
                return
            self._idle[oldest] = now
