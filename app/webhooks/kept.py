"""How many connections to endpoints may be kept for the next request. Pure."""

from collections import deque
from collections.abc import Callable


class KeptConnections:
    """Counts the connections that are kept: in use, or idle until the pool closes them.

    The pool does not say how many are idle. Each request that ends leaves one at most, and a pool
    closes what was idle for its time at the next look, which comes after as long again: so every
    idle connection is counted for twice that time, or until it is used again.
    """

    def __init__(self, most: int, *, keep_s: float, now: Callable[[], float]) -> None:
        """`most`: connections that may be kept at once. `now`: a clock that never goes back, in
        seconds.
        """
        self._most = most
        self._counted_s = 2 * keep_s
        self._now = now
        self._in_use = 0
        self._idle_until = deque[float]()

    def take(self) -> bool:
        """May the connection of the request that begins be kept? Then `give_back` follows."""
        now = self._now()
        while self._idle_until and self._idle_until[0] <= now:
            self._idle_until.popleft()
        if self._in_use + len(self._idle_until) >= self._most:
            return False
        self._in_use += 1
        return True

    def note_used_again(self) -> None:
        """An idle connection has got the request."""
        if self._idle_until:
            self._idle_until.popleft()

    def give_back(self) -> None:
        """The request has ended; its connection may be idle now."""
        self._in_use -= 1
        self._idle_until.append(self._now() + self._counted_s)
