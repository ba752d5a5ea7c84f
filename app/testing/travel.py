"""Moves the clock from one due time to the next, and runs what is due before it continues, so that
a day passes at once.
"""

import asyncio
from collections.abc import Callable, Sequence

from app.testing.clock import VirtualClock
from scheduler.ticker import Ticker
from txn.check_sender import CheckSender

Moment = Callable[[], int | None]

_GLANCE_SECONDS = 0.005
_GRAIN_MS = 16  # leases end in grains of time: what falls due within the last one is done too


class TimeTravel:
    """Moves virtual time and runs what comes due. Event loop only."""

    def __init__(
        self,
        clock: VirtualClock,
        sender: CheckSender,
        *,
        acting: Sequence[Ticker],
        keeping: Sequence[Ticker],
        wall_moments: Sequence[Moment],
        monotonic_moments: Sequence[Moment],
    ) -> None:
        """`acting`: the loops whose `run_once` says how much it did; `keeping`: all others, run
        once at the end.

        The moments: when the next thing falls due, in milliseconds of either clock; None where
        nothing will.
        """
        self._clock = clock
        self._sender = sender
        self._acting = acting
        self._keeping = keeping
        self._wall_moments = wall_moments
        self._monotonic_moments = [*monotonic_moments, clock.next_wake_ms]
        self._moving = asyncio.Lock()

    async def advance(self, ms: int) -> None:
        """Return once everything that falls due in this time has been done, in its order."""
        async with self._moving:
            await self._settle()
            until_ms = self._clock.ahead_ms + ms
            while (
                step_ms := self._next_step_ms()
            ) is not None and self._clock.ahead_ms + step_ms <= until_ms + _GRAIN_MS:
                self._clock.move(step_ms)
                await self._settle()
            self._clock.move(max(0, until_ms - self._clock.ahead_ms))
            await self._settle()
            for ticker in self._keeping:
                await ticker.run_now()

    def _next_step_ms(self) -> int | None:
        """Milliseconds from now to what falls due next; None if nothing will.

        What is due already and was not done waits for something else than time.
        """
        steps = _steps(self._wall_moments, self._clock.wall_ms()) + _steps(
            self._monotonic_moments, self._clock.monotonic_ms()
        )
        return min(steps, default=None)

    async def _settle(self) -> None:
        """Run the loops until they are idle and no check is under way."""
        while True:
            done = [await ticker.run_now() for ticker in self._acting]
            if self._sender.under_way > self._clock.sleeping():
                # Out there time goes as it does: an answer comes when it comes.
                await asyncio.sleep(_GLANCE_SECONDS)
            elif not any(done):
                return


def _steps(moments: Sequence[Moment], now_ms: int) -> list[int]:
    return [
        at_ms - now_ms for moment in moments if (at_ms := moment()) is not None and at_ms > now_ms
    ]
