"""When a replica is to take the place of its service without a person.

It judges by a clock, and may be wrong: what two services may acknowledge does not depend on it, but
on the promises alone.
"""

from collections.abc import Collection

from storage.clock import Clock
from storage.identifiers import Random

_PAUSE_MS = 1_000  # between two attempts, and up to so much more
_TURN_MS = 5_000  # that is left to each node that is to try before this one
_LOOK_MS = 5_000


class FailoverWatch:
    """Measures for how long there has been no service. Event loop only."""

    def __init__(self, clock: Clock, after_ms: int, random: Random) -> None:
        """`after_ms` 0: it is never due."""
        self._clock = clock
        self._after_ms = after_ms
        self._random = random
        self._due_ms = self._next_ms = 0
        self.note_service()

    def note_service(self) -> None:
        """There is one, or it is being promoted."""
        self._due_ms = self._next_ms = self._clock.monotonic_ms() + self._after_ms

    def is_due(self) -> bool:
        return bool(self._after_ms) and self._clock.monotonic_ms() >= self._next_ms

    def is_its_turn(self, before: int) -> bool:
        """Has it been due for long enough that as many others should have tried?"""
        return self._clock.monotonic_ms() >= self._due_ms + before * _TURN_MS

    def postpone(self) -> None:
        """Note that the node could not take the place of the service now."""
        pause_ms = _PAUSE_MS + int(self._random.random() * _PAUSE_MS)
        self._next_ms = self._clock.monotonic_ms() + pause_ms


class LeftOutWatch:
    """Which replicas a service leaves out: they have promised to follow a later one that does not
    come. Event loop only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ms = 0
        self._last: set[str] = set()

    def is_due(self) -> bool:
        """Is it time to look?"""
        return self._clock.monotonic_ms() >= self._next_ms

    def note(self, nodes: Collection[str]) -> list[str]:
        """Note those that are left out now; return those that also were at the last look. A
        promotion that goes on is over by then.
        """
        self._next_ms = self._clock.monotonic_ms() + _LOOK_MS
        lasting = sorted(self._last.intersection(nodes))
        self._last = set(nodes).difference(lasting)
        return lasting
