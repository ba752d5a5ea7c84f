"""The key hashes of many records at once, for the key index: records of ours by numpy, all others
one by one.

A record of ours begins its properties with its id, and with its keys behind that (formats/unit.py):
so their places are computed for all records together, and their hashes are products of bytes and
powers of 31, made for all texts of one length at once. It costs a tenth of looking at each record.
Keys that are not ASCII are looked at one by one.
"""

from typing import Any, NamedTuple

import numpy as np

from storage.formats import index_file, properties
from storage.formats import record as records
from storage.formats.index_file import Ints, Words
from storage.message import TransactionBits

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_AT_ONCE = 2_000  # records; numpy holds the interpreter's lock for one step, which must stay short
# of an id or the keys of a record with their end; no id of ours is longer
_SHORT_BYTES = 64
# of keys with their end, where there are many; records with more are read one by one
_LONG_BYTES = 512
_ID_START = f"{properties.MESSAGE_ID}{properties.NAME_END}".encode()
_KEYS_START = f"{properties.KEYS}{properties.NAME_END}".encode()
_VALUE_END = ord(properties.VALUE_END)
_SPACE = ord(" ")

# What is read of the front of a record with IPv4 hosts (formats/record.py).
_FRONT = np.dtype(
    {
        "names": ["magic", "sys_flag", "stored_at_ms", "store_host", "body_bytes"],
        "formats": [">u4", ">i4", ">i8", f"S{len(records.HOST)}", ">i4"],
        "offsets": [4, 36, 56, 64, 84],
        "itemsize": 88,
    }
)


class Keys(NamedTuple):
    """For each key its hash, and the log offset and time of its record; the keys of a record stand
    together, in log order.
    """

    hashes: Ints
    log_offsets: Ints
    stored_at_ms: Ints


def keys(window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints) -> Keys:
    """The keys of whole records in `window`. Records of rolled-back messages have none."""
    pieces = [
        _some(
            window,
            window_offset,
            record_offsets[at : at + _AT_ONCE],
            record_bytes[at : at + _AT_ONCE],
        )
        for at in range(0, len(record_offsets), _AT_ONCE)
    ]
    if not pieces:
        nothing = np.empty(0, np.int64)
        return Keys(nothing, nothing, nothing)
    return Keys._make(np.concatenate(parts) for parts in zip(*pieces, strict=True))


def _some(window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints) -> Keys:
    begin = int(record_offsets[0]) - window_offset
    end = int(record_offsets[-1] + record_bytes[-1]) - window_offset
    # With zeros behind it, so that what is asked for beyond the last record is there.
    raw = np.frombuffer(b"".join([memoryview(window)[begin:end], bytes(_LONG_BYTES)]), np.uint8)
    at = record_offsets - record_offsets[0]
    record_end = at + record_bytes
    front = _items(raw, at, _FRONT)
    topic_at = at + _FRONT.itemsize + np.maximum(front["body_bytes"].astype(np.int64), 0)
    # of another form, whose body length is elsewhere
    topic_at = np.minimum(topic_at, record_end - 1)
    topic_bytes = raw[topic_at].astype(np.int64)
    id_at = topic_at + 1 + topic_bytes + 2 + len(_ID_START)
    id_end = _value_ends(raw, id_at)
    key_at = id_end + 1 + len(_KEYS_START)
    is_ours = (
        (front["magic"] == records.MAGIC_V1)
        & (front["store_host"] == records.HOST)
        & _is_text_at(raw, id_at - len(_ID_START), _ID_START)
        & (id_end < record_end)
    )
    has_key = is_ours & _is_text_at(raw, id_end + 1, _KEYS_START)
    key_end = np.where(has_key, _value_ends(raw, key_at), key_at)
    is_long = np.flatnonzero(has_key & (key_end == key_at))
    if len(is_long):
        key_end[is_long] = _value_ends(raw, key_at[is_long], _LONG_BYTES)
    id_bytes, key_bytes = id_end - id_at, key_end - key_at
    topics, topic_plain = _hashes(raw, topic_at + 1, np.where(is_ours, topic_bytes, 0))
    ids, id_plain = _hashes(raw, id_at, np.where(is_ours, id_bytes, 0))
    others, key_plain = _hashes(raw, key_at, np.where(has_key, key_bytes, 0))
    is_whole = ~has_key | ((key_bytes > 0) & (key_end < record_end))
    is_ours &= topic_plain & id_plain & (id_bytes > 0) & is_whole
    has_several = np.flatnonzero(is_ours & has_key & ~key_plain)
    if len(has_several):
        of_several, each_at, each_bytes = _between_spaces(
            raw, key_at[has_several], key_end[has_several]
        )
        of_record = has_several[of_several]
        each, each_plain = _hashes(raw, each_at, each_bytes)
        is_ours[of_record[~each_plain]] = False
    has_key &= is_ours & key_plain
    is_seen = (front["sys_flag"] & records.TRANSACTION_MASK) != TransactionBits.ROLLBACK
    prefixes: Words = topics * np.uint32(31) + np.uint32(ord("#"))
    stored_at_ms = front["stored_at_ms"].astype(np.int64)
    by_id, by_key = is_ours & is_seen, has_key & is_seen
    found = [
        (
            np.flatnonzero(by_id),
            index_file.continued(prefixes, id_bytes, ids)[by_id],
            stored_at_ms[by_id],
        ),
        (
            np.flatnonzero(by_key),
            index_file.continued(prefixes, key_bytes, others)[by_key],
            stored_at_ms[by_key],
        ),
        *_one_by_one(window, window_offset, record_offsets, record_bytes, np.flatnonzero(~is_ours)),
    ]
    if len(has_several):
        is_found = by_id[of_record]
        numbers = of_record[is_found]
        hashes = index_file.continued(prefixes[numbers], each_bytes[is_found], each[is_found])
        found.append((numbers, hashes, stored_at_ms[numbers]))
    numbers, hashes, times_ms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(numbers, kind="stable")  # ids first, then keys, as they stand in the lists
    return Keys(hashes[order], record_offsets[numbers[order]], times_ms[order])


