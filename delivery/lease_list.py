"""List of the leases of a group: the message, the attempt, and the end of each lease."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from delivery.leases import retry_message
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import State
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_slots import Slot
from storage.errors import CorruptRecord, OffsetOutOfRange, UnknownTopic
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore

_READ_BYTES = 1 << 20
_LEASED = frozenset({State.LEASED, State.ACKING, State.MOVING})


class Place(NamedTuple):
    """The place of a leased message: in its own topic, or in the retry topic of the group. Leases
    are listed in this order.
    """

    topic: str
    queue: int
    offset: int


class Lease(NamedTuple):
    """A lease. `message`: at the place of its first delivery; None if the log no longer has it.
    `expires_at_ms`: wall.
    """

    place: Place
    message: StoredMessage | None
    attempt: int
    expires_at_ms: int


async def list_leases(
    journal: LeaseJournal, group: str, *, after: Place | None, count: int
) -> list[Lease]:
    """Up to so many active leases after a place."""
    leases = journal.table.find(group)
    now = journal.now()
    found: list[Lease] = []
    for queue in [] if leases is None else sorted(leases.queues, key=lambda queue: queue.queue):
        begin = 0
        if after is not None:
            if queue.queue < (after.topic, after.queue):
                continue
            if queue.queue == (after.topic, after.queue):
                begin = after.offset + 1
        slots = _leased(queue, begin, count - len(found), now.monotonic_ms)
        async for slot, message in _with_messages(journal.store, queue.queue, slots):
            delivered = None if message is None else retry_message.as_delivered(message)
            expires_at_ms = now.wall_ms + slot.deadline_ms - now.monotonic_ms
            found.append(
                Lease(Place(*queue.queue, slot.offset), delivered, slot.attempt, expires_at_ms)
            )
        if len(found) == count:
            break
    return found


def _leased(queue: QueueLeases, begin: int, count: int, now_ms: int) -> list[Slot]:
    """Up to `count` slots with an active lease, from this offset on."""
    if not any(queue.slots.counts[state] for state in _LEASED):
        return []
    found: list[Slot] = []
    for slot in queue.slots.in_states(_LEASED, begin):
        if len(found) == count:
            break
        if slot.deadline_ms > now_ms:
            found.append(slot)
    return found


async def _with_messages(
    store: MessageStore, queue: QueueId, slots: Sequence[Slot]
) -> AsyncIterator[tuple[Slot, StoredMessage | None]]:
    """The leases with their messages; consecutive messages are read together."""
    read: dict[int, StoredMessage] = {}
    offsets = {slot.offset for slot in slots}
    for slot in slots:
        if slot.offset not in read:
            read.clear()
            run = 1
            while slot.offset + run in offsets:
                run += 1
            try:
                messages = await store.read(
                    queue, slot.offset, max_messages=run, max_bytes=_READ_BYTES
                )
                read = {message.queue_offset: message for message in messages}
            except (CorruptRecord, OffsetOutOfRange, UnknownTopic):
                pass  # Logged when it is delivered again.
        yield slot, read.get(slot.offset)
