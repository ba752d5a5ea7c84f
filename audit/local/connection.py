"""A temporary SQLite database, with the functions of Spark that the shared SQL uses.

SQLite keeps it in a file without a name, of which at most 64 MiB are in memory: the file grows with
the log, and is gone when the process ends.
"""

import sqlite3
from typing import Any

_CACHE_KB = 64 << 10
_LONG = 1 << 64


def connect() -> sqlite3.Connection:
    """`close` it at the end."""
    connection = sqlite3.connect("", isolation_level=None)
    connection.row_factory = sqlite3.Row
    for name, function in _FUNCTIONS.items():
        connection.create_function(name, -1, function, deterministic=True)
    connection.create_aggregate("bit_or", 1, _BitOr)
    connection.create_aggregate("max_by", 2, _MaxBy)
    connection.create_aggregate("min_by", 2, _MinBy)
    connection.create_window_function("last", -1, _Last)
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA temp_store = FILE")
    return connection


def _least(*values: Any) -> Any:
    """The smallest value that is not null."""
    return min((value for value in values if value is not None), default=None)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _concat_ws(separator: str, *values: Any) -> str:
    return separator.join(str(value) for value in values if value is not None)


def _shiftleft(value: int, bits: int) -> int:
    """A long, as Java shifts it."""
    shifted = (value << bits) % _LONG
    return shifted - _LONG if shifted >= _LONG >> 1 else shifted


def _hash(*values: Any) -> int:
    """The hash of these values; another function than Spark's, since hashes are only compared with
    each other.
    """
    return hash(values)


_FUNCTIONS = {
    "least": _least,
    "greatest": _greatest,
    "concat_ws": _concat_ws,
    "shiftleft": _shiftleft,
    "bin": "{:b}".format,
    "xxhash64": _hash,
}


class _BitOr:
    def __init__(self) -> None:
        self._bits = 0

    def step(self, bits: int) -> None:
        self._bits |= bits

    def finalize(self) -> int:
        return self._bits


class _MaxBy:
    """The value beside the largest place, of equal places the last one that is read, as Spark takes
    it; places that are null do not count.
    """

    def __init__(self) -> None:
        self._value: Any = None
        self._place: Any = None

    def step(self, *row: Any) -> None:
        value, place = row
        if place is not None and (self._place is None or self._is_better(place, self._place)):
            self._value, self._place = value, place

    def finalize(self) -> Any:
        return self._value

    @staticmethod
    def _is_better(place: Any, known: Any) -> bool:
        return bool(place >= known)


class _MinBy(_MaxBy):
    @staticmethod
    def _is_better(place: Any, known: Any) -> bool:
        return bool(place <= known)


class _Last:
    """The last value that is not null, over a window of the rows up to and with the current one.

    Python's sqlite3 does not survive a window without a row.
    """

    def __init__(self) -> None:
        self._value: Any = None

    def step(self, *row: Any) -> None:
        value, _ignores_nulls = row
        if value is not None:
            self._value = value

    def inverse(self, *row: Any) -> None:
        raise NotImplementedError("no row leaves such a window")

    def value(self) -> Any:
        return self._value

    def finalize(self) -> Any:
        return self._value
