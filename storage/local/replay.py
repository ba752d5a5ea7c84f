"""Gives the consume queues back from the bytes of the log: what dispatch did when the messages
became visible.
"""

from functools import lru_cache

from storage.errors import CorruptRecord
from storage.formats import lost_note, names, queue_entry
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC, due_ms
from storage.formats.scan import Scan
from storage.local import queue_ends
from storage.local.consume_queue import ConsumeQueue, ConsumeQueues, QueueFiles
from storage.message import QueueId, TransactionBits

QUEUED = (TransactionBits.NONE, TransactionBits.COMMIT)
_TAG_ITEM = b"\x02TAGS\x01"
_QUEUE_END_TOPIC = queue_ends.QUEUE.topic.encode("ascii")
LOST_TOPIC = names.LOST_TOPIC.encode("ascii")
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode("ascii")
_MOST_IN_MEMORY = 1_000_000  # entries; about 100 MB


class Replay:
    """Feeds records to the queues, in log order.

    What memory should not hold goes to their files meanwhile.
    """

    def __init__(self, queues: ConsumeQueues, files: QueueFiles) -> None:
        self._queues = queues
        self._files = files
        self._found: dict[tuple[bytes, int], ConsumeQueue] = {}  # by topic and number
        self._in_memory = 0
        self.record_count = 0
        self.last_stored_at_ms = 0

    def feed(self, window: bytes, window_offset: int, scan: Scan) -> None:
        """The records of a scan of `window`. Raises CorruptRecord where a queue would get a gap."""
        for offset, length in zip(
            scan.record_offsets.tolist(), scan.record_bytes.tolist(), strict=True
        ):
            topic, queue_number, queue_offset, sys_flag, stored_at_ms, own = records.skim(
                window, offset - window_offset, length
            )
            if stored_at_ms > self.last_stored_at_ms:
                self.last_stored_at_ms = stored_at_ms
            if sys_flag & records.TRANSACTION_MASK not in QUEUED:
                if topic == LOST_TOPIC:
                    self._note_lost(
                        offset, window[offset - window_offset : offset - window_offset + length]
                    )
                continue
            if topic == _QUEUE_END_TOPIC:
                self._note_ends(
                    records.decode(window[offset - window_offset : offset - window_offset + length])
                )
            queue = self._found.get((topic, queue_number))
            if queue is None:
                queue = self._queues.found(
                    QueueId(topic.decode("utf-8"), queue_number), queue_offset
                )
                self._found[topic, queue_number] = queue
            if not queue.replay(
                queue_offset,
                queue_entry.encode(offset, length, tags_code(topic, own, stored_at_ms)),
            ):
                reason = (
                    f"it is number {queue_offset} of {queue.id}, the next is {queue.next_offset}"
                )
                raise CorruptRecord(None, offset, reason, repair="--rebuild-derived")
        self.record_count += len(scan.record_offsets)
        self._in_memory += len(scan.record_offsets)
        if self._in_memory >= _MOST_IN_MEMORY:
            self._in_memory = 0
            self._write_queues()

    def _note_ends(self, record: records.Record) -> None:
        """Queues of which nothing is left go on where they ended."""
        tag = records.to_message(record).tag
        ends = queue_ends.read_ends(record.body)
        if tag == queue_ends.DELETED:
            for topic in {queue.topic for queue, _ in ends}:
                self._queues.delete(topic)
                self._found = {
                    at: queue for at, queue in self._found.items() if queue.id.topic != topic
                }
        for queue, end in ends:
            if tag == queue_ends.ENDS:
                self._queues.found(queue, end)
            # a topic that was created again may have fewer queues
            elif queue.number >= self._queues.count(queue.topic):
                self._queues.note_deleted(queue, end)

    def _note_lost(self, offset: int, raw: bytes) -> None:
        """The messages that a repair took out of the log keep their queue offsets; what is left of
        them is the note.
        """
        for queue_id, (first, end) in lost_note.read(records.decode(raw).body):
            queue = self._queues.found(queue_id, first)
            self._found[queue_id.topic.encode("utf-8"), queue_id.number] = queue
            entry = queue_entry.encode(offset, len(raw), 0)
            for queue_offset in range(max(first, queue.next_offset), end):
                queue.replay(queue_offset, entry)

    def _write_queues(self) -> None:
        """The records are durable, or the log would not be walked: so may their entries be."""
        for queue in self._found.values():
            unflushed = queue.take_unflushed()
            self._files.write(unflushed)
            queue.note_flushed(unflushed.end)


def tags_code(topic: bytes, own: bytes, stored_at_ms: int) -> int:
    """The third field of a queue entry: the hash of the tag, or the time of delivery where a
    message waits by delay level.
    """
    if topic == _SCHEDULE_TOPIC:
        due = due_ms(own, stored_at_ms)
        if due is not None:
            return due
    # The last one counts, as in a decoded property map.
    found = own.rfind(_TAG_ITEM)
    begin = found + len(_TAG_ITEM)
    if found < 0:
        if not own.startswith(_TAG_ITEM[1:]):
            return 0
        begin = len(_TAG_ITEM) - 1
    end = own.find(b"\x02", begin)
    return _hash_of(own[begin:end] if end >= 0 else own[begin:])


@lru_cache(maxsize=4096)
def _hash_of(tag: bytes) -> int:
    return queue_entry.tag_hash(tag.decode("utf-8", errors="replace"))
