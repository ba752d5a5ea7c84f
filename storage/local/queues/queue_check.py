"""Checks entries of consume queue files against their records, and makes those again that the log
does not bear out.

Queue files are RocketMQ's, without room for a checksum. So an entry is compared with the log
instead. Where the message is read, that costs nothing: topic, queue and offset are in the record.
Where a tag filter would pass over it, the record is looked at once in the life of the process, as
the units of the log are (docs/decisions/0022). Entries in memory come from the log.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import structlog

from storage.errors import CorruptRecord, OffsetExpired, UnknownTopic
from storage.formats import inner_batch, lost_note, names, queue_entry
from storage.formats import record as records
from storage.formats.queue_entry import QueueEntry
from storage.formats.record import DamagedRecord, Record
from storage.local.log import log_walk
from storage.local.log.commit_log import CommitLog, Piece
from storage.local.log.ranges import Ranges
from storage.local.queues.consume_queue import ConsumeQueue, Unflushed
from storage.local.queues.queue_files import QueueFiles
from storage.local.queues.replay import QUEUED, entries_of_batch, tags_code
from storage.message import QueueId

_CONFIRMED_AT_ONCE = 1_024  # entries; some milliseconds
_MOST_DAMAGED = 10_000
_LOST_TOPIC = names.LOST_TOPIC.encode("ascii")

log = structlog.get_logger()


class DoubtfulEntry(Exception):
    """The entry of a queue file, or the record that it points to, is damaged."""

    def __init__(self, queue: QueueId, queue_offset: int) -> None:
        super().__init__(queue, queue_offset)
        self.queue = queue
        self.queue_offset = queue_offset


class _Damage(NamedTuple):
    physical_offset: int
    reason: str
    was_taken_out: bool = False


class _ReadBatch:
    """An inner batch that was read and checked; its messages are asked for one by one."""

    def __init__(self, offset: int, length: int, record: Record) -> None:
        self.place = (offset, length)
        self._batch = inner_batch.Batch(record)

    @cached_property
    def entries(self) -> Sequence[bytes]:
        return entries_of_batch(*self.place, self._batch.record)

    def message_at(self, queue: QueueId, queue_offset: int) -> Record | None:
        """The message at this offset; None where it is of another queue. Raises DamagedRecord."""
        record = self._batch.record
        is_of_queue = (record.topic, record.queue_number) == queue
        return self._batch.record_at(queue_offset) if is_of_queue else None


class QueueCheck:
    """Reads messages of queues, and checks the entries by which they are found. Read lane only, but
    for `repair`: derive lane.

    At the start, before there are lanes, all is one thread's.
    """

    def __init__(self, log_: CommitLog, files: QueueFiles) -> None:
        self._log = log_
        self._files = files
        self._confirmed: dict[QueueId, Ranges] = {}
        # Messages whose records are damaged: found by a walk, which is not made for each read of
        # them.
        self._damaged: dict[tuple[QueueId, int], _Damage] = {}
        self._batch: _ReadBatch | None = None  # the last one that was read
        self.rebuilt_entries = 0

    def entries(self, queue: ConsumeQueue, queue_offset: int, count: int) -> list[QueueEntry]:
        """Some of the queue's entries from an offset that it has, at least one.

        Raises OffsetExpired, UnknownTopic, DoubtfulEntry.
        """
        try:
            entries = self._files.entries(queue, queue_offset, count)
        except FileNotFoundError:
            entries = []
        # Asked afterwards: whatever has not expired by then is there.
        if queue_offset < queue.first:
            raise OffsetExpired(requested=queue_offset, available=queue.bounds)
        if not entries:
            self._doubt(queue, queue_offset)
        return entries

    def record(self, queue: ConsumeQueue, queue_offset: int, entry: QueueEntry) -> Record:
        """The record of this message.

        Raises OffsetExpired, UnknownTopic, DoubtfulEntry, CorruptRecord.
        """
        try:
            if self._log.length_at(entry.physical_offset) == entry.record_bytes:
                record = self._message_at(entry, queue.id, queue_offset)
                if record is not None:
                    return record
        except (CorruptRecord, DamagedRecord, IndexError):
            pass
        return self._doubt(queue, queue_offset)

    def is_confirmed(
        self, queue: ConsumeQueue, queue_offset: int, entries: Sequence[queue_entry.Fields]
    ) -> bool:
        """Are the tags of these entries those of their records? Any thread.

        Not of entries of zeros, which a file has since a page of it could not be read.
        """
        confirmed = self._confirmed.get(queue.id)
        end = queue_offset if confirmed is None else confirmed.end_of(queue_offset)
        needed_end = min(queue_offset + len(entries), queue.trusted_from)
        return max(end, queue_offset) >= needed_end and all(
            record_bytes for _, record_bytes, _ in entries
        )

    def confirmed(
        self, queue: ConsumeQueue, queue_offset: int, entries: list[QueueEntry]
    ) -> list[QueueEntry]:
        """The first of the entries that may be passed over by their tags, at least one. Raises as
        `record`.
        """
        if self.is_confirmed(queue, queue_offset, entries):
            return entries
        entries = entries[:_CONFIRMED_AT_ONCE]
        good = 0
        piece = self._log.fetch(entries)
        while good < len(entries) and self._is_borne_out(
            queue.id, queue_offset + good, entries[good], piece
        ):
            good += 1
        self._confirmed.setdefault(queue.id, Ranges()).add(queue_offset, queue_offset + good)
        if not good:
            self._doubt(queue, queue_offset)
        return entries[:good]

    def first_at(self, queue: ConsumeQueue, log_offset: int) -> int:
        """The first of the queue's messages that is stored at or behind this place in the log, or
        its end.

        Raises DoubtfulEntry.
        """
        low, high = queue.bounds
        middle = low  # nearly always it is the first
        while low < high:
            if self._place_from(queue, middle, high) >= log_offset:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low

    def repair(self, queue: ConsumeQueue, queue_offset: int) -> Iterator[None]:
        """Make the entry again from the log, and those behind it, up to one that is right; a window
        of the log for each step.

        Afterwards the message can be read, or is known to be damaged. The repair ends without that
        if the topic is deleted between two steps: what it wrote then would stay for good.
        """
        try:
            reason = self._reason(queue, queue_offset)
            if reason is None:  # another reader has had it repaired
                return
            is_found = False
            if queue_offset < queue.recent_from:
                self._files.replace_unreadable(queue.id, queue_offset)
                begin = self._place_before(queue, queue_offset)
                yield
                if queue.is_deleted:
                    return
                for found in self._rebuild(queue, queue_offset, begin):
                    is_found = found
                    yield
                    if queue.is_deleted:
                        return
            if not is_found:
                # again: the entry may lead to what a repair left in the place of the message now
                self._note_damage(queue, queue_offset, self._reason(queue, queue_offset) or reason)
        except (OffsetExpired, UnknownTopic, IndexError):
            return  # dropped or deleted meanwhile: the reader meets that

    def repaired(self, queue: ConsumeQueue, queue_offset: int) -> Record:
        """As `record`, by the offset alone, and with what it takes to repair the entry.

        Raises OffsetExpired, CorruptRecord.
        """
        try:
            return self.record(queue, queue_offset, self.entries(queue, queue_offset, 1)[0])
        except DoubtfulEntry:
            for _ in self.repair(queue, queue_offset):
                pass
        return self.record(queue, queue_offset, self.entries(queue, queue_offset, 1)[0])

    def _message_at(self, entry: QueueEntry, queue: QueueId, queue_offset: int) -> Record | None:
        """The record of this message, or the message in an inner batch, at the place that the entry
        says; None where that is another's.

        Raises CorruptRecord, DamagedRecord.
        """
        place = entry.physical_offset, entry.record_bytes
        batch = self._batch
        if batch is None or batch.place != place:
            record = self._log.read(*place)
            if not record.sys_flag & inner_batch.FLAG:
                stated = record.topic, record.queue_number, record.queue_offset
                return record if stated == (*queue, queue_offset) else None
            batch = self._batch = _ReadBatch(*place, record)
        return batch.message_at(queue, queue_offset)

    def _doubt(self, queue: ConsumeQueue, queue_offset: int) -> "Record":
        """Raises what is the matter with this message."""
        if queue_offset < queue.first:
            raise OffsetExpired(requested=queue_offset, available=queue.bounds)
        if queue.is_deleted:
            raise UnknownTopic(f"topic {queue.id.topic} was deleted")
        damage = self._damaged.get((queue.id, queue_offset))
        if damage is None:
            raise DoubtfulEntry(queue.id, queue_offset)
        raise self._log.corrupt(*damage, queue=queue.id, queue_offset=queue_offset)

    def _is_borne_out(
        self, queue: QueueId, queue_offset: int, entry: QueueEntry, piece: Piece | None
    ) -> bool:
        """Are the fields of the entry, its tag too, those of the record?

        The record's own damage elsewhere is no matter.
        """
        offset, length, tag_hash = entry
        try:
            if piece is None or not piece.begin <= offset <= piece.end - length:
                if self._log.length_at(offset) != length:
                    return False
                data, _ = self._log.segments.read_filled(offset, length)
                piece = Piece(offset, offset + length, data)
            at = offset - piece.begin
            if length <= 0 or records.stated_bytes(piece.data, at, offset) != length:
                return False
            topic, number, stated_offset, sys_flag, stored_at_ms, own = records.skim(
                piece.data, at, length
            )
            if sys_flag & inner_batch.FLAG:
                batch = self._batch
                if batch is None or batch.place != (offset, length):
                    batch = _ReadBatch(offset, length, self._log.read(offset, length))
                    self._batch = batch
                entries = batch.entries
                in_batch = queue_offset - stated_offset
                return (topic, number) == (queue.topic.encode("utf-8"), queue.number) and (
                    entries[in_batch : in_batch + 1] == (queue_entry.encode(*entry),)
                    and in_batch >= 0
                )
        except (IndexError, CorruptRecord, DamagedRecord):
            return False
        stated = (topic, number, stated_offset, tags_code(topic, own, stored_at_ms))
        return stated == (queue.topic.encode("utf-8"), queue.number, queue_offset, tag_hash)

    def _place_from(self, queue: ConsumeQueue, queue_offset: int, end: int) -> int:
        """Where the first message from this one on is stored that is not damaged; behind the log
        where there is none.
        """
        while queue_offset < end:
            try:
                return self.record(
                    queue, queue_offset, self.entries(queue, queue_offset, 1)[0]
                ).physical_offset
            except (CorruptRecord, OffsetExpired):
                queue_offset += 1
        return self._log.written_end

    def _place_before(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """The record of a message before this one; the beginning of the log where none of the
        nearest can be read.
        """
        distance = 1
        while queue_offset - distance >= queue.first:
            try:
                before = queue_offset - distance
                return self.record(queue, before, self.entries(queue, before, 1)[0]).physical_offset
            except (CorruptRecord, DoubtfulEntry):
                distance *= 2
        return self._log.first_offset

    def _reason(self, queue: ConsumeQueue, queue_offset: int) -> _Damage | None:
        """The damage of the entry; None where there is none."""
        place, reason = self._log.first_offset, "no record of this message is in the log"
        try:
            (entry,) = self.entries(queue, queue_offset, 1)
            if self._log.length_at(entry.physical_offset) == entry.record_bytes:
                place = entry.physical_offset
                self._message_at(entry, queue.id, queue_offset)
            if self._is_borne_out(queue.id, queue_offset, entry, None):
                return None
        except CorruptRecord as damage:
            return _Damage(damage.physical_offset, damage.reason, damage.was_taken_out)
        except DamagedRecord as damage:  # an inner batch that does not have its messages
            return _Damage(place, str(damage))
        except (DoubtfulEntry, IndexError):
            pass
        return _Damage(place, reason)

    def _rebuild(self, queue: ConsumeQueue, queue_offset: int, begin: int) -> Iterator[bool]:
        """Has the message been found so far?

        For each window of the log from `begin`, which is before it.
        """
        topic = queue.id.topic.encode("utf-8")
        is_found = False
        made: list[tuple[int, bytes]] = []
        for piece in log_walk.stated(self._log.segments, begin, self._log.written_end):
            for offset, length in zip(
                piece.record_offsets.tolist(), piece.record_bytes.tolist(), strict=True
            ):
                begin_in_piece = offset - piece.offset
                number, first = records.stated_queue(piece.data, begin_in_piece)
                if not number and not first:
                    record = piece.data[begin_in_piece : begin_in_piece + length]
                    made += self._lost_entries(queue, queue_offset, offset, record)
                if number != queue.id.number or first + inner_batch.MOST_MESSAGES <= queue_offset:
                    continue
                entries = _entries_of(piece.data, begin_in_piece, offset, length, topic)
                for at, raw in enumerate(entries, first):
                    entry = queue_entry.decode(raw)
                    if at < queue_offset or not self._reads_as(queue, at, entry):
                        continue
                    is_found |= at == queue_offset
                    is_right = at >= queue.recent_from or self._stored(queue, at) == entry
                    if not is_right:
                        made.append((at, raw))
                    if (is_right and at > queue_offset) or at + 1 == queue.recent_from:
                        self._write(queue, made)
                        yield is_found
                        return
            self._write(queue, made)
            yield is_found

    def _lost_entries(
        self, queue: ConsumeQueue, queue_offset: int, offset: int, raw: bytes
    ) -> list[tuple[int, bytes]]:
        """The entries from an offset on that are to be written if the record at this place of the
        log is a note of lost messages.
        """
        try:
            if records.skim(raw, 0, len(raw))[0] != _LOST_TOPIC:
                return []
            lost = lost_note.read(records.decode(raw).body)
        except (DamagedRecord, ValueError, IndexError, msgspec.DecodeError):
            return []
        entry = queue_entry.encode(offset, len(raw), 0)
        return [
            (at, entry)
            for queue_id, (first, end) in lost
            if queue_id == queue.id
            for at in range(max(first, queue_offset), min(end, queue.recent_from))
            if self._stored(queue, at) != queue_entry.decode(entry)
        ]

    def _reads_as(self, queue: ConsumeQueue, queue_offset: int, entry: QueueEntry) -> bool:
        try:
            return self._message_at(entry, queue.id, queue_offset) is not None
        except (CorruptRecord, DamagedRecord):
            return False

    def _stored(self, queue: ConsumeQueue, queue_offset: int) -> QueueEntry | None:
        try:
            return self.entries(queue, queue_offset, 1)[0]
        except (DoubtfulEntry, CorruptRecord):
            return None

    def _write(self, queue: ConsumeQueue, made: list[tuple[int, bytes]]) -> None:
        if not made:
            return
        for queue_offset, entry in made:
            self._files.rewrite(Unflushed(queue, queue_offset, entry))
            self._damaged.pop((queue.id, queue_offset), None)
        self.rebuilt_entries += len(made)
        log.error(
            "queue_entries_rebuilt", queue=str(queue.id), queue_offset=made[0][0], count=len(made)
        )
        made.clear()

    def _note_damage(self, queue: ConsumeQueue, queue_offset: int, damage: _Damage) -> None:
        if len(self._damaged) >= _MOST_DAMAGED:
            self._damaged.clear()
        self._damaged[queue.id, queue_offset] = damage


def _entries_of(data: bytes, begin: int, offset: int, length: int, topic: bytes) -> Sequence[bytes]:
    """The queue entries of the messages in a record of this topic, whose bytes begin there in
    `data`; none if the record is of another topic, is in no queue, or is damaged.
    """
    try:
        found_topic, _, _, sys_flag, stored_at_ms, own = records.skim(data, begin, length)
        if found_topic != topic or sys_flag & records.TRANSACTION_MASK not in QUEUED:
            return ()
        if sys_flag & inner_batch.FLAG:
            return entries_of_batch(offset, length, records.decode(data[begin : begin + length]))
    except DamagedRecord:
        return ()
    return (queue_entry.encode(offset, length, tags_code(topic, own, stored_at_ms)),)
