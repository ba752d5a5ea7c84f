"""Deliveries and changes that run to their end; their messages are locked meanwhile."""

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
        """Of places of which none is under way."""
        self._ends |= dict.fromkeys(places, asyncio.get_running_loop().create_future())

    def end(self, place: int) -> None:
        ended = self._ends.pop(place)
        if not ended.done():
            ended.set_result(None)

    async def wait(self, place: int) -> None:
        """Return when it is not under way."""
        while (ended := self._ends.get(place)) is not None:
            await asyncio.shield(ended)  # others wait for it, too
