"""Which loops the service has, how often each runs, and which check of readiness it belongs to.

The store is this process's alone, so every loop is its own to run; with an engine that several
processes share, those that must not run twice would be `scheduler.ownership.Owned`.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

import structlog

from app.retention import expire
from app.sent_keys import SentKeys
from app.services import Services
from app.settings import Settings
from scheduler.loops import LoopReport, ParkedItems
from scheduler.rate_limited_save import RateLimitedSave
from storage.errors import StorageFull, UnavailableError
from storage.store import Retention, Scrubbing, Status
from txn.coordinator import TransactionCoordinator

# Those that do what falls due, and say how much they did.
ACTING = ("schedules", "cron", "leases", "checkback", "webhooks")

_RETENTION_MS = 1_000
_RETENTION_WAIT_MS = 5_000  # it also sees that there is space again
_SCRUB_MS = 250  # often, and little each time: reads wait behind it
_SHOWN = 10  # of what a loop went past: enough to see what is wrong

log = structlog.get_logger()


def add_loops(services: Services, settings: Settings) -> None:
    """Nothing runs yet."""
    add, clock = services.loops.add, services.clock
    transactions, schedules, cron, delivery = (
        services.transactions,
        services.schedules,
        services.cron,
        services.delivery,
    )

    requests = services.requests

    async def keep() -> int:
        return await keep_tables(transactions, services.sent_keys)

    def add_patient(
        name: str,
        run_once: Callable[[], Awaitable[int]],
        *,
        interval_ms: int,
        check: str,
        set_aside: Callable[[], ParkedItems] = ParkedItems,
    ) -> None:
        patient = _ToleratesUnavailable(run_once)
        add(
            name,
            patient,
            interval_ms=interval_ms,
            check=check,
            set_aside=set_aside,
            waits_for=patient.reason,
        )

    def add_saving(
        name: str, save: Callable[[], Awaitable[int]], *, interval_ms: int, check: str
    ) -> None:
        add(name, RateLimitedSave(save, clock).run_once, interval_ms=interval_ms, check=check)

    if isinstance(services.store, Retention):
        store = services.store
        add(
            "retention",
            lambda: expire(services, store),
            interval_ms=_RETENTION_MS,
            check="store",
            set_aside=lambda: _some(transactions.not_put_back()),
            longest_wait_ms=_RETENTION_WAIT_MS,
        )
    if isinstance(services.store, Scrubbing) and settings.local.scrub_bytes_per_second:
        add("scrub", services.store.scrub, interval_ms=_SCRUB_MS, check="store")
    ms = settings.schedule.sweep_interval_ms
    add_patient(
        "schedules",
        lambda: schedules.run_once(clock.wall_ms()),
        interval_ms=ms,
        check="scheduler",
        set_aside=lambda: ParkedItems(schedules.counts.never),
    )
    add_patient(
        "cron",
        lambda: cron.run_once(clock.wall_ms()),
        interval_ms=ms,
        check="scheduler",
        set_aside=lambda: _some(cron.set_aside()),
    )
    add_saving(
        "schedule_snapshots",
        schedules.save_snapshot,
        interval_ms=settings.schedule.snapshot_interval_ms,
        check="scheduler",
    )
    add_saving(
        "cron_snapshots",
        cron.save_snapshot,
        interval_ms=settings.schedule.snapshot_interval_ms,
        check="scheduler",
    )
    add(
        "leases", delivery.run_once, interval_ms=settings.delivery.sweep_interval_ms, check="leases"
    )
    add_patient(
        "redrive",
        delivery.dead_letters.run_once,
        interval_ms=settings.delivery.sweep_interval_ms,
        check="leases",
        set_aside=lambda: _some(delivery.dead_letters.set_aside()),
    )
    add_saving(
        "lease_snapshots",
        delivery.save_snapshot,
        interval_ms=settings.delivery.snapshot_interval_ms,
        check="leases",
    )
    add_patient(
        "requests",
        requests.run_once,
        interval_ms=settings.request.sweep_interval_ms,
        check="requests",
    )
    add_saving(
        "request_snapshots",
        requests.save_snapshot,
        interval_ms=settings.request.snapshot_interval_ms,
        check="requests",
    )
    ms = settings.txn.sweep_interval_ms
    add_patient(
        "checkback",
        lambda: transactions.run_once(clock.wall_ms()),
        interval_ms=ms,
        check="checker",
        set_aside=lambda: _some(transactions.set_aside()),
    )
    add("webhooks", services.sender.run_once, interval_ms=ms, check="checker")
    add_saving("snapshots", keep, interval_ms=settings.txn.snapshot_interval_ms, check="scheduler")
    if isinstance(services.store, Status):
        status_of = services.store
        services.loops.watch(lambda: _deriver(status_of), check="store")


async def keep_tables(transactions: TransactionCoordinator, sent_keys: SentKeys) -> int:
    """So that a start replays only what comes later; how many bytes."""
    return await transactions.save_snapshot() + await sent_keys.save_snapshot()


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
            self._reason = f"{type(error).__name__}: {error}"
            return 0
        self._reason = None
        return acted

    def reason(self) -> str | None:
        """Why the last run came to nothing, if it did."""
        return self._reason


def _some(reasons: Mapping[str, str]) -> ParkedItems:
    return ParkedItems(len(reasons), list(islice(reasons.items(), _SHOWN)))


def _deriver(store: Status) -> LoopReport:
    status = store.status()
    failures = 0 if status.derive_error is None else 1
    return LoopReport(
        "deriver", status.derived_at_ms, status.derive_lag_ms, failures, status.derive_error
    )
