"""Reads messages of a queue by their offsets, for handing them out: what is damaged is told in the log and passed over."""

from collections.abc import AsyncIterator, Sequence

import structlog

from storage.errors import CorruptRecord, OffsetExpired
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore

_READ_BYTES = 8 << 20
_READ_MESSAGES = 512

log = structlog.get_logger()


class QueueReader:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def read(self, queue: QueueId, offset: int, count: int, max_bytes: int) -> list[StoredMessage]:
        """Empty where the first one is damaged, which is told in the log and passed over."""
        try:
            return await self._store.read(queue, offset, max_messages=count, max_bytes=max(1, max_bytes))
        except CorruptRecord as damage:
            log.error("message_damaged", queue=str(queue), queue_offset=offset, reason=str(damage))
            return []
        except OffsetExpired:
            return []

    async def read_one(self, queue: QueueId, offset: int) -> StoredMessage | None:
        found = await self.read(queue, offset, 1, 1)
        return found[0] if found else None

    async def read_each(self, queue: QueueId, offsets: Sequence[int]) -> AsyncIterator[tuple[int, StoredMessage | None]]:
        """Each message with its offset, neighbours read together; None for one that is damaged or no longer there."""
        at = 0
        while at < len(offsets):
            first = offsets[at]
            count = 1
            while at + count < len(offsets) and count < _READ_MESSAGES and offsets[at + count] == first + count:
                count += 1
            messages = await self.read(queue, first, count, _READ_BYTES)
            for message in messages or (None,):
                yield offsets[at], message
                at += 1
