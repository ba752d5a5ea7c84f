"""The reference engine: everything in dicts, nothing on disk.

Tests compare the other engine with it, and run the packages above on it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

from storage.callbacks import answer
from storage.clock import Clock
from storage.errors import (
    CorruptRecord,
    InvalidRequest,
    OffsetBeyondEnd,
    OffsetExpired,
    RejectedError,
    StoreClosed,
    UnknownQueue,
    UnknownTopic,
)
from storage.formats import record as records
from storage.formats import stored_record, unit
from storage.formats.queue_entry import tag_hash
from storage.formats.record_block import RecordBlock
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
    Sureness,
    safe_on,
)
from storage.store import (
    ANY_LABEL,
    DueCounts,
    DuePage,
    KeyQuery,
    Scanned,
    ScannedRecords,
    Snapshot,
    WaitingTimers,
)

_SURE = safe_on(1)
_MAX_APPEND_BYTES = (1 << 31) - 1  # the length of a record is a signed number of four bytes


class MemoryMessageStore:
    """A `MessageStore` that forgets everything when it is dropped: every message that it stores is
    as durable as it will ever be.
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
        # of readers that wait for an arrival
        self._calls: dict[QueueId, dict[Callable[[], None], None]] = {}
        self._is_closed = False
        self._waits = True  # readers may wait

    async def aclose(self) -> None:
        self._is_closed = True
        self.stop_waiting()

    @property
    def admin(self) -> None:
        """No administration: this engine has no files."""

    # ----------------------------------------------------------------------------------------------
    # topics

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

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        if topic not in self._counts:
            raise UnknownTopic(f"topic {topic} does not exist")
        return tuple(QueueId(topic, number) for number in range(self._counts[topic]))

    async def topics(self) -> Mapping[str, int]:
        return {
            topic: count
            for topic, count in self._counts.items()
            if any(self._queues[q] for q in await self.queues(topic))
        }

    async def delete_topic(self, topic: str) -> None:
        self._check_open()
        for number in range(self._counts.pop(topic, 0)):
            queue = QueueId(topic, number)
            self._deleted[queue] = self._queues.pop(queue)
        self._deleted = {queue: messages for queue, messages in self._deleted.items() if messages}
        self._offsets = {at: offset for at, offset in self._offsets.items() if at[1].topic != topic}
        self._wake()

    def deleted_queues(self) -> int:
        return len(self._deleted)

    # ----------------------------------------------------------------------------------------------
    # appends

    async def append(
        self,
        messages: Sequence[Message],
        *,
        durability: Durability | None = None,
        from_reserve: bool = False,
    ) -> list[Appended]:
        _check(durability)
        placed = self._store(messages)
        return [
            Appended(message.queue, queue_offset, log_offset, placed.stored_at_ms, placed.sureness)
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
        """Append rows, decoded as a reader of the log would decode them."""
        if not rows:
            raise InvalidRequest("no messages in one append")
        _check(durability)
        units = [
            unit.encode([row], [0], first_offset=0, synced_offset=0, epoch=0, stored_at_ms=0)
            for row in rows
        ]
        placed = self._store([records.to_message(records.decode(one.data)) for one in units])
        asyncio.get_running_loop().call_soon(answer, done, failed, placed)

    def before_write(self, call: Callable[[], None]) -> None:
        """Call it later: appends are not collected."""
        asyncio.get_running_loop().call_soon(call)

    def set_reserve(self, owed_bytes: int) -> None:
        """Do nothing: its space does not run out."""

    def pressure(self) -> float:
        return 0.0

    def append_limit_bytes(self) -> int:
        return _MAX_APPEND_BYTES

    # ----------------------------------------------------------------------------------------------
    # durability

    def stored_offset(self) -> int:
        return self._log_end

    def synced_offset(self) -> int:
        return self._log_end

    async def flush(self) -> int:
        self._check_open()
        return self._log_end

    def sureness_of(self, log_offset: int | None) -> Sureness:
        return _SURE

    async def wait_durable(self, log_offset: int | None) -> None:
        """Return at once: everything is as durable as it will be."""

    # ----------------------------------------------------------------------------------------------
    # reads

    async def offsets(self, queue: QueueId) -> OffsetRange:
        return self.bounds(queue)

    def bounds(self, queue: QueueId) -> OffsetRange:
        messages = self._queue(queue)
        return OffsetRange(self._first[queue], len(messages))

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        messages = self._readable(queue, queue_offset)
        found: list[StoredMessage] = []
        left_bytes = max_bytes
        for message in messages[queue_offset : queue_offset + max_messages]:
            left_bytes -= len(message.body)
            if left_bytes < 0 and found:
                break
            found.append(message)
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
        return self._scan(queue, queue_offset, tag_codes, max_scanned, max_messages, max_bytes)

    async def read_records(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int] | None = None,
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> ScannedRecords:
        found = self._scan(queue, queue_offset, tag_codes, max_scanned, max_messages, max_bytes)
        return ScannedRecords(
            [stored_record.of_message(message) for message in found.messages], found.next_offset
        )

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        found: list[StoredMessage | RejectedError | CorruptRecord] = []
        left_bytes = max(1, max_bytes)
        for queue, queue_offset in places:
            if left_bytes <= 0:
                break
            try:
                messages = self._readable(queue, queue_offset)
                if queue_offset == len(messages):
                    raise OffsetBeyondEnd(requested=queue_offset, available=self.bounds(queue))
            except RejectedError as error:
                found.append(error)
            else:
                found.append(messages[queue_offset])
                left_bytes -= len(messages[queue_offset].body)
        return found

    def block_now(
        self, queue: QueueId, queue_offset: int, *, count: int, max_bytes: int
    ) -> RecordBlock | None:
        """Return None: the messages are not kept as records."""
        self._readable(queue, queue_offset)
        return None

    # ----------------------------------------------------------------------------------------------
    # arrivals

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        messages = self._queue(queue)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (
                    len(messages) <= queue_offset
                    and self._waits
                    and self._queues.get(queue) is messages
                ):
                    await self._arrival.wait()
        except TimeoutError:
            pass
        return len(messages) > queue_offset

    def call_on_arrival(self, queue: QueueId, queue_offset: int, call: Callable[[], None]) -> None:
        if len(self._queue(queue)) > queue_offset or not self._waits:
            call()
        else:
            self._calls.setdefault(queue, {})[call] = None

    def forget_call(self, queue: QueueId, call: Callable[[], None]) -> None:
        self._calls.get(queue, {}).pop(call, None)

    def stop_waiting(self) -> None:
        self._waits = False
        self._wake()

    # ----------------------------------------------------------------------------------------------
    # committed offsets

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        self._queue(queue)
        return self._offsets.get((group, queue))

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        bounds = self.bounds(queue)
        self._check_open()
        if not 0 <= queue_offset <= bounds.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=bounds)
        self._offsets[group, queue] = queue_offset

    async def forget_offsets(self, group: str) -> None:
        self._check_open()
        self._offsets = {at: offset for at, offset in self._offsets.items() if at[0] != group}

    def committed_queues(self, group: str) -> list[QueueId]:
        return [queue for name, queue in self._offsets if name == group]

    def committed_count(self) -> int:
        return len(self._offsets)

    # ----------------------------------------------------------------------------------------------
    # messages by their keys

    async def find_messages(self, query: KeyQuery) -> list[StoredMessage]:
        self._check_open()
        with_deleted, older_than = query.with_deleted, query.older_than
        queues = {**self._queues, **self._deleted} if with_deleted else self._queues
        found = [
            message
            for queue, messages in queues.items()
            if queue.topic in query.topics
            for message in (messages if with_deleted else messages[self._first[queue] :])
            if (query.key == message.message_id if query.by_id else query.key in message.keys)
            and query.from_ms <= message.stored_at_ms <= query.to_ms
            and (older_than is None or _place(message) < older_than)
        ]
        found = sorted(found, key=_place, reverse=True)[: query.max_messages]
        if query.max_bytes is not None:
            sizes = accumulate(len(message.body) for message in found)
            found = found[: max(2, 1 + sum(size <= query.max_bytes for size in sizes))]
        return found

    async def read_at(
        self, log_offset: int, *, topics: Collection[str], store_host: bytes | None = None
    ) -> list[StoredMessage]:
        """Read messages by log offset; their address is the one that records of EscrowMQ state."""
        self._check_open()
        if store_host not in (None, records.HOST):
            return []
        return [
            message
            for queue, messages in self._queues.items()
            if queue.topic in topics
            for message in messages[self._first[queue] :]
            if message.log_offset == log_offset
        ]

    # ----------------------------------------------------------------------------------------------
    # snapshots of derived tables

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._snapshots[name] = snapshot

    async def load_snapshot(self, name: str) -> Snapshot | None:
        self._check_open()
        return self._snapshots.get(name)

    # ----------------------------------------------------------------------------------------------
    # index of times

    def due_positions(self) -> Mapping[QueueId, int]:
        return dict(self._due_positions)

    def change_due(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        self._due.update(dict.fromkeys(added))
        for entry in taken:
            self._due.pop(entry, None)
        self._due_positions.update(positions)

    async def read_due(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        self._check_open()
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
        self._check_open()
        return entry in self._due

    async def count_due(self, *, until_ms: int) -> int:
        self._check_open()
        return sum(entry.due_ms < until_ms for entry in self._due)

    def due_counts(self) -> DueCounts:
        never = sum(entry.due_ms >= NEVER_MS for entry in self._due)
        return DueCounts(len(self._due) - never, never)

    async def forget_due(self) -> None:
        self._due.clear()
        self._due_positions.clear()

    # ----------------------------------------------------------------------------------------------
    # progress of the delay queues

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """Do nothing: no other server goes on with it."""

    def keep_waiting_timers(self, timers: WaitingTimers) -> None:
        """Do nothing, as above."""

    def delay_progress_by_others(self) -> Mapping[QueueId, int] | None:
        return None

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _store(self, messages: Sequence[Message]) -> Placed:
        self._check_open()
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
        return Placed(queue_offsets, log_offsets, self._stored_at_ms, _SURE)

    def _readable(self, queue: QueueId, queue_offset: int) -> list[StoredMessage]:
        """The messages of the queue, which can be read from this offset on. Raises as `read`."""
        self._check_open()
        bounds = self.bounds(queue)
        if queue_offset < bounds.first:
            raise OffsetExpired(requested=queue_offset, available=bounds)
        if queue_offset > bounds.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=bounds)
        return self._queues[queue]

    def _scan(
        self,
        queue: QueueId,
        queue_offset: int,
        tag_codes: Collection[int] | None,
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> Scanned:
        messages = self._readable(queue, queue_offset)
        found: list[StoredMessage] = []
        left_bytes = max_bytes
        at = queue_offset
        for message in messages[queue_offset : queue_offset + max_scanned]:
            if tag_codes is None or tag_hash(message.tag) in tag_codes:
                left_bytes -= len(message.body)
                if found and (left_bytes < 0 or len(found) == max_messages):
                    break
                found.append(message)
            at += 1
        return Scanned(found, at)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed

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
        """Call every waiting reader; it carries no data."""
        self._arrival.set()
        self._arrival = asyncio.Event()
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            for call in waiting:
                call()


def _place(message: StoredMessage) -> int:
    assert message.log_offset is not None
    return message.log_offset


def _check(durability: Durability | None) -> None:
    """Raises InvalidRequest."""
    if durability is Durability.REPLICATED:
        raise InvalidRequest("replicated is not available: messages are stored on one machine only")
