"""Columns that are numbers, by numpy alone: of the header, of properties, when a record is due, and
what a record says about its transaction (`audit/rules.py` works out outcomes from them).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from audit import columns
from audit.columns import Role
from audit.decode import spans
from audit.decode.hashes import hashes
from audit.decode.records import NUMBER_PROPERTIES, Records
from audit.decode.spans import Bytes, Flags
from storage.formats import properties, unit
from storage.formats import record as records
from storage.formats.delay_levels import DELAYS_MS, SCHEDULE_TOPIC
from storage.formats.names import HALF_TOPIC, TIMER_TOPIC
from storage.formats.scan import Ints

_COUNT_PREFIX = b'{"message_count":'
_COUNT_DIGITS = 9
_RESUMED = b'{"event":"resumed"'
_HALF_TOPIC = HALF_TOPIC.encode()
_OUR_HOST = np.frombuffer(records.HOST, np.uint64)[0]
_UNIT_TEXT_BYTES = unit.UNIT_ITEM_BYTES - len(unit.UNIT_ITEM_START) - 1
_OFFSET_DIGITS = 12  # of a unit item: where the unit begins
_HASH_SHIFT = 35  # 28 bits are left of a message's hash: sums of 2**35 of them fit a bigint
_ZERO = ord("0")
_INT_DIGITS, _LONG_DIGITS = 9, 18  # a larger number is none
_UNKNOWN_LEVEL_MS = 1_000
_TIMER_SLOT_MS = 1_000  # of a broker's timer wheel
_LAST_DUE_MS = 253_402_300_799_999  # the end of the year 9999
# a time beyond is no date, and its microseconds would not fit
MOST_MS = np.iinfo(np.int64).max // 1000


class Numbers(NamedTuple):
    """One number for each record, unless `is_none`."""

    values: Any
    is_none: Flags | None = None

    def to_list(self) -> list[int | None]:
        """The numbers as a list, with None for missing ones."""
        if self.is_none is None:
            found: list[int | None] = self.values.tolist()
            return found
        return [
            None if is_none else value
            for value, is_none in zip(self.values.tolist(), self.is_none.tolist(), strict=True)
        ]

    def or_else(self, others: Any) -> Any:
        """The numbers, with those of another column for missing ones."""
        return self.values if self.is_none is None else np.where(self.is_none, others, self.values)


def _of_header(name: str, kind: type[np.integer[Any]], rows: Records) -> Numbers:
    return Numbers(rows.field(name).astype(kind))


def _of_body(name: str, kind: type[np.integer[Any]], rows: Records) -> Numbers:
    """A body that is only a placeholder is an empty one: its length and its checksum are 0."""
    numbers = rows.field(name).astype(kind)
    are_short = rows.field("body_bytes") == len(properties.PLACEHOLDER)
    if are_short.any():
        numbers[are_short & (rows.items["no_body"][1] > 0)] = 0
    return Numbers(numbers)


def _role(rows: Records) -> Numbers:
    items = rows.items
    is_op, is_final, has_waited = (
        rows.are(columns.OP),
        rows.are(columns.FINAL),
        items["schedule_id"][1] > 0,
    )
    names_half = rows.field("prepared_offset").astype(np.int64) > 0
    is_half, is_direct = rows.are(columns.HALF), is_final & ~has_waited
    # A half that a broker stores again takes the same way where it has a delay.
    is_half_again = items.are("real_topic", _HALF_TOPIC)
    waits = rows.are(columns.DELAYED) & rows.are_identified & ~is_half_again
    found = {
        Role.HALF: is_half,
        Role.COMMIT_OP: is_op & items.are("decision", b"commit"),
        Role.ROLLBACK_OP: is_op & items.are("decision", b"rollback"),
        Role.PLAIN_OP: is_op & (items["decision"][1] == 0),
        Role.NAMED: is_direct & names_half,
        Role.UNNAMED: is_direct & ~names_half,
        Role.WAITING: waits,
        Role.WAITING_AGAIN: rows.are(columns.DELAYED_AGAIN) & rows.are_identified,
        Role.ARRIVED: is_final & has_waited,
        Role.HELD: rows.are(columns.HELD),
        Role.RESUMED: rows.begin_with(rows.are(columns.CHECK), _RESUMED),
        Role.OURS: _are_ours(rows, is_direct | waits),
        Role.ASTRAY: is_half & rows.is_commit,
    }
    bits = np.zeros(len(rows), np.int32)
    for role, holds in found.items():
        bits |= holds * np.int32(role)
    return Numbers(bits)


def _are_ours(rows: Records, some: Flags) -> Flags:
    """Whether EscrowMQ wrote each of these finals. A broker that commits a half of EscrowMQ copies
    its host and its unit.
    """
    hosts = np.ascontiguousarray(rows.field("store_host")).view(np.uint64)
    begins, ends = rows.items["unit"]
    ours: Flags = some & (hosts == _OUR_HOST) & (ends - begins == _UNIT_TEXT_BYTES)
    units = _hexadecimals(rows.items.data, begins[ours])
    ours[ours] = units > rows.field("prepared_offset").astype(np.int64)[ours]
    return ours


def _hexadecimals(data: Bytes, places: Ints) -> Ints:
    """The log offsets that stand at these places, as unit items have them."""
    if not len(places):
        return np.empty(0, np.int64)
    raw = (
        spans.values_at(data, np.dtype(f"S{_OFFSET_DIGITS}"), places)
        .view(np.uint8)
        .reshape(-1, _OFFSET_DIGITS)
    )
    digits = (raw & 15) + 9 * (raw >> 6)
    found = np.zeros(len(places), np.int64)
    for column in digits.T:
        found = found << 4 | column
    return found


def _message_hash(rows: Records) -> Numbers:
    begins, ends = rows.items["message_id"]
    some = rows.are_identified
    return Numbers(hashes(rows.items.padded, (begins * some, ends * some)) >> _HASH_SHIFT, ~some)


def _message_count(rows: Records) -> Numbers:
    begins, ends = rows.items["facts"]
    data = rows.items.data
    some = np.flatnonzero(ends)
    some = some[spans.is_text_at(data, begins[some], _COUNT_PREFIX)]
    at, end = begins[some] + len(_COUNT_PREFIX), ends[some]
    counts, is_digit = np.zeros(len(some), np.int64), np.ones(len(some), bool)
    for _ in range(_COUNT_DIGITS):
        # what is below zero comes out above nine
        digits = data[np.minimum(at, len(data) - 1)] - np.uint8(_ZERO)
        is_digit &= (digits <= 9) & (at < end)
        if not is_digit.any():
            break
        counts = np.where(is_digit, counts * 10 + digits, counts)
        at = at + 1
    every = np.zeros(len(rows), np.int64)
    every[some] = counts
    return Numbers(every, every == 0)


def _of_property(name: str, rows: Records) -> Numbers:
    """Values of a property that are decimal numbers."""
    begins, ends = rows.items[name]
    data, lengths = rows.items.data, ends - begins
    most_digits = _INT_DIGITS if name in NUMBER_PROPERTIES else _LONG_DIGITS
    are_numbers = (ends > 0) & (lengths <= most_digits)
    values = np.zeros(len(rows), np.int64)
    for at in range(int(lengths[are_numbers].max(initial=0))):
        # what is below zero comes out above nine
        digits = data[np.minimum(begins + at, len(data) - 1)] - np.uint8(_ZERO)
        is_inside = at < lengths
        are_numbers &= ~is_inside | (digits <= 9)
        values = np.where(is_inside, values * 10 + digits, values)
    return Numbers(values, ~are_numbers)


def _due_ms(rows: Records) -> Numbers:
    """The due time of delayed messages, as scheduler/scheduled_message.py reads it. A broker states
    a level by its name alone.
    """
    waits, of_level = rows.lie_in(SCHEDULE_TOPIC, TIMER_TOPIC), rows.lie_in(SCHEDULE_TOPIC)
    if not waits.any():
        return Numbers(np.zeros(len(rows), np.int64), ~waits)
    stored_ms = rows.field("stored_at").astype(np.int64)
    noted, level, deliver_at, slot = (
        _of_property(name, rows)
        for name in ("due_noted", "delay_level", "deliver_at", "timer_slot")
    )
    levels = np.minimum(level.or_else(0), len(DELAYS_MS))
    delay_ms = np.array([_UNKNOWN_LEVEL_MS, *DELAYS_MS])[levels]
    by_level = noted.or_else(stored_ms + delay_ms)
    by_slot = Numbers(slot.values + _TIMER_SLOT_MS, slot.is_none).or_else(stored_ms)
    by_timer = deliver_at.or_else(by_slot)
    due_ms = np.minimum(np.where(of_level, by_level, by_timer), _LAST_DUE_MS)
    return Numbers(due_ms, ~waits)


COLUMNS: Mapping[str, Callable[[Records], Numbers]] = {
    "log_offset": partial(_of_header, "log_offset", np.int64),
    "record_bytes": lambda rows: Numbers(rows.lengths),
    "queue_id": partial(_of_header, "queue_id", np.int32),
    "queue_offset": partial(_of_header, "queue_offset", np.int64),
    "flag": partial(_of_header, "flag", np.int32),
    "sys_flag": partial(_of_header, "sys_flag", np.int32),
    "stored_ms": partial(_of_header, "stored_at", np.int64),
    "reconsume_times": partial(_of_header, "reconsume_times", np.int32),
    "prepared_offset": partial(_of_header, "prepared_offset", np.int64),
    "body_bytes": partial(_of_body, "body_bytes", np.int32),
    "body_crc": partial(_of_body, "body_crc", np.int64),
    "role": _role,
    "message_hash": _message_hash,
    "message_count": _message_count,
    "due_ms": _due_ms,
    **{name: partial(_of_property, name) for name in NUMBER_PROPERTIES},
}
