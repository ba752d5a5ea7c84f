"""Units as another machine wrote them: verified, stored at the end of the log, and shown once they
are safe.

What arrives is whole units, byte for byte as they are to lie in the log, at the place where they
are to lie. So the log of a replica is its primary's, and everything that is derived from it, too.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from storage.errors import CorruptRecord
from storage.formats import queue_entry, scan
from storage.formats import record as records
from storage.formats.epochs import EpochHistory
from storage.formats.record import to_message
from storage.formats.scan import Scan, Stop
from storage.journal import read_event
from storage.local.append.copies import Copies
from storage.local.append.flusher import Flusher
from storage.local.log.log_tail import LogTail
from storage.local.queues import group_offsets
from storage.local.queues.consume_queue import ConsumeQueue, ConsumeQueues
from storage.local.queues.group_offsets import GroupOffsets
from storage.local.queues.replay import Replay

MAX_UNIT_BYTES = 64 << 20  # more than any request makes
_MOST_KEPT_BYTES = 32 << 20  # of units that are not shown yet; others are read from the log again


class _Stored(NamedTuple):
    """Units that are stored and not yet shown; `data`: None where they are not kept in memory."""

    data: bytes | None
    offset: int
    scan: Scan
    stored_at_ms: int


class ReceivedUnits:
    """Stores and shows the units of a primary. Owner's thread only."""

    def __init__(
        self,
        tail: LogTail,
        flusher: Flusher,
        queues: ConsumeQueues,
        offsets: GroupOffsets,
        epochs: EpochHistory,
        *,
        units_end: int,
        copies: Copies,
        on_visible: Callable[[Iterable[ConsumeQueue]], None],
        on_deleted: Callable[[str, list[ConsumeQueue]], None],
        read: Callable[[int, int], bytes],
    ) -> None:
        """`copies` says what is safe. `epochs`: of the log; they are added to. `units_end`: of the
        units that are there.

        `on_visible` is called with the queues that have new messages, `on_deleted` with each topic
        that a message deletes, and its queues. `read`: so many bytes from a log offset on.
        """
        self._tail = tail
        self._flusher = flusher
        self._queues = queues
        self._offsets = offsets
        self._epochs = epochs
        self._copies = copies
        self._on_visible = on_visible
        self._on_deleted = on_deleted
        self._read = read
        self._replay = Replay(queues)
        self._replay.last_stored_at_ms = tail.visible_stored_at_ms
        self.units_end = units_end  # an end-of-file record may follow
        self._hidden: deque[_Stored] = deque()
        self._kept_bytes = 0  # of them

    def take(self, offset: int, data: bytes) -> bool:
        """Store the whole units that these bytes of one segment begin with, and the end-of-file
        record behind them; what is behind that, or ends within a unit, is left.

        False: the log has no room yet, nothing is stored. Raises CorruptRecord: they are not what
        may follow here, and nothing is stored. Raises StorageFull, Backpressure: as an append.
        """
        tail = self._tail
        if offset != tail.written_end:
            raise CorruptRecord(None, offset, f"the log here ends at {tail.written_end}")
        end = offset + len(data)
        needed_end = min(end + records.END_OF_FILE_BYTES, tail.segment_end)
        if not tail.has_room(needed_end, from_reserve=True):
            tail.require(needed_end)
            if tail.is_full and not tail.may_reach(needed_end):
                raise tail.refusal()
            return False
        found = self._judge(offset, data)
        units = data[: found.end - offset]
        if units and not self._store(units, offset, found):
            return False  # the log has failed
        if found.stop is Stop.END_OF_FILE and not tail.close_segment():
            return False
        self._flusher.request(tail.written_end, tail.stored_at_ms)
        return True

    def show_safe(self) -> None:
        """Let readers see what is safe by now."""
        safe_end = self._copies.safe_end
        while self._hidden and self._hidden[0].scan.end <= safe_end:
            stored = self._hidden.popleft()
            data = stored.data
            if data is None:
                data = self._read(stored.offset, stored.scan.end - stored.offset)
            else:
                self._kept_bytes -= len(data)
            self._show(stored, data)

    def _judge(self, offset: int, data: bytes) -> Scan:
        """Raises CorruptRecord."""
        segment_end = self._tail.segment_end
        if offset + len(data) > segment_end:
            raise CorruptRecord(None, offset, f"more than the segment up to {segment_end}")
        epoch = self._epochs.last_epoch
        found = scan.scan(data, offset, begin=offset, segment_end=segment_end, epoch=epoch)
        if found.stop not in (Stop.END_OF_FILE, Stop.WINDOW_END):
            raise CorruptRecord(None, found.end, found.reason or "zeros where a unit must begin")
        if found.stop is Stop.WINDOW_END and offset + len(data) - found.end > MAX_UNIT_BYTES:
            raise CorruptRecord(None, found.end, f"a unit of more than {MAX_UNIT_BYTES} bytes")
        return found

    def _store(self, units: bytes, offset: int, found: Scan) -> bool:
        tail = self._tail
        if not tail.store(offset, units):
            return False
        at, length = int(found.record_offsets[-1]) - offset, int(found.record_bytes[-1])
        stored_at_ms = max(tail.stored_at_ms, records.skim(units, at, length)[4])
        for begun in found.epoch_begins:
            is_first = begun.offset == offset
            self._epochs.note(begun.epoch, self.units_end if is_first else begun.offset)
        self.units_end = found.end
        tail.advance(found.end, stored_at_ms)
        is_kept = self._kept_bytes + len(units) <= _MOST_KEPT_BYTES
        self._kept_bytes += len(units) if is_kept else 0
        self._hidden.append(_Stored(units if is_kept else None, offset, found, stored_at_ms))
        return True

    def _show(self, stored: _Stored, data: bytes) -> None:
        offsets_end = self._queues[group_offsets.QUEUE].end
        self._replay.feed(data, stored.offset, stored.scan)
        self._tail.show(stored.scan.end, stored.stored_at_ms)
        self._apply_offsets(stored.offset, data, offsets_end)
        for topic, queues in self._replay.take_deleted():
            self._on_deleted(topic, queues)
        self._on_visible(self._replay.take_fed())

    def _apply_offsets(self, units_offset: int, units: bytes, begin: int) -> None:
        """The new messages of the offset topic, from the queue offset `begin` on."""
        queue = self._queues[group_offsets.QUEUE]
        begin = max(begin, queue.first)
        entries = queue.recent(begin, queue.end - begin) or b""
        for offset, length, _ in queue_entry.fields_of_all(entries):
            at = offset - units_offset
            record = records.decode(units[at : at + length])
            if record.topic == group_offsets.QUEUE.topic:  # or a note that it was lost
                read_event(to_message(record), self._offsets.apply)
