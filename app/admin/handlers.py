"""Handlers of the administration: loops, store, settings, recovery."""

import asyncio
from contextlib import suppress
from importlib.metadata import version

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from app.admin.schemas import (
    Config,
    Descriptors,
    DurabilityQuery,
    Flushed,
    Log,
    Loop,
    LoopList,
    Rates,
    RecoveryView,
    Replica,
    ReplicaList,
    RequestClass,
    RetentionInput,
    RetentionPreview,
    RocketmqSlave,
    Scrub,
    SendTimes,
    SetAsideItem,
    StartView,
    Store,
    SyncedState,
    Version,
    Whoami,
    WritePool,
)
from app.encoding import codec
from app.http.access import SCOPES
from app.http.exchange import Call, Reply, reply
from app.observability import open_files
from app.observability import rates as rate_watch
from app.operations import operation
from app.retention import expire, expired_segments
from app.services import Services
from app.store_tasks import StoreTask
from app.tasks.handlers import view_own
from app.tasks.schemas import StoreFinding, Task
from scheduler.loops import LoopReport
from storage.errors import NotEnoughCopies
from storage.store_status import PoolStatus, ScrubStatus

log = structlog.get_logger()

_MOST_FINDINGS = 100
_LOOK_AGAIN_S = 0.5  # for replicas, while a flush waits for them
_MOST_SEGMENTS = 1_000


def _write_pool(pool: PoolStatus | None) -> WritePool | UnsetType:
    if pool is None:
        return UNSET
    return WritePool(
        buffers=pool.buffers,
        free_buffers=pool.free_buffers,
        locked_bytes=pool.locked_bytes,
        committed_offset=pool.committed_end,
        refused=pool.refusals,
    )


@operation(
    "GET", "/v1/admin/loops", "listLoops", tag="admin", scopes=["admin"], answers={200: LoopList}
)
async def list_loops(services: Services, _: Call) -> Reply:
    """List the background loops: last run, lag and errors."""
    return reply(200, LoopList(items=[_view(report) for report in services.loops.reports()]))


@operation(
    "GET", "/v1/admin/store", "getStore", tag="admin", scopes=["admin"], answers={200: Store}
)
async def get_store(services: Services, _: Call) -> Reply:
    """Get metrics of the store."""
    admin = services.admin
    status = admin.status()
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
            mapped_bytes=status.mapped_bytes,
            files=Descriptors(open=open_files.count_open() or 0, limit=open_files.open_limit()),
            connections=Descriptors(
                open=len(services.connections), limit=services.connections.limit
            ),
            scrub=_scrub(admin.scrub_status()),
            dispatch_lag_bytes=max(0, status.durable_end - status.visible_end),
            replay_bytes=status.replay_backlog_bytes,
            queued_bytes=status.queued_bytes,
            write_pool=_write_pool(status.pool),
            pending_transactions=transactions.open_count,
            held_transactions=transactions.held_count,
            schedules_due_late=services.schedules.backlog_count,
            rates=_rates(services.rates.rates()),
            read_at=codec.rfc3339(services.clock.wall_ms()),
        ),
    )


@operation(
    "POST",
    "/v1/admin/store/flush",
    "flushStore",
    tag="admin",
    scopes=["admin"],
    answers={200: Flushed},
    problems=["storage_failed", "not_enough_copies", "not_supported_by_engine"],
)
async def flush_store(services: Services, _: Call) -> Reply:
    """Sync everything stored so far to disk, on as many machines as must have it. The response is
    sent when it is there.
    """
    begun_ms = services.clock.monotonic_ms()
    flushing = asyncio.ensure_future(services.store.flush())
    try:
        while not (await asyncio.wait({flushing}, timeout=_LOOK_AGAIN_S))[0]:
            if services.replicas.lacks_copies:
                raise NotEnoughCopies(
                    "too few replicas are connected to sync all stored messages to"
                )
    finally:
        flushing.cancel()
    synced_offset = flushing.result()
    return reply(
        200, Flushed(synced_offset=synced_offset, took_ms=services.clock.monotonic_ms() - begun_ms)
    )


