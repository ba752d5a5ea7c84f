"""Some records of a window: where in its bytes the fields, texts and properties of each lie, and of
what kind each is.

Records with IPv6 hosts, which few brokers write, have their fields further back and are gathered by
their own positions.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import columns
from audit.decode import spans
from audit.decode.items import Items
from audit.decode.spans import Flags
from audit.walk import Piece
from storage.formats import properties
from storage.formats import record as records
from storage.formats.delay_levels import DELAY_LEVEL
from storage.formats.scan import Ints
from storage.message import TransactionBits

# formats/record.py with IPv4 hosts, up to and with body_bytes, and the part that IPv6 hosts move.
_HEADER = np.dtype(
    [
        ("total", ">i4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"),
        ("flag", ">i4"), ("queue_offset", ">i8"),
        ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born_at", ">i8"), ("born_host", "V8"),
        ("stored_at", ">i8"),
        ("store_host", "V8"), ("reconsume_times", ">i4"), ("prepared_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)  # fmt: skip
_STORED_AT, _TAIL_AT = 56, 72
_TAIL = np.dtype([("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_bytes", ">i4")])
_IPV6_MORE_BYTES = 12
assert _HEADER.itemsize == 88

TEXT_PROPERTIES = {
    "message_id": properties.MESSAGE_ID,
    "producer_group": properties.PRODUCER_GROUP,
    "real_topic": properties.REAL_TOPIC,
    "transaction_mark": properties.TRANSACTION_MARK,
    "key": properties.KEYS,
    "tag": properties.TAGS,
    "schedule_id": properties.SCHEDULE_ID,
    "decision": "__decision",
    "decided_by": "__decided_by",
    "check_answer": "__check_answer",
    "so_far": "__schedule_so_far",
    "facts": "__transaction",
    "retry_topic": properties.RETRY_TOPIC,
    "origin_id": properties.ORIGIN_MESSAGE_ID,
    "origin_place": "__origin",
}
NUMBER_PROPERTIES = {  # whose columns are ints
    "real_queue_id": properties.REAL_QUEUE,
    "check_times": "TRANSACTION_CHECK_TIMES",
    "attempts": properties.RECONSUME_TIME,
}
_NAMES = {
    **TEXT_PROPERTIES,
    **NUMBER_PROPERTIES,
    "own_id": properties.TRANSACTION_ID,
    "unit": properties.UNIT,
    "delay_level": DELAY_LEVEL,
    "due_noted": "__schedule_due_ms",
    "deliver_at": properties.TIMER_DELIVER_MS,
    "timer_slot": properties.TIMER_OUT_MS,
}
# Of a transaction by their message id, where a broker wrote them.
_IDENTIFIED = (columns.HALF, columns.HELD, columns.FINAL, columns.DELAYED, columns.DELAYED_AGAIN)
_WAITING = (columns.DELAYED, columns.DELAYED_AGAIN)
_NUMBER_OF = {kind: number for number, kind in enumerate(columns.KINDS)}
_NUMBER = r"^[0-9]{1,18}$"
_INT = r"^[0-9]{1,9}$"  # a larger one is none


class Records:
    """`at`: where in the window each begins.

    `malformed`: those whose lengths do not add up, as `of_stretches` takes them.
    """

    def __init__(self, piece: Piece, offsets: Ints, lengths: Ints) -> None:
        self.window = piece.window
        self.window_offset = piece.window_offset
        self.is_verified = piece.is_verified
        self.malformed: list[tuple[str, int, int, str]] = []
        self.at = offsets - piece.window_offset
        self.lengths = lengths
        self._raw = np.frombuffer(piece.window, np.uint8)
        self._find_fields()

    def __len__(self) -> int:
        return len(self.at)

    # ----------------------------------------------------------------------------------------------
    # where things lie

    def _find_fields(self) -> None:
        self._head = spans.values_at(self._raw, _HEADER, self.at)
        flags = self._head["sys_flag"]
        hosts = flags & (records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6)
        self._moved: dict[str, Any] = {}
        body_at = self.at + _HEADER.itemsize
        if hosts.any():
            born = np.where(flags & records.BORN_HOST_IPV6, _IPV6_MORE_BYTES, 0)
            both = born + np.where(flags & records.STORE_HOST_IPV6, _IPV6_MORE_BYTES, 0)
            tail = spans.values_at(self._raw, _TAIL, self.at + _TAIL_AT + both)
            self._moved = {name: tail[name] for name in _TAIL.names or ()}
            self._moved["stored_at"] = spans.values_at(
                self._raw, np.dtype(">i8"), self.at + _STORED_AT + born
            )
            body_at = body_at + both
        self._find_texts(body_at)

    def _find_texts(self, body_at: Ints) -> None:
        last = len(self._raw) - 1
        end = self.at + self.lengths
        body_bytes = self.field("body_bytes").astype(np.int64)
        topic_at = body_at + body_bytes
        width = np.where(self._head["magic"] == records.MAGIC_V1, 1, 2)
        first = self._raw[np.clip(topic_at, 0, last)].astype(np.int64)
        second = self._raw[np.clip(topic_at + 1, 0, last)].astype(np.int64)
        topic_bytes = np.where(width == 1, first, first << 8 | second)
        self._bodies = body_at, topic_at
        self._topics = topic_at + width, topic_at + width + topic_bytes
        self._properties = self._topics[1] + 2, end
        fits = (
            (body_bytes >= 0)
            & (topic_bytes < 1 << 15)
            & (self._properties[0] <= end)
            & (end <= last + 1)
        )
        if not fits.all():
            self._set_apart(fits)

    def _set_apart(self, fits: Flags) -> None:
        """Records whose lengths do not add up: no correct writer gives them a right checksum."""
        why = "the lengths of the record do not add up"
        for place, length in zip(
            self.at[~fits].tolist(), self.lengths[~fits].tolist(), strict=True
        ):
            self.malformed.append((columns.DAMAGED, self.window_offset + place, length, why))
        self.at, self.lengths, self._head = self.at[fits], self.lengths[fits], self._head[fits]
        self._moved = {name: values[fits] for name, values in self._moved.items()}
        every = self._bodies, self._topics, self._properties
        self._bodies, self._topics, self._properties = (
            (begins[fits], ends[fits]) for begins, ends in every
        )

    def field(self, name: str) -> Any:
        """Of the header, as it is stored: big-endian."""
        return self._moved.get(name, self._head[name])

    # ----------------------------------------------------------------------------------------------
    # texts and numbers

    @cached_property
    def properties(self) -> pa.Array:
        """As they are stored."""
        return spans.slices(self._raw, self._properties)

    @cached_property
    def items(self) -> Items:
        """Where in the properties the values stand that columns are made of."""
        bounds = np.frombuffer(self.properties.buffers()[1], np.int32)[: len(self) + 1].astype(
            np.int64
        )
        held = self.properties.buffers()[2]
        return Items(
            np.frombuffer(held, np.uint8)[: bounds[-1]] if held else np.empty(0, np.uint8),
            bounds,
            _NAMES,
        )

    def texts(self, name: str) -> pa.Array:
        """The values of a property."""
        found = self.items[name]
        return spans.strings(spans.slices(self.items.data, spans.ascending(found)), found[1] > 0)

    def numbers(self, name: str) -> pa.Array:
        """The same, where they are numbers."""
        found = self.texts(name)
        form = _INT if name in NUMBER_PROPERTIES else _NUMBER
        return pc.if_else(pc.match_substring_regex(found, form), found, None).cast(pa.int64())

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        return spans.strings(spans.slices(self._raw, self._topics)).dictionary_encode()

    def bodies(self, some: Ints | slice = slice(None)) -> pa.Array:
        """Of these records, as bytes."""
        begins, ends = self._bodies
        return spans.slices(self._raw, (begins[some], ends[some]))

    def begin_with(self, some: Flags, text: bytes) -> Flags:
        """Which of these have a body that begins so?"""
        found = some.copy()
        found[some] = spans.stands(self._raw, self._bodies[0][some], text)
        return found

    # ----------------------------------------------------------------------------------------------
    # kinds

    @cached_property
    def is_commit(self) -> Flags:
        bits = self._head["sys_flag"] & records.TRANSACTION_MASK
        return np.asarray(bits == TransactionBits.COMMIT)

    @cached_property
    def kinds(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        """Of each record its place in `columns.KINDS`."""
        of_topic = [
            _NUMBER_OF[columns.kind_of_topic(topic)] for topic in self.topics.dictionary.to_pylist()
        ]
        found: np.ndarray[Any, np.dtype[np.int8]] = np.array(of_topic, np.int8)[
            self.topics.indices.to_numpy()
        ]
        found[(found == _NUMBER_OF[columns.MESSAGE]) & self.is_commit] = _NUMBER_OF[columns.FINAL]
        delayed = np.flatnonzero(found == _NUMBER_OF[columns.DELAYED])
        if len(delayed):  # a retry waits in the delay topic, too
            targets = self.texts("real_topic").take(pa.array(delayed))
            is_retry = pc.fill_null(pc.starts_with(targets, "%RETRY%"), False).to_numpy(
                zero_copy_only=False
            )
            found[delayed[self.items["so_far"][1][delayed] > 0]] = _NUMBER_OF[columns.DELAYED_AGAIN]
            found[delayed[is_retry]] = _NUMBER_OF[columns.RETRY]
        return found

    def are(self, *kinds: str) -> Flags:
        is_wanted = np.zeros(len(columns.KINDS), bool)
        is_wanted[[_NUMBER_OF[kind] for kind in kinds]] = True
        found: Flags = is_wanted[self.kinds]
        return found

    def lie_in(self, *topics: str) -> Flags:
        """Which records are of these topics?"""
        is_wanted = np.array(
            [topic in topics for topic in self.topics.dictionary.to_pylist()], bool
        )
        found: Flags = is_wanted[self.topics.indices.to_numpy()]
        return found

    @cached_property
    def lack_id(self) -> Flags:
        """Of a transaction, and without the property that says which: a broker's, the message's own
        id says it.
        """
        are_of_one = self.are(*_IDENTIFIED)
        are_of_one &= self.is_commit | ~self.are(*_WAITING)
        return np.asarray(are_of_one & (self.items["own_id"][1] == 0))

    @cached_property
    def are_identified(self) -> Flags:
        return (self.items["own_id"][1] > 0) | (self.lack_id & (self.items["message_id"][1] > 0))
