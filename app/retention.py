"""Runs of retention: what still counts in a segment is stored again by its owners before the
segment is dropped.
"""

from collections.abc import Mapping

from app.services import Services
from storage.message import QueueId
from storage.store_admin import StoreAdmin
from storage.store_status import SegmentInfo


async def expire(services: Services, admin: StoreAdmin, *, at_any_hour: bool = False) -> int:
    """Drop some of what has expired, in the hours of deletion or at any; return how many
    segments.
    """

    async def put_back(first_kept: Mapping[QueueId, int]) -> None:
        await services.transactions.put_back(first_kept)
        await services.schedules.put_back(first_kept)

    keep_ms = services.topics.longest_retention_ms()
    return await admin.expire(
        services.clock.wall_ms(),
        put_back,
        keep_ms=keep_ms,
        ahead_ms=services.clock_steps.ahead_ms(),
        at_any_hour=at_any_hour,
    )


async def expired_segments(services: Services, admin: StoreAdmin) -> list[SegmentInfo]:
    """Segments that `expire` may drop at any hour, the oldest first."""
    return await admin.expired_segments(
        services.clock.wall_ms(),
        keep_ms=services.topics.longest_retention_ms(),
        ahead_ms=services.clock_steps.ahead_ms(),
    )
