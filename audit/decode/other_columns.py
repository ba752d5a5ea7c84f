"""The times, the texts and the notes of the service of a record, as Arrow columns."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import arrow_columns, columns
from audit.decode import arrow_spans
from audit.decode.arrow_records import ArrowRecords
from audit.decode.numbers import MOST_MS
from audit.decode.records import EVENT, TEXT_PROPERTIES
from storage.formats import key_scan
from storage.formats.scan import Ints


def _time(name: str, rows: ArrowRecords) -> pa.Array:
    micros = np.clip(rows.field(name).astype(np.int64), -MOST_MS, MOST_MS) * 1000
    return pa.array(micros).view(arrow_columns.field(name).type)


def _kind(rows: ArrowRecords) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(rows.kinds), pa.array(columns.KINDS))


def _event(rows: ArrowRecords) -> pa.Array:
    checks = np.flatnonzero(rows.are(columns.CHECK))
    if not len(checks):
        return pa.nulls(len(rows), pa.string())
    bodies = arrow_spans.strings(rows.bodies(checks))
    return _placed(pc.struct_field(pc.extract_regex(bodies, EVENT), "event"), checks, len(rows))


def _note(rows: ArrowRecords) -> pa.Array:
    noted = np.flatnonzero(rows.lie_in(*columns.NOTED))
    return (
        _placed(arrow_spans.strings(rows.bodies(noted)), noted, len(rows))
        if len(noted)
        else pa.nulls(len(rows), pa.string())
    )


def _placed(values: pa.Array, places: Ints, count: int) -> pa.Array:
    """A column of so many rows with the values at these places, null elsewhere."""
    indices = np.full(count, -1)
    indices[places] = np.arange(len(places))
    return values.take(pa.array(indices, mask=indices < 0))


def _key_hashes(rows: ArrowRecords) -> pa.Array:
    offsets = rows.at + rows.window_offset
    found = key_scan.keys(rows.window, rows.window_offset, offsets, rows.lengths)
    counts = np.bincount(np.searchsorted(offsets, found.log_offsets), minlength=len(offsets))
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(found.hashes.astype(np.int64)))


COLUMNS: Mapping[str, Callable[[ArrowRecords], Any]] = {
    "kind": _kind,
    "damage": lambda rows: pa.nulls(len(rows), pa.string()),
    "is_verified": lambda rows: pa.array(np.full(len(rows), rows.is_verified)),
    "topic": lambda rows: rows.topic_array,
    "born_at": partial(_time, "born_at"),
    "stored_at": partial(_time, "stored_at"),
    **{name: partial(lambda name, rows: rows.texts(name), name) for name in TEXT_PROPERTIES},
    "event": _event,
    "note": _note,
    "key_hashes": _key_hashes,
    "properties": lambda rows: arrow_spans.strings(rows.properties),
    "body": lambda rows: rows.bodies(),
}
