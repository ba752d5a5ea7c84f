"""Some records of a window: where in its bytes the fields, texts and properties of each lie, and of
what kind each is.

Records with IPv6 hosts, which few brokers write, have their fields further back and are gathered by
their own positions.

Without Arrow: texts are copied one by one here, and many at a time by `arrow_records.py`.
"""

from functools import cached_property
from typing import Any

import numpy as np

from audit import columns
from audit.decode import spans
from audit.decode.items import Items
from audit.decode.spans import Bytes, Flags, Spans
from audit.decode.walk import Piece
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
_STORED = np.dtype([("stored_at", ">i8"), ("store_host", "V8")])
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
    "no_body": properties.NO_BODY,
    "delay_level": DELAY_LEVEL,
    "due_noted": "__schedule_due_ms",
    "deliver_at": properties.TIMER_DELIVER_MS,
    "timer_slot": properties.TIMER_OUT_MS,
}
EVENT = r'^\{"event":"(?P<event>[a-z_]+)"'
"""How the body of a check says what happened."""
# Of a transaction by their message id, where a broker wrote them.
_IDENTIFIED = (columns.HALF, columns.HELD, columns.FINAL, columns.DELAYED, columns.DELAYED_AGAIN)
_WAITING = (columns.DELAYED, columns.DELAYED_AGAIN)
_NUMBER_OF = {kind: number for number, kind in enumerate(columns.KINDS)}
_RETRY_PREFIX = b"%RETRY%"


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
            stored = spans.values_at(self._raw, _STORED, self.at + _STORED_AT + born)
            self._moved |= {name: stored[name] for name in _STORED.names or ()}
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
        """A field of the header, as stored: big-endian."""
        return self._moved.get(name, self._head[name])

    # ----------------------------------------------------------------------------------------------
    # texts

    @cached_property
    def items(self) -> Items:
        """The values of the properties that columns are made of."""
        return Items(*self._joined_properties(), _NAMES)

    def _joined_properties(self) -> tuple[Bytes, Ints]:
        """The properties of all records, back to back, and where those of each begin."""
        begins, ends = self._properties
        texts = self._slices(self._properties)
        bounds = np.concatenate([[0], np.cumsum(ends - begins)])
        return np.frombuffer(b"".join(texts), np.uint8), bounds

    @cached_property
    def numbered_topics(self) -> tuple[list[str], Ints]:
        """The topics of these records, and of each record the place of its topic among them."""
        numbers: dict[bytes, int] = {}
        of_each = [numbers.setdefault(raw, len(numbers)) for raw in self._slices(self._topics)]
        return [text_of(raw) for raw in numbers], np.array(of_each, np.int64)

    def topics(self) -> list[str]:
        names, numbers = self.numbered_topics
        return [names[number] for number in numbers.tolist()]

    def values(self, name: str) -> list[str | None]:
        """The values of a property; None where a record has none."""
        begins, ends = self.items[name]
        if not ends.any():
            return [None] * len(self)
        data = self.items.data.tobytes()
        return [
            text_of(data[begin:end]) if end else None
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def body_of(self, number: int) -> bytes:
        begins, ends = self._bodies
        return self.window[int(begins[number]) : int(ends[number])]

    def _slices(self, places: Spans) -> list[bytes]:
        begins, ends = places
        window = self.window
        return [
            window[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def begin_with(self, some: Flags, text: bytes) -> Flags:
        """Whether each of these has a body that begins with this text."""
        found = some.copy()
        found[some] = spans.is_text_at(self._raw, self._bodies[0][some], text)
        return found

    # ----------------------------------------------------------------------------------------------
    # kinds

    @cached_property
    def is_commit(self) -> Flags:
        bits = self._head["sys_flag"] & records.TRANSACTION_MASK
        return np.asarray(bits == TransactionBits.COMMIT)

    @cached_property
    def kinds(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        """The place of each record's kind in `columns.KINDS`."""
        topics, numbers = self.numbered_topics
        of_topic = [_NUMBER_OF[columns.kind_of_topic(topic)] for topic in topics]
        found: np.ndarray[Any, np.dtype[np.int8]] = np.array(of_topic, np.int8)[numbers]
        found[(found == _NUMBER_OF[columns.MESSAGE]) & self.is_commit] = _NUMBER_OF[columns.FINAL]
        delayed = np.flatnonzero(found == _NUMBER_OF[columns.DELAYED])
        if len(delayed):  # a retry waits in the delay topic, too
            begins, ends = (each[delayed] for each in self.items["real_topic"])
            is_retry = ends - begins >= len(_RETRY_PREFIX)
            is_retry &= spans.is_text_at(self.items.data, begins, _RETRY_PREFIX)
            found[delayed[self.items["so_far"][1][delayed] > 0]] = _NUMBER_OF[columns.DELAYED_AGAIN]
            found[delayed[is_retry]] = _NUMBER_OF[columns.RETRY]
        return found

    def are(self, *kinds: str) -> Flags:
        is_wanted = np.zeros(len(columns.KINDS), bool)
        is_wanted[[_NUMBER_OF[kind] for kind in kinds]] = True
        found: Flags = is_wanted[self.kinds]
        return found

    def lie_in(self, *topics: str) -> Flags:
        """Whether each record is in one of these topics."""
        known, numbers = self.numbered_topics
        found: Flags = np.array([topic in topics for topic in known], bool)[numbers]
        return found

    @cached_property
    def lack_id(self) -> Flags:
        """Records of a transaction without the property for its id: a broker's, whose message id is
        the transaction id.
        """
        are_of_one = self.are(*_IDENTIFIED)
        are_of_one &= self.is_commit | ~self.are(*_WAITING)
        return np.asarray(are_of_one & (self.items["own_id"][1] == 0))

    @cached_property
    def are_identified(self) -> Flags:
        return (self.items["own_id"][1] > 0) | (self.lack_id & (self.items["message_id"][1] > 0))


def text_of(raw: bytes) -> str:
    """Decode UTF-8; other bytes are replaced, as Java does it."""
    return raw.decode("utf-8", "replace")
