"""Columns of a record's transaction in Arrow: its id and group, and the halves that an op names."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import columns
from audit.decode import arrow_spans, spans
from audit.decode.arrow_records import ArrowRecords
from audit.decode.hashes import hashes
from audit.decode.spans import Flags

_ZERO = ord("0")
_LONGEST_NUMBER = 18  # digits
_NUMBER = rf"^[0-9]{{1,{_LONGEST_NUMBER}}}$"


def _transaction_id(rows: ArrowRecords) -> pa.Array:
    own = rows.texts("own_id")
    return (
        pc.if_else(pa.array(rows.lack_id), rows.texts("message_id"), own)
        if rows.lack_id.any()
        else own
    )


def _group_hash(rows: ArrowRecords) -> pa.Array:
    """The hash of each record's group; many records have one of few groups."""
    groups = rows.texts("producer_group").dictionary_encode()
    names = groups.dictionary
    bounds = np.frombuffer(names.buffers()[1], np.int32)[: len(names) + 1].astype(np.int64)
    held = names.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held else np.empty(0, np.uint8)
    return pa.array(hashes(spans.padded(data), (bounds[:-1], bounds[1:]))).take(groups.indices)


def _half_offsets(rows: ArrowRecords) -> pa.Array:
    """RocketMQ's rule: tag `d`, numbers with commas between or behind; what is no number is passed
    over.
    """
    ops = np.flatnonzero(rows.are(columns.OP))
    items = pc.split_pattern(arrow_spans.strings(rows.bodies(ops)), ",")
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


def _first_half_offset(rows: ArrowRecords) -> pa.Array:
    lists = _half_offsets(rows)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    begins = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
    least = np.zeros(len(rows), np.int64)
    some = counts > 0
    if some.any():
        least[some] = np.minimum.reduceat(lists.values.to_numpy(), begins[some])
    return pa.array(least, mask=~some)


COLUMNS: Mapping[str, Callable[[ArrowRecords], Any]] = {
    "is_commit": lambda rows: pa.array(rows.is_commit),
    "transaction_id": _transaction_id,
    "group_hash": _group_hash,
    "half_offsets": _half_offsets,
    "first_half_offset": _first_half_offset,
}
