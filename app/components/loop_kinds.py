"""The kinds of loops that several components have."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

import structlog

from scheduler.loops import Loop, ParkedItems
from scheduler.rate_limited_save import RateLimitedSave
from storage.clock import Clock
from storage.errors import StorageFull, UnavailableError, reason_of

_SHOWN = 10  # of what a loop went past: enough to see what is wrong

log = structlog.get_logger()


def patient_loop(
    name: str,
    run_once: Callable[[], Awaitable[int]],
    *,
    interval_ms: int,
    check: str,
    parked: Callable[[], ParkedItems] = ParkedItems,
) -> Loop:
    """A loop that does not fail where the store is unavailable or full: its items wait."""
    patient = _ToleratesUnavailable(run_once)
    return Loop(name, patient, interval_ms, check, parked, patient.reason)


def saving_loop(
    name: str,
    save: Callable[[], Awaitable[int]],
    clock: Clock,
    *,
    interval_ms: int,
    check: str,
) -> Loop:
    """A loop that saves a table as often as its size allows; `save` returns the bytes written."""
    return Loop(name, RateLimitedSave(save, clock).run_once, interval_ms, check)


def parked_items(reasons: Mapping[str, str]) -> ParkedItems:
    """The number of these items, and the first of them with their reasons."""
    return ParkedItems(len(reasons), list(islice(reasons.items(), _SHOWN)))


class _ToleratesUnavailable:
    """A loop's `run_once`.

    Where the store takes nothing for now, what is due waits in the log: late, and no failure.
    """

    def __init__(self, run_once: Callable[[], Awaitable[int]]) -> None:
        self._run_once = run_once
        self._reason: str | None = None

    async def __call__(self) -> int:
        try:
            acted = await self._run_once()
        except (UnavailableError, StorageFull) as error:
            if self._reason is None:
                log.warning("store_takes_nothing", reason=str(error))
            self._reason = reason_of(error)
            return 0
        self._reason = None
        return acted

    def reason(self) -> str | None:
        """Why the last run came to nothing, if it did."""
        return self._reason
