"""Values of properties of many records at a time."""

import numpy as np

from audit.decode import spans
from audit.decode.spans import Bytes, Flags, Spans
from storage.formats import properties
from storage.formats.scan import Ints

_SHORTEST_ITEM = 3  # bytes: a name, its end, a value
_VALUE_END = ord(properties.VALUE_END)


class Items:
    """The properties of records, back to back; searched by name on demand.

    `bounds`: where the properties of each record begin, and where the last end; `names`: of the
    properties, by column. Of a name that occurs twice the last counts, as RocketMQ reads it. An
    item without a value is none.
    """

    def __init__(self, data: Bytes, bounds: Ints, names: dict[str, str]) -> None:
        self.data = data
        self.padded = spans.padded(data)
        self._names = names
        self._count = len(bounds) - 1
        items = _items(data, bounds)
        some = np.flatnonzero(items[1] - items[0] >= _SHORTEST_ITEM)  # padding is items of no byte
        self._begins, self._ends, self._owners = (each[some] for each in items)
        self._lengths = self._ends - self._begins
        self._words = spans.words_at(self.padded, self._begins)
        self._known: dict[str, Spans] = {}

    def __getitem__(self, column: str) -> Spans:
        if column not in self._known:
            self._known[column] = self._find((self._names[column] + properties.NAME_END).encode())
        return self._known[column]

    def are(self, column: str, value: bytes) -> Flags:
        """Whether each record has this value."""
        begins, ends = self[column]
        found: Flags = ends - begins == len(value)
        found[found] = spans.is_text_at(self.data, begins[found], value)
        return found

    def _find(self, key: bytes) -> Spans:
        words = self._words if len(key) >= 8 else self._words & _mask(key)
        hits = np.flatnonzero(words == _word(key))
        hits = hits[self._lengths[hits] > len(key)]
        for at in range(8, len(key), 8):  # the rest of a longer name, eight bytes at a time
            at = min(at, len(key) - 8)
            hits = hits[spans.words_at(self.padded, self._begins[hits] + at) == _word(key[at:])]
        begins, ends = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        begins[self._owners[hits]] = self._begins[hits] + len(key)
        ends[self._owners[hits]] = self._ends[hits]
        return begins, ends


def _items(data: Bytes, bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """(begins, ends, the record of each) of the items between the separators."""
    ends = np.flatnonzero(data == _VALUE_END)
    lengths = np.diff(bounds)
    is_open = (lengths > 0) & (data[bounds[1:] - 1] != _VALUE_END) if len(data) else lengths > 0
    if not is_open.any():
        owners = np.repeat(np.arange(len(lengths)), np.diff(np.searchsorted(ends, bounds)))
        return np.concatenate([[0], ends[:-1] + 1]), ends, owners
    # Brokers leave the last item open: it ends where its record does, and there the next begins.
    opened = np.flatnonzero(is_open)
    owners = np.concatenate([opened, np.searchsorted(bounds, ends, side="right") - 1])
    widths = np.concatenate([np.zeros(len(opened), np.int64), np.ones(len(ends), np.int64)])
    ends = np.concatenate([bounds[1:][is_open], ends])
    order = np.argsort(ends, kind="stable")
    ends, widths, owners = ends[order], widths[order], owners[order]
    return np.concatenate([[0], (ends + widths)[:-1]]), ends, owners


def _word(key: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(key[:8].ljust(8, b"\0"), "little"))


def _mask(key: bytes) -> np.uint64:
    return np.uint64((1 << 8 * min(len(key), 8)) - 1)
