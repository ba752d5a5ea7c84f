"""The routes of operators."""

from fastapi import APIRouter, Request, Response

from app.admin import handlers
from app.admin.schemas import Disk, LoopList, Store
from app.operations import answer, operation

router = APIRouter()


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
