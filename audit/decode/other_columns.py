"""What a record says of itself, as Arrow columns: its times, its texts, when it is due, what the
service noted in it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import arrow_columns, columns
from audit.decode import arrow_spans
from audit.decode.arrow_records import ArrowRecords
from audit.decode.records import NUMBER_PROPERTIES, TEXT_PROPERTIES
from storage.formats import key_scan
from storage.formats.delay_levels import DELAYS_MS, SCHEDULE_TOPIC
from storage.formats.names import TIMER_TOPIC
from storage.formats.scan import Ints

# a time beyond is no date, and its microseconds would not fit
_MOST_MS = np.iinfo(np.int64).max // 1000
_EVENT = r'^\{"event":"(?P<event>[a-z_]+)"'
_UNKNOWN_LEVEL_MS = 1_000
_TIMER_SLOT_MS = 1_000  # of a broker's timer wheel
_LAST_DUE_MS = 253_402_300_799_999  # the end of the year 9999


def _time(name: str, rows: ArrowRecords) -> pa.Array:
    micros = np.clip(rows.field(name).astype(np.int64), -_MOST_MS, _MOST_MS) * 1000
    return pa.array(micros).view(arrow_columns.field(name).type)


def _kind(rows: ArrowRecords) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(rows.kinds), pa.array(columns.KINDS))


def _event(rows: ArrowRecords) -> pa.Array:
    checks = np.flatnonzero(rows.are(columns.CHECK))
    if not len(checks):
        return pa.nulls(len(rows), pa.string())
    bodies = arrow_spans.strings(rows.bodies(checks))
    return _placed(pc.struct_field(pc.extract_regex(bodies, _EVENT), "event"), checks, len(rows))


def _note(rows: ArrowRecords) -> pa.Array:
    noted = np.flatnonzero(rows.lie_in(*columns.NOTED))
    return (
        _placed(arrow_spans.strings(rows.bodies(noted)), noted, len(rows))
        if len(noted)
        else pa.nulls(len(rows), pa.string())
    )


def _placed(values: pa.Array, places: Ints, count: int) -> pa.Array:
    """So many, with the values in these places; null elsewhere."""
    indices = np.full(count, -1)
    indices[places] = np.arange(len(places))
    return values.take(pa.array(indices, mask=indices < 0))


def _due_ms(rows: ArrowRecords) -> pa.Array:
    """As scheduler/scheduled_message.py reads it. A broker says so of a level by its name alone."""
    waits, of_level = rows.lie_in(SCHEDULE_TOPIC, TIMER_TOPIC), rows.lie_in(SCHEDULE_TOPIC)
    if not waits.any():
        return pa.nulls(len(rows), pa.int64())
    stored_ms = pa.array(rows.field("stored_at").astype(np.int64))
    level = pc.min_element_wise(rows.numbers("delay_level"), len(DELAYS_MS))
    delay_ms = pa.array([_UNKNOWN_LEVEL_MS, *DELAYS_MS]).take(pc.fill_null(level, 0))
    by_level = pc.coalesce(rows.numbers("due_noted"), pc.add(stored_ms, delay_ms))
    by_slot = pc.add(rows.numbers("timer_slot"), _TIMER_SLOT_MS)
    by_timer = pc.coalesce(rows.numbers("deliver_at"), by_slot, stored_ms)
    due_ms = pc.min_element_wise(pc.if_else(pa.array(of_level), by_level, by_timer), _LAST_DUE_MS)
    return pc.if_else(pa.array(waits), due_ms, None)


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
    **{name: partial(lambda name, rows: rows.numbers(name), name) for name in NUMBER_PROPERTIES},
    "event": _event,
    "note": _note,
    "due_ms": _due_ms,
    "key_hashes": _key_hashes,
    "properties": lambda rows: arrow_spans.strings(rows.properties),
    "body": lambda rows: rows.bodies(),
}
