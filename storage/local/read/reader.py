"""Messages from queues: from memory in the owner's thread, and what memory does not hold from the
files in the read lane.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby, takewhile, zip_longest
from operator import itemgetter
from typing import TypeVar

from storage.errors import CorruptRecord, OffsetBeyondEnd, OffsetExpired, RejectedError
from storage.formats import inner_batch, stored_record
from storage.formats import record as records
from storage.formats.queue_entry import ENTRY_BYTES, Fields, QueueEntry
from storage.formats.record_block import RecordBlock
from storage.formats.stored_record import StoredRecord
from storage.local.lanes.futures import Repairs, in_lane
from storage.local.lanes.runner import Lane, Runner
from storage.local.queues.consume_queue import ConsumeQueue
from storage.local.queues.queue_check import DoubtfulEntry
from storage.local.store_files import StoreFiles
from storage.message import QueueId, StoredMessage
from storage.store import Scanned, ScannedRecords
from storage.store_status import ReadStatistics

T = TypeVar("T")

_AT_ONCE = 32  # messages that are decoded; half a millisecond
_RECORDS_AT_ONCE = 256  # records that are read as they are; the same
_BYTES_AT_ONCE = 1 << 20  # of these; the same
_ENTRIES_AT_ONCE = 1_024  # of a queue, where most of what they point to is not read
_OVERHEAD_BYTES = 256  # of a record beside its body: more than most have


class Reader:
    """Reads messages of queues that grow and expire meanwhile, and whose files may be damaged."""

    def __init__(self, files: StoreFiles, runner: Runner) -> None:
        self._log = files.log
        self._queues = files.recovered.queues
        self._files = files.queue_files
        self._check = files.queue_check
        self._runner = runner
        self._repairs = Repairs(runner)
        self._misses = files.segments.misses
        self._tells_cached = files.tells_cached
        # where `block_now` has just missed bytes: by the time that `read_records` reads there, the
        # kernel may have fetched them
        self._missed_at: tuple[QueueId, int] | None = None
        self._total_reads = 0
        self._cold_reads = 0

    def statistics(self) -> ReadStatistics | None:
        """Numbers of reads; None where the file system does not say what is cached."""
        if not self._tells_cached:
            return None
        return ReadStatistics(self._total_reads, self._cold_reads)

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        page = _Page(queue_offset, max_messages, max_bytes)
        await self._fill(page, self._readable(queue, queue_offset), max_messages)
        return await _decoded(page.records)

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
        page = _Page(queue_offset, max_messages, max_bytes, tag_codes)
        await self._fill(page, self._readable(queue, queue_offset), max_scanned)
        return Scanned(await _decoded(page.records), page.next_offset)

    async def read_records(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int] | None,
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> ScannedRecords:
        page = _Page(queue_offset, max_messages, max_bytes, tag_codes)
        await self._fill(page, self._readable(queue, queue_offset), max_scanned)
        return ScannedRecords(page.records, page.next_offset)

    def block_now(
        self, queue: QueueId, queue_offset: int, count: int, *, max_bytes: int
    ) -> RecordBlock | None:
        """The records of so many messages, which the queue has, at least one; None where
        `read_records` has to find them.
        """
        found = self._queues[queue]
        entries = b""
        # once more where one file ends, or the entries in memory begin
        while len(entries) < count * ENTRY_BYTES:
            known = len(entries) // ENTRY_BYTES
            more = self._files.bytes_now(found, queue_offset + known, count - known)
            if not more:
                return None
            entries += more
        missed = self._misses.of_owner
        block = self._log.block_now(queue, queue_offset, entries, max_bytes=max_bytes)
        if block is not None:
            self._total_reads += 1
        elif self._misses.of_owner > missed:
            self._missed_at = queue, queue_offset
        return block

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """A few at a time from memory, so that others get their turn; the rest in one go in the
        read lane.
        """
        found: list[StoredMessage | RejectedError | CorruptRecord | None] = []
        is_cold = False
        for begin in range(0, len(places), _AT_ONCE):
            missed = self._misses.of_owner
            for queue, same_queue in groupby(places[begin : begin + _AT_ONCE], key=itemgetter(0)):
                found += self._read_each_now(
                    queue, [queue_offset for _, queue_offset in same_queue]
                )
            is_cold = is_cold or self._misses.of_owner > missed
            max_bytes -= sum(
                [len(one.body) for one in found[begin:] if isinstance(one, StoredMessage)]
            )
            if max_bytes <= 0:
                break
            await asyncio.sleep(0)
        waiting = [number for number, one in enumerate(found) if one is None]
        if waiting:
            asked = [places[number] for number in waiting]
            fetched: list[StoredMessage | RejectedError | CorruptRecord] = []
            is_cold |= await self._is_cold(
                lambda: self._read_each_waiting(asked, fetched, max(1, max_bytes))
            )
            for number, one in zip(waiting, fetched, strict=False):
                found[number] = one
        self._count(is_cold=is_cold)
        return list(takewhile(lambda one: one is not None, found))  # type: ignore[arg-type]

    async def in_read_lane(self, job: Callable[[], T]) -> T:
        """Run the job in a reading thread; its result.

        Entries of queue files that it doubts are repaired, then it is called again.
        """
        while True:
            try:
                return await in_lane(self._runner, Lane.READ, job)
            except DoubtfulEntry as doubt:
                await self._repairs.run(
                    partial(self._check.repair, self._queues[doubt.queue], doubt.queue_offset)
                )

    def _readable(self, queue: QueueId, queue_offset: int) -> ConsumeQueue:
        found = self._queues[queue]
        if queue_offset < found.first:
            raise OffsetExpired(requested=queue_offset, available=found.bounds)
        if queue_offset > found.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=found.bounds)
        return found

    def _read_each_now(
        self, queue: QueueId, queue_offsets: Sequence[int]
    ) -> list[StoredMessage | RejectedError | CorruptRecord | None]:
        """The messages in memory, or why there are none; None where a file must be read."""
        found: list[StoredMessage | RejectedError | CorruptRecord | None] = []
        try:
            consume_queue = self._queues[queue]
        except RejectedError as refused:
            return [refused] * len(queue_offsets)
        entries = self._files.read_now(consume_queue, queue_offsets)
        for queue_offset, entry in zip(queue_offsets, entries, strict=True):
            try:
                self._check_message_at(consume_queue, queue_offset)
            except RejectedError as error:
                found.append(error)
                continue
            record = None if entry is None else self._record_now(consume_queue, queue_offset, entry)
            found.append(None if record is None else records.to_message(record))
        return found

    def _record_now(
        self, queue: ConsumeQueue, queue_offset: int, entry: QueueEntry
    ) -> records.Record | None:
        """The record from memory; None where a file must be asked, or it or the log is damaged: the
        read lane finds out which.
        """
        try:
            record = self._log.read_now(entry.physical_offset, entry.record_bytes)
        except CorruptRecord:
            return None
        if record is None or (record.topic, record.queue_number, record.queue_offset) != (
            *queue.id,
            queue_offset,
        ):
            return None
        return None if record.sys_flag & inner_batch.FLAG else record

    def _read_each_waiting(
        self,
        places: Sequence[tuple[QueueId, int]],
        found: list[StoredMessage | RejectedError | CorruptRecord],
        max_bytes: int,
    ) -> None:
        """Read the messages behind those found so far, as many as these bytes allow, at least one.
        Read lane only.
        """
        max_bytes -= sum([len(one.body) for one in found if isinstance(one, StoredMessage)])
        for queue, queue_offset in places[len(found) :]:
            try:
                consume_queue = self._queues[queue]  # its topic may be deleted meanwhile
                entry = self._check.entries(consume_queue, queue_offset, 1)[0]
                message = records.to_message(self._check.record(consume_queue, queue_offset, entry))
                found.append(message)
                max_bytes -= len(message.body)
            except (RejectedError, CorruptRecord) as error:
                found.append(error)
            if max_bytes <= 0:
                break

    def _check_message_at(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Raises OffsetExpired, OffsetBeyondEnd."""
        if queue_offset < queue.first:
            raise OffsetExpired(requested=queue_offset, available=queue.bounds)
        if queue_offset >= queue.end:
            raise OffsetBeyondEnd(requested=queue_offset, available=queue.bounds)

    async def _fill(self, page: "_Page", queue: ConsumeQueue, count: int) -> None:
        """Fill the page with what is wanted of so many messages: a few at a time from memory, as
        `read_each`, the rest in the read lane.
        """
        end = min(queue.end, page.next_offset + count)
        if page.next_offset == end:
            return
        is_cold = self._missed_at == (queue.id, page.next_offset)
        self._missed_at = None
        while page.next_offset < end and not page.is_full:
            if page.next_offset < queue.first:  # it was dropped since the last piece
                raise OffsetExpired(requested=page.next_offset, available=queue.bounds)
            missed = self._misses.of_owner
            is_done = self._fill_now(page, queue, end)
            is_cold = is_cold or self._misses.of_owner > missed
            if not is_done:
                is_cold |= await self._is_cold(lambda: self._fill_waiting(page, queue, end))
            elif page.next_offset < end and not page.is_full:
                await asyncio.sleep(0)
        self._count(is_cold=is_cold)

    async def _is_cold(self, job: Callable[[], None]) -> bool:
        """Run the job in the read lane; whether it had to wait for the disk."""

        def counted() -> bool:
            missed = self._misses.of_lane
            job()
            return self._misses.of_lane > missed

        return await self.in_read_lane(counted)

    def _count(self, *, is_cold: bool) -> None:
        self._total_reads += 1
        self._cold_reads += is_cold

    def _fill_now(self, page: "_Page", queue: ConsumeQueue, end: int) -> bool:
        """A piece of it from memory; False where a file must be asked for the next one."""
        begin = page.next_offset
        at_once = min(_RECORDS_AT_ONCE if page.wants_all else _ENTRIES_AT_ONCE, end - begin)
        entries = self._files.entries_now(queue, begin, at_once)
        if not entries or not (page.wants_all or self._check.is_confirmed(queue, begin, entries)):
            return False
        end = begin + len(entries)  # of what is looked at here
        offsets: Sequence[int] = range(begin, end)
        if not page.wants_all:
            offsets = [
                offset
                for offset, (_, _, tag_hash) in zip(offsets, entries, strict=True)
                if page.wants(tag_hash)
            ]
            entries = [entries[offset - begin] for offset in offsets]
        count = _count_of(entries, page.room, min(page.left_bytes, _BYTES_AT_ONCE))
        if count < len(entries):
            end = offsets[count]
        found = self._log.stored_now(queue.id, offsets[:count], entries[:count]) if count else []
        if found:
            page.add_all(found)
        if page.is_full:
            return True
        if len(found) < count:
            return len(found) > 0
        page.next_offset = end
        return True

    def _fill_waiting(self, page: "_Page", queue: ConsumeQueue, end: int) -> None:
        """Fill the page from the files, until memory may have the next record. Read lane only.

        There many records are read at once.
        """
        while page.next_offset < end and not page.is_full:
            try:
                entries = self._check.entries(queue, page.next_offset, end - page.next_offset)
                if not page.wants_all:
                    entries = self._check.confirmed(queue, page.next_offset, entries)
                for entry, following in zip_longest(entries, entries[1:]):
                    missed = self._misses.of_lane
                    if page.wants(entry.tag_hash):
                        page.add(
                            stored_record.of_record(
                                self._check.record(queue, page.next_offset, entry)
                            )
                        )
                    else:
                        page.next_offset += 1
                    is_cached = self._misses.of_lane == missed
                    if page.is_full or (is_cached and self._is_at_hand(entry, following)):
                        return
            except CorruptRecord as damage:
                page.end_at(damage)

    def _is_at_hand(self, entry: QueueEntry, following: QueueEntry | None) -> bool:
        """May the owner's thread read the next record? Those of one inner batch are read here."""
        return (
            following is not None
            and following.physical_offset > entry.physical_offset
            and self._log.is_known(following.physical_offset, following.record_bytes)
        )