@operation(
    "POST",
    "/v1/admin/store/verify",
    "verifyStore",
    tag="admin",
    scopes=["admin"],
    answers={202: Task},
    problems=["not_supported_by_engine"],
)
async def verify_store(services: Services, _: Call) -> Reply:
    """Verify every file of the store, as a task.

    No Idempotency-Key is needed: while the task runs, another request returns the same task, and
    later it verifies the store again, which changes nothing.
    """
    admin = services.admin

    async def verify(task: StoreTask) -> None:
        task.note_findings(())
        running = await admin.begin_verification()
        try:
            while (step := await running.step()) is not None:
                task.total, task.done = running.total_bytes, task.done + step.read_bytes
                task.note_findings(step.findings)
        finally:
            await asyncio.shield(running.aclose())
        log.info(
            "store_verified",
            task_id=task.task_id,
            read_bytes=task.done,
            findings=len(task.findings or ()),
        )

    task = services.store_tasks.begin("verify_store", verify)
    return reply(202, view_own(task), headers={"Location": f"/v1/tasks/{task.task_id}"})


@operation(
    "POST",
    "/v1/admin/retention/run",
    "runRetention",
    tag="admin",
    scopes=["admin"],
    body=RetentionInput,
    body_is_optional=True,
    example={"dry_run": True},
    answers={202: Task, 200: RetentionPreview},
    answer_headers=["Location"],
    problems=["not_supported_by_engine"],
)
async def run_retention(services: Services, _: Call, given: RetentionInput) -> Reply:
    """Delete every expired segment now, as a task.

    Unexpired segments stay. `dry_run` lists the expired ones. Undecided transactions and scheduled
    messages in them are stored again first, as in scheduled runs. No Idempotency-Key is needed:
    while the task runs, another request returns the same task, and later it deletes only segments
    that have expired since.
    """
    admin = services.admin

    async def expired_bytes() -> int:
        return sum(
            segment.end - segment.begin for segment in await expired_segments(services, admin)
        )

    async def run(task: StoreTask) -> None:
        task.total = left = await expired_bytes()
        while left and await expire(services, admin, at_any_hour=True):
            left = await expired_bytes()
            task.done = max(task.done, task.total - left)
        log.info("retention_run", task_id=task.task_id, dropped_bytes=task.done)

    if given.dry_run:
        segments = await expired_segments(services, admin)
        names = [segment.name for segment in segments]
        length = sum(segment.end - segment.begin for segment in segments)
        preview = RetentionPreview(
            dry_run=True, segments=names[:_MOST_SEGMENTS], total=len(names), bytes=length
        )
        return reply(200, preview)
    task = services.store_tasks.begin("run_retention", run)
    return reply(202, view_own(task), headers={"Location": f"/v1/tasks/{task.task_id}"})


@operation(
    "GET",
    "/v1/admin/recovery",
    "getRecoveryReport",
    tag="admin",
    scopes=["admin"],
    answers={200: RecoveryView},
    problems=["not_supported_by_engine"],
)
async def get_recovery_report(services: Services, _: Call) -> Reply:
    """Get the recovery reports of the last starts.

    What was known to be on disk, what was cut and what survived, what was rebuilt, and how long
    each step took.
    """
    admin = services.admin
    start = msgspec.structs.asdict(StartView.of(admin.recovery))
    earlier = [StartView.of(report) for report in admin.earlier_recoveries]
    return reply(200, RecoveryView(**start, earlier=earlier))


@operation(
    "GET",
    "/v1/admin/replicas",
    "listReplicas",
    tag="admin",
    scopes=["admin"],
    answers={200: ReplicaList},
)
async def list_replicas(services: Services, _: Call) -> Reply:
    """List the replicas that are connected: how far each is."""
    store, replicas = services.store, services.replicas
    return reply(
        200,
        ReplicaList(
            copies=replicas.copies,
            safe_offset=store.synced_offset(),
            lacks_copies=replicas.lacks_copies,
            alone=services.missing_replicas.is_alone,
            items=[Replica(**found._asdict()) for found in replicas.connected()],
            rocketmq_slaves=[
                RocketmqSlave(**found._asdict()) for found in replicas.connected_slaves()
            ],
        ),
    )


