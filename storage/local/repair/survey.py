"""A walk over the whole log past every damage: what a repair has to know before it changes
anything. Reads only.

The walk goes on behind a damage at the next whole unit: a unit of ours and a
broker's record name the log offset at which they were stored, so no copy in the body of a message
is taken for one. Nor is a record of the damaged unit (`scan.judge`, `damaged_from`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from storage.files.segments import Segment, Segments
from storage.formats import inner_batch, lost_note, scan, unit
from storage.formats import record as records
from storage.formats.names import LOST_TOPIC, QUEUE_END_TOPIC
from storage.formats.record import DamagedRecord, Record
from storage.local.queues import queue_ends
from storage.local.queues.replay import QUEUED
from storage.message import Message, OffsetRange, QueueId

_WINDOW_BYTES = 4 << 20
_SEARCH_BYTES = 4 << 20
_REACH_BYTES = 32 << 20  # more than the largest request makes
_END_OF_FILE = records.MAGIC_END_OF_FILE.to_bytes(4, "big")
_NOTES = (LOST_TOPIC.encode("ascii"), QUEUE_END_TOPIC.encode("ascii"))

Progress = Callable[[int, int], None]
"""(bytes of log walked, bytes to walk)"""


class Damage(NamedTuple):
    """Bytes of the log that are no whole unit; whole ones follow at `end`."""

    begin: int
    end: int
    reason: str


class Border(NamedTuple):
    """The state of the log up to a border of units, as a note that is written there states it."""

    offset: int
    epoch: int
    synced_offset: int
    stored_at_ms: int


class Survey(NamedTuple):
    """`before` and `after` count queue offsets around the place that was asked about, where it is a
    border; else None.

    `before`: the next offset of each queue at that place. `after`: the first and the next offset of
    what follows it.
    """

    end: Border
    tail: str  # why the log ends there, where it is not with zeros
    damages: list[Damage]
    known_synced: int  # by the units alone
    at_place: Border | None
    before: dict[QueueId, int]
    after: dict[QueueId, OffsetRange]


def survey(segments: Segments, place: int | None, progress: Progress) -> Survey:
    """Walk the log.

    Queue offsets are counted only where a `place` is given: it takes a look at each record.
    """
    walk = _Walk(segments, place)
    at = segments.first_offset
    walk.arrive(at)
    damages: list[Damage] = []
    tail = ""
    window_bytes = _WINDOW_BYTES
    while at < segments.end_offset:
        segment = segments.find(at)
        offset = at - at % unit.ALIGNMENT
        length = window_bytes
        if place is not None and at < place < segment.end_offset:
            # so that the walk stops there, where it is a border
            length = min(length, place - offset)
        window = segment.read_sequential(offset - segment.base_offset, length)
        found = scan.scan(
            window, offset, begin=at, segment_end=segment.end_offset, epoch=walk.border.epoch
        )
        walk.note(window, offset, found)
        progress(found.end - segments.first_offset, segments.end_offset - segments.first_offset)
        if found.stop is scan.Stop.END_OF_FILE:
            at = segment.end_offset
        elif found.stop is scan.Stop.WINDOW_END:
            if found.end == at:
                if place is not None and length < window_bytes:
                    place = None  # it is inside of a unit
                else:
                    window_bytes *= 2
            else:
                window_bytes = _WINDOW_BYTES
            at = found.end
        else:
            walk.arrive(found.end)
            following = next_whole(segments, found.end, walk.border.epoch)
            if following is None:
                tail = found.reason
                at = found.end
                break
            damages.append(Damage(found.end, following, found.reason or "zeros where a unit was"))
            at = following
        walk.arrive(at)
    return Survey(
        walk.border._replace(offset=at),
        tail,
        damages,
        walk.border.synced_offset,
        walk.at_place,
        walk.before,
        walk.after,
    )


def next_whole(segments: Segments, begin: int, epoch: int) -> int | None:
    """The first place after `begin` with a whole unit or an end-of-file record; None if the log
    ends before one.
    """
    segment = segments.find(begin)
    following = next(_whole_in(segment, begin + 1, epoch, begin), None)
    for later in segments:
        if following is not None:
            break
        if later.base_offset > begin:
            is_whole = _begins_whole(later)
            following = (
                later.base_offset
                if is_whole
                else next(_whole_in(later, later.base_offset, epoch, begin), None)
            )
    return following


def _begins_whole(segment: Segment) -> bool:
    window = segment.read(0, _REACH_BYTES)
    step = scan.judge(window, 0, segment.base_offset, segment_end=segment.end_offset)
    return isinstance(step, scan.Unit) or step.stop is scan.Stop.END_OF_FILE


def _whole_in(segment: Segment, begin: int, epoch: int, damaged_from: int) -> Iterator[int]:
    for data_begin, data_end in data_ranges(segment, begin - segment.base_offset):
        for at in range(
            segment.base_offset + data_begin, segment.base_offset + data_end, _SEARCH_BYTES
        ):
            end = min(at + _SEARCH_BYTES, segment.base_offset + data_end)
            offset = at - at % unit.ALIGNMENT
            window = segment.read(offset - segment.base_offset, end - offset + _REACH_BYTES)
            units = _units_between(window, offset, at, end, segment.end_offset, epoch, damaged_from)
            ends = _ends_of_file_between(window, offset, at, end, segment.end_offset)
            yield from sorted(
                place for place in (next(units, None), next(ends, None)) if place is not None
            )


def data_ranges(segment: Segment, begin: int) -> list[tuple[int, int]]:
    """(begin, end) of all in the segment from `begin` on that may hold anything but zeros."""
    with segment.use() as file:
        return file.data_ranges(begin)


def _units_between(
    window: bytes,
    offset: int,
    begin: int,
    end: int,
    segment_end: int,
    epoch: int,
    damaged_from: int,
) -> Iterator[int]:
    for at in scan.record_places(window, begin - offset, end - offset):
        step = scan.judge(
            window, at, offset, segment_end=segment_end, epoch=epoch, damaged_from=damaged_from
        )
        if isinstance(step, scan.Unit):
            yield offset + at


def _ends_of_file_between(
    window: bytes, offset: int, begin: int, end: int, segment_end: int
) -> Iterator[int]:
    at = window.find(_END_OF_FILE, begin - offset + 4) - 4
    while 0 <= at < end - offset:
        if records.start(window, at)[0] == segment_end - offset - at:
            yield offset + at
        at = window.find(_END_OF_FILE, at + 5) - 4


def readable_records(raw: bytes, begin: int) -> list[Record]:
    """The records that can still be read of a damaged part of the log that begins at `begin`: those
    that name their own place.
    """
    found = []
    for at in scan.record_places(raw, 0, len(raw)):
        try:
            record = records.decode(raw, at)
        except DamagedRecord:
            continue
        if record.physical_offset == begin + at:
            found.append(record)
    return found


class _Walk:
    def __init__(self, segments: Segments, place: int | None) -> None:
        self._place = place
        self._next: dict[tuple[bytes, int], int] = {}
        self._after: dict[tuple[bytes, int], tuple[int, int]] = {}
        self.before: dict[QueueId, int] = {}
        self.border = Border(segments.first_offset, 0, 0, 0)
        self.at_place: Border | None = None

    @property
    def after(self) -> dict[QueueId, OffsetRange]:
        return {_queue(key): OffsetRange(*bounds) for key, bounds in self._after.items()}

    def arrive(self, at: int) -> None:
        """A border of units."""
        self.border = self.border._replace(offset=at)
        if at == self._place and self.at_place is None:
            self.at_place = self.border
            self.before = {_queue(key): next_offset for key, next_offset in self._next.items()}

    def note(self, window: bytes, offset: int, found: scan.Scan) -> None:
        epoch = max(self.border.epoch, found.epoch)
        self.border = self.border._replace(
            epoch=epoch, synced_offset=max(self.border.synced_offset, found.synced_offset)
        )
        if self._place is None:
            return
        counted = self._next if self.at_place is None else None
        for begin, length in zip(
            found.record_offsets.tolist(), found.record_bytes.tolist(), strict=True
        ):
            topic, number, queue_offset, sys_flag, stored_at_ms, own = records.skim(
                window, begin - offset, length
            )
            if stored_at_ms > self.border.stored_at_ms:
                self.border = self.border._replace(stored_at_ms=stored_at_ms)
            if topic in _NOTES:
                self._note_noted(records.to_message(records.decode(window, begin - offset)))
            if sys_flag & records.TRANSACTION_MASK in QUEUED:
                key, end = (topic, number), queue_offset + inner_batch.width(sys_flag, own)
                if counted is not None:
                    counted[key] = end
                else:
                    self._see_after(key, queue_offset, end)

    def _note_noted(self, note: Message) -> None:
        is_of_ends = note.queue.topic == QUEUE_END_TOPIC
        rows = (
            [(queue, (end, end)) for queue, end in queue_ends.read_ends(note.body)]
            if is_of_ends
            else lost_note.read(note.body)
        )
        is_forgotten = is_of_ends and note.tag == queue_ends.FORGOTTEN
        for queue, (first, end) in rows:
            key = (queue.topic.encode("utf-8"), queue.number)
            if is_forgotten:
                self._next[key] = 0
                self._after.pop(key, None)
            elif self.at_place is None:
                self._next[key] = max(self._next.get(key, 0), end)
            else:
                self._see_after(key, first, end)

    def _see_after(self, key: tuple[bytes, int], first: int, end: int) -> None:
        known = self._after.get(key)
        self._after[key] = (first, end) if known is None else (known[0], max(known[1], end))


def _queue(key: tuple[bytes, int]) -> QueueId:
    return QueueId(key[0].decode("utf-8"), key[1])
