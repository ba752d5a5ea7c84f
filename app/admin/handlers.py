"""What operators look at, over HTTP."""

from msgspec import UNSET

from app import codec
from app.admin.schemas import Disk, Log, Loop, LoopList, SetAsideItem, Store
from app.exchange import Call, Reply, reply
from app.services import Services
from scheduler.loops import LoopReport
from storage.errors import NotSupportedByEngine
from storage.store import Retention, Status


async def list_loops(services: Services, _: Call) -> Reply:
    return reply(200, LoopList(items=[_view(report) for report in services.loops.reports()]))


async def get_store(services: Services, _: Call) -> Reply:
    if not isinstance(services.store, Status):
        raise NotSupportedByEngine("the engine does not say how it is in numbers")
    status = services.store.status()
    transactions = services.transactions.table
    return reply(
        200,
        Store(
            log=Log(
                min_offset=status.first_offset,
                max_offset=status.written_end,
                synced_offset=status.durable_end,
                visible_offset=status.visible_end,
                segments=status.segments,
            ),
            dispatch_lag_bytes=max(0, status.durable_end - status.visible_end),
            replay_bytes=status.replay_backlog_bytes,
            queued_bytes=status.queued_bytes,
            pending_transactions=transactions.open_count,
            held_transactions=transactions.held_count,
            schedules_due_late=services.schedules.backlog_count,
            read_at=codec.rfc3339(services.clock.wall_ms()),
        ),
    )


async def get_disk(services: Services, _: Call) -> Reply:
    if not isinstance(services.store, Retention):
        raise NotSupportedByEngine("the engine has no disk of its own")
    usage = services.store.disk_usage()
    full_at_ms = usage.projected_full_at_ms
    return reply(
        200,
        Disk(
            used_ratio=usage.used_ratio,
            clean_above=usage.clean_above,
            force_above=usage.force_above,
            refuse_above=usage.refuse_above,
            writable=usage.is_writable,
            projected_full_at=UNSET if full_at_ms is None else codec.rfc3339(full_at_ms),
        ),
    )


def _view(report: LoopReport) -> Loop:
    return Loop(
        loop=report.loop,
        last_run_at=UNSET if report.last_run_ms is None else codec.rfc3339(report.last_run_ms),
        lag_ms=report.lag_ms,
        failures=report.failures,
        last_error=report.last_error or UNSET,
        waits_for=report.waits_for or UNSET,
        set_aside=report.set_aside.total,
        set_aside_items=[SetAsideItem(id=id_, reason=reason) for id_, reason in report.set_aside.some],
    )
