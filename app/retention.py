"""Runs of retention: what still counts in a segment is stored again by its owners before the
segment is dropped.
"""

from collections.abc import Mapping

from app.services import Services
from storage.message import QueueId
from storage.store import Retention, SegmentInfo


async def expire(services: Services, store: Retention, *, at_any_hour: bool = False) -> int:
    """Drop some of what has expired, in the hours of deletion or at any; return how many
    segments.
    """

    async def put_back(first_kept: Mapping[QueueId, int]) -> None:
        await services.transactions.put_back(first_kept)
        await services.schedules.put_back(first_kept)

    keep_ms = services.topics.longest_retention_ms()
    return await store.expire(
        services.clock.wall_ms(), put_back, keep_ms=keep_ms, at_any_hour=at_any_hour
    )


async def expired_segments(services: Services, store: Retention) -> list[SegmentInfo]:
    """Segments that `expire` may drop at any hour, the oldest first."""
    return await store.expired_segments(
        services.clock.wall_ms(), keep_ms=services.topics.longest_retention_ms()
    )
