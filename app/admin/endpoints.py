"""The routes of operators."""

from fastapi import APIRouter, Request, Response

from app.admin import handlers
from app.admin.schemas import (
    Config,
    Disk,
    DurabilityQuery,
    Flushed,
    LoopList,
    RecoveryView,
    RetentionInput,
    RetentionPreview,
    Store,
    SyncedState,
    Version,
    Whoami,
)
from app.operations import OperationRoute, answer, operation
from app.tasks.schemas import Task

router = APIRouter(route_class=OperationRoute)


@router.get(
    "/v1/admin/disk",
    **operation("getDisk", tag="admin", answers={200: Disk}, problems=["not_supported_by_engine"]),
)
async def get_disk(request: Request) -> Response:
    """How full is the disk? Above `clean_above` what has expired goes at any hour, above `refuse_above` nothing new is taken.

    `writable` says whether new messages are taken, `projected_full_at` when they will not be if it goes on like this.
    """
    return await answer(request, handlers.get_disk)


@router.get("/v1/admin/loops", **operation("listLoops", tag="admin", answers={200: LoopList}))
async def list_loops(request: Request) -> Response:
    """List the loops of the service: when each ran, how far behind it is, what went wrong."""
    return await answer(request, handlers.list_loops)


@router.get("/v1/admin/store", **operation("getStore", tag="admin", answers={200: Store}))
async def get_store(request: Request) -> Response:
    """Look at the store in numbers."""
    return await answer(request, handlers.get_store)


@router.post(
    "/v1/admin/store/flush",
    **operation(
        "flushStore",
        tag="admin",
        answers={200: Flushed},
        problems=["storage_failed", "not_supported_by_engine"],
    ),
)
async def flush_store(request: Request) -> Response:
    """Put everything that is stored by now on disk, and wait for it."""
    return await answer(request, handlers.flush_store)


@router.post(
    "/v1/admin/store/verify",
    **operation("verifyStore", tag="admin", answers={202: Task}, problems=["not_supported_by_engine"]),
)
async def verify_store(request: Request) -> Response:
    """Verify every file of the store, as a task. A second request while it runs is answered with the same task."""
    return await answer(request, handlers.verify_store)


@router.post(
    "/v1/admin/retention/run",
    **operation(
        "runRetention",
        tag="admin",
        body=RetentionInput,
        example={"dry_run": True},
        answers={202: Task, 200: RetentionPreview},
        answer_headers=["Location"],
        problems=["not_supported_by_engine"],
    ),
)
async def run_retention(request: Request) -> Response:
    """Drop every segment that has expired, at any hour, as a task; what has not expired stays. `dry_run` lists the segments.

    Undecided transactions and scheduled messages in them are stored again before, as in the hours of deletion.
    """
    return await answer(request, handlers.run_retention)


@router.get(
    "/v1/admin/recovery",
    **operation("getRecoveryReport", tag="admin", answers={200: RecoveryView}, problems=["not_supported_by_engine"]),
)
async def get_recovery_report(request: Request) -> Response:
    """See what the last start found: was the stop before in order, what was cut, how long it took."""
    return await answer(request, handlers.get_recovery_report)


@router.get("/v1/admin/config", **operation("getConfig", tag="admin", answers={200: Config}))
async def get_config(request: Request) -> Response:
    """Look at the settings that are in force, without secrets."""
    return await answer(request, handlers.get_config)


@router.get(
    "/v1/store/durability",
    **operation(
        "getDurability",
        tag="admin",
        query=DurabilityQuery,
        answers={200: SyncedState},
        problems=["storage_failed", "too_many_waiting", "not_supported_by_engine"],
    ),
)
async def get_durability(request: Request) -> Response:
    """Is a message on disk? With `wait_ms` the answer waits until it is; a buffered receipt becomes a synced one so."""
    return await answer(request, handlers.get_durability)


@router.get("/v1/whoami", **operation("getWhoami", tag="admin", answers={200: Whoami}))
async def get_whoami(request: Request) -> Response:
    """Who am I, and what may I do?"""
    return await answer(request, handlers.get_whoami)


@router.get("/v1/version", **operation("getVersion", tag="admin", answers={200: Version}))
async def get_version(request: Request) -> Response:
    """See which release is running."""
    return await answer(request, handlers.get_version)
