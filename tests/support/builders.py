"""Messages, units and logs in few words."""

from collections.abc import Sequence
from typing import Any

from storage.formats import unit
from storage.formats.row import rows_of
from storage.message import Message, QueueId

ORDERS = QueueId("orders", 0)


def message(
    body: bytes = b"body", *, queue: QueueId = ORDERS, message_id: str = "msg_1", **fields: Any
) -> Message:
    return Message(
        queue=queue,
        message_id=message_id,
        body=body,
        born_at_ms=fields.pop("born_at_ms", 1_700_000_000_000),
        **fields,
    )


def messages(
    count: int, *, body_bytes: int = 20, queue: QueueId = ORDERS, **fields: Any
) -> list[Message]:
    return [
        message(bytes([n % 256]) * body_bytes, queue=queue, message_id=f"msg_{n}", **fields)
        for n in range(count)
    ]


def encoded(
    given: Sequence[Message],
    *,
    first_offset: int = 0,
    first_queue_offset: int = 0,
    synced_offset: int = 0,
    epoch: int = 1,
) -> unit.EncodedUnit:
    """One unit; queue offsets count up from the first one."""
    queue_offsets = range(first_queue_offset, first_queue_offset + len(given))
    return unit.encode(
        rows_of(given),
        queue_offsets,
        first_offset=first_offset,
        synced_offset=synced_offset,
        epoch=epoch,
        stored_at_ms=1_700_000_000_123,
    )


def a_log(*sizes: int, epoch: int = 1, body_bytes: int = 20) -> bytes:
    """Units of so many messages each, one behind another."""
    data = b""
    count = 0
    for size in sizes:
        given = messages(size, body_bytes=body_bytes)
        data += encoded(
            given,
            first_offset=len(data),
            first_queue_offset=count,
            synced_offset=len(data),
            epoch=epoch,
        ).data
        count += size
    return data