def _one_by_one(
    window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints, numbers: Ints
) -> list[tuple[Ints, Ints, Ints]]:
    """(numbers of records, hashes, times) of records that a broker wrote, or that are not of the
    usual shape.
    """
    found_numbers: list[int] = []
    index_keys: list[str] = []
    times_ms: list[int] = []
    for number in numbers.tolist():
        at = int(record_offsets[number]) - window_offset
        topic, _, _, sys_flag, stored_at_ms, own = records.skim(
            window, at, int(record_bytes[number])
        )
        if sys_flag & records.TRANSACTION_MASK == TransactionBits.ROLLBACK:
            continue
        for key in properties.keys(own):
            found_numbers.append(number)
            index_keys.append(index_file.index_key(topic.decode("utf-8"), key))
            times_ms.append(stored_at_ms)
    if not found_numbers:
        return []
    return [(np.array(found_numbers), index_file.key_hashes(index_keys), np.array(times_ms))]


def _is_text_at(raw: Bytes, at: Ints, text: bytes) -> Flags:
    """Whether the text is at each place. It must not end with a zero byte, which numpy strips."""
    found: Flags = _items(raw, at, np.dtype(f"S{len(text)}")) == text
    return found


def _value_ends(raw: Bytes, at: Ints, most_bytes: int = _SHORT_BYTES) -> Ints:
    """The end of the value that begins at each place; for a value that is longer than `most_bytes`
    with its end, its beginning.
    """
    # Most often all of them have as many bytes as the first one.
    length = raw[at[0] : at[0] + most_bytes].tobytes().find(_VALUE_END)
    is_alike = length > 0 and (raw[np.minimum(at + length, len(raw) - 1)] == _VALUE_END).all()
    if is_alike and _rows(raw, at, length).min() > _VALUE_END:
        return at + length
    is_end = _rows(raw, at, most_bytes) == _VALUE_END
    ends: Ints = at + is_end.argmax(axis=1)
    return ends


def _between_spaces(raw: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """(number of the text, place, length) of each piece of these texts, none of them empty."""
    lengths = ends - at
    columns = np.arange(lengths.max(initial=1))
    is_piece = _rows(raw, at, len(columns)) != _SPACE
    is_piece &= columns < lengths[:, np.newaxis]
    is_first, is_last = is_piece.copy(), is_piece.copy()
    is_first[:, 1:] &= ~is_piece[:, :-1]
    is_last[:, :-1] &= ~is_piece[:, 1:]
    numbers, firsts = np.nonzero(is_first)
    _, lasts = np.nonzero(is_last)
    return numbers, at[numbers] + firsts, lasts - firsts + 1


def _hashes(raw: Bytes, at: Ints, lengths: Ints) -> tuple[Words, Flags]:
    """(Java's hash of the text at each place, unsigned; is it ASCII without spaces?).

    Of no bytes the hash is 0.
    """
    hashes = np.zeros(len(at), np.uint32)
    is_plain = np.ones(len(at), np.bool_)
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        if not length:
            continue
        # Texts of one length at once: the rows of a matrix, times powers of 31.
        alike = slice(None) if (lengths == length).all() else np.flatnonzero(lengths == length)
        units = _rows(raw, at[alike], length)
        hashes[alike] = index_file.hashes_of_rows(units)
        if units.max() >= 0x80 or (units == _SPACE).any():
            is_plain[alike] = ((units < 0x80) & (units != _SPACE)).all(axis=1)
    return hashes, is_plain


def _items(raw: Bytes, at: Ints, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Items at these places, aligned or not; for a place beyond the end, the last item."""
    return _pieces(raw, at, kind.itemsize).view(kind)


def _rows(raw: Bytes, at: Ints, length: int) -> Bytes:
    """A row for each place, with so many bytes."""
    return _pieces(raw, at, length).view(np.uint8).reshape(len(at), length)


def _pieces(raw: Bytes, at: Ints, length: int) -> np.ndarray[Any, Any]:
    # Without a type: numpy copies such items whole, which takes a quarter of a copy by columns.
    last = len(raw) - length
    return np.ndarray(last + 1, f"V{length}", raw, strides=(1,))[np.minimum(at, last)]
