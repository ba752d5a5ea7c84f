"""A store that changes hands, as components: what a broker left is taken over once delivery is
open, and the files for a broker are written until everything that changes them has stopped.
"""

from collections.abc import Iterator

from app.components.component import CallbackComponent, Component
from app.components.loop_kinds import saving_loop
from app.hand_over.broker_files import BrokerFiles
from app.hand_over.take_over import TakeOver
from scheduler.loops import Loop
from storage.clock import Clock


class BrokerFilesComponent(Component):
    """The files for a broker. Starts before the registry, and stops after delivery."""

    def __init__(
        self, take_over: TakeOver, files: BrokerFiles, clock: Clock, *, interval_ms: int
    ) -> None:
        self._take_over = take_over
        self._files = files
        self._clock = clock
        self._interval_ms = interval_ms

    async def start(self) -> None:
        await self._take_over.read()

    async def stop(self) -> None:
        await self._files.save()

    def loops(self) -> Iterator[Loop]:
        yield saving_loop(
            "broker_files",
            self._files.save,
            self._clock,
            interval_ms=self._interval_ms,
            check="store",
        )


def take_over_component(take_over: TakeOver, files: BrokerFiles) -> Component:
    """The take-over, which ends with files that are EscrowMQ's."""

    async def start() -> None:
        if await take_over.run() is not None:
            await files.write_now()

    return CallbackComponent(start=start)
