"""Records of the log as Arrow columns, many at a time: numpy finds where everything lies, Arrow copies it.

Nothing here loops over records: a column costs 10 to 100 ns a record (benchmarks/audit.py). Records with IPv6 hosts, which few
brokers write, have their fields further back and are gathered by their own positions. What a record states about itself is
checked before it is followed, so bytes that somebody made up end as a damaged row and never as an error.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit import columns
from audit.columns import Role
from audit.walk import Piece, What
from storage.formats import key_scan, properties, unit
from storage.formats import record as records
from storage.formats.delay_levels import DELAY_LEVEL, DELAYS_MS, SCHEDULE_TOPIC
from storage.formats.names import TIMER_TOPIC
from storage.formats.scan import Ints
from storage.message import TransactionBits

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Spans = tuple[Ints, Ints]
"""(begins, ends) of texts in one buffer; both 0 where there is none."""

BATCH_RECORDS = 16_384

# formats/record.py with IPv4 hosts, up to and with body_bytes, and the part that IPv6 hosts move.
_HEADER = np.dtype(
    [
        ("total", ">i4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"), ("queue_offset", ">i8"),
        ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born_at", ">i8"), ("born_host", "V8"), ("stored_at", ">i8"),
        ("store_host", "V8"), ("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_bytes", ">i4"),
    ]
)  # fmt: skip
_STORED_AT, _STORE_HOST_AT, _TAIL_AT = 56, 64, 72
_TAIL = np.dtype([("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_bytes", ">i4")])
_IPV6_MORE_BYTES = 12
assert _HEADER.itemsize == 88

_SHORTEST_ITEM = 3  # bytes: a name, its end, a value
_VALUE_END = ord(properties.VALUE_END)
_COUNT_PREFIX = b'{"message_count":'
_EVENT = r'^\{"event":"(?P<event>[a-z_]+)"'
_NUMBER = r"^[0-9]{1,18}$"

_TEXT_PROPERTIES = {
    "message_id": properties.MESSAGE_ID,
    "producer_group": properties.PRODUCER_GROUP,
    "real_topic": properties.REAL_TOPIC,
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
_NUMBER_PROPERTIES = {
    "real_queue_id": properties.REAL_QUEUE,
    "check_times": "TRANSACTION_CHECK_TIMES",
    "attempts": properties.RECONSUME_TIME,
}
_NAMES = {
    **_TEXT_PROPERTIES,
    **_NUMBER_PROPERTIES,
    "own_id": properties.TRANSACTION_ID,
    "message_count": _TEXT_PROPERTIES["facts"],
    "unit": properties.UNIT,
    "delay_level": DELAY_LEVEL,
    "due_noted": "__schedule_due_ms",
    "deliver_at": properties.TIMER_DELIVER_MS,
    "timer_slot": properties.TIMER_OUT_MS,
}
# What a column is made of beside its own property.
# By their message id, where a broker wrote them.
_IDENTIFIED = (columns.HALF, columns.HELD, columns.FINAL, columns.DELAYED, columns.DELAYED_AGAIN)
_WAITING = (columns.DELAYED, columns.DELAYED_AGAIN)
_RESUMED = b'{"event":"resumed"'
_UNKNOWN_LEVEL_MS = 1_000
_TIMER_SLOT_MS = 1_000  # of a broker's timer wheel
_LAST_DUE_MS = 253_402_300_799_999  # the end of the year 9999
_STRETCH_ROLES = {columns.DAMAGED: Role.DAMAGED, columns.MISSING: Role.DAMAGED, columns.FILLER: Role.FILLER}
_MICROS_ARE_OF = np.iinfo(np.int64).max // 1000  # a time beyond is no date, and would not fit
_OUR_HOST = np.frombuffer(records.HOST, np.uint64)[0]
_UNIT_TEXT_BYTES = unit.UNIT_ITEM_BYTES - len(unit.UNIT_ITEM_START) - 1
_OFFSET_DIGITS = 12  # of a unit item: where the unit begins
_HASH_SHIFT = 35  # 28 bits are left of a message's hash: sums of 2**35 of them fit a bigint
_HASH_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64

_HEADER_COLUMNS = {
    "queue_id": np.int32, "queue_offset": np.int64, "flag": np.int32, "sys_flag": np.int32, "reconsume_times": np.int32,
    "prepared_offset": np.int64, "body_bytes": np.int32, "body_crc": np.int64,
}  # fmt: skip


def batches(piece: Piece, segment_base: int, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """The records of a piece as rows with the columns of the schema, in log order."""
    for at in range(0, len(piece.record_offsets), BATCH_RECORDS):
        some = slice(at, at + BATCH_RECORDS)
        rows = Rows(piece, piece.record_offsets[some], piece.record_bytes[some], segment_base)
        if len(rows.at):
            yield pa.RecordBatch.from_arrays([rows.column(field) for field in schema], schema=schema)
        yield from stretches(rows.malformed, segment_base, schema)


def stretches(found: Sequence[tuple[str, int, int, str]], segment_base: int, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
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
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(len(found), field.type) for field in schema
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_at(window: bytes, offset: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The record that the window is, as a row; None where its lengths do not add up."""
    piece = Piece(What.RECORDS, offset, len(window), "", window, offset, np.array([offset]), np.array([len(window)]))
    for batch in batches(piece, offset, columns.arrow_schema(names)):
        row: dict[str, Any] = batch.to_pylist()[0]
        return row if row.get("kind") != columns.DAMAGED else None
    return None