@operation(
    "GET", "/v1/admin/config", "getConfig", tag="admin", scopes=["admin"], answers={200: Config}
)
async def get_config(services: Services, _: Call) -> Reply:
    """Get the effective settings, without secrets."""
    return reply(200, Config(settings=dict(services.effective_settings)))


@operation(
    "GET",
    "/v1/store/durability",
    "getDurability",
    tag="admin",
    scopes=SCOPES,
    query=DurabilityQuery,
    answers={200: SyncedState},
    problems=["storage_failed", "too_many_waiting", "not_supported_by_engine"],
)
async def get_durability(services: Services, call: Call, query: DurabilityQuery) -> Reply:
    """Get how far the log is synced to disk.

    With `wait_ms` the response waits until the given offset is synced, so that a buffered message
    becomes a synced one. An offset behind the end of the log is not waited for.
    """
    store = services.store
    stored_end = store.stored_offset()
    offset = stored_end - 1 if query.offset is UNSET else query.offset
    if query.wait_ms and store.synced_offset() <= offset < stored_end:
        async with services.long_poll(call):
            with suppress(TimeoutError):
                await asyncio.wait_for(store.flush(), query.wait_ms / 1000)
    synced_offset = store.synced_offset()
    return reply(200, SyncedState(synced_offset=synced_offset, synced=offset < synced_offset))


@operation("GET", "/v1/whoami", "getWhoami", tag="admin", scopes=SCOPES, answers={200: Whoami})
async def get_whoami(services: Services, call: Call) -> Reply:
    """Get the identity and permissions of the caller."""
    access = call.access
    return reply(
        200,
        Whoami(
            authenticated=services.has_keys,
            namespace="default",
            key=access.name or UNSET,
            scopes=list(access.scopes),
            topics=list(access.topics),
            groups=list(access.groups),
        ),
    )


@operation("GET", "/v1/version", "getVersion", tag="admin", scopes=SCOPES, answers={200: Version})
async def get_version(_services: Services, _: Call) -> Reply:
    """Get the version of the service."""
    return reply(200, Version(name="EscrowMQ", version=version("escrowmq"), api_version="v1"))


def _scrub(status: ScrubStatus) -> Scrub:
    return Scrub(
        bytes_per_second=status.bytes_per_second,
        position=status.position,
        end=UNSET if status.end is None else status.end,
        begun_at=UNSET if status.begun_at_ms is None else codec.rfc3339(status.begun_at_ms),
        last_ended_at=UNSET
        if status.last_ended_at_ms is None
        else codec.rfc3339(status.last_ended_at_ms),
        findings=[StoreFinding.of(finding) for finding in status.findings[:_MOST_FINDINGS]],
        findings_omitted=max(0, len(status.findings) - _MOST_FINDINGS),
    )


def _rates(rates: rate_watch.Rates) -> Rates:
    sends: SendTimes | UnsetType = UNSET
    if rates.send_mean_ms is not None:
        longest_ms = rates.send_longest_ms
        sends = SendTimes(
            requests_per_second=rates.send_requests,
            mean_ms=rates.send_mean_ms,
            max_ms=UNSET if longest_ms is None else longest_ms,
            classes=[
                RequestClass(
                    up_to_ms=UNSET if one.up_to_ms is None else one.up_to_ms, requests=one.requests
                )
                for one in rates.send_classes
            ],
        )
    return Rates(
        window_ms=rates.window_ms,
        messages_in_per_second=rates.messages_in,
        messages_out_per_second=rates.messages_out,
        transactions_begun_per_second=rates.transactions_begun,
        transactions_committed_per_second=rates.transactions_committed,
        transactions_rolled_back_per_second=rates.transactions_rolled_back,
        ack_requests_per_second=rates.ack_requests,
        log_bytes_per_second=rates.log_bytes,
        sends=sends,
    )


def _view(report: LoopReport) -> Loop:
    return Loop(
        loop=report.loop,
        last_run_at=UNSET if report.last_run_ms is None else codec.rfc3339(report.last_run_ms),
        lag_ms=report.lag_ms,
        failures=report.failures,
        last_error=report.last_error or UNSET,
        waits_for=report.waits_for or UNSET,
        set_aside=report.parked.total,
        set_aside_items=[SetAsideItem(id=id_, reason=reason) for id_, reason in report.parked.some],
    )
