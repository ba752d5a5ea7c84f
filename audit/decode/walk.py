"""Walk a part of a log and account for every byte of it: records, damage, fillers.

Nothing is passed over in silence.

Where a part begins or ends inside a segment, its true border is the first *anchor* at or behind
that place: a whole unit, its checksum right, that states this place as its own. Which place
that is depends on the bytes alone, so neighbours agree on it, and the parts of a log together give
the same records as one walk, however it was cut.

A body that carries bytes made to look like an anchor of their own place can deceive the neighbour
behind it, never the one before: then two parts give the same bytes, more bytes are accounted for
than there are, and the audit does not balance.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.record import DamagedRecord
from storage.formats.scan import Ints, Stop

WINDOW_BYTES = 8 << 20
# behind damage: it doubles for as long as all is well, so that more damage costs no more
_FIRST_WINDOW_BYTES = 1 << 13
_SALVAGE_BYTES = 64 << 20  # more than any unit has
_STATED_OFFSET_AT = 28  # physical_offset of formats/record.py
_MAGIC_AT = 4
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (records.MAGIC_V1, records.MAGIC_V2))

Read = Callable[[int, int], bytes]
"""(log offset, length) -> the bytes of the segment from there on, fewer at its end."""


class What(Enum):
    RECORDS = "records"
    DAMAGE = "damaged"
    FILLER = "filler"  # the end-of-file record and the bytes behind it
    MISSING = "missing"  # the log goes on, its bytes are in no file


class Piece(NamedTuple):
    """A range of the log: `length` bytes from log offset `offset` on. Records also have their
    window, and their place in it.
    """

    what: What
    offset: int
    length: int
    reason: str = ""
    window: bytes = b""
    window_offset: int = 0
    record_offsets: Ints = np.empty(0, np.int64)
    record_bytes: Ints = np.empty(0, np.int64)
    is_verified: bool = True


def walk(
    read: Read,
    *,
    begin: int,
    end: int,
    limit: int,
    segment_end: int,
    begins_at_border: bool = False,
    ends_at_border: bool = False,
) -> Iterator[Piece]:
    """The pieces that begin in [begin, end) of one segment, in order, without gaps.

    `limit`: nothing at or behind it is looked at; the end of the segment, or of the log where that
    comes first. A border is known to be one where an earlier walk has ended there.
    """
    at = begin if begins_at_border else first_anchor(read, begin, limit, segment_end)
    if not ends_at_border:
        end = first_anchor(read, end, limit, segment_end)
    window_bytes, reach = WINDOW_BYTES, end
    while at < end:
        offset = at - at % unit.ALIGNMENT
        window = read(offset, min(window_bytes, reach - offset))
        found = scan.scan(window, offset, begin=at, segment_end=segment_end)
        if len(found.record_offsets):
            yield _records(found.record_offsets, found.record_bytes, window, offset, end)
            at = found.end
            window_bytes, reach = min(window_bytes * 2, WINDOW_BYTES), end
        elif found.stop is Stop.WINDOW_END and offset + len(window) < limit:
            window_bytes, reach = window_bytes * 2, limit  # a unit may be larger than a window
        elif found.stop is Stop.END_OF_FILE:
            yield Piece(What.FILLER, at, segment_end - at)
            return
        else:
            border = first_anchor(read, at + 1, limit, segment_end)
            yield from _salvage(read, at, min(border, end), _why(found))
            at = border
            window_bytes, reach = _FIRST_WINDOW_BYTES, end


def first_anchor(read: Read, begin: int, limit: int, segment_end: int) -> int:
    """The first place at or after `begin` with a whole unit, or a record of a broker; `limit` if
    there is none.
    """
    window_bytes = _FIRST_WINDOW_BYTES
    at = begin
    while at < limit:
        offset = at - at % unit.ALIGNMENT
        window = read(offset, min(window_bytes, limit - offset))
        for place in _places(window, offset, at):
            step: scan.Unit | scan.Halt | None = scan.judge(
                window, place - offset, offset, segment_end=segment_end
            )
            if isinstance(step, scan.Halt) and step.stop is Stop.WINDOW_END:
                step = whole_unit(read, place, limit, segment_end)
            if isinstance(step, scan.Unit) and _begins_there(step, place):
                return place
        if offset + len(window) >= limit or len(window) < records.FIXED_BYTES:
            break
        # what begins in the last bytes is not whole in this window
        at = offset + len(window) - records.FIXED_BYTES + 1
        window_bytes = min(window_bytes * 2, WINDOW_BYTES)
    return limit


def whole_unit(read: Read, offset: int, limit: int, segment_end: int) -> scan.Unit | None:
    """The unit, or the single record, at `offset`; None if it is not whole or ends after
    `limit`.
    """
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        window = read(offset, min(window_bytes, limit - offset))
        step = scan.judge(window, 0, offset, segment_end=segment_end)
        if isinstance(step, scan.Unit):
            return step
        if step.stop is not Stop.WINDOW_END or len(window) < window_bytes:
            return None
        window_bytes *= 8


def _begins_there(found: scan.Unit, offset: int) -> bool:
    """A record in the midst of a unit, whole by itself, is no border; nor is a broker's copy of
    one, which looks the same.
    """
    return found.item is None or found.item.first_offset == offset


def _places(window: bytes, window_offset: int, begin: int) -> list[int]:
    """Log offsets from `begin` on with the magic of a record that states this offset as its own."""
    raw = np.frombuffer(window, np.uint8)
    first = max(begin - window_offset, 0)
    last = len(raw) - (_STATED_OFFSET_AT + 8)
    if last < first:
        return []
    # All magics begin with the same byte, which is rare in text.
    at = np.flatnonzero(raw[first + _MAGIC_AT : last + 1 + _MAGIC_AT] == _MAGICS[0][0]) + first
    view = np.lib.stride_tricks.sliding_window_view(raw, 8)
    magics = view[at + _MAGIC_AT][:, :4].copy().view(">u4")[:, 0]
    at = at[np.isin(magics, (records.MAGIC_V1, records.MAGIC_V2))]
    stated = view[at + _STATED_OFFSET_AT].copy().view(">i8")[:, 0]
    places: list[int] = (at[stated == at + window_offset] + window_offset).tolist()
    return places


def _records(offsets: Ints, lengths: Ints, window: bytes, window_offset: int, end: int) -> Piece:
    """Records that begin before `end`: the window reaches beyond it, into the next part."""
    mine = int(np.searchsorted(offsets, end))
    offsets, lengths = offsets[:mine], lengths[:mine]
    begin = int(offsets[0])
    return Piece(
        What.RECORDS,
        begin,
        int(offsets[-1] + lengths[-1]) - begin,
        "",
        window,
        window_offset,
        offsets,
        lengths,
    )


def _why(found: scan.Scan) -> str:
    if found.stop is Stop.EMPTY:
        return "zeros where a unit was"
    return found.reason or "the log ends inside a unit"


# --------------------------------------------------------------------------------------------------
# what is damaged


def _salvage(read: Read, begin: int, end: int, reason: str) -> Iterator[Piece]:
    """A stretch without a whole unit: the records in it that are whole by themselves, and the
    damage between them.

    As the service serves them (storage/local/log/commit_log.py): of a damaged unit the records in
    which no damage shows, as long as it shows in one of them. Where it shows in none, a header or a
    property is wrong, of an unknown record.
    """
    window = read(begin, min(end - begin, _SALVAGE_BYTES))
    cursor = begin
    for offset, lengths in _salvaged_runs(window, begin):
        if offset > cursor:
            yield Piece(What.DAMAGE, cursor, offset - cursor, reason)
        offsets = offset + np.cumsum([0, *lengths[:-1]])
        total = sum(lengths)
        yield Piece(
            What.RECORDS,
            offset,
            total,
            "",
            window,
            begin,
            offsets,
            np.array(lengths, np.int64),
            is_verified=False,
        )
        cursor = offset + total
    if cursor < end:
        yield Piece(What.DAMAGE, cursor, end - cursor, reason)


def _salvaged_runs(window: bytes, begin: int) -> list[tuple[int, list[int]]]:
    """(offset of the first, lengths) of records that stand behind one another and that may be
    believed.
    """
    found: list[tuple[int, int, unit.UnitItem]] = []  # offset, length, of which unit
    cursor = begin
    for offset in _places(window, begin, begin):
        length = _length_if_whole(window, offset - begin)
        of_unit = _unit_of(window, offset - begin, length)
        if offset >= cursor and of_unit is not None:
            found.append((offset, length, of_unit))
            cursor = offset + length
    of_units: dict[unit.UnitItem, list[tuple[int, int]]] = {}
    for offset, length, of_unit in found:
        of_units.setdefault(of_unit, []).append((offset, length))
    believed: list[tuple[int, int]] = []
    for of_unit, mine in of_units.items():
        shows_nowhere = mine[0][0] == of_unit.first_offset and len(mine) == of_unit.record_count
        if not shows_nowhere:
            believed += mine
    runs: list[tuple[int, list[int]]] = []
    for offset, length in sorted(believed):
        if runs and runs[-1][0] + sum(runs[-1][1]) == offset:
            runs[-1][1].append(length)
        else:
            runs.append((offset, [length]))
    return runs


def _length_if_whole(window: bytes, at: int) -> int:
    try:
        record = records.decode(window, at)
    except DamagedRecord:
        return 0
    return records.start(window, at)[0] if records.body_crc(record.body) == record.body_crc else 0


def _unit_of(window: bytes, at: int, length: int) -> unit.UnitItem | None:
    """The unit that a whole record states; None if the record or its item is not whole."""
    for tail in (0, unit.SEAL_BYTES) if length else ():
        item = unit.decode_item(window, at + length - unit.UNIT_ITEM_BYTES - tail)
        if item is not None:
            return item
    return None
