"""Gives the consume queues back from the bytes of the log: what dispatch did when the messages
became visible.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from storage.errors import CorruptRecord
from storage.formats import broker_records, inner_batch, lost_note, names, queue_entry, skimmed
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC, due_ms
from storage.formats.queue_entry import ENTRY_BYTES
from storage.formats.record import DamagedRecord
from storage.formats.scan import Ints, Scan
from storage.local.queues import queue_ends
from storage.local.queues.consume_queue import (
    NOT_IN_LOG,
    ConsumeQueue,
    ConsumeQueues,
    DeletedQueue,
)
from storage.local.queues.queue_files import QueueFiles
from storage.message import QueueId, TransactionBits

QUEUED = (TransactionBits.NONE, TransactionBits.COMMIT)
_TAG_ITEM = b"\x02TAGS\x01"
_VALUE_END = b"\x02"
_QUEUE_END_TOPIC = queue_ends.QUEUE.topic.encode("ascii")
LOST_TOPIC = names.LOST_TOPIC.encode("ascii")
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode("ascii")
_READ_EACH = (_QUEUE_END_TOPIC, _SCHEDULE_TOPIC)
_LEAST_RUN = 32  # of fewer records one after another takes less time
_MOST_IN_MEMORY = 1_000_000  # entries; about 100 MB


class Replay:
    """Feeds records to the queues, in log order."""

    def __init__(self, queues: ConsumeQueues, files: QueueFiles | None = None) -> None:
        """`files`: what memory should not hold goes there meanwhile. A store that is open writes
        its queues itself.
        """
        self._queues = queues
        self._files = files
        # of one window, by topic and number: the queue, and what a record that only a broker writes
        # has in its properties; None where none has it
        self._found: dict[tuple[bytes, int], tuple[ConsumeQueue, bytes | None]] = {}
        self._signs: dict[bytes, bool] = {}  # is it in the window?
        self._in_memory = 0
        self._fed: dict[ConsumeQueue, None] = {}
        self._deleted: list[tuple[str, list[ConsumeQueue]]] = []
        # Of deleted topics, by what the log says. A store that is open has no use for them.
        self.forgotten: set[QueueId] = set()
        self.record_count = 0
        self.queue_ids: set[QueueId] = set()  # that had records
        self.last_stored_at_ms = 0
        self.broker_records: Counter[str] = Counter()  # by kind

    def feed(self, window: bytes, window_offset: int, scan: Scan) -> None:
        """The records of a scan of `window`. Raises CorruptRecord where a queue would get a gap."""
        self._found.clear()
        self._signs.clear()
        offsets, lengths = scan.record_offsets, scan.record_bytes
        at = 0
        is_long = len(offsets) >= _LEAST_RUN
        for begin, end in skimmed.plain_runs(window, offsets - window_offset) if is_long else ():
            if end - begin < _LEAST_RUN:
                continue
            self._feed_each(window, window_offset, offsets[at:begin], lengths[at:begin])
            run = offsets[begin:end], lengths[begin:end]
            if not self._feed_run(window, window_offset, *run):
                self._feed_each(window, window_offset, *run)
            at = end
        self._feed_each(window, window_offset, offsets[at:], lengths[at:])
        self.record_count += len(offsets)
        self._in_memory += len(offsets)
        if self._files is not None and self._in_memory >= _MOST_IN_MEMORY:
            self._in_memory = 0
            self._write_queues(self._files)

    def take_fed(self) -> Iterable[ConsumeQueue]:
        """The queues that had records since the last call, each once."""
        fed, self._fed = self._fed, {}
        return fed

    def take_deleted(self) -> list[tuple[str, list[ConsumeQueue]]]:
        """The topics that were deleted since the last call, and their queues."""
        deleted, self._deleted = self._deleted, []
        return deleted

    def _feed_run(self, window: bytes, window_offset: int, offsets: Ints, lengths: Ints) -> bool:
        """Replay records of a plain run together, in a third of the time that one after another
        takes.

        False, and nothing is done, where one of them has to be read for itself or is not the next
        of its queue.
        """
        run = skimmed.skim_plain(window, offsets - window_offset, lengths)
        if any(topic in _READ_EACH for topic in run.topics):
            return False

        def find(first: int) -> tuple[ConsumeQueue, bytes | None]:
            topic, number = run.topics[run.of_topic[first]], int(run.queue_numbers[first])
            known = self._found.get((topic, number))
            return known or self._find(topic, number, int(run.queue_offsets[first]), window)

        by_queue = (run.of_topic << 32) + run.queue_numbers
        order = np.argsort(by_queue, kind="stable")
        begins = np.flatnonzero(np.diff(by_queue[order], prepend=by_queue[order[0]] - 1))
        found = [find(first) for first in order[begins].tolist()]
        if any(sign is not None for _, sign in found):
            return False
        bounds = [*begins.tolist(), len(order)]
        queue_offsets = run.queue_offsets[order]
        new: list[tuple[ConsumeQueue, int, int]] = []  # the range of its records that are new
        for (queue, _), begin, end in zip(found, bounds[:-1], bounds[1:], strict=True):
            own = queue_offsets[begin:end]
            known = int((own < queue.next_offset).sum())
            if (own[known:] != np.arange(len(own) - known) + queue.next_offset).any():
                return False
            new.append((queue, begin + known, end))
        entries = np.empty(len(offsets), queue_entry.STORED)
        entries["physical_offset"], entries["record_bytes"] = offsets, lengths
        entries["tag_hash"] = skimmed.tag_hashes(window, run.properties_begin, run.properties_end)
        raw = entries[order].tobytes()
        each = [raw[at : at + ENTRY_BYTES] for at in range(0, len(raw), ENTRY_BYTES)]
        for queue, begin, end in new:
            queue.replay_next(each[begin:end])
        self.last_stored_at_ms = max(self.last_stored_at_ms, int(run.stored_at_ms.max()))
        return True

    def _feed_each(self, window: bytes, window_offset: int, offsets: Ints, lengths: Ints) -> None:
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            topic, queue_number, queue_offset, sys_flag, stored_at_ms, own = records.skim(
                window, offset - window_offset, length
            )
            if stored_at_ms > self.last_stored_at_ms:
                self.last_stored_at_ms = stored_at_ms
            is_batch = 0
            if sys_flag:  # of few records
                is_batch = sys_flag & inner_batch.FLAG
                if sys_flag & records.TRANSACTION_MASK not in QUEUED:
                    self._note_kind(topic, sys_flag, own)
                    if topic == LOST_TOPIC:
                        self._note_lost(
                            offset, window[offset - window_offset : offset - window_offset + length]
                        )
                    continue
            if topic == _QUEUE_END_TOPIC:
                self._note_ends(
                    records.decode(window[offset - window_offset : offset - window_offset + length])
                )
            found = self._found.get((topic, queue_number))
            if found is None:
                found = self._find(topic, queue_number, queue_offset, window)
            queue, sign = found
            if is_batch or (sign is not None and sign in own):
                self._note_kind(topic, sys_flag, own)
            if is_batch:
                begin = offset - window_offset
                batch = records.decode(window[begin : begin + length])
                entries = entries_of_batch(offset, length, batch)
                is_next = all(
                    queue.replay(at, entry) for at, entry in enumerate(entries, queue_offset)
                )
            else:
                entry = queue_entry.encode(offset, length, tags_code(topic, own, stored_at_ms))
                is_next = queue.replay(queue_offset, entry)
            if not is_next:
                reason = (
                    f"it is number {queue_offset} of {queue.id}, the next is {queue.next_offset}"
                )
                raise CorruptRecord(None, offset, reason, repair="--rebuild-derived")

    def _find(
        self, topic: bytes, queue_number: int, queue_offset: int, window: bytes
    ) -> tuple[ConsumeQueue, bytes | None]:
        queue = self._queues.found(QueueId(topic.decode("utf-8"), queue_number), queue_offset)
        self._note_fed(queue)
        sign = broker_records.of_topic(topic).sign
        if sign is not None:
            # One search of the window takes a fifth of the time of one in each record.
            if sign not in self._signs:
                self._signs[sign] = sign in window
            if not self._signs[sign]:
                sign = None
        self._found[topic, queue_number] = queue, sign
        return queue, sign

    def _note_fed(self, queue: ConsumeQueue) -> None:
        self.queue_ids.add(queue.id)
        self._fed[queue] = None

    def _note_kind(self, topic: bytes, sys_flag: int, own: bytes) -> None:
        kind = broker_records.kind_of(topic, sys_flag, own)
        if kind is not None:
            self.broker_records[kind] += 1

    def _note_ends(self, record: records.Record) -> None:
        """Queues of which nothing is left go on where they ended."""
        tag = records.to_message(record).tag
        ends = queue_ends.read_ends(record.body)
        if tag == queue_ends.DELETED:
            for topic in {queue.topic for queue, _ in ends}:
                self._deleted.append((topic, self._queues.close(topic)))
                self._queues.delete(topic, record.physical_offset)
        if tag != queue_ends.ENDS:
            self._found.clear()
        for queue, end in ends:
            if tag == queue_ends.ENDS:
                self._queues.found(queue, end)
            elif tag == queue_ends.FORGOTTEN:
                self._queues.begin_again(queue)
                if self._files is not None:
                    self.forgotten.add(queue)
            # a topic that was created again may have fewer queues
            elif queue.number >= self._queues.count(queue.topic):
                at = record.physical_offset
                deleted_at = at if tag == queue_ends.DELETED else NOT_IN_LOG
                self._queues.note_deleted(DeletedQueue(queue, end, deleted_at, at))

    def _note_lost(self, offset: int, raw: bytes) -> None:
        """The messages that a repair took out of the log keep their queue offsets; what is left of
        them is the note.
        """
        for queue_id, (first, end) in lost_note.read(records.decode(raw).body):
            queue = self._queues.found(queue_id, first)
            self._fed[queue] = None
            entry = queue_entry.encode(offset, len(raw), 0)
            for queue_offset in range(max(first, queue.next_offset), end):
                queue.replay(queue_offset, entry)

    def _write_queues(self, files: QueueFiles) -> None:
        """The records are durable, or the log would not be walked: so may their entries be."""
        for queue in self._queues:
            if queue.has_unflushed:
                unflushed = queue.take_unflushed()
                files.write(unflushed)
                queue.note_flushed(unflushed.end)


def entries_of_batch(offset: int, record_bytes: int, record: records.Record) -> Sequence[bytes]:
    """The queue entries of an inner batch, one for each of its messages: all point to its record.

    A message that cannot be found in it has no tag.
    """
    hashes = [0] * inner_batch.width(record.sys_flag, record.properties)
    with suppress(DamagedRecord):
        topic = record.topic.encode("utf-8")
        inner = inner_batch.messages(record.body)
        for number, one in zip(range(len(hashes)), inner, strict=False):
            hashes[number] = tags_code(topic, one.properties, record.stored_at_ms)
    return tuple(queue_entry.encode(offset, record_bytes, tag_hash) for tag_hash in hashes)


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
    end = own.find(_VALUE_END, begin)
    return _hash_of(own[begin:end] if end >= 0 else own[begin:])


@lru_cache(maxsize=4096)
def _hash_of(tag: bytes) -> int:
    return queue_entry.tag_hash(tag.decode("utf-8", errors="replace"))
