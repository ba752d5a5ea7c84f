"""Commits of many offsets of a group."""

import asyncio
from collections.abc import Sequence

from storage.message import QueueId
from storage.store import MessageStore

_TOGETHER = 200  # offsets that are committed with one wait for the disk


async def commit_together(
    store: MessageStore, group: str, positions: Sequence[tuple[QueueId, int]]
) -> None:
    """Commit all that can be committed, with one wait for the disk for many. Raises the first
    error.
    """
    for start in range(0, len(positions), _TOGETHER):
        piece = positions[start : start + _TOGETHER]
        commits = [store.commit_offset(group, queue, offset) for queue, offset in piece]
        for error in await asyncio.gather(*commits, return_exceptions=True):
            if error is not None:
                raise error
