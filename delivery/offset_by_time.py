"""The place of a time in a queue.

The log's times never go back: as many reads find it as its length has bits.
"""

from storage.message import QueueId, StoredMessage
from storage.store import MessageStore


async def find_offset_by_time(
    store: MessageStore, queue: QueueId, at_ms: int
) -> tuple[int, StoredMessage | None]:
    """The first message stored then or later, and its offset; behind the last one the end.

    Raises what `read` raises.
    """
    low, high = await store.offsets(queue)
    found: StoredMessage | None = None
    while low < high:
        middle = (low + high) // 2
        (message,) = await store.read(queue, middle, max_messages=1, max_bytes=1)
        if message.stored_at_ms < at_ms:
            low = middle + 1
        else:
            high, found = middle, message
    return low, found
