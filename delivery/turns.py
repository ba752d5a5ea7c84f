"""Turns of the event loop between pieces of work."""

import asyncio

_IN_A_TURN = 256  # pieces of a few microseconds: less than a millisecond
# between turns, in which the loop is idle: else a thread that has synced the log waits up to 5 ms
# for the interpreter each time that it needs it, and so does each send
_PAUSE_SECONDS = 0.002


class Turns:
    """Work that gives others their turn. `work`: done so far."""

    def __init__(self) -> None:
        self.work = 0
        self._next = _IN_A_TURN

    async def take(self, work: int) -> None:
        """Begin so much work; others have their turn before it if much has been done."""
        self.work += work
        if self.work >= self._next:
            self._next = self.work + _IN_A_TURN
            await asyncio.sleep(_PAUSE_SECONDS)
