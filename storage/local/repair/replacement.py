"""Replacement of damaged bytes by a repair, and the offsets that it or a cut loses.

Pure: decides, and writes nothing.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from storage.formats import lost_note, names, scan, unit
from storage.formats import record as records
from storage.formats.lost_note import LostRange
from storage.formats.record import DamagedRecord, Record
from storage.formats.unit import UnitItem
from storage.local.queues.replay import QUEUED
from storage.local.repair.known_queues import KnownQueue
from storage.local.repair.repair_report import RepairRefused
from storage.local.repair.survey import Border, Survey
from storage.message import OffsetRange, QueueId


def lost_behind(
    seen: Survey, known: Mapping[QueueId, KnownQueue], found: Iterable[Record]
) -> list[LostRange]:
    """The ranges that a cut at the survey's place loses: by the units behind it, damaged ones
    included, and by derived files.
    """
    # offsets of which each queue has, or had, one behind the cut; or the next one
    places: dict[QueueId, list[int]] = {}
    for queue, (first, end) in seen.after.items():
        places[queue] = [first, end]
    for queue, by_files in known.items():
        places.setdefault(queue, []).extend((by_files.at_place, by_files.end))
    for record in found:
        if record.transaction in QUEUED:
            at = record.queue_offset
            places.setdefault(QueueId(record.topic, record.queue_number), []).extend((at, at + 1))
    lost = []
    for queue in sorted({*seen.before, *places}):
        first = seen.before.get(queue, min(places.get(queue, [0])))
        end = max([first, *places.get(queue, ())])
        if first < end or (first and queue not in seen.before):
            lost.append(LostRange(queue, OffsetRange(first, end)))
    return lost


def replacement(
    raw: bytes,
    seen: Survey,
    known: Mapping[QueueId, KnownQueue],
    found: Iterable[Record],
    *,
    end: int,
    segment_end: int,
    begins_at: int,
) -> tuple[bytes, list[LostRange]]:
    """The bytes to write over the damaged ones [place, end), and what is lost by it.

    Raises RepairRefused.

    `found`: records whose heads can be read in the damage.
    """
    border = seen.at_place
    assert border is not None
    parts = _parts(raw, border.offset)
    following = _following(parts, seen, known, _stated_ends(raw, seen, found), begins_at)
    lost: list[LostRange] = []
    pieces: list[bytes] = []
    at = 0
    for number, part in enumerate(parts.lengths):
        begin, piece = border.offset + at, raw[at : at + part]
        at += part
        if number not in parts.damaged:
            pieces.append(piece)
            continue
        rows = following[number]
        lost += rows
        is_last = number == len(parts.lengths) - 1
        try:
            if parts.item is not None:
                piece = lost_note.encode_record(
                    rows,
                    begin=begin,
                    stored_at_ms=border.stored_at_ms,
                    item=parts.item,
                    is_last=is_last,
                    length=part,
                )
            else:
                piece = _filled(rows, border, part, end=end, segment_end=segment_end)
        except lost_note.TooShort as error:
            raise RepairRefused(f"{error}: only --cut-log-at {border.offset} can help") from None
        pieces.append(piece)
    data = b"".join(pieces)
    if parts.item is not None:
        data = lost_note.sealed(data)
    step = scan.judge(data, 0, border.offset, segment_end=segment_end, epoch=border.epoch)
    assert isinstance(step, scan.Unit) or step.stop is scan.Stop.END_OF_FILE, (
        "what replaces a damage is whole"
    )
    return data, lost


def _filled(
    rows: list[LostRange], border: Border, length: int, *, end: int, segment_end: int
) -> bytes:
    """A note that fills the place, or the begin of it where nothing follows in the segment."""
    given = {"begin": border.offset, "stored_at_ms": border.stored_at_ms}
    if end < segment_end:
        if end % unit.ALIGNMENT:
            return lost_note.encode_record(rows, **given, item=None, is_last=True, length=length)
        return lost_note.encode_unit(
            rows, **given, synced_offset=border.synced_offset, epoch=border.epoch, length=length
        )  # fmt: skip
    if not rows and length >= records.END_OF_FILE_BYTES:
        return records.encode_end_of_file(length)
    note = lost_note.encode_unit(
        rows, **given, synced_offset=border.synced_offset, epoch=border.epoch
    )
    if len(note) + records.END_OF_FILE_BYTES > length:
        raise lost_note.TooShort(f"{length} bytes cannot hold a note of {len(note)}")
    return note + records.encode_end_of_file(length - len(note))


class _Parts(NamedTuple):
    """The damaged bytes as records of one unit of which some are damaged; else, with no item, as
    one damaged whole.
    """

    lengths: list[int]
    damaged: set[int]
    item: UnitItem | None
    readable: dict[int, Record]


def _parts(raw: bytes, offset: int) -> _Parts:
    whole = _Parts([len(raw)], {0}, None, {})
    lengths: list[int] = []
    at = 0
    while at + records.END_OF_FILE_BYTES <= len(raw):
        total = records.start(raw, at)[0]
        if total < records.FIXED_BYTES or at + total > len(raw):
            break
        lengths.append(total)
        at += total
    if at != len(raw):
        return whole
    item: UnitItem | None = None
    readable: dict[int, Record] = {}
    at = 0
    for number, length in enumerate(lengths):
        tail = unit.UNIT_ITEM_BYTES + (unit.SEAL_BYTES if number == len(lengths) - 1 else 0)
        stated = unit.decode_item(raw, at + length - tail)
        try:
            record = records.decode(raw, at)
        except DamagedRecord:
            record = None
        if (
            record is not None
            and record.physical_offset == offset + at
            and records.body_crc(record.body) == record.body_crc
            and stated is not None
            and (stated.first_offset, stated.record_count) == (offset, len(lengths))
        ):
            item, readable[number] = stated, record
        at += length
    damaged = set(range(len(lengths))) - readable.keys()
    return _Parts(lengths, damaged, item, readable) if item is not None and damaged else whole


def _stated_ends(raw: bytes, seen: Survey, found: Iterable[Record]) -> dict[QueueId, OffsetRange]:
    """Queue offsets that heads in the damage state.

    For queues of which nothing follows: nothing but a derived file knows more.

    A head may be damaged too: one that states more messages than the damaged bytes can have held
    does not count.
    """
    stated: dict[QueueId, OffsetRange] = {}
    most = len(raw) // records.FIXED_BYTES
    for record in found:
        queue = QueueId(record.topic, record.queue_number)
        if (
            record.transaction in QUEUED
            and names.is_stored_name(record.topic)
            and queue not in seen.after
        ):
            at = record.queue_offset
            first, end = stated.get(queue, OffsetRange(at, at))
            if 0 <= at - seen.before.get(queue, first) <= most:
                stated[queue] = OffsetRange(min(first, at), max(end, at + 1))
    return stated


def _following(
    parts: _Parts,
    seen: Survey,
    known: Mapping[QueueId, KnownQueue],
    stated: Mapping[QueueId, OffsetRange],
    begins_at: int,
) -> dict[int, list[LostRange]]:
    """The missing offsets of each damaged part, queue by queue."""
    good: dict[QueueId, list[tuple[int, int]]] = {}  # (number of the part, queue offset)
    for number, record in parts.readable.items():
        good.setdefault(QueueId(record.topic, record.queue_number), []).append(
            (number, record.queue_offset)
        )
    missing: dict[int, list[LostRange]] = {number: [] for number in parts.damaged}
    for queue in sorted({*seen.before, *seen.after, *known, *stated, *good}):
        by_files, by_heads = known.get(queue), stated.get(queue, OffsetRange(0, 0))
        next_offset = seen.before.get(queue, by_files.at_place if begins_at and by_files else 0)
        if queue in seen.after:
            last = seen.after[queue].first
        else:
            last = max(by_files.end if by_files else 0, by_heads.end, next_offset)
        if queue not in seen.before and begins_at and by_files is None:
            # which ones came before is not known
            next_offset = by_heads.first if by_heads.end else last
        for number in range(len(parts.lengths)):
            if number in parts.damaged:
                end = next((place for part, place in good.get(queue, ()) if part > number), last)
                if end > next_offset:
                    missing[number].append(LostRange(queue, OffsetRange(next_offset, end)))
                    next_offset = end
            else:
                next_offset = max(
                    [
                        next_offset,
                        *(place + 1 for part, place in good.get(queue, ()) if part == number),
                    ]
                )
    return missing
