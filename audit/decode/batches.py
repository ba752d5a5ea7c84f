"""Records, and stretches that are none, as Arrow batches with the columns that are asked for."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from audit import arrow_columns, columns
from audit.columns import Role
from audit.decode import numbers, other_columns, transaction_columns
from audit.decode.arrow_records import ArrowRecords
from audit.decode.walk import Piece, What

BATCH_RECORDS = 16_384

_STRETCH_ROLES = {
    columns.DAMAGED: Role.DAMAGED,
    columns.MISSING: Role.DAMAGED,
    columns.FILLER: Role.FILLER,
}
_MADE = {**transaction_columns.COLUMNS, **other_columns.COLUMNS}
assert {*_MADE, *numbers.COLUMNS, "segment"} == set(columns.COLUMNS)


def of_records(piece: Piece, segment_base: int, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """The records of a piece as rows with the columns of the schema, in log order."""
    for at in range(0, len(piece.record_offsets), BATCH_RECORDS):
        some = slice(at, at + BATCH_RECORDS)
        rows = ArrowRecords(piece, piece.record_offsets[some], piece.record_bytes[some])
        if len(rows):
            yield pa.RecordBatch.from_arrays(
                [_column(rows, field, segment_base) for field in schema], schema=schema
            )
        yield from of_stretches(rows.malformed, segment_base, schema)


def _column(rows: ArrowRecords, field: pa.Field, segment_base: int) -> pa.Array:
    if field.name == "segment":
        return pa.array(np.full(len(rows), segment_base), field.type)
    if field.name in numbers.COLUMNS:
        found = numbers.COLUMNS[field.name](rows)
        return pa.array(found.values, mask=found.is_none).cast(field.type)
    return _MADE[field.name](rows).cast(field.type)


def of_stretches(
    found: Sequence[tuple[str, int, int, str]], segment_base: int, schema: pa.Schema
) -> Iterable[pa.RecordBatch]:
    """Rows that are no record: (kind, log offset, length, why)."""
    if not found:
        return
    known: dict[str, Any] = {
        "kind": [kind for kind, *_ in found],
        "log_offset": [offset for _, offset, *_ in found],
        "record_bytes": [length for *_, length, _ in found],
        "damage": [why or None for *_, why in found],
        "is_verified": [kind == columns.FILLER for kind, *_ in found],
        "segment": [segment_base] * len(found),
        "role": [int(_STRETCH_ROLES[kind]) for kind, *_ in found],
    }
    arrays = [
        pa.array(known[field.name], field.type)
        if field.name in known
        else pa.nulls(len(found), field.type)
        for field in schema
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_at(window: bytes, offset: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The record that the window is, as a row; None where its lengths do not add up."""
    piece = Piece(
        What.RECORDS,
        offset,
        len(window),
        "",
        window,
        offset,
        np.array([offset]),
        np.array([len(window)]),
    )
    for batch in of_records(piece, offset, arrow_columns.schema(names)):
        row: dict[str, Any] = batch.to_pylist()[0]
        return row if row.get("kind") != columns.DAMAGED else None
    return None
