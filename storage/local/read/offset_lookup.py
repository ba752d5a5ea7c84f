"""Finds messages by the log offset of their record.

The offset comes from a client and may be any number, also one inside of the body of a message, into
which its sender may have put the bytes of a record. So what the bytes at the offset state of
themselves is not believed: they are a record only if the entry of the queue that they state leads
back to this offset. The message is then read like any other of its queue, with the same checks.
"""

from collections.abc import Collection
from typing import NamedTuple

from storage.errors import CorruptRecord, OffsetExpired
from storage.files.segments import Segment
from storage.formats import inner_batch, scan, unit
from storage.formats import record as records
from storage.local.log.commit_log import CommitLog
from storage.local.queues.consume_queue import ConsumeQueues
from storage.local.read.reader import Reader
from storage.message import QueueId, StoredMessage

_AT_ONCE = 64  # messages of an inner batch that are read together
_BYTES_AT_ONCE = 1 << 20


class _Stated(NamedTuple):
    """Fields of a record as the bytes at an offset state them."""

    queue: QueueId
    queue_offset: int
    store_host: bytes
    is_batch: bool


class OffsetLookup:
    def __init__(self, log: CommitLog, reader: Reader, queues: ConsumeQueues) -> None:
        self._log = log
        self._reader = reader
        self._queues = queues

    async def find(
        self, log_offset: int, *, topics: Collection[str], store_host: bytes | None
    ) -> list[StoredMessage]:
        """The result of `MessageStore.read_at`."""
        stated = await self._reader.in_read_lane(lambda: self._stated_at(log_offset))
        if (
            stated is None
            or stated.queue.topic not in topics
            or store_host not in (None, stated.store_host)
        ):
            return []
        queue = self._queues.find(stated.queue)
        if queue is None or not queue.first <= stated.queue_offset < queue.end:
            return []
        found: list[StoredMessage] = []
        at = stated.queue_offset
        while at < queue.end:
            try:
                read = await self._reader.read(
                    queue.id,
                    at,
                    max_messages=_AT_ONCE if stated.is_batch else 1,
                    max_bytes=_BYTES_AT_ONCE,
                )
            except CorruptRecord as damage:
                if damage.physical_offset == log_offset:
                    raise
                break  # that is another record
            except OffsetExpired:
                return []
            here = [message for message in read if message.log_offset == log_offset]
            found += here
            at += len(here)
            if not stated.is_batch or len(here) < len(read):
                break
        return found

    def _stated_at(self, log_offset: int) -> _Stated | None:
        """The message that begins at this log offset as its record states it; None where no record
        states that. Reads few bytes, whatever lengths records state.

        Raises CorruptRecord where a record of ours ends as stated, and its header is damaged.
        """
        if not self._log.first_offset <= log_offset < self._log.written_end:
            return None
        try:
            segment = self._log.segments.find(log_offset)
            begin = log_offset - segment.base_offset
            raw = segment.read(begin, records.HEAD_BYTES)
            if not records.stated_bytes(raw, 0, log_offset):
                self._check_end(segment, log_offset, raw)
                return None
            head = records.head(raw)
            if head is None or head.topic_at < 0:
                return None
            at, length_bytes = begin + head.topic_at, head.topic_length_bytes
            topic_bytes = int.from_bytes(segment.read(at, length_bytes), "big")
            topic = segment.read(at + length_bytes, topic_bytes).decode("utf-8")
        except (IndexError, UnicodeDecodeError):  # it was dropped meanwhile; it is no record
            return None
        return _Stated(
            QueueId(topic, head.queue_number),
            head.queue_offset,
            head.store_host,
            bool(head.sys_flag & inner_batch.FLAG),
        )

    def _check_end(self, segment: Segment, log_offset: int, raw: bytes) -> None:
        """Raise CorruptRecord if a record of a unit of EscrowMQ begins here and ends by the length
        at the beginning of `raw`.
        """
        total = records.start(raw)[0] if len(raw) >= records.END_OF_FILE_BYTES else 0
        if not records.FIXED_BYTES <= total <= segment.end_offset - log_offset:
            return
        tail_bytes = unit.UNIT_ITEM_BYTES + unit.SEAL_BYTES
        tail = segment.read(log_offset + total - tail_bytes - segment.base_offset, tail_bytes)
        item = scan.item_at_end(tail, tail_bytes)
        # Any bytes of a body may lead to the end of the record that they are in.
        if item is not None and any(place == log_offset for place, _ in self._log.chain(item)):
            raise self._log.corrupt(log_offset, "the header of the record is damaged")
