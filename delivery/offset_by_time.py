"""Search for the offset of a time in a queue. Times in the log never decrease, so a binary search
finds it.
"""

from storage.message import QueueId, StoredMessage
from storage.store import MessageStore


async def find_offset_by_time(
    store: MessageStore, queue: QueueId, at_ms: int
) -> tuple[int, StoredMessage | None]:
    """The first message stored at or after this time, and its offset; the end of the queue if there
    is none. Raises what `read` raises.
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