def hash_of(text: str) -> int:
    """As the columns of hashes have it."""
    raw = np.frombuffer(text.encode("utf-8"), np.uint8)
    return int(_hashes(raw, (np.array([0]), np.array([len(raw)])))[0])


def is_ours(raw: bytes) -> bool:
    """Did this service write the record that begins here? Its store host says so."""
    return raw.startswith(records.HOST, _STORE_HOST_AT)


class Rows:
    """Some records of a window, of which columns are asked for. `at`: where in the window each begins."""

    def __init__(self, piece: Piece, offsets: Ints, lengths: Ints, segment_base: int) -> None:
        self._window = piece.window
        self._raw = np.frombuffer(piece.window, np.uint8)
        self._window_offset = piece.window_offset
        self._segment_base = segment_base
        self._is_verified = piece.is_verified
        self.malformed: list[tuple[str, int, int, str]] = []
        self.at = offsets - piece.window_offset
        self._lengths = lengths
        self._find_fields()

    def column(self, field: pa.Field) -> pa.Array:
        name = field.name
        if name in _HEADER_COLUMNS:
            return pa.array(self._header(name).astype(_HEADER_COLUMNS[name]), field.type)
        if name in ("born_at", "stored_at"):
            micros = np.clip(self._header(name).astype(np.int64), -_MICROS_ARE_OF, _MICROS_ARE_OF) * 1000
            return pa.Array.from_buffers(field.type, len(self.at), [None, pa.py_buffer(micros)])
        if name in _TEXT_PROPERTIES:
            return self._texts(self._found[name])
        if name in _NUMBER_PROPERTIES:
            return self._numbers(self._found[name]).cast(field.type)
        made: Callable[[], pa.Array] = getattr(self, f"_column_{name}")
        return made().cast(field.type)

    # ------------------------------------------------------------------------------------------------- where things lie

    def _find_fields(self) -> None:
        self._head = _at(self._raw, _HEADER, self.at)
        flags = self._head["sys_flag"]
        hosts = flags & (records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6)
        self._moved: dict[str, Any] = {}
        body_at = self.at + _HEADER.itemsize
        if hosts.any():
            born = np.where(flags & records.BORN_HOST_IPV6, _IPV6_MORE_BYTES, 0)
            both = born + np.where(flags & records.STORE_HOST_IPV6, _IPV6_MORE_BYTES, 0)
            tail = _at(self._raw, _TAIL, self.at + _TAIL_AT + both)
            self._moved = {name: tail[name] for name in _TAIL.names or ()}
            self._moved["stored_at"] = _at(self._raw, np.dtype(">i8"), self.at + _STORED_AT + born)
            body_at = body_at + both
        self._find_texts(body_at)

    def _find_texts(self, body_at: Ints) -> None:
        last = len(self._raw) - 1
        end = self.at + self._lengths
        body_bytes = self._header("body_bytes").astype(np.int64)
        topic_at = body_at + body_bytes
        width = np.where(self._head["magic"] == records.MAGIC_V1, 1, 2)
        first = self._raw[np.clip(topic_at, 0, last)].astype(np.int64)
        second = self._raw[np.clip(topic_at + 1, 0, last)].astype(np.int64)
        topic_bytes = np.where(width == 1, first, first << 8 | second)
        self._body = body_at, topic_at
        self._topic = topic_at + width, topic_at + width + topic_bytes
        self._own = self._topic[1] + 2, end
        fits = (body_bytes >= 0) & (topic_bytes < 1 << 15) & (self._own[0] <= end) & (end <= last + 1)
        if not fits.all():
            self._set_apart(fits)

    def _set_apart(self, fits: Flags) -> None:
        """Records whose lengths do not add up: nobody of good faith writes them under a right checksum."""
        why = "the lengths of the record do not add up"
        for place, length in zip(self.at[~fits].tolist(), self._lengths[~fits].tolist(), strict=True):
            self.malformed.append((columns.DAMAGED, self._window_offset + place, length, why))
        self.at, self._lengths, self._head = self.at[fits], self._lengths[fits], self._head[fits]
        self._moved = {name: values[fits] for name, values in self._moved.items()}
        self._body, self._topic, self._own = ((a[fits], b[fits]) for a, b in (self._body, self._topic, self._own))

    def _header(self, name: str) -> Any:
        return self._moved.get(name, self._head[name])

    @cached_property
    def _properties(self) -> tuple[pa.Array, Bytes, Ints]:
        """Of all records back to back: as texts, as bytes, and where each begins."""
        texts = _slices(self._raw, self._own)
        bounds = np.frombuffer(texts.buffers()[1], np.int32)[: len(self.at) + 1].astype(np.int64)
        held = texts.buffers()[2]
        return texts, np.frombuffer(held, np.uint8)[: bounds[-1]] if held else np.empty(0, np.uint8), bounds

    @cached_property
    def _found(self) -> "Values":
        """Where in the properties the values stand that columns are made of."""
        _, data, bounds = self._properties
        return Values(data, bounds, _NAMES)

    # ------------------------------------------------------------------------------------------------------------ texts

    def _texts(self, spans: Spans) -> pa.Array:
        return _strings(_slices(self._properties[1], _ascending(spans)), spans[1] > 0)

    def _numbers(self, spans: Spans) -> pa.Array:
        found = self._texts(spans)
        return pc.if_else(pc.match_substring_regex(found, _NUMBER), found, None).cast(pa.int64())

    @cached_property
    def _topics(self) -> pa.DictionaryArray:
        return _strings(_slices(self._raw, self._topic)).dictionary_encode()

    @cached_property
    def _is_commit(self) -> Flags:
        bits = self._head["sys_flag"] & records.TRANSACTION_MASK
        return np.asarray(bits == TransactionBits.COMMIT)

    @cached_property
    def _kinds(self) -> tuple[Ints, list[str]]:
        """(number of the kind of each record, the kinds)."""
        topics = self._topics.dictionary.to_pylist()
        names = list(columns.KINDS)
        of_topic = np.array([names.index(columns.kind_of_topic(topic)) for topic in topics], np.int64)
        found = of_topic[self._topics.indices.to_numpy()]
        found[(found == names.index(columns.MESSAGE)) & self._is_commit] = names.index(columns.FINAL)
        delayed = np.flatnonzero(found == names.index(columns.DELAYED))
        if len(delayed):  # a retry waits in the delay topic, too
            begins, ends = self._found["real_topic"]
            targets = self._texts((begins, ends)).take(pa.array(delayed))
            is_retry = pc.fill_null(pc.starts_with(targets, "%RETRY%"), False).to_numpy(zero_copy_only=False)
            found[delayed[self._found["so_far"][1][delayed] > 0]] = names.index(columns.DELAYED_AGAIN)
            found[delayed[is_retry]] = names.index(columns.RETRY)
        return found, names

    def _is(self, *kinds: str) -> Flags:
        numbers, names = self._kinds
        return np.asarray(np.isin(numbers, [names.index(kind) for kind in kinds]))

    @cached_property
    def _lacks_id(self) -> Flags:
        """Of a transaction, and without the property that says which: a broker's, the message's own id says it."""
        is_of_one = self._is(*_IDENTIFIED)
        is_of_one &= self._is_commit | ~self._is(*_WAITING)
        return np.asarray(is_of_one & (self._found["own_id"][1] == 0))

    @cached_property
    def _is_identified(self) -> Flags:
        return (self._found["own_id"][1] > 0) | (self._lacks_id & (self._found["message_id"][1] > 0))

    # ---------------------------------------------------------------------------------------------------------- columns

    def _column_segment(self) -> pa.Array:
        return pa.array(np.full(len(self.at), self._segment_base))

    def _column_log_offset(self) -> pa.Array:
        return pa.array(self._head["log_offset"].astype(np.int64))

    def _column_record_bytes(self) -> pa.Array:
        return pa.array(self._lengths)

    def _column_kind(self) -> pa.Array:
        numbers, names = self._kinds
        return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int8)), pa.array(names))

    def _column_damage(self) -> pa.Array:
        return pa.nulls(len(self.at), pa.string())

    def _column_is_verified(self) -> pa.Array:
        return pa.array(np.full(len(self.at), self._is_verified))

    def _column_topic(self) -> pa.Array:
        return self._topics

    def _column_is_commit(self) -> pa.Array:
        return pa.array(self._is_commit)

    def _column_transaction_id(self) -> pa.Array:
        own = self._texts(self._found["own_id"])
        if not self._lacks_id.any():
            return own
        return pc.if_else(pa.array(self._lacks_id), self._texts(self._found["message_id"]), own)

    def _column_role(self) -> pa.Array:
        begins, ends = self._found["decision"]
        is_op, is_final, has_waited = self._is(columns.OP), self._is(columns.FINAL), self._found["schedule_id"][1] > 0
        names_half = self._header("prepared_offset").astype(np.int64) > 0
        commits, rolls_back = (self._has(begins, ends, word) for word in (b"commit", b"rollback"))
        resumes = self._is(columns.CHECK)
        resumes[resumes] = _stands(self._raw, self._body[0][resumes], _RESUMED)
        is_direct, waits = is_final & ~has_waited, self._is(columns.DELAYED) & self._is_identified
        found = {
            Role.HALF: self._is(columns.HALF),
            Role.COMMIT_OP: is_op & commits,
            Role.ROLLBACK_OP: is_op & rolls_back,
            Role.PLAIN_OP: is_op & (ends == 0),
            Role.NAMED: is_direct & names_half,
            Role.UNNAMED: is_direct & ~names_half,
            Role.WAITING: waits,
            Role.WAITING_AGAIN: self._is(columns.DELAYED_AGAIN) & self._is_identified,
            Role.ARRIVED: is_final & has_waited,
            Role.HELD: self._is(columns.HELD),
            Role.RESUMED: resumes,
            Role.OURS: self._are_ours(is_direct | waits),
        }
        bits = np.zeros(len(self.at), np.int32)
        for role, holds in found.items():
            bits[holds] |= int(role)
        return pa.array(bits)

    def _has(self, begins: Ints, ends: Ints, word: bytes) -> Flags:
        found: Flags = (ends - begins == len(word)) & _stands(self._properties[1], begins, word)
        return found

    def _are_ours(self, some: Flags) -> Flags:
        """Of these finals: did this service write them? A broker that commits a half of ours copies its host and its unit."""
        hosts = np.ascontiguousarray(self._head["store_host"]).view(np.uint64)
        begins, ends = self._found["unit"]
        ours: Flags = some & (hosts == _OUR_HOST) & (ends - begins == _UNIT_TEXT_BYTES)
        units = _hexadecimals(self._properties[1], begins[ours])
        ours[ours] = units > self._header("prepared_offset").astype(np.int64)[ours]
        return ours

    def _column_stored_ms(self) -> pa.Array:
        return pa.array(self._header("stored_at").astype(np.int64))

    def _column_message_hash(self) -> pa.Array:
        return pa.array(_hashes(self._properties[1], self._found["message_id"]) >> _HASH_SHIFT, mask=~self._is_identified)

    def _column_group_hash(self) -> pa.Array:
        spans = self._found["producer_group"]
        return pa.array(_hashes(self._properties[1], spans), mask=spans[1] == 0)

    def _column_first_half_offset(self) -> pa.Array:
        lists = self._column_half_offsets()
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        begins = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
        least = np.zeros(len(self.at), np.int64)
        some = counts > 0
        if some.any():
            least[some] = np.minimum.reduceat(lists.values.to_numpy(), begins[some])
        return pa.array(least, mask=~some)

    def _column_message_count(self) -> pa.Array:
        begins, ends = self._found["message_count"]
        data = self._properties[1]
        counts, at, is_digit = np.zeros(len(begins), np.int64), begins + len(_COUNT_PREFIX), ends > 0
        is_digit &= _stands(data, begins, _COUNT_PREFIX)
        is_known = is_digit.copy()
        for _ in range(9):
            digits = data[np.minimum(at, len(data) - 1)].astype(np.int64) - ord("0") if len(data) else counts
            is_digit &= (digits >= 0) & (digits <= 9) & (at < ends)
            if not is_digit.any():
                break
            counts = np.where(is_digit, counts * 10 + digits, counts)
            at = at + 1
        return pa.array(counts, mask=~is_known | (counts == 0))

    def _column_half_offsets(self) -> pa.Array:
        """RocketMQ's rule: tag `d`, numbers with commas between or behind; what is no number is passed over."""
        numbers, names = self._kinds
        ops = np.flatnonzero(numbers == names.index(columns.OP))
        items = pc.split_pattern(self._bodies_as_text(ops), ",")
        flat = items.flatten()
        is_number = pc.match_substring_regex(flat, _NUMBER)
        of_op = ops[pc.list_parent_indices(items).to_numpy()][is_number.to_numpy(zero_copy_only=False)]
        counts = np.bincount(of_op, minlength=len(self.at))
        bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        is_none = np.ones(len(self.at), bool)
        is_none[ops] = False
        values = flat.filter(is_number).cast(pa.int64())
        return pa.ListArray.from_arrays(bounds, values, mask=pa.array(is_none))

    def _column_event(self) -> pa.Array:
        numbers, names = self._kinds
        checks = np.flatnonzero(numbers == names.index(columns.CHECK))
        if not len(checks):
            return pa.nulls(len(self.at), pa.string())
        return self._placed(pc.struct_field(pc.extract_regex(self._bodies_as_text(checks), _EVENT), "event"), checks)

    def _column_note(self) -> pa.Array:
        found = np.flatnonzero(self._lies_in(*columns.NOTED))
        return self._placed(self._bodies_as_text(found), found) if len(found) else pa.nulls(len(self.at), pa.string())

    def _column_due_ms(self) -> pa.Array:
        """As scheduler/scheduled_message.py reads it. A broker says so of a level by its name alone."""
        waits, of_level = self._lies_in(SCHEDULE_TOPIC, TIMER_TOPIC), self._lies_in(SCHEDULE_TOPIC)
        if not waits.any():
            return pa.nulls(len(self.at), pa.int64())
        stored_ms = pa.array(self._header("stored_at").astype(np.int64))
        level = pc.min_element_wise(self._numbers(self._found["delay_level"]), len(DELAYS_MS))
        delay_ms = pa.array([_UNKNOWN_LEVEL_MS, *DELAYS_MS]).take(pc.fill_null(level, 0))
        by_level = pc.coalesce(self._numbers(self._found["due_noted"]), pc.add(stored_ms, delay_ms))
        by_slot = pc.add(self._numbers(self._found["timer_slot"]), _TIMER_SLOT_MS)
        by_timer = pc.coalesce(self._numbers(self._found["deliver_at"]), by_slot, stored_ms)
        due_ms = pc.min_element_wise(pc.if_else(pa.array(of_level), by_level, by_timer), _LAST_DUE_MS)
        return pc.if_else(pa.array(waits), due_ms, None)

    def _column_key_hashes(self) -> pa.Array:
        offsets = self.at + self._window_offset
        found = key_scan.keys(self._window, self._window_offset, offsets, self._lengths)
        counts = np.bincount(np.searchsorted(offsets, found.log_offsets), minlength=len(offsets))
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), pa.array(found.hashes.astype(np.int64)))

    def _lies_in(self, *topics: str) -> Flags:
        """Which records are of these topics?"""
        wanted = np.array([topic in topics for topic in self._topics.dictionary.to_pylist()], bool)
        found: Flags = wanted[self._topics.indices.to_numpy()]
        return found

    def _placed(self, values: pa.Array, rows: Ints) -> pa.Array:
        """The values of these rows among all; null elsewhere."""
        places = np.full(len(self.at), -1)
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0))

    def _bodies_as_text(self, rows: Ints) -> pa.Array:
        begins, ends = self._body
        return _strings(_slices(self._raw, (begins[rows], ends[rows])))

    def _column_properties(self) -> pa.Array:
        return _strings(self._properties[0])

    def _column_body(self) -> pa.Array:
        return _slices(self._raw, self._body)