def _count_of(entries: Sequence[Fields], most: int, left_bytes: int) -> int:
    """How many of these records to read: at least one, and about as many as there is room for."""
    entries = entries[:most]
    if sum([record_bytes for _, record_bytes, _ in entries]) <= left_bytes:
        return len(entries)
    count = 0
    for _, record_bytes, _ in entries:
        count += 1
        left_bytes -= record_bytes - _OVERHEAD_BYTES
        if left_bytes < 0:
            break
    return count


async def _decoded(found: list[StoredRecord]) -> list[StoredMessage]:
    """The messages of these records; others have their turn between them."""
    messages = [record.message() for record in found[:_AT_ONCE]]
    for begin in range(_AT_ONCE, len(found), _AT_ONCE):
        await asyncio.sleep(0)
        messages += [record.message() for record in found[begin : begin + _AT_ONCE]]
    return messages


class _Page:
    """The records of one read, up to a number of them and of body bytes but at least one."""

    def __init__(
        self,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: Collection[int] | None = None,
    ) -> None:
        """`tag_codes`: the hashes of the tags that are wanted; None: all."""
        self.records: list[StoredRecord] = []
        self.is_full = False
        # of the first message that was not looked at, or does not fit
        self.next_offset = queue_offset
        self.left_bytes = max_bytes
        self._first_offset = queue_offset
        self._max_messages = max_messages
        self._tag_codes = tag_codes

    @property
    def wants_all(self) -> bool:
        return self._tag_codes is None

    @property
    def room(self) -> int:
        """Number of records that need be read at most: with the last of them it turns out that the
        page is full.
        """
        return min(_RECORDS_AT_ONCE, self._max_messages + 1 - len(self.records))

    def wants(self, tag_hash: int) -> bool:
        """False: the message need not be read, and is passed over."""
        return self._tag_codes is None or tag_hash in self._tag_codes

    def add_all(self, found: list[StoredRecord]) -> None:
        """As `add`, one after another; what is between them is passed over."""
        left_bytes = self.left_bytes - sum([record.body_end - record.body_at for record in found])
        if left_bytes >= 0 and len(self.records) + len(found) <= self._max_messages:
            self.records += found
            self.left_bytes = left_bytes
            self.next_offset = found[-1].queue_offset + 1
            return
        for record in found:
            self.next_offset = record.queue_offset
            self.add(record)
            if self.is_full:
                break

    def add(self, record: StoredRecord) -> None:
        """The record at `next_offset`.

        Where it does not fit any more, the page is full and ends before it.
        """
        self.left_bytes -= record.body_bytes
        if self.records and (self.left_bytes < 0 or len(self.records) == self._max_messages):
            self.is_full = True
            return
        self.records.append(record)
        self.next_offset += 1

    def end_at(self, damage: CorruptRecord) -> None:
        """Serve the messages before the damage; a read that goes on there meets the damage first,
        at its own offset.
        """
        if self.next_offset == self._first_offset:
            raise damage
        self.is_full = True
