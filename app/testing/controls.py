"""The parts that the service gets where tests may control it: clocks, faults, time travel."""

from app.testing.clock import EngineClock, VirtualClock
from app.testing.faults import Faults
from app.testing.options import ControlOptions
from app.testing.travel import TimeTravel
from storage.clock import SystemClock
from storage.errors import StoreRecovering


class Controls:
    """One service's. `set_up` once it is open."""

    def __init__(self, options: ControlOptions) -> None:
        system = SystemClock()
        self.clock = VirtualClock(system, ahead_ms=options.clock_ahead_ms)
        self.engine_clock = EngineClock(self.clock, system)
        self.faults = Faults()
        self._travel: TimeTravel | None = None

    def set_up(self, travel: TimeTravel) -> None:
        self._travel = travel

    async def advance(self, ms: int) -> None:
        """Raises StoreRecovering before the service is ready."""
        if self._travel is None:
            raise StoreRecovering
        await self._travel.advance(ms)
