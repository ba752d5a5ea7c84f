"""Walk the bytes of a commit log: which units and records are whole, and where and why the walk
stops.

Our units are checked many at a time with numpy. Their records are at 8-byte borders, and each ends
with a unit item and, the last of a unit, a seal, both of whole words: so the records are found by
these. Where that does not add up, as with an item in a body, candidates are found by their magic
word, and the chain `position + length = next position` leaves the real ones. Each unit's crc32c is
compared with its seal. What numpy does not accept is judged alone, and then the reason is known.
Records that a RocketMQ broker wrote are judged alone too, by its rules: the lengths add up and the
body's CRC is right. The store host of a record shows which of the two wrote it.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage.formats import properties, unit
from storage.formats import record as records
from storage.formats.epochs import EpochBegin
from storage.formats.record import DamagedRecord, Record

Ints = NDArray[np.int64]

_SEAL_DIGITS_AND_END = 9
_RECORD_MAGICS = (records.MAGIC_V1, records.MAGIC_V2)
_LEAST_RUN_BYTES = 2048  # fewer are judged one after another before numpy has begun
_WORD_BYTES = unit.ALIGNMENT
_ITEM_WORDS = unit.UNIT_ITEM_BYTES // _WORD_BYTES
_SEAL_WORDS = unit.SEAL_BYTES // _WORD_BYTES
_OFFSET_WORD = 3  # of a record: physical_offset is at byte 28
_SHORT_UNIT_BYTES = 4096  # on average: below, one crc32c of all takes less time than one of each
_COPIED_BYTES = 1 << 20  # about; stays in the cache of the processor
_ZERO_REGISTER = 0xFFFFFFFF  # the crc32c whose register is zero


class Stop(Enum):
    WINDOW_END = "the bytes at hand end inside a unit"
    END_OF_FILE = "an end-of-file record"
    EMPTY = "zeros"
    DAMAGED = "damage"


class Scan(NamedTuple):
    """Result of a walk: the whole records in order, and the offset where it stopped.

    `record_offsets` are log offsets. `end` is the log offset behind the last whole unit. `epoch`
    and `synced_offset` are what the last unit of ours stated (neither falls along a log); where
    there is none, the epoch asked for, and 0. `epoch_begins`: where it rises.
    """

    record_offsets: Ints
    record_bytes: Ints
    end: int
    stop: Stop
    reason: str
    epoch: int
    synced_offset: int
    epoch_begins: tuple[EpochBegin, ...]


class Unit(NamedTuple):
    """One whole unit, or one record of a broker's: positions are relative to the bytes it was read
    from.
    """

    end: int
    records: list[tuple[int, int]]
    item: unit.UnitItem | None


class Halt(NamedTuple):
    """Why no unit begins here."""

    stop: Stop
    reason: str = ""


def scan(
    window: bytes, window_offset: int, *, begin: int, segment_end: int, epoch: int = 0
) -> Scan:
    """Walk from log offset `begin`, where a unit must begin.

    `window_offset` is the log offset of the first byte of `window`, best a multiple of 8;
    `segment_end` that of the end of its file. A unit of an epoch below `epoch` is a ghost of an
    earlier life and stops the walk.
    """
    found: list[tuple[Ints, Ints]] = []
    at = begin - window_offset
    synced_offset = 0
    epoch_begins: list[EpochBegin] = []
    while True:
        is_long = len(window) - at >= _LEAST_RUN_BYTES
        run = _scan_units(window, at, window_offset, epoch) if is_long else None
        if run is not None:
            found.append((run.positions, run.sizes))
            at = run.end
            epoch_begins += run.epoch_begins
            epoch, synced_offset = run.item.epoch, run.item.synced_offset
        step = judge(window, at, window_offset, segment_end=segment_end, epoch=epoch)
        if isinstance(step, Halt):
            break
        positions, sizes = zip(*step.records, strict=True)
        found.append((np.array(positions, np.int64), np.array(sizes, np.int64)))
        at = step.end
        if step.item is not None and step.item.first_offset == window_offset + positions[0]:
            if step.item.epoch > epoch:
                epoch_begins.append(EpochBegin(step.item.epoch, step.item.first_offset))
            epoch, synced_offset = step.item.epoch, step.item.synced_offset
    offsets = (
        np.concatenate([positions for positions, _ in found]) if found else np.empty(0, np.int64)
    )
    lengths = np.concatenate([sizes for _, sizes in found]) if found else np.empty(0, np.int64)
    return Scan(
        offsets + window_offset,
        lengths,
        window_offset + at,
        step.stop,
        step.reason,
        epoch,
        synced_offset,
        tuple(epoch_begins),
    )


def judge(
    window: bytes,
    at: int,
    window_offset: int,
    *,
    segment_end: int,
    epoch: int = 0,
    damaged_from: int | None = None,
) -> Unit | Halt:
    """The unit that begins at `at`, or why there is none.

    A record without a unit item that names this place is alone and is a broker's, or else it is
    damaged.

    `damaged_from`: a log offset from which on no whole unit was found up to this place; None where
    a unit must begin here. A later record of a damaged unit is whole by itself and is like a copy
    that a broker made, but for the unit that it names: one that begins in the damage. Every search
    behind damage states it, else a part of a unit would pass for whole.
    """
    offset = window_offset + at
    if at + records.END_OF_FILE_BYTES > len(window):
        if window_offset + len(window) == segment_end:
            return Halt(Stop.DAMAGED, "the file ends without an end-of-file record")
        return Halt(Stop.WINDOW_END)
    total, magic = records.start(window, at)
    if magic == records.MAGIC_END_OF_FILE:
        if total == segment_end - offset:
            return Halt(Stop.END_OF_FILE)
        return Halt(
            Stop.DAMAGED,
            f"the end-of-file record says that {total} bytes are left, {segment_end - offset} are",
        )
    if total == 0 and magic == 0:
        return Halt(Stop.EMPTY)
    if magic not in _RECORD_MAGICS:
        return Halt(Stop.DAMAGED, f"magic is {magic:#010x}")
    if total < records.FIXED_BYTES or offset + total > segment_end:
        return Halt(
            Stop.DAMAGED,
            f"record length is {total}, {segment_end - offset} bytes are left of the file",
        )
    if at + total > len(window):
        return Halt(Stop.WINDOW_END)
    item = item_at_end(window, at + total)
    if item is not None and item.first_offset == offset:
        return _judge_unit(window, at, window_offset, item, segment_end=segment_end, epoch=epoch)
    return _judge_alone(window[at : at + total], at, offset, damaged_from)


def _judge_unit(
    window: bytes, at: int, window_offset: int, item: unit.UnitItem, *, segment_end: int, epoch: int
) -> Unit | Halt:
    if item.epoch < epoch:
        return Halt(
            Stop.DAMAGED, f"the unit is of epoch {item.epoch}, before it lies one of {epoch}"
        )
    item_bytes = unit.encode_item(item)
    found = []
    cursor = at
    for number in range(1, item.record_count + 1):
        of_unit = f"record {number} of the {item.record_count} of the unit"
        total, magic = (
            records.start(window, cursor)
            if cursor + records.END_OF_FILE_BYTES <= len(window)
            else (0, 0)
        )
        end = cursor + max(total, records.END_OF_FILE_BYTES)
        if end > len(window) and window_offset + end <= segment_end:
            return Halt(Stop.WINDOW_END)
        if magic not in _RECORD_MAGICS or total < records.FIXED_BYTES or end > len(window):
            return Halt(Stop.DAMAGED, f"{of_unit} is none")
        item_at = (
            end - unit.UNIT_ITEM_BYTES - (unit.SEAL_BYTES if number == item.record_count else 0)
        )
        if not window.startswith(item_bytes, item_at):
            return Halt(Stop.DAMAGED, f"{of_unit} does not belong to it")
        found.append((cursor, total))
        cursor = end
    digits_at = cursor - _SEAL_DIGITS_AND_END
    seal = unit.seal_of(memoryview(window)[at:digits_at])
    if (
        not window.startswith(unit.SEAL_START, cursor - unit.SEAL_BYTES)
        or window[digits_at:cursor] != seal
    ):
        return Halt(
            Stop.DAMAGED,
            f"the crc32c of the unit of {item.record_count} records differs from its seal",
        )
    return Unit(cursor, found, item)


def _judge_alone(raw: bytes, at: int, offset: int, damaged_from: int | None) -> Unit | Halt:
    """A record that begins no unit: a broker's, by RocketMQ's rules, or one of EscrowMQ that lost
    its item.
    """
    try:
        record = records.decode(raw)
    except DamagedRecord as damage:
        return Halt(Stop.DAMAGED, str(damage))
    if record.physical_offset != offset:
        return Halt(
            Stop.DAMAGED, f"the record says that it lies at log offset {record.physical_offset}"
        )
    if records.body_crc(record.body) != record.body_crc:
        return Halt(Stop.DAMAGED, "the CRC of the body differs")
    # A broker that copies a record copies the item too, in whatever order, and sometimes our host.
    text = properties.decode(record.properties).get(properties.UNIT, "")
    item = unit.decode_item(unit.UNIT_ITEM_START + text.encode("utf-8") + b"\x02")
    if record.store_host == records.HOST and (item is None or item.first_offset == offset):
        return Halt(Stop.DAMAGED, "the unit item of the record is not intact")
    if damaged_from is not None and _is_of_damaged_unit(raw, record, item, damaged_from):
        return Halt(
            Stop.DAMAGED, f"the record belongs to the damaged unit at {item and item.first_offset}"
        )
    return Unit(at + len(raw), [(at, len(raw))], item)


def _is_of_damaged_unit(
    raw: bytes, record: Record, item: unit.UnitItem | None, damaged_from: int
) -> bool:
    """Is this a later record of a unit that begins in the damage?

    A copy that a broker made of a record of such a unit differs: its host is the broker's, or the
    unit has one record, or the properties were written again in another order, so that the item is
    not in its place or the record ends on no word border.
    """
    if item is None or record.store_host != records.HOST or item.record_count == 1:
        return False
    is_in_place = (record.physical_offset + len(raw)) % unit.ALIGNMENT == 0 and item_at_end(
        raw, len(raw)
    ) == item
    return is_in_place and damaged_from <= item.first_offset < record.physical_offset


def item_at_end(window: bytes, end: int) -> unit.UnitItem | None:
    """The unit item in its place at the end of a record, before the seal where there is one; None
    where there is none.
    """
    if not unit.UNIT_ITEM_BYTES <= end <= len(window):
        return None
    sealed = window.startswith(unit.SEAL_START, end - unit.SEAL_BYTES)
    return unit.decode_item(window, end - unit.UNIT_ITEM_BYTES - (unit.SEAL_BYTES if sealed else 0))


def units_between(
    window: bytes, window_offset: int, begin: int, end: int, *, segment_end: int, epoch: int
) -> Iterator[unit.UnitItem]:
    """The items of the whole units of ours that begin anywhere in [begin, end) of the log, of an
    epoch not below `epoch`.

    What a power cut leaves behind the end of the log is any mixture of whole, torn and missing
    sectors; each of these units still states how far the log had been synced when it was written.
    """
    aligned = -(-begin // unit.ALIGNMENT) * unit.ALIGNMENT
    for position in _candidates(window, aligned - window_offset).tolist():
        if window_offset + position >= end:
            return
        item = item_at_end(window, position + records.start(window, position)[0])
        if item is not None and item.first_offset == window_offset + position:
            step = judge(window, position, window_offset, segment_end=segment_end, epoch=epoch)
            if isinstance(step, Unit):
                yield item


def record_places(window: bytes, begin: int, end: int) -> list[int]:
    """Positions in [begin, end) of the window where a record may begin, four bytes before its
    magic; at any alignment.
    """
    places = []
    for magic in _RECORD_MAGICS:
        raw = magic.to_bytes(4, "big")
        at = window.find(raw, begin + 4)
        while 0 <= at < end + 4:
            places.append(at - 4)
            at = window.find(raw, at + 1)
    return sorted(places)


# -----------------------------------------------------------------------------------------------
# many units at a time


class _Run(NamedTuple):
    positions: Ints
    sizes: Ints
    end: int
    item: unit.UnitItem
    epoch_begins: list[EpochBegin]


def _word(raw: bytes) -> np.uint64:
    """Eight bytes as the number that numpy reads them as on this machine."""
    return np.uint64(np.frombuffer(raw, np.uint64)[0])


_MAGICS = np.frombuffer(
    records.MAGIC_V1.to_bytes(4, "big") + records.MAGIC_V2.to_bytes(4, "big"), np.uint32
)  # as they are stored in the file
_SEVEN_BYTES = _word(b"\xff" * 7 + b"\0")
_SEAL_WORD = _word(unit.SEAL_START + b"\0")
_ITEM_WORD = _word(unit.UNIT_ITEM_START + b"0")  # of the first 16 TiB of a log
_EVERY_0F = np.uint64(0x0F0F0F0F0F0F0F0F)
_EVERY_01 = np.uint64(0x0101010101010101)


def _candidates(window: bytes, at: int) -> Ints:
    """Positions from `at` on, on 8-byte borders, with the magic of a record."""
    # All halves of words: numpy compares numbers side by side twice as fast as every other one.
    halves = np.frombuffer(window, np.uint32, (len(window) - at) // 8 * 2, at)
    found = np.flatnonzero((halves == _MAGICS[0]) | (halves == _MAGICS[1]))
    places: Ints = found[found % 2 == 1] // 2 * 8 + at
    return places


def _scan_units(window: bytes, at: int, window_offset: int, epoch: int) -> _Run | None:
    """The run of whole units of EscrowMQ that begins at `at`; None if there is none. Does not
    examine what ends it.
    """
    if (
        (window_offset + at) % unit.ALIGNMENT
        or window_offset % unit.ALIGNMENT
        or at + records.FIXED_BYTES > len(window)
    ):
        return None
    # Before the whole window is looked at: behind each record of a broker the question is asked
    # again.
    item = item_at_end(window, at + records.start(window, at)[0])
    if item is None or item.first_offset != window_offset + at:
        return None
    words = np.frombuffer(window, np.uint64, len(window) // _WORD_BYTES)
    found = _by_items(words, at // _WORD_BYTES) or _by_magics(window, words, at)
    if found is None:
        return None
    begins, ends, is_sealed = found
    last = np.flatnonzero(is_sealed)
    if not len(last):
        return None
    first = np.concatenate(([0], last[:-1] + 1))
    starts, unit_ends = begins[first], ends[last]

    good = _seals_match(window, words, starts, unit_ends) & (
        _stated_offsets(words, starts) == starts * _WORD_BYTES + window_offset
    )
    epochs = _epoch_digits(words, ends[first], first == last)
    floor = _word(b"%08x" % epoch).byteswap()
    before = np.concatenate(([floor], epochs[:-1]))
    good &= epochs >= np.maximum.accumulate(before)
    count = len(good) if good.all() else int(np.argmin(good))
    if not count:
        return None
    end = int(unit_ends[count - 1]) * _WORD_BYTES
    tail = unit.UNIT_ITEM_BYTES + unit.SEAL_BYTES
    item = unit.decode_item(window, end - tail)
    if item is None:
        return None
    kept = int(last[count - 1]) + 1
    rises = np.flatnonzero(epochs[:count] > before[:count])
    offsets = (starts[rises] * _WORD_BYTES + window_offset).tolist()
    epoch_begins = list(map(EpochBegin, _numbers_of(epochs[rises]).tolist(), offsets))
    positions = begins[:kept] * _WORD_BYTES
    sizes = ends[:kept] * _WORD_BYTES - positions
    return _Run(positions, sizes, end, item, epoch_begins)


class _Records(NamedTuple):
    """Records that follow one another: the word where each begins, the one behind it, and whether
    it ends with a seal.
    """

    begins: Ints
    ends: Ints
    is_sealed: NDArray[np.bool_]


def _by_items(words: NDArray[np.uint64], at: int) -> _Records | None:
    """The whole records that follow one another from word `at`, each with a unit item at its end;
    None if anything else is between them.
    """
    item_ends = np.flatnonzero(words[at:] == _ITEM_WORD) + (at + _ITEM_WORDS)
    item_ends = item_ends[: np.searchsorted(item_ends, len(words) - _SEAL_WORDS, side="right")]
    if not len(item_ends):
        return None
    is_sealed = _begin_seals(words, item_ends)
    ends = item_ends + _SEAL_WORDS * is_sealed
    begins = np.concatenate(([at], ends[:-1]))
    sizes, magics = _heads(words, begins)
    is_record = (magics == _MAGICS[0]) | (magics == _MAGICS[1])
    is_record &= (sizes == (ends - begins) * _WORD_BYTES) & (sizes >= records.FIXED_BYTES)
    return _Records(begins, ends, is_sealed) if is_record.all() else None


def _by_magics(window: bytes, words: NDArray[np.uint64], at: int) -> _Records | None:
    """The result of `_by_items` from byte `at`, for all records that end on a word border."""
    positions = _candidates(window, at)
    if not len(positions) or positions[0] != at:
        return None
    positions, sizes = _chain(positions, _heads(words, positions // _WORD_BYTES)[0])
    begins, ends = positions // _WORD_BYTES, (positions + sizes) // _WORD_BYTES
    whole = int(np.searchsorted(ends, len(words), side="right"))
    begins, ends = begins[:whole], ends[:whole]
    return _Records(begins, ends, _begin_seals(words, ends - _SEAL_WORDS))


def _heads(words: NDArray[np.uint64], begins: Ints) -> tuple[Ints, NDArray[np.uint32]]:
    """The length that each record states, and its magic as it is stored."""
    halves = words[begins].view(np.uint32)
    return halves[::2].byteswap().astype(np.int32).astype(np.int64), halves[1::2]


def _begin_seals(words: NDArray[np.uint64], places: Ints) -> NDArray[np.bool_]:
    """Does a seal begin with each of these words?"""
    return np.asarray((words[places] & _SEVEN_BYTES) == _SEAL_WORD)


def _chain(positions: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """The candidates that follow one another from the first; a magic inside a body is skipped."""
    legal = (sizes >= records.FIXED_BYTES) & (sizes % unit.ALIGNMENT == 0)
    nexts = positions + sizes
    breaks = np.flatnonzero((nexts[:-1] != positions[1:]) | ~legal[:-1])
    if not len(breaks):
        kept = len(positions) if legal[-1] else len(positions) - 1
        return positions[:kept], sizes[:kept]
    runs = []
    begin = 0
    while True:
        index = int(np.searchsorted(breaks, begin))
        last = int(breaks[index]) if index < len(breaks) else len(positions) - 1
        if not legal[last]:
            runs.append(np.arange(begin, last))
            break
        runs.append(np.arange(begin, last + 1))
        begin = int(np.searchsorted(positions, nexts[last]))
        if begin == len(positions) or positions[begin] != nexts[last]:
            break
    chain = np.concatenate(runs)
    return positions[chain], sizes[chain]


def _seals_match(
    window: bytes, words: NDArray[np.uint64], starts: Ints, ends: Ints
) -> NDArray[np.bool_]:
    """Is each unit's crc32c the one in its seal, digit by digit?"""
    digits = _digits_across(words, ends - _SEAL_WORDS)
    sums = _numbers_of(digits)
    closed = (words[ends - 1].byteswap() & np.uint64(0xFF)) == np.uint64(2)
    is_seal = np.asarray((_hexadecimal(sums) == digits) & closed)
    are_short = (ends[-1] - starts[0]) * _WORD_BYTES < len(starts) * _SHORT_UNIT_BYTES
    if are_short and is_seal.all() and _sums_match_together(words, starts, ends, sums):
        return is_seal
    digits_at = ends * _WORD_BYTES - _SEAL_DIGITS_AND_END
    slices = map(slice, (starts * _WORD_BYTES).tolist(), digits_at.tolist())
    own = map(crc32c, map(memoryview(window).__getitem__, slices))
    return np.asarray(is_seal & (np.fromiter(own, np.uint64, len(starts)) == sums))


