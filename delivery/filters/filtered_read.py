"""Reads of the messages of a queue that match a filter. For a filter by tag the engine reads only
messages with the hash of one of its tags.
"""

import asyncio

from delivery.filters.filters import EVERYTHING, Filter
from storage.errors import CorruptRecord
from storage.formats.stored_record import StoredRecord
from storage.message import QueueId
from storage.store import MessageStore, Scanned, ScannedRecords

MAX_SCANNED = 16_000  # messages that a filter may skip in one read by the hash of their tag
_TURN_LENGTH = 64 << 10  # of conditions that are evaluated before others have their turn: some 5 ms
_AT_ONCE = 100  # read in one go where all must be looked at


async def read_matching(
    store: MessageStore,
    queue: QueueId,
    queue_offset: int,
    wanted: Filter,
    *,
    max_scanned: int,
    max_messages: int,
    max_bytes: int,
) -> Scanned:
    """The messages that match among the next `max_scanned`, at least one of them whatever its size.

    Raises as `read`.

    Less is looked at where the answer is full, or where a message behind the first is damaged: who
    reads on meets the damage.
    """
    if wanted is EVERYTHING:
        messages = await store.read(
            queue, queue_offset, max_messages=min(max_messages, max_scanned), max_bytes=max_bytes
        )
        return Scanned(messages, queue_offset + len(messages))
    if wanted.tag_codes is not None:
        scanned = await store.read_tagged(
            queue,
            queue_offset,
            tag_codes=wanted.tag_codes,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        return scanned._replace(
            messages=[message for message in scanned.messages if wanted.matches(message)]
        )
    records, next_offset = await _read_and_judge(
        store, queue, queue_offset, wanted, max_scanned, max_messages, max_bytes
    )
    return Scanned([record.message() for record in records], next_offset)


async def read_matching_records(
    store: MessageStore,
    queue: QueueId,
    queue_offset: int,
    wanted: Filter,
    *,
    max_scanned: int,
    max_messages: int,
    max_bytes: int,
) -> ScannedRecords:
    """The result of `read_matching`, with the records of the messages."""
    tags = wanted.tags
    if tags is None and wanted is not EVERYTHING:
        return await _read_and_judge(
            store, queue, queue_offset, wanted, max_scanned, max_messages, max_bytes
        )
    records, next_offset = await store.read_records(
        queue,
        queue_offset,
        tag_codes=wanted.tag_codes,
        max_scanned=max_messages if tags is None else max_scanned,
        max_messages=max_messages,
        max_bytes=max_bytes,
    )
    return ScannedRecords(
        records if tags is None else [one for one in records if one.tag in tags], next_offset
    )


async def _read_and_judge(
    store: MessageStore,
    queue: QueueId,
    queue_offset: int,
    wanted: Filter,
    max_scanned: int,
    max_messages: int,
    max_bytes: int,
) -> ScannedRecords:
    found: list[StoredRecord] = []
    at, end = queue_offset, queue_offset + max_scanned
    left_bytes = max_bytes
    judged = 0  # since others had their turn
    while at < end and len(found) < max_messages:
        try:
            count = min(_AT_ONCE, end - at)
            records, _ = await store.read_records(
                queue,
                at,
                tag_codes=None,
                max_scanned=count,
                max_messages=count,
                max_bytes=max_bytes,
            )
        except CorruptRecord:
            if at == queue_offset:
                raise
            break
        if not records:
            break
        for record in records:
            judged += wanted.length
            if judged > _TURN_LENGTH:
                judged = 0
                await asyncio.sleep(0)
            message = record.message()
            if wanted.matches(message):
                left_bytes -= len(message.body)
                if found and (left_bytes < 0 or len(found) == max_messages):
                    return ScannedRecords(found, at)
                found.append(record)
            at += 1
    return ScannedRecords(found, at)
