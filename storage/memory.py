"""The reference engine: everything in dicts, nothing on disk.

What the other engines are compared with; what demos run on.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

from storage.clock import Clock
from storage.errors import (
    InvalidRequest,
    OffsetBeyondEnd,
    OffsetExpired,
    StoreClosed,
    UnknownQueue,
    UnknownTopic,
)
from storage.formats import record as records
from storage.formats import unit
from storage.formats.queue_entry import tag_hash
from storage.message import (
    NEVER_MS,
    Appended,
    DueEntry,
    Durability,
    Message,
    OffsetRange,
    Placed,
    QueueId,
    Row,
    StoredMessage,
)
from storage.store import ANY_LABEL, LAST_MS, DueCounts, DuePage, Scanned, Snapshot


class MemoryMessageStore:
    """A `MessageStore` that forgets everything when it is dropped.

    What it answers is as durable as it will ever be.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[QueueId, list[StoredMessage]] = {}
        self._counts: dict[str, int] = {}
        # where a topic that was deleted and created again begins
        self._first: dict[QueueId, int] = {}
        self._deleted: dict[QueueId, list[StoredMessage]] = {}
        self._offsets: dict[tuple[str, QueueId], int] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._due: dict[DueEntry, None] = {}
        self._due_positions: dict[QueueId, int] = {}
        self._stored_at_ms = 0
        self._log_end = 0
        self._arrival = asyncio.Event()
        # of those who wait for an arrival
        self._calls: dict[QueueId, dict[Callable[[], None], None]] = {}
        self._is_closed = False

    async def create_topic(self, topic: str, *, queue_count: int) -> None:
        known = self._counts.get(topic, 0)
        if queue_count < known:
            raise InvalidRequest(
                f"topic {topic} has {known} queues; their number cannot shrink to {queue_count}"
            )
        for number in range(known, queue_count):
            queue = QueueId(topic, number)
            self._queues[queue] = self._deleted.pop(queue, [])
            self._first[queue] = len(self._queues[queue])
        self._counts[topic] = queue_count

    async def delete_topic(self, topic: str) -> None:
        """TopicDeletion."""
        if self._is_closed:
            raise StoreClosed
        for number in range(self._counts.pop(topic, 0)):
            queue = QueueId(topic, number)
            self._deleted[queue] = self._queues.pop(queue)
        self._deleted = {queue: messages for queue, messages in self._deleted.items() if messages}
        self._offsets = {at: offset for at, offset in self._offsets.items() if at[1].topic != topic}
        self._wake()

    def deleted_queues(self) -> int:
        """TopicDeletion."""
        return len(self._deleted)

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        if topic not in self._counts:
            raise UnknownTopic(f"topic {topic} does not exist")
        return tuple(QueueId(topic, number) for number in range(self._counts[topic]))

    async def append(
        self,
        messages: Sequence[Message],
        *,
        durability: Durability | None = None,
        from_reserve: bool = False,
    ) -> list[Appended]:
        placed = self._store(messages)
        return [
            Appended(message.queue, queue_offset, log_offset, placed.stored_at_ms, placed.durable)
            for message, queue_offset, log_offset in zip(
                messages, placed.queue_offsets, placed.log_offsets, strict=True
            )
        ]

    def append_rows(
        self,
        rows: Sequence[Row],
        *,
        durability: Durability | None,
        done: Callable[[Placed], None],
        failed: Callable[[Exception], None],
        written: Callable[[Placed], None] | None = None,
        from_reserve: bool = False,
    ) -> None:
        """RowAppends. They become messages as they do for a reader of the log."""
        if not rows:
            raise InvalidRequest("no messages in one append")
        units = [
            unit.encode([row], [0], first_offset=0, synced_offset=0, epoch=0, stored_at_ms=0)
            for row in rows
        ]
        placed = self._store([records.to_message(records.decode(one.data)) for one in units])
        asyncio.get_running_loop().call_soon(done, placed)

    def before_write(self, call: Callable[[], None]) -> None:
        """RowAppends. Nothing is collected here."""
        asyncio.get_running_loop().call_soon(call)

    def _store(self, messages: Sequence[Message]) -> Placed:
        if self._is_closed:
            raise StoreClosed
        queues = [self._queue(message.queue) for message in messages]
        self._stored_at_ms = max(self._stored_at_ms, self._clock.wall_ms())
        log_offsets = range(self._log_end, self._log_end + len(messages))
        queue_offsets = []
        for message, queue, log_offset in zip(messages, queues, log_offsets, strict=True):
            queue_offsets.append(len(queue))
            fields = {name: getattr(message, name) for name in Message.__struct_fields__}
            queue.append(
                StoredMessage(
                    **fields,
                    queue_offset=len(queue),
                    stored_at_ms=self._stored_at_ms,
                    log_offset=log_offset,
                )
            )
        self._log_end = log_offsets.stop
        self._wake()
        return Placed(queue_offsets, log_offsets, self._stored_at_ms, durable=True)

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        messages = self._queue(queue)
        if self._is_closed:
            raise StoreClosed
        if queue_offset < self._first[queue]:
            raise OffsetExpired(
                requested=queue_offset, available=(self._first[queue], len(messages))
            )
        if queue_offset > len(messages):
            raise OffsetBeyondEnd(requested=queue_offset, available=(0, len(messages)))
        found: list[StoredMessage] = []
        left_bytes = max_bytes
        for message in messages[queue_offset : queue_offset + max_messages]:
            left_bytes -= len(message.body)
            if left_bytes < 0 and found:
                break
            found.append(message)
        return found

    def bounds(self, queue: QueueId) -> OffsetRange:
        """RowAppends."""
        messages = self._queue(queue)
        return OffsetRange(self._first[queue], len(messages))

    async def offsets(self, queue: QueueId) -> OffsetRange:
        return self.bounds(queue)

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        messages = self._queue(queue)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (
                    len(messages) <= queue_offset
                    and not self._is_closed
                    and self._queues.get(queue) is messages
                ):
                    await self._arrival.wait()
        except TimeoutError:
            pass
        return len(messages) > queue_offset

    def call_on_arrival(self, queue: QueueId, queue_offset: int, call: Callable[[], None]) -> None:
        if len(self._queue(queue)) > queue_offset or self._is_closed:
            call()
        else:
            self._calls.setdefault(queue, {})[call] = None

    def forget_call(self, queue: QueueId, call: Callable[[], None]) -> None:
        self._calls.get(queue, {}).pop(call, None)

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        self._queue(queue)
        return self._offsets.get((group, queue))

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        end = len(self._queue(queue))
        if self._is_closed:
            raise StoreClosed
        if not 0 <= queue_offset <= end:
            raise OffsetBeyondEnd(requested=queue_offset, available=(0, end))
        self._offsets[group, queue] = queue_offset

    async def forget_offsets(self, group: str) -> None:
        if self._is_closed:
            raise StoreClosed
        self._offsets = {at: offset for at, offset in self._offsets.items() if at[0] != group}

    def committed_queues(self, group: str) -> list[QueueId]:
        return [queue for name, queue in self._offsets if name == group]

    def committed_count(self) -> int:
        return len(self._offsets)

    async def aclose(self) -> None:
        self._is_closed = True
        self._wake()

    async def topics(self) -> Mapping[str, int]:
        """TopicListing."""
        return {
            topic: count
            for topic, count in self._counts.items()
            if any(self._queues[q] for q in await self.queues(topic))
        }

    def is_durable(self, log_offset: int | None) -> bool:
        """SyncedPosition."""
        return True

    def stored_offset(self) -> int:
        """SyncedPosition."""
        return self._log_end

    def synced_offset(self) -> int:
        """SyncedPosition."""
        return self._log_end

    async def flush(self) -> int:
        """SyncedPosition."""
        return self._log_end

    async def wait_durable(self, appended: Appended) -> None:
        """SyncedPosition."""

    async def find_messages(
        self,
        key: str,
        *,
        topics: Collection[str],
        by_id: bool = False,
        from_ms: int = 0,
        to_ms: int = LAST_MS,
        older_than: int | None = None,
        with_deleted: bool = False,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """KeyLookup."""
        if self._is_closed:
            raise StoreClosed
        queues = {**self._queues, **self._deleted} if with_deleted else self._queues
        found = [
            message
            for queue, messages in queues.items()
            if queue.topic in topics
            for message in (messages if with_deleted else messages[self._first[queue] :])
            if (key == message.message_id if by_id else key in (message.key or "").split(" "))
            and from_ms <= message.stored_at_ms <= to_ms
            and (older_than is None or _place(message) < older_than)
        ]
        found = sorted(found, key=_place, reverse=True)[:max_messages]
        if max_bytes is not None:
            sizes = accumulate(len(message.body) for message in found)
            found = found[: max(2, 1 + sum(size <= max_bytes for size in sizes))]
        return found

    async def read_tagged(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int],
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> Scanned:
        """TagCodes."""
        found: list[StoredMessage] = []
        left_bytes = max_bytes
        at = queue_offset
        for message in await self.read(
            queue, queue_offset, max_messages=max_scanned, max_bytes=1 << 62
        ):
            if tag_hash(message.tag) in tag_codes:
                left_bytes -= len(message.body)
                if found and (left_bytes < 0 or len(found) == max_messages):
                    break
                found.append(message)
            at += 1
        return Scanned(found, at)

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Snapshots."""
        self._snapshots[name] = snapshot

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """Snapshots."""
        return self._snapshots.get(name)

    def due_positions(self) -> Mapping[QueueId, int]:
        """DueIndex."""
        return dict(self._due_positions)

    def change_due(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        """DueIndex."""
        self._due.update(dict.fromkeys(added))
        for entry in taken:
            self._due.pop(entry, None)
        self._due_positions.update(positions)

    async def read_due(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        """DueIndex."""
        found = sorted(
            entry
            for entry in self._due
            if (after is None or entry > after)
            and entry.due_ms < until_ms
            and entry.label in labels
        )
        return DuePage(
            found[:max_entries], found[max_entries - 1] if len(found) > max_entries else None
        )

    async def holds_due(self, entry: DueEntry) -> bool:
        """DueIndex."""
        return entry in self._due

    async def count_due(self, *, until_ms: int) -> int:
        """DueIndex."""
        return sum(entry.due_ms < until_ms for entry in self._due)

    def due_counts(self) -> DueCounts:
        """DueIndex."""
        never = sum(entry.due_ms >= NEVER_MS for entry in self._due)
        return DueCounts(len(self._due) - never, never)

    async def forget_due(self) -> None:
        """DueIndex."""
        self._due.clear()
        self._due_positions.clear()

    def _queue(self, queue: QueueId) -> list[StoredMessage]:
        try:
            return self._queues[queue]
        except KeyError:
            pass
        count = self._counts.get(queue.topic)
        if count is None:
            raise UnknownTopic(f"topic {queue.topic} does not exist")
        raise UnknownQueue(
            f"topic {queue.topic} has queues 0 to {count - 1}, there is no queue {queue.number}"
        )

    def _wake(self) -> None:
        """Everybody looks again; a wake-up carries no data."""
        self._arrival.set()
        self._arrival = asyncio.Event()
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            for call in waiting:
                call()


def _place(message: StoredMessage) -> int:
    assert message.log_offset is not None
    return message.log_offset