def _sums_match_together(
    words: NDArray[np.uint64], starts: Ints, ends: Ints, sums: NDArray[np.uint64]
) -> bool:
    """Is the crc32c of each of these units, which follow one another, the one in `sums`? In one
    pass over copies, in which each unit takes the register of the crc32c from zero to zero.

    Bytes equal to the register make it zero, and zeros leave it so. A sum begins with a register
    of ones: the first four bytes are inverted instead. One wrong unit is always found, as by its
    own sum; that several cancel out is as likely as a chance match of one sum.
    """
    registers = sums ^ np.uint64(0xFFFFFFFF)
    byte_count = int(ends[-1] - starts[0]) * _WORD_BYTES
    together = max(1, len(starts) * _COPIED_BYTES // byte_count)
    for at in range(0, len(starts), together):
        some = slice(at, at + together)
        base = starts[at]
        copy = words[base : ends[some][-1]].copy()
        copy[starts[some] - base] ^= np.uint64(0xFFFFFFFF)
        last = ends[some] - base - 1
        copy[last - 1] = (copy[last - 1] & _SEVEN_BYTES) | (registers[some] << np.uint64(56))
        copy[last] = registers[some] >> np.uint64(8)
        if crc32c(copy.data, _ZERO_REGISTER) != _ZERO_REGISTER:
            return False
    return True


def _stated_offsets(words: NDArray[np.uint64], starts: Ints) -> Ints:
    """The physical_offset field of each record, which is in the middle of two words."""
    high = words[starts + _OFFSET_WORD].view(np.uint32)[1::2].byteswap().astype(np.uint64)
    low = words[starts + _OFFSET_WORD + 1].view(np.uint32)[::2].byteswap().astype(np.uint64)
    return ((high << np.uint64(32)) | low).astype(np.int64)


def _epoch_digits(
    words: NDArray[np.uint64], first_ends: Ints, is_sealed: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """The eight epoch digits of each unit as one number; as their text sorts, so do they."""
    item_ends = first_ends - _SEAL_WORDS * is_sealed
    return _digits_across(words, item_ends - _ITEM_WORDS + 3)


def _digits_across(words: NDArray[np.uint64], index: Ints) -> NDArray[np.uint64]:
    """The eight bytes that begin with the last byte of each word, first byte highest."""
    first = words[index].byteswap() & np.uint64(0xFF)
    rest = words[index + 1].byteswap() >> np.uint64(8)
    return np.asarray((first << np.uint64(56)) | rest)


def _hexadecimal(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each 32-bit number as its eight lower-case digits, first digit highest."""
    spread = (numbers | (numbers << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    spread = (spread | (spread << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    spread = (spread | (spread << np.uint64(4))) & _EVERY_0F
    is_letter = ((spread + _EVERY_01 * np.uint64(6)) >> np.uint64(4)) & _EVERY_01
    return np.asarray(spread + _EVERY_01 * np.uint64(0x30) + is_letter * np.uint64(0x27))


def _numbers_of(digits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers that `_hexadecimal` makes these digits of; any for what are no such digits."""
    is_letter = (digits >> np.uint64(6)) & _EVERY_01
    spread = (digits & _EVERY_0F) + is_letter * np.uint64(9)
    spread = (spread | (spread >> np.uint64(4))) & np.uint64(0x00FF00FF00FF00FF)
    spread = (spread | (spread >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    return np.asarray((spread | (spread >> np.uint64(16))) & np.uint64(0xFFFFFFFF))
