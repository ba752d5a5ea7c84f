"""The commit log: every message of the store, in one sequence of bytes.

Reads here; the writer (`log_writer.py`) owns the end of it. A unit that this process wrote or has
verified is served without asking again, another is verified first: damage is found and never
served.
"""

from collections.abc import Iterator, Sequence
from operator import add
from typing import NamedTuple

from storage.errors import CorruptRecord
from storage.files.segments import Segments
from storage.formats import queue_entry, record_block, scan, stored_record, unit
from storage.formats import record as records
from storage.formats.names import LOST_TOPIC
from storage.formats.queue_entry import ENTRY_BYTES, Fields, QueueEntry
from storage.formats.record import DamagedRecord, Record
from storage.formats.record_block import RecordBlock
from storage.formats.stored_record import StoredRecord
from storage.local.log.ranges import Ranges
from storage.message import QueueId

_HOT_BYTES = 32 << 20  # behind the writer, the mapping is in memory: it has just been stored into
# of one fetch, in a thread that may wait: records of a queue, and what is between them
_FETCHED_BYTES = 1 << 20
# a longer record is read in a thread, disk or not: it takes milliseconds to copy
_AT_ONCE_BYTES = 1 << 18
# of a unit at first: most are small, and who reads scattered ones verifies each
_VERIFY_WINDOW = 1 << 16


class Piece(NamedTuple):
    """Bytes of the log from `begin` to `end`; nothing in them was looked at."""

    begin: int
    end: int
    data: bytes