# --------------------------------------------------------------------------------------------------------- bytes, spans


def _at(raw: Bytes, kind: np.dtype[Any], places: Ints) -> Any:
    """The value of this type that begins at each place."""
    # A view in which element i begins at byte i: taking elements of it copies whole records and nothing else.
    width = kind.itemsize
    view: Any = np.ndarray((max(len(raw) - width + 1, 0),), np.dtype(f"V{width}"), raw, strides=(1,))
    return view[np.minimum(places, len(view) - 1)].view(kind)


def _slices(data: Bytes, spans: Spans) -> pa.Array:
    """The bytes of each span, which must ascend and not overlap."""
    # The buffer as one array, by turns a wanted slot and one between: taking the wanted ones lets Arrow do the copying.
    begins, ends = spans
    count = len(begins)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = ends[-1] if count else 0
    slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return slots.take(pa.array(np.arange(count, dtype=np.int32) * 2))


def _ascending(spans: Spans) -> Spans:
    """With those that are none (0, 0) moved to where the last one ended."""
    begins, ends = spans
    is_none = ends == 0
    if not is_none.any():
        return spans
    last = np.maximum.accumulate(ends)
    return np.where(is_none, last, begins), np.where(is_none, last, ends)


def _strings(data: pa.Array, is_there: Flags | None = None) -> pa.Array:
    """As text, without a copy; what is not UTF-8 as Java shows it."""
    count = len(data)
    mask = None if is_there is None or is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    texts = pa.Array.from_buffers(pa.string(), count, [mask, *data.buffers()[1:]])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        replaced = [None if raw is None else raw.decode("utf-8", "replace") for raw in data.to_pylist()]
        there = [True] * count if is_there is None else is_there.tolist()
        return pa.array([text if known else None for text, known in zip(replaced, there, strict=True)], pa.string())
    return texts


