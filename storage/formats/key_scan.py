"""The key hashes of many records at once, for the key index: records of ours by numpy, all others one by one.

A record of ours begins its properties with its id, and with its keys behind that (formats/unit.py): so where they lie is
computed for all records together, and their hashes are sums over the bytes. It costs a fifth of looking at each record.
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
_ID_START = np.frombuffer(f"{properties.MESSAGE_ID}{properties.NAME_END}".encode(), np.uint8)
_KEYS_START = np.frombuffer(f"{properties.KEYS}{properties.NAME_END}".encode(), np.uint8)
_VALUE_END = ord(properties.VALUE_END)
_HOST = np.frombuffer(records.HOST, np.uint8)

# Where fields of a record with IPv4 hosts lie (formats/record.py).
_MAGIC_AT, _SYS_FLAG_AT, _STORED_AT, _STORE_HOST_AT, _BODY_BYTES_AT, _BODY_AT = 4, 36, 56, 64, 84, 88


class Keys(NamedTuple):
    """For each key its hash, and the log offset and time of its record; the keys of a record stand together, in log order."""

    hashes: Ints
    log_offsets: Ints
    stored_at_ms: Ints


def keys(window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints) -> Keys:
    """Of whole records in `window`. Records of rolled-back messages have none."""
    pieces = [
        _some(window, window_offset, record_offsets[at : at + _AT_ONCE], record_bytes[at : at + _AT_ONCE])
        for at in range(0, len(record_offsets), _AT_ONCE)
    ]
    if not pieces:
        nothing = np.empty(0, np.int64)
        return Keys(nothing, nothing, nothing)
    return Keys._make(np.concatenate(parts) for parts in zip(*pieces, strict=True))


def _some(window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints) -> Keys:
    begin = int(record_offsets[0]) - window_offset
    end = int(record_offsets[-1] + record_bytes[-1]) - window_offset
    raw = np.frombuffer(window, np.uint8)[begin:end]
    at = record_offsets - record_offsets[0]
    topic_at = at + _BODY_AT + np.maximum(_integers(raw, at + _BODY_BYTES_AT, ">i4"), 0)
    topic_at = np.minimum(topic_at, at + record_bytes - 1)  # of another form, whose body length lies elsewhere
    topic_bytes = raw[topic_at].astype(np.int64)
    id_at = topic_at + 1 + topic_bytes + 2 + len(_ID_START)
    value_ends = np.append(np.flatnonzero(raw == _VALUE_END), [len(raw)] * 2)
    id_end = np.searchsorted(value_ends, np.minimum(id_at, len(raw)))  # of another form, it may be behind the last byte
    key_at = value_ends[id_end] + 1 + len(_KEYS_START)
    is_ours = (
        (_integers(raw, at + _MAGIC_AT, ">u4") == records.MAGIC_V1)
        & _stands(raw, at + _STORE_HOST_AT, _HOST)
        & _stands(raw, id_at - len(_ID_START), _ID_START)
        & (value_ends[id_end] < at + record_bytes)
    )
    has_key = is_ours & _stands(raw, value_ends[id_end] + 1, _KEYS_START)
    key_end = np.where(has_key, value_ends[np.minimum(id_end + 1, len(value_ends) - 1)], key_at)
    id_bytes, key_bytes = value_ends[id_end] - id_at, key_end - key_at
    topics, topic_plain = _hashes(raw, topic_at + 1, np.where(is_ours, topic_bytes, 0))
    ids, id_plain = _hashes(raw, id_at, np.where(is_ours, id_bytes, 0))
    others, key_plain = _hashes(raw, key_at, np.where(has_key, key_bytes, 0))
    is_ours &= topic_plain & id_plain & key_plain & (id_bytes > 0) & (~has_key | (key_bytes > 0))
    has_key &= is_ours
    is_seen = (_integers(raw, at + _SYS_FLAG_AT, ">i4") & records.TRANSACTION_MASK) != TransactionBits.ROLLBACK
    prefixes: Words = topics * np.uint32(31) + np.uint32(ord("#"))
    stored_at_ms = _integers(raw, at + _STORED_AT, ">i8")
    by_id, by_key = is_ours & is_seen, has_key & is_seen
    found = [
        (np.flatnonzero(by_id), index_file.continued(prefixes, id_bytes, ids)[by_id], stored_at_ms[by_id]),
        (np.flatnonzero(by_key), index_file.continued(prefixes, key_bytes, others)[by_key], stored_at_ms[by_key]),
        *_one_by_one(window, window_offset, record_offsets, record_bytes, np.flatnonzero(~is_ours)),
    ]
    numbers, hashes, times_ms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(numbers, kind="stable")  # ids first, then keys, as they stand in the lists
    return Keys(hashes[order], record_offsets[numbers[order]], times_ms[order])


def _one_by_one(
    window: bytes, window_offset: int, record_offsets: Ints, record_bytes: Ints, numbers: Ints
) -> list[tuple[Ints, Ints, Ints]]:
    """(numbers of records, hashes, times) of records that a broker wrote, or that are not of the usual shape."""
    found_numbers: list[int] = []
    index_keys: list[str] = []
    times_ms: list[int] = []
    for number in numbers.tolist():
        at = int(record_offsets[number]) - window_offset
        topic, _, _, sys_flag, stored_at_ms, own = records.skim(window, at, int(record_bytes[number]))
        if sys_flag & records.TRANSACTION_MASK == TransactionBits.ROLLBACK:
            continue
        for key in properties.keys(own):
            found_numbers.append(number)
            index_keys.append(index_file.index_key(topic.decode("utf-8"), key))
            times_ms.append(stored_at_ms)
    if not found_numbers:
        return []
    return [(np.array(found_numbers), index_file.key_hashes(index_keys), np.array(times_ms))]


def _integers(raw: Bytes, at: Ints, kind: str) -> Ints:
    """The number that stands at each place."""
    width = np.dtype(kind).itemsize
    places = np.minimum(at[:, None] + np.arange(width), len(raw) - 1)
    found: Ints = raw[places].view(kind)[:, 0].astype(np.int64)
    return found


def _stands(raw: Bytes, at: Ints, text: Bytes) -> Flags:
    """Does the text stand at each place?"""
    places = np.clip(at[:, None] + np.arange(len(text)), 0, len(raw) - 1)
    found: Flags = (raw[places] == text).all(axis=1) & (at + len(text) <= len(raw))
    return found


def _hashes(raw: Bytes, at: Ints, lengths: Ints) -> tuple[Words, Flags]:
    """(Java's hash of the text at each place, unsigned; is it ASCII without spaces?). Of no bytes the hash is 0."""
    ends = np.cumsum(lengths)
    places = np.repeat(at - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
    units = raw[np.minimum(places, len(raw) - 1)]
    is_odd = (units >= 0x80) | (units == ord(" "))
    odd = np.concatenate([[0], np.cumsum(is_odd)])
    return index_file.sums(units.astype(np.uint32), lengths), odd[ends] == odd[ends - lengths]
