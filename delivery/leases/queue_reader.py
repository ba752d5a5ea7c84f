"""Reads messages of a queue by offset, for delivery. The caller settles damaged messages; none is
skipped here.
"""

from collections.abc import AsyncIterator, Sequence
from itertools import takewhile

from storage.errors import CorruptRecord, OffsetExpired, StorageError
from storage.formats.stored_record import StoredRecord
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore

_READ_BYTES = 8 << 20
_READ_MESSAGES = 512
_PROBED_MESSAGES = 64  # behind a damaged one, for damage that belongs together
_PROBED_BYTES = 1 << 20


class QueueReader:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def read(
        self, queue: QueueId, offset: int, count: int, max_bytes: int
    ) -> list[StoredMessage]:
        """Read messages from this offset on; empty if the first one has expired. Raises
        CorruptRecord if the first one is damaged, and what `MessageStore.read` raises.
        """
        try:
            return await self._store.read(
                queue, offset, max_messages=count, max_bytes=max(1, max_bytes)
            )
        except OffsetExpired as expired:
            await self.check_expired(queue, offset, expired)
            return []

    async def check_expired(self, queue: QueueId, offset: int, expired: OffsetExpired) -> None:
        """Raise StorageError if the message cannot have expired: it must not be skipped then."""
        bounds = await self._store.offsets(queue)
        if offset >= bounds.first:
            raise StorageError(
                f"offset {offset} of {queue} is in [{bounds.first}, {bounds.end}) and has not "
                "expired"
            ) from expired

    async def read_one(self, queue: QueueId, offset: int) -> StoredRecord | None:
        """The message; None if it has expired or is damaged."""
        try:
            found = await self._store.read_records(
                queue, offset, max_scanned=1, max_messages=1, max_bytes=1
            )
        except CorruptRecord:
            return None
        except OffsetExpired as expired:
            await self.check_expired(queue, offset, expired)
            return None
        return found.records[0] if found.records else None

    async def damage_from(self, queue: QueueId, offset: int, end: int) -> list[CorruptRecord]:
        """The damaged messages from this offset up to the first whole one; a limited number of
        messages is examined.
        """
        places = [(queue, at) for at in range(offset, min(end, offset + _PROBED_MESSAGES))]
        found = await self._store.read_each(places, max_bytes=_PROBED_BYTES)
        damaged = takewhile(lambda one: isinstance(one, CorruptRecord), found)
        return list(damaged)  # type: ignore[arg-type]

    async def read_each(
        self, queue: QueueId, offsets: Sequence[int]
    ) -> AsyncIterator[tuple[int, StoredMessage | CorruptRecord | None]]:
        """Each message with its offset, consecutive messages in one read; for a damaged record the
        damage, for an expired message None.
        """
        at = 0
        while at < len(offsets):
            first = offsets[at]
            count = 1
            while (
                at + count < len(offsets)
                and count < _READ_MESSAGES
                and offsets[at + count] == first + count
            ):
                count += 1
            messages: Sequence[StoredMessage | CorruptRecord | None]
            try:
                messages = await self.read(queue, first, count, _READ_BYTES)
            except CorruptRecord as damage:
                messages = [damage]
            for message in messages or (None,):
                yield offsets[at], message
                at += 1
