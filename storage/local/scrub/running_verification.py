"""A verification of a store that runs: in the read lane, between other reads, at a limited rate."""

from collections.abc import Awaitable, Callable

from storage.local.lanes.rate_limit import RateLimit
from storage.local.lanes.runner import InLane, Lane
from storage.local.verify.verification import StoreVerification
from storage.store_status import VerifyStep

WINDOW_BYTES = 1 << 20  # for so long at most a read waits behind it in the lane
_LEAST_STEP_BYTES = 4_096  # of the limit: a step that reads little takes its time too


class RunningStoreVerification:
    """A verification in progress, step by step. Event loop only."""

    def __init__(
        self,
        made: StoreVerification,
        limit: RateLimit,
        *,
        check: Callable[[], None],
        pause: Callable[[int], Awaitable[None]],
        in_lane: InLane,
    ) -> None:
        """`limit`: of all verifications of the store together.

        `check`: raises StoreClosed. `pause`: wait, milliseconds.
        """
        self._made = made
        self._steps = made.steps()
        self._limit = limit
        self._check = check
        self._pause = pause
        self._in_lane = in_lane

    @property
    def total_bytes(self) -> int:
        return self._made.total_bytes

    async def step(self) -> VerifyStep | None:
        while wait_ms := self._limit.wait_ms():
            await self._pause(wait_ms)
        self._check()
        step = await self._in_lane(Lane.READ, lambda: next(self._steps, None))
        if step is not None:
            self._limit.spend(max(step.read_bytes + step.searched_bytes, _LEAST_STEP_BYTES))
        return step

    async def aclose(self) -> None:
        await self._in_lane(Lane.READ, self._steps.close)
