"""Consume queues: for each queue of a topic, where its messages are stored in the log.

Derived: they can be rebuilt from the log. New entries are kept in memory until the derive lane has
written them to the files (`queue_files.py`). The owner's thread owns the tables; other lanes read
the bounds of a queue and its newest entries.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from storage.errors import UnknownQueue, UnknownTopic
from storage.formats.queue_entry import ENTRY_BYTES
from storage.message import OffsetRange, QueueId, Row

_KEPT_IN_MEMORY = 256  # entries behind the last flush: tailing consumers never ask a file


class ConsumeQueue:
    """One queue. The writer assigns `next_offset`; readers see the messages in `bounds`.

    `append(entry)` makes the message at `end` visible. It is the list's own method: it is called
    once for each message.
    """

    __slots__ = (
        "_recent",
        "_unflushed_from",
        "append",
        "first",
        "id",
        "is_deleted",
        "next_offset",
        "trusted_from",
    )

    def __init__(self, queue: QueueId, *, first: int, end: int) -> None:
        self.id = queue
        self.first = first
        self.is_deleted = (
            False  # with its topic: its files may be gone. Owner's thread alone sets it
        )
        self.next_offset = end  # of the next message that is appended
        # The newest entries, and the offset of the first of them: replaced together, since the read
        # lane asks while we drop.
        self._recent: tuple[int, list[bytes]] = (end, [])
        self.append = self._recent[1].append
        self._unflushed_from = end
        # entries from here on were made by this process; those before are what the files say
        self.trusted_from = end

    @property
    def end(self) -> int:
        """The queue offset behind the last visible message."""
        recent_from, recent = self._recent
        return recent_from + len(recent)

    @property
    def recent_from(self) -> int:
        """The queue offset from which on the entries are in memory; all before are in the files."""
        return self._recent[0]

    @property
    def bounds(self) -> OffsetRange:
        return OffsetRange(self.first, self.end)

    @property
    def has_unflushed(self) -> bool:
        return self._unflushed_from < self.end

    @property
    def flushed_end(self) -> int:
        """Entries below are in the file."""
        return self._unflushed_from

    def recent(self, queue_offset: int, count: int) -> bytes | None:
        """Entries from memory; None where they are only in the file."""
        recent_from, recent = self._recent
        at = queue_offset - recent_from
        return b"".join(recent[at : at + count]) if at >= 0 else None

    def replay(self, queue_offset: int, entry: bytes) -> bool:
        """Recovery found this message: take it, unless it is known.

        False: it is not the next one, others are missing.
        """
        next_offset = self.next_offset
        if queue_offset == next_offset:
            self.append(entry)
            self.next_offset = next_offset + 1
        return queue_offset <= next_offset

    def replay_next(self, entries: Sequence[bytes]) -> None:
        """Take the entries of the next messages, which recovery found."""
        self._recent[1].extend(entries)
        self.next_offset += len(entries)

    def take_unflushed(self) -> "Unflushed":
        recent_from, recent = self._recent
        return Unflushed(
            self, self._unflushed_from, b"".join(recent[self._unflushed_from - recent_from :])
        )

    def note_flushed(self, queue_offset: int) -> None:
        """Entries below are in the file."""
        self._unflushed_from = queue_offset
        recent_from, recent = self._recent
        surplus = queue_offset - recent_from - _KEPT_IN_MEMORY
        if surplus > _KEPT_IN_MEMORY:  # in larger steps: each one copies the rest of the list
            self._recent = (recent_from + surplus, recent[surplus:])
            self.append = self._recent[1].append


class Unflushed(NamedTuple):
    queue: ConsumeQueue
    queue_offset: int
    entries: bytes

    @property
    def end(self) -> int:
        return self.queue_offset + len(self.entries) // ENTRY_BYTES


NOT_IN_LOG = -1  # a log offset


class DeletedQueue(NamedTuple):
    """Queue of a deleted topic.

    `deleted_at`: a log offset behind all of its messages, not behind the records that follow the
    deletion. `stated_at`: the log offset of the newest record that states its end, or of one before
    it. NOT_IN_LOG where the log has no such messages, or no such record.
    """

    id: QueueId
    end: int
    deleted_at: int
    stated_at: int


class ConsumeQueues:
    """All queues of a store, by topic and number.

    A queue is known from its first message on, or as its topic is made known.

    Of a deleted topic the end of each queue that ever had messages is remembered, so that no queue
    offset is used twice, until a record in the log says that it is forgotten.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueId, ConsumeQueue] = {}
        self._counts: dict[str, int] = {}
        self._closing: dict[str, list[ConsumeQueue]] = {}  # by topic: being deleted
        self._deleted: dict[str, dict[int, DeletedQueue]] = {}  # by topic and number

    def __iter__(self) -> Iterator[ConsumeQueue]:
        yield from self._queues.values()
        for queues in self._closing.values():
            yield from queues

    def __getitem__(self, queue: QueueId) -> ConsumeQueue:
        """Raises UnknownTopic, UnknownQueue."""
        try:
            return self._queues[queue]
        except KeyError:
            raise self._unknown(queue) from None

    def of_rows(self, rows: Sequence[Row]) -> list[ConsumeQueue]:
        """The queue of each row. Raises UnknownTopic, UnknownQueue."""
        queues = self._queues
        try:
            return [queues[row[0]] for row in rows]
        except KeyError as error:
            raise self._unknown(error.args[0]) from None

    def count(self, topic: str) -> int:
        """How many queues the topic has; 0 where it is not known."""
        return self._counts.get(topic, 0)

    @property
    def counts(self) -> dict[str, int]:
        return self._counts

    def find(self, queue: QueueId) -> ConsumeQueue | None:
        """The queue; None where it is not known."""
        return self._queues.get(queue)

    def bounds_of(self, queue: QueueId) -> OffsetRange:
        """The bounds of a queue; an empty range where it is not known."""
        found = self._queues.get(queue)
        return found.bounds if found is not None else OffsetRange(0, 0)

    def holds_messages(self, topic: str) -> bool:
        return any(self._queues[QueueId(topic, number)].end for number in range(self.count(topic)))

    def grow(self, topic: str, count: int) -> None:
        """The topic has at least so many queues."""
        for number in range(self.count(topic), count):
            queue = QueueId(topic, number)
            deleted = self.forget_deleted(queue)
            end = deleted.end if deleted is not None else 0
            self._queues[queue] = ConsumeQueue(queue, first=end, end=end)
        self._counts[topic] = max(count, self.count(topic))

    def restore(self, queue: QueueId, bounds: OffsetRange) -> None:
        """The queue as a snapshot knows it."""
        self.grow(queue.topic, queue.number + 1)
        self._queues[queue] = ConsumeQueue(queue, first=bounds.first, end=bounds.end)

    def found(self, queue: QueueId, queue_offset: int) -> ConsumeQueue:
        """The queue, of which recovery has found this message and none before."""
        self.grow(queue.topic, queue.number + 1)
        found = self._queues[queue]
        if found.end == 0 and queue_offset:
            # It begins here: what came before it has been dropped with its segments.
            self._queues[queue] = found = ConsumeQueue(queue, first=queue_offset, end=queue_offset)
        return found

    # ----------------------------------------------------------------------------------------------
    # deleted topics

    @property
    def deleted(self) -> Iterator[DeletedQueue]:
        """The queues of deleted topics that had messages; the topics that were deleted first come
        first.
        """
        for queues in self._deleted.values():
            yield from queues.values()

    @property
    def deleted_count(self) -> int:
        return sum(map(len, self._deleted.values()))

    def close(self, topic: str) -> list[ConsumeQueue]:
        """Make the topic unknown while its deletion is being written; its queues, which are still
        part of a snapshot.
        """
        numbers = range(self._counts.pop(topic, 0))
        closing = [self._queues.pop(QueueId(topic, number)) for number in numbers]
        if closing:
            self._closing[topic] = closing
        return closing

    def is_closing(self, topic: str) -> bool:
        return topic in self._closing

    def reopen(self, topic: str) -> None:
        """The deletion could not be written: the topic is known as before."""
        reopened = self._closing.pop(topic)
        self._queues.update({queue.id: queue for queue in reopened})
        self._counts[topic] = len(reopened)

    def delete(self, topic: str, log_offset: int) -> None:
        """Forget the queues of the topic but for their ends, which the record at this log offset
        states.
        """
        self.close(topic)
        for queue in self._closing.pop(topic, []):
            queue.is_deleted = True
            self.note_deleted(DeletedQueue(queue.id, queue.next_offset, log_offset, log_offset))

    def note_deleted(self, noted: DeletedQueue) -> None:
        """The queue of a deleted topic has ended there, or further."""
        topic, number = noted.id
        known = self._deleted.get(topic, {}).get(number)
        if known is not None:
            noted = DeletedQueue(noted.id, *map(max, noted[1:], known[1:]))
        if noted.end:
            self._deleted.setdefault(topic, {})[number] = noted

    def remembers(self, deleted: DeletedQueue) -> bool:
        """Is this still what is known of the queue?"""
        return self._deleted.get(deleted.id.topic, {}).get(deleted.id.number) == deleted

    def forget_deleted(self, queue: QueueId) -> DeletedQueue | None:
        """Forget the end of a queue of a deleted topic; what it was, None where there is none."""
        of_topic = self._deleted.get(queue.topic)
        if of_topic is None:
            return None
        deleted = of_topic.pop(queue.number, None)
        if not of_topic:
            del self._deleted[queue.topic]
        return deleted

    def begin_again(self, queue: QueueId) -> None:
        """The log says that the end of this queue of a deleted topic is forgotten: if the topic is
        known again, it begins at 0, unless it has messages.
        """
        self.forget_deleted(queue)
        known = self._queues.get(queue)
        if known is not None and known.first == known.next_offset:
            self._queues[queue] = ConsumeQueue(queue, first=0, end=0)

    def _unknown(self, queue: QueueId) -> UnknownTopic | UnknownQueue:
        count = self.count(queue.topic)
        if not count:
            return UnknownTopic(f"topic {queue.topic} does not exist")
        return UnknownQueue(
            f"topic {queue.topic} has queues 0 to {count - 1}, there is no queue {queue.number}"
        )
