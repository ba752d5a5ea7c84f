"""A table in memory that is derived from queues of the log: rebuilt at a start, shortened by
snapshots.

A snapshot says up to which offset of each queue it reflects the events. That is counted event by
event, so it never claims what the table lacks. What happens to a damaged event is said once for
each queue (docs/durability.md explains why).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from storage.journal import Replay
from storage.message import Appended, Durability, Message, QueueId, StoredMessage
from storage.offset_set import OffsetSet
from storage.queue_scan import LAST_OFFSET
from storage.store import MessageStore, Snapshot

T = TypeVar("T")


class OnDamage(Enum):
    """The effect of an event that is damaged, or that this version cannot read, on a start."""

    REFUSE = "refuse"  # without the event something could be published, lost or doubled
    LEAVE_OUT = "leave_out"  # logged and counted


class DerivedTable:
    """The log's side of a table: which events it reflects, its snapshots, appends and replays.

    Event loop only.

    At a start: `load`, then `replay` of each queue. Later: `append` and `count`, and
    `save_snapshot` from time to time.
    """

    def __init__(
        self, store: MessageStore, snapshot: str, queues: Mapping[QueueId, OnDamage]
    ) -> None:
        """`snapshot`: its name among those of the store."""
        self.store = store
        self.left_out = 0  # damaged events, in replays
        self._name = snapshot
        self._on_damage = dict(queues)
        self._applied = {queue: OffsetSet() for queue in queues}
        self._saved = self.positions()  # what the last snapshot reflects

    def positions(self) -> dict[QueueId, int]:
        """For each queue the offset below which the table reflects all events."""
        return {queue: applied.prefix for queue, applied in self._applied.items()}

    # ----------------------------------------------------------------------------------------------
    # start

    async def load(self) -> bytes | None:
        """Read the last snapshot; None if there is none."""
        snapshot = await self.store.load_snapshot(self._name)
        if snapshot is None:
            return None
        for queue, queue_offset in snapshot.positions.items():
            self._applied[queue].restart(queue_offset)
        self._saved = self.positions()
        return snapshot.data

    def forget(self) -> None:
        """Reflect nothing: the snapshot that was loaded cannot be read."""
        self._applied = {queue: OffsetSet() for queue in self._applied}
        self._saved = self.positions()

    async def replay(
        self, queue: QueueId, read: Callable[[StoredMessage], T], *, before: int = LAST_OFFSET
    ) -> AsyncIterator[T]:
        """Read the events that the table does not reflect, up to the offset `before`; each counts
        as applied when the next one is requested.

        Raises CorruptRecord and UnknownFormat for a damaged event that must not be left out.
        """
        applied = self._applied[queue]
        begin = max(applied.prefix, (await self.store.offsets(queue)).first)
        replay = Replay(
            self.store,
            queue,
            begin,
            read,
            before=before,
            may_leave_out=self._on_damage[queue] is OnDamage.LEAVE_OUT,
        )
        async for message, event in replay:
            yield event
            applied.restart(message.queue_offset + 1)
        applied.restart(replay.end)
        self.left_out += replay.left_out

    # ----------------------------------------------------------------------------------------------
    # changes

    async def append(
        self, messages: Sequence[Message], *, durability: Durability | None, from_reserve: bool
    ) -> list[Appended]:
        """Append messages and events as one unit; with SYNCED they are on disk on return.

        Raises as `MessageStore.append`.
        """
        appended = await self.store.append(
            messages, durability=durability, from_reserve=from_reserve
        )
        if durability is Durability.SYNCED and not appended[-1].durable:
            # The sync takes longer than the engine's limit, and a decision is not answered before
            # it is on disk.
            await self.store.wait_durable(appended[-1].log_offset)
        return appended

    def count(self, appended: Iterable[Appended]) -> None:
        """Count the events among these messages as applied."""
        for place in appended:
            applied = self._applied.get(place.queue)
            if applied is not None:
                applied.add(place.queue_offset)

    def count_offsets(self, queue: QueueId, queue_offsets: Iterable[int]) -> None:
        """Count the events at these offsets of a queue as applied."""
        applied = self._applied[queue]
        for queue_offset in queue_offsets:
            applied.add(queue_offset)

    # ----------------------------------------------------------------------------------------------
    # snapshot

    async def save_snapshot(self, encode: Callable[[], Iterable[bytes]]) -> int:
        """Save the table, so that a start replays only later events.

        The number of bytes; 0 if nothing has changed.

        `encode` begins at once; other tasks run between its pieces. An event that is applied
        meanwhile is replayed again.
        """
        positions = self.positions()
        if positions == self._saved:
            return 0
        pieces = []
        for piece in encode():
            pieces.append(piece)
            await asyncio.sleep(0)
        snapshot = Snapshot(pieces, positions)
        await self.store.save_snapshot(self._name, snapshot)
        self._saved = positions
        return snapshot.size_bytes
