"""Deliveries and changes in progress, which lock their messages."""

import asyncio
from collections.abc import Iterable

from storage.keyed_locks import ShieldedTasks


class UnderWay(ShieldedTasks):
    """Entries under delivery or change, by place. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[int, asyncio.Future[None]] = {}  # by place

    def __contains__(self, place: int) -> bool:
        return place in self._ends

    def begin(self, places: Iterable[int]) -> None:
        """Lock these places, none of which is in progress."""
        self._ends |= dict.fromkeys(places, asyncio.get_running_loop().create_future())

    def end(self, place: int) -> None:
        ended = self._ends.pop(place)
        if not ended.done():
            ended.set_result(None)

    async def wait(self, place: int) -> None:
        """Return when the place is not in progress."""
        while (ended := self._ends.get(place)) is not None:
            await asyncio.shield(ended)  # others wait for it, too
