"""The interface between the life cycle of the service and each component of the service.

A component gives a part of the service its place in it: when the part starts and stops, how often
its loops run, the names of these loops and of its metrics. The part itself knows none of them.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from scheduler.loops import Loop, WatchedLoop


class Gauge(NamedTuple):
    """A value to read when metrics are scraped; a name that ends in `_total` is a counter's."""

    name: str
    help: str
    value: float


def events_left_out(count: int) -> Gauge:
    """The number of one component, which counts towards that of the service."""
    return Gauge(
        "escrowmq_journal_events_left_out", "Damaged events that the last start left out", count
    )


class Component(Protocol):
    """A part of the service with a life cycle, loops and gauges, each of which may be empty.

    Event loop only.
    """

    async def start(self) -> None:
        """Load the state, and say in the log how much it is. The loops do not run yet."""
        return

    def note_ready(self) -> None:
        """All components have started, and requests are answered."""
        return

    def begin_stop(self) -> None:
        """Begin nothing new, and end all waits of clients."""
        return

    async def stop(self) -> None:
        """Finish what was begun, keep what is derived, release the rest."""
        return

    def loops(self) -> Iterable[Loop | WatchedLoop]:
        """The background loops, which run between the start of all components and their stop."""
        return ()

    def gauges(self) -> Iterable[Gauge]:
        """The values now, after the start."""
        return ()


async def _nothing() -> None:
    """The default of a start and of a stop."""


class CallbackComponent(Component):
    """A component of a start and a stop alone."""

    def __init__(
        self,
        *,
        start: Callable[[], Awaitable[object]] = _nothing,
        stop: Callable[[], Awaitable[object]] = _nothing,
    ) -> None:
        self._start = start
        self._stop = stop

    async def start(self) -> None:
        await self._start()

    async def stop(self) -> None:
        await self._stop()
