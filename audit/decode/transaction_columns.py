"""What a record says about its transaction, as columns: what outcomes are worked out from
(`audit/outcomes.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import columns
from audit.columns import Role
from audit.decode import spans
from audit.decode.hashes import hashes
from audit.decode.records import Records
from audit.decode.spans import Bytes, Flags
from storage.formats import record as records
from storage.formats import unit
from storage.formats.scan import Ints

_COUNT_PREFIX = b'{"message_count":'
_COUNT_DIGITS = 9
_RESUMED = b'{"event":"resumed"'
_OUR_HOST = np.frombuffer(records.HOST, np.uint64)[0]
_UNIT_TEXT_BYTES = unit.UNIT_ITEM_BYTES - len(unit.UNIT_ITEM_START) - 1
_OFFSET_DIGITS = 12  # of a unit item: where the unit begins
_HASH_SHIFT = 35  # 28 bits are left of a message's hash: sums of 2**35 of them fit a bigint
_ZERO, _COMMA = ord("0"), ord(",")
_LONGEST_NUMBER = 18  # digits
_NUMBER = rf"^[0-9]{{1,{_LONGEST_NUMBER}}}$"


def _role(rows: Records) -> pa.Array:
    items = rows.items
    is_op, is_final, has_waited = (
        rows.are(columns.OP),
        rows.are(columns.FINAL),
        items["schedule_id"][1] > 0,
    )
    names_half = rows.field("prepared_offset").astype(np.int64) > 0
    is_direct, waits = is_final & ~has_waited, rows.are(columns.DELAYED) & rows.are_identified
    found = {
        Role.HALF: rows.are(columns.HALF),
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
    }
    bits = np.zeros(len(rows), np.int32)
    for role, holds in found.items():
        bits |= holds * np.int32(role)
    return pa.array(bits)


def _are_ours(rows: Records, some: Flags) -> Flags:
    """Of these finals: did this service write them?

    A broker that commits a half of ours copies its host and its unit.
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


def _transaction_id(rows: Records) -> pa.Array:
    own = rows.texts("own_id")
    return (
        pc.if_else(pa.array(rows.lack_id), rows.texts("message_id"), own)
        if rows.lack_id.any()
        else own
    )


def _message_hash(rows: Records) -> pa.Array:
    begins, ends = rows.items["message_id"]
    some = rows.are_identified
    return pa.array(
        hashes(rows.items.padded, (begins * some, ends * some)) >> _HASH_SHIFT, mask=~some
    )


def _group_hash(rows: Records) -> pa.Array:
    """Of few groups are many records."""
    groups = rows.texts("producer_group").dictionary_encode()
    names = groups.dictionary
    bounds = np.frombuffer(names.buffers()[1], np.int32)[: len(names) + 1].astype(np.int64)
    held = names.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held else np.empty(0, np.uint8)
    return pa.array(hashes(spans.padded(data), (bounds[:-1], bounds[1:]))).take(groups.indices)


def _message_count(rows: Records) -> pa.Array:
    begins, ends = rows.items["facts"]
    data = rows.items.data
    some = np.flatnonzero(ends)
    some = some[spans.stands(data, begins[some], _COUNT_PREFIX)]
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
    return pa.array(every, mask=every == 0)


def _half_offsets(rows: Records) -> pa.Array:
    """RocketMQ's rule: tag `d`, numbers with commas between or behind; what is no number is passed
    over.
    """
    ops = np.flatnonzero(rows.are(columns.OP))
    items = pc.split_pattern(spans.strings(rows.bodies(ops)), ",")
    flat = items.flatten()
    is_number = _are_numbers(flat)
    of_op = ops[pc.list_parent_indices(items).to_numpy()][is_number]
    counts = np.bincount(of_op, minlength=len(rows))
    bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    is_none = np.ones(len(rows), bool)
    is_none[ops] = False
    values = (flat if is_number.all() else flat.filter(pa.array(is_number))).cast(pa.int64())
    return pa.ListArray.from_arrays(bounds, values, mask=pa.array(is_none))


def _are_numbers(texts: pa.StringArray) -> Flags:
    lengths = pc.binary_length(texts).to_numpy()
    held = texts.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held else np.empty(0, np.uint8)
    if (data - np.uint8(_ZERO) <= 9).all():
        found: Flags = (lengths > 0) & (lengths <= _LONGEST_NUMBER)
        return found
    return np.asarray(pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False))


def _first_half_offset(rows: Records) -> pa.Array:
    lists = _half_offsets(rows)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    begins = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
    least = np.zeros(len(rows), np.int64)
    some = counts > 0
    if some.any():
        least[some] = np.minimum.reduceat(lists.values.to_numpy(), begins[some])
    return pa.array(least, mask=~some)


COLUMNS: Mapping[str, Callable[[Records], Any]] = {
    "role": _role,
    "is_commit": lambda rows: pa.array(rows.is_commit),
    "transaction_id": _transaction_id,
    "message_hash": _message_hash,
    "group_hash": _group_hash,
    "message_count": _message_count,
    "half_offsets": _half_offsets,
    "first_half_offset": _first_half_offset,
}