class CommitLog:
    def __init__(self, segments: Segments, *, trusted_from: int, written_end: int) -> None:
        """Records at or behind `trusted_from` were verified by recovery, or are written by this
        process.
        """
        self.segments = segments
        self.trusted_from = trusted_from
        self.written_end = written_end  # the writer moves it
        self._verified = Ranges()
        self._buffer = bytearray(_AT_ONCE_BYTES)

    @property
    def first_offset(self) -> int:
        return self.segments.first_offset

    def is_known(self, offset: int, length: int) -> bool:
        """Is the record verified, and short enough for the owner's thread? Any thread."""
        return 0 < length <= _AT_ONCE_BYTES and (
            offset >= self.trusted_from or self._verified.covers(offset)
        )

    def read_now(self, offset: int, length: int) -> Record | None:
        """The record, or None where the disk must be asked (then `read`, in a thread that may
        wait). Raises CorruptRecord.
        """
        if not self.is_known(offset, length):
            return None
        raw = self._bytes_now(offset, length)
        return None if raw is None else self._decode(raw, offset, length)

    def stored_now(
        self, queue: QueueId, queue_offsets: Sequence[int], entries: Sequence[Fields]
    ) -> list[StoredRecord]:
        """The first of the records that these entries of a queue point to, as many as memory has in
        one segment.

        Empty where the disk must be asked for the first one, or it was never verified, or it or its
        entry is damaged: the read lane finds out which.
        """
        try:
            segment = self.segments.find(entries[0][0])
        except IndexError:  # a damaged entry points outside of the log
            return []
        trusted_from, is_verified, base = (
            self.trusted_from,
            self._verified.covers,
            segment.base_offset,
        )
        hot_from = max(trusted_from, self.written_end - _HOT_BYTES)
        is_hot = entries[0][0] >= hot_from
        begin, end = hot_from if is_hot else base, min(segment.end_offset, self.written_end)
        places: list[tuple[int, int]] = []
        for offset, length, _ in entries:
            if not 0 < length <= _AT_ONCE_BYTES or offset < begin or offset + length > end:
                break
            if offset < trusted_from and not is_verified(offset):
                break
            places.append((offset - base, length))
        if not places or queue.topic == LOST_TOPIC:
            return []
        found = segment.read_each_cached(places, self._buffer, is_hot=is_hot)
        return stored_record.of_queue(queue, queue_offsets, entries, found)

    def block_now(
        self, queue: QueueId, queue_offset: int, entries: bytes, *, max_bytes: int
    ) -> RecordBlock | None:
        """The records that these entries of a queue point to, all of them, from memory.

        None where the disk must be asked, or one was never verified, or it or its entry is damaged,
        or they have more than `max_bytes` together, or are in several segments: `stored_now` and
        the read lane find out which.
        """
        is_few = len(entries) <= record_block.FEW * ENTRY_BYTES
        found_at = (
            queue_entry.fields_of_all(entries) if is_few else record_block.entries_of(entries)
        )
        if isinstance(found_at, list):
            offsets, lengths = (
                [place for place, _, _ in found_at],
                [length for _, length, _ in found_at],
            )
        else:
            offsets, lengths = found_at.physical_offsets.tolist(), found_at.record_bytes.tolist()
        if (
            min(lengths) < records.FIXED_BYTES
            or sum(lengths) > max_bytes
            or queue.topic == LOST_TOPIC
        ):
            return None
        if sorted(offsets) != offsets:  # they ascend, as the messages of a queue do
            return None
        begin, end = offsets[0], offsets[-1] + lengths[-1]
        try:
            segment = self.segments.find(begin)
        except IndexError:  # a damaged entry points outside of the log
            return None
        limit = min(segment.end_offset, self.written_end)
        if offsets[-1] + max(lengths) > limit and max(map(add, offsets, lengths)) > limit:
            return None
        if begin < self.trusted_from and self._verified.end_of(begin) < min(end, self.trusted_from):
            return None
        is_hot = begin >= max(self.trusted_from, self.written_end - _HOT_BYTES)
        base = segment.base_offset
        if isinstance(found_at, list):
            places = [
                (offset - base, length) for offset, length in zip(offsets, lengths, strict=True)
            ]
            found = segment.read_ascending_cached(places, self._buffer, is_hot=is_hot)
            return record_block.few_of_queue(queue, queue_offset, found_at, found)
        data = segment.read_joined_cached(
            found_at.physical_offsets - base, lengths, self._buffer, is_hot=is_hot
        )
        return record_block.of_queue(queue, queue_offset, found_at, data)

    def fetch(self, entries: Sequence[QueueEntry]) -> Piece | None:
        """The bytes that these entries of a queue point to; they may end before the last of them.

        May wait for the disk.
        """
        begin, end = (
            entries[0].physical_offset,
            entries[-1].physical_offset + entries[-1].record_bytes,
        )
        if len(entries) < 2 or not 0 < end - begin <= _FETCHED_BYTES:
            return None
        try:
            data, _ = self.segments.read_filled(begin, end - begin)
        except IndexError:  # a damaged entry points outside of the log
            return None
        return Piece(begin, begin + len(data), data)

    def _bytes_now(self, offset: int, length: int) -> bytes | None:
        """Bytes of the log from memory; None where the disk must be asked, or no one segment has
        them all.
        """
        try:
            if offset >= self.trusted_from and offset >= self.written_end - _HOT_BYTES:
                if offset + length > self.written_end:  # damaged, too; not from the mapping
                    return None
                raw = self.segments.read_mapped(offset, length)
                return raw if raw is not None and len(raw) == length else None
            return self.segments.read_cached(offset, length)
        except IndexError:  # a damaged entry points outside of the log
            return None

    def read(self, offset: int, length: int) -> Record:
        """The record at this offset. May wait for the disk.

        Raises CorruptRecord; UnreadableLog of a place that does not count as damage yet.
        """
        raw, unreadable = self.segments.read_filled(offset, length)
        if unreadable:
            raise self.corrupt(offset, unreadable)
        record = self._decode(raw, offset, length)
        if offset < self.trusted_from and not self._verified.covers(offset):
            self._verify(record, offset)
        return record

    def read_at(self, offset: int) -> Record | None:
        """The record that begins there, where the caller does not know its length; None where none
        does.
        """
        if not self.first_offset <= offset < self.written_end:
            return None
        try:
            length = self.length_at(offset)
            return self.read(offset, length) if length else None
        except IndexError:  # its segment was dropped meanwhile
            return None

    def _decode(self, raw: bytes, offset: int, length: int) -> Record:
        try:
            record = records.decode(raw)
        except DamagedRecord as damage:
            raise self.corrupt(offset, str(damage)) from None
        if record.physical_offset != offset or records.start(raw)[0] != length:
            raise self.corrupt(offset, f"the record says it lies at {record.physical_offset}")
        if record.topic == LOST_TOPIC:
            raise self.corrupt(
                offset, "the message was damaged, and a repair left it out", was_taken_out=True
            )
        return record

    def _verify(self, record: Record, offset: int) -> None:
        """Check the unit that the record belongs to; where it fails, the record alone.

        Of a damaged unit the records are served in which no damage shows, as long as it shows in
        one of them: then it is known where the damage is. Where it shows in none, a header or a
        property is wrong, of a record that cannot be determined.
        """
        for stated in _stated_items(record):
            if self._is_whole(stated, offset):
                return
        item = self._item_of(record, offset)
        first_offset = offset if item is None else item.first_offset
        step = self._judge(first_offset)
        if isinstance(step, scan.Unit):
            self._verified.add(first_offset, first_offset + step.end)
            return
        if item is None:
            raise self.corrupt(offset, step.reason)
        if records.body_crc(record.body) != record.body_crc:
            raise self.corrupt(offset, "the CRC of the body differs")
        if not any(self._is_damaged_alone(place, length) for place, length in self.chain(item)):
            raise self.corrupt(offset, f"its unit at {first_offset} is damaged: {step.reason}")

    def _item_of(self, record: Record, offset: int) -> unit.UnitItem | None:
        """The record's unit item, where the record belongs to that unit: a broker's copy carries
        one of another place.
        """
        for item in _stated_items(record):
            if any(place == offset for place, _ in self.chain(item)):
                return item
        return None

    def _is_whole(self, item: unit.UnitItem, offset: int) -> bool:
        """Does the record belong to this unit, and is the unit whole? Then it is verified."""
        if not self.first_offset <= item.first_offset <= offset:
            return False
        step = self._judge(item.first_offset, at_least=offset + 1 - item.first_offset)
        if not isinstance(step, scan.Unit) or offset - item.first_offset not in [
            at for at, _ in step.records
        ]:
            return False
        self._verified.add(item.first_offset, item.first_offset + step.end)
        return True

    def _judge(self, first_offset: int, *, at_least: int = 0) -> scan.Unit | scan.Halt:
        segment = self.segments.find(first_offset)
        length = max(_VERIFY_WINDOW, 2 * at_least)
        while True:
            window, _ = self.segments.read_filled(first_offset, length)
            step = scan.judge(window, 0, first_offset, segment_end=segment.end_offset)
            if isinstance(step, scan.Unit) or step.stop is not scan.Stop.WINDOW_END:
                return step
            length *= 4

    def chain(self, item: unit.UnitItem) -> Iterator[tuple[int, int]]:
        """Place and length of the records that the item counts, as far as their lengths lead."""
        place = item.first_offset
        if not self.first_offset <= place < self.segments.end_offset:
            return
        for _ in range(item.record_count):
            length = self.length_at(place)
            if not length:
                return
            yield place, length
            place += length

    def length_at(self, offset: int) -> int:
        """The length of the record that begins here; 0 where none can.

        Raises IndexError outside of the log.
        """
        segment = self.segments.find(offset)
        raw, _ = self.segments.read_filled(offset, records.END_OF_FILE_BYTES)
        total = records.start(raw)[0] if len(raw) == records.END_OF_FILE_BYTES else 0
        return total if records.FIXED_BYTES <= total <= segment.end_offset - offset else 0

    def _is_damaged_alone(self, offset: int, length: int) -> bool:
        raw, unreadable = self.segments.read_filled(offset, length)
        if unreadable:
            return True
        try:
            record = records.decode(raw)
        except DamagedRecord:
            return True
        return records.body_crc(record.body) != record.body_crc or record.physical_offset != offset

    def corrupt(
        self,
        offset: int,
        reason: str,
        was_taken_out: bool = False,
        *,
        queue: QueueId | None = None,
        queue_offset: int | None = None,
    ) -> CorruptRecord:
        return CorruptRecord(
            self.segments.find(offset).path,
            offset,
            reason,
            queue=queue,
            queue_offset=queue_offset,
            was_taken_out=was_taken_out,
        )


def _stated_items(record: Record) -> Iterator[unit.UnitItem]:
    """The unit items that are where a record of ours has its own."""
    for tail in (0, unit.SEAL_BYTES):
        item = unit.decode_item(
            record.properties, max(0, len(record.properties) - unit.UNIT_ITEM_BYTES - tail)
        )
        if item is not None:
            yield item