class Values:
    """Where the values of properties stand, for each record; looked for when somebody asks.

    `bounds`: where the properties of each record begin; `names`: of the properties, by column. Of a name that stands twice the
    last counts, as RocketMQ reads it. An item without a value is none.
    """

    def __init__(self, data: Bytes, bounds: Ints, names: dict[str, str]) -> None:
        self._names = names
        self._count = len(bounds) - 1
        items = _items(data, bounds)
        some = np.flatnonzero(items[1] - items[0] >= _SHORTEST_ITEM)  # padding is items of no byte
        self._begins, self._ends, self._owners = (each[some] for each in items)
        self._lengths = self._ends - self._begins
        self._padded = np.concatenate([data, np.zeros(8, np.uint8)])
        self._words = _words(self._padded, self._begins)
        self._known: dict[str, Spans] = {}

    def __getitem__(self, column: str) -> Spans:
        if column not in self._known:
            self._known[column] = self._find((self._names[column] + properties.NAME_END).encode())
        return self._known[column]

    def _find(self, key: bytes) -> Spans:
        words = self._words if len(key) >= 8 else self._words & _mask(key)
        hits = np.flatnonzero(words == _word(key))
        hits = hits[self._lengths[hits] > len(key)]
        for at in range(8, len(key), 8):  # the rest of a longer name, eight bytes at a time
            at = min(at, len(key) - 8)
            hits = hits[_words(self._padded, self._begins[hits] + at) == _word(key[at:])]
        begins, ends = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        begins[self._owners[hits]] = self._begins[hits] + len(key)
        ends[self._owners[hits]] = self._ends[hits]
        return begins, ends


