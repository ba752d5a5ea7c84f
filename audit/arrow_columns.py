"""The columns of `columns.py` as Arrow has them."""

from collections.abc import Iterable

import pyarrow as pa

from audit import columns

_ARROW_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<bigint>": pa.list_(pa.int64()),
}


def field(name: str) -> pa.Field:
    return pa.field(name, _ARROW_TYPES[columns.COLUMNS[name]])


def schema(names: Iterable[str] = tuple(columns.COLUMNS)) -> pa.Schema:
    return pa.schema([field(name) for name in names])
