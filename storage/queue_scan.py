"""Reads a queue from one offset to another, piece by piece, and goes past damaged records."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from storage.errors import CorruptRecord
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore

LAST_OFFSET = (1 << 63) - 1
_MESSAGES = 512
_BYTES = 8 << 20


class Piece(NamedTuple):
    """Messages with consecutive offsets, or the damage of the one record at this offset."""

    begin: int
    messages: list[StoredMessage]
    damage: CorruptRecord | None = None

    @property
    def end(self) -> int:
        """The offset behind the piece."""
        return self.begin + (1 if self.damage is not None else len(self.messages))


async def scan(
    store: MessageStore,
    queue: QueueId,
    begin: int,
    end: int = LAST_OFFSET,
    *,
    max_messages: int = _MESSAGES,
    max_bytes: int = _BYTES,
) -> AsyncIterator[Piece]:
    """Read the offsets from `begin` to before `end`, or to the end of the queue.

    Other tasks run between two pieces, each of which is one read with these limits. Raises as
    `MessageStore.read`, but for CorruptRecord.
    """
    while begin < end:
        try:
            messages = await store.read(
                queue, begin, max_messages=min(max_messages, end - begin), max_bytes=max_bytes
            )
        except CorruptRecord as damage:
            piece = Piece(begin, [], damage)
        else:
            piece = Piece(begin, messages)
        if piece.end == begin:
            return
        yield piece
        begin = piece.end
        await asyncio.sleep(0)