def _hexadecimals(data: Bytes, places: Ints) -> Ints:
    """The log offsets that stand at these places, as unit items have them."""
    if not len(places):
        return np.empty(0, np.int64)
    digits = _at(data, np.dtype(f"S{_OFFSET_DIGITS}"), places).view(np.uint8).reshape(-1, _OFFSET_DIGITS).astype(np.int64)
    found: Ints = ((digits & 15) + 9 * (digits >> 6)) @ (1 << 4 * np.arange(_OFFSET_DIGITS)[::-1])
    return found


def _hashes(data: Bytes, spans: Spans) -> Any:
    """A hash of 63 bits of the bytes of each span: splitmix64 over its words of eight bytes."""
    first, second, third = _HASH_MULTIPLIERS
    begins, ends = spans
    lengths = ends - begins
    found = lengths.astype(np.uint64) * first
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    open_ = np.flatnonzero(lengths > 0)
    at = 0
    while len(open_):
        left = np.minimum(lengths[open_] - at, 8)
        kept = np.uint64(0xFFFFFFFFFFFFFFFF) >> ((8 - left) * 8).astype(np.uint64)
        mixed = (found[open_] ^ (_words(padded, begins[open_] + at) & kept)) * second
        found[open_] = (mixed ^ (mixed >> np.uint64(29))) * first
        at += 8
        open_ = open_[lengths[open_] > at]
    found = (found ^ (found >> np.uint64(30))) * second
    found = (found ^ (found >> np.uint64(27))) * third
    return ((found ^ (found >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


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


def _words(data: Bytes, places: Ints) -> Any:
    """The eight bytes that begin at each place."""
    return _at(data, np.dtype("<u8"), places)


def _word(key: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(key[:8].ljust(8, b"\0"), "little"))


def _mask(key: bytes) -> np.uint64:
    return np.uint64((1 << 8 * min(len(key), 8)) - 1)


def _stands(data: Bytes, places: Ints, text: bytes) -> Flags:
    """Does the text stand at each place?"""
    if not len(places) or len(data) < len(text):
        return np.zeros(len(places), bool)
    view: Any = np.ndarray((len(data) - len(text) + 1,), np.dtype(f"S{len(text)}"), data, strides=(1,))
    found: Flags = (view[np.clip(places, 0, len(view) - 1)] == text) & (places < len(view))
    return found
