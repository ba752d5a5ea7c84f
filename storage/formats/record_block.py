"""Consecutive records of a queue as one piece of bytes, checked and taken apart together.

What `stored_record.of_queue` checks of one record after another is here checked of all of them at
once, by numpy, or, of a few records, in one loop. A record of another form than nearly all have
(one with IPv6 hosts or a compressed body, say) makes no block, as one that is damaged.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.formats import stored_record
from storage.formats.queue_entry import ENTRY_BYTES, Fields
from storage.message import QueueId

Ints = NDArray[np.int64]

_ENTRY = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])
_ENTRY_AS_STORED = np.dtype([("physical_offset", "V8"), ("record_bytes", "V4"), ("tag_hash", "V8")])
assert _ENTRY.itemsize == _ENTRY_AS_STORED.itemsize == ENTRY_BYTES

_BODY_AT = 88
# What is looked at of a record (formats/record.py) up to its body, with IPv4 hosts. What is only
# compared is bytes as they are stored: a column of those is copied and compared in a third of the
# time that numbers take.
_FIELDS = {
    "total_bytes": ("V4", 0),
    "magic": ("V4", 4),
    "queue_number": ("V4", 12),
    "queue_offset": ("V8", 20),
    "physical_offset": ("V8", 28),
    "flags": ("V1", 39),  # the last byte of `sys_flag`
    "born_at_ms": (">i8", 40),
    "stored_at_ms": (">i8", 56),
    "body_bytes": (">i4", 84),
}
_HEAD = np.dtype(
    {
        "names": list(_FIELDS),
        "formats": [form for form, _ in _FIELDS.values()],
        "offsets": [at for _, at in _FIELDS.values()],
        "itemsize": _BODY_AT,
    }
)
_HEAD_BYTES = np.dtype(f"V{_BODY_AT}")  # copied as they are, in a tenth of the time
_USUAL_FLAGS = bytes(flags for flags in range(256) if not flags & stored_record.UNUSUAL_FLAGS)
assert stored_record.HEADER.size == _BODY_AT

# records up to which the loop takes less time than the columns: 1 microsecond each, beside 20 and a
# half
FEW = 40


class Entries(NamedTuple):
    """The places of the records that some entries of a queue point to.

    `data`: the entries as they are stored.
    """

    data: bytes
    physical_offsets: Ints
    record_bytes: Ints


class Columns(NamedTuple):
    """The parts of records that their JSON is made of, in columns with one item a record."""

    queues: Sequence[QueueId]
    queue_offsets: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]  # the property strings
    born_at_ms: Sequence[int]
    stored_at_ms: Sequence[int]


class _Places(NamedTuple):
    """Positions of the parts of records in the bytes of a block, in columns with one item for each
    record.
    """

    begins: Ints
    body_ends: Ints
    properties_at: Ints
    ends: Ints
    born_at_ms: Ints
    stored_at_ms: Ints


class RecordBlock(NamedTuple):
    """Whole records with consecutive offsets of one queue, one behind the other in `data`."""

    data: bytes
    queue: QueueId
    queue_offset: int  # of the first record
    parts: Columns | _Places  # taken apart already, or where to do so

    def columns(self) -> Columns:
        """Take the records apart."""
        data, parts = self.data, self.parts
        if isinstance(parts, Columns):
            return parts
        count = len(parts.begins)
        bodies = zip((parts.begins + _BODY_AT).tolist(), parts.body_ends.tolist(), strict=True)
        properties = zip(parts.properties_at.tolist(), parts.ends.tolist(), strict=True)
        return Columns(
            [self.queue] * count,
            range(self.queue_offset, self.queue_offset + count),
            [data[begin:end] for begin, end in bodies],
            [data[begin:end] for begin, end in properties],
            parts.born_at_ms.tolist(),
            parts.stored_at_ms.tolist(),
        )


def entries_of(data: bytes) -> Entries:
    """The places in a whole number of queue entries."""
    found = np.frombuffer(data, _ENTRY)
    return Entries(
        data, found["physical_offset"].astype(np.int64), found["record_bytes"].astype(np.int64)
    )


def of_queue(
    queue: QueueId, queue_offset: int, entries: Entries, data: bytes
) -> RecordBlock | None:
    """The records of a queue from an offset on, of which `data` was found where their entries
    point.

    None unless each passes the checks of `stored_record.of_queue` and has the form of nearly all
    records. The entries are at least one and none is shorter than a record can be.
    """
    lengths = entries.record_bytes
    count = len(lengths)
    ends = lengths.cumsum()
    if ends[-1] != len(data):
        return None
    begins = ends - lengths
    expected = _expected(queue)
    heads = _each(data, _HEAD_BYTES, begins).view(_HEAD)
    stored = np.frombuffer(entries.data, _ENTRY_AS_STORED)
    queue_offsets = np.arange(queue_offset, queue_offset + count).astype(">i8")
    if (
        heads["total_bytes"].tobytes() != stored["record_bytes"].tobytes()
        or heads["physical_offset"].tobytes() != stored["physical_offset"].tobytes()
        or heads["queue_offset"].tobytes() != queue_offsets.tobytes()
        or heads["queue_number"].tobytes() != expected.queue_number * count
        or heads["magic"].tobytes() != expected.magic * count
        or not heads["body_bytes"].tobytes()[::4].isascii()  # else one is negative
        or heads["flags"].tobytes().translate(None, _USUAL_FLAGS)  # what is left has others
    ):
        return None
    body_ends = begins + _BODY_AT + heads["body_bytes"]
    if len(data) < expected.behind_body.itemsize:
        return None
    try:
        behind = _each(data, expected.behind_body_bytes, body_ends).view(expected.behind_body)
    except IndexError:  # there is less behind the body of one
        return None
    properties_at = body_ends + expected.behind_body.itemsize
    if (
        behind["topic"].tobytes() != expected.topic * count
        or not behind["length"].tobytes()[::2].isascii()
        or behind["length"].astype(np.int64).tobytes() != (ends - properties_at).tobytes()
    ):
        return None
    born_at_ms, stored_at_ms = heads["born_at_ms"], heads["stored_at_ms"]
    places = _Places(begins, body_ends, properties_at, ends, born_at_ms, stored_at_ms)
    return RecordBlock(data, queue, queue_offset, places)


def few_of_queue(
    queue: QueueId, queue_offset: int, entries: Sequence[Fields], found: Sequence[bytes]
) -> RecordBlock | None:
    """The result of `of_queue`, for few records. `found`: one after another."""
    if len(found) != len(entries):
        return None
    unpack, unpack_length = stored_record.HEADER.unpack_from, stored_record.LENGTH.unpack_from
    usual_magic, field = stored_record.topic_field(queue.topic)
    number, more_bytes = queue.number, len(field) + stored_record.LENGTH.size
    bodies: list[bytes] = []
    properties: list[bytes] = []
    born: list[int] = []
    stored: list[int] = []
    for data, offset, (place, length, _) in zip(
        found, range(queue_offset, queue_offset + len(entries)), entries, strict=True
    ):
        (
            total, magic, stated_number, stated_offset, stated_place, sys_flag, born_at_ms,
            stored_at_ms, body_bytes,
        ) = unpack(data)  # fmt: skip
        body_end = _BODY_AT + body_bytes
        properties_at = body_end + more_bytes
        if (
            total != length
            or len(data) != length
            or stated_place != place
            or stated_offset != offset
            or stated_number != number
            or magic != usual_magic
            or sys_flag & stored_record.UNUSUAL_FLAGS
            or body_bytes < 0
            or properties_at > length
            or not data.startswith(field, body_end)
            or unpack_length(data, properties_at - 2)[0] != length - properties_at
        ):
            return None
        bodies.append(data[_BODY_AT:body_end])
        properties.append(data[properties_at:])
        born.append(born_at_ms)
        stored.append(stored_at_ms)
    count = len(bodies)
    columns = Columns(
        [queue] * count, range(queue_offset, queue_offset + count), bodies, properties, born, stored
    )
    return RecordBlock(b"".join(found), queue, queue_offset, columns)


class _Expected(NamedTuple):
    """The fields that are the same in each record of a queue, as they are stored, and the form of
    those behind a body.
    """

    magic: bytes
    queue_number: bytes
    topic: bytes  # its length and its name
    behind_body: np.dtype[Any]  # the topic and the length of the properties
    behind_body_bytes: np.dtype[Any]  # the same as they are


@lru_cache(maxsize=1_024)
def _expected(queue: QueueId) -> _Expected:
    magic, topic = stored_record.topic_field(queue.topic)
    behind_body = np.dtype([("topic", f"V{len(topic)}"), ("length", ">i2")])
    as_bytes = np.dtype(f"V{behind_body.itemsize}")
    return _Expected(
        magic.to_bytes(4, "big"), queue.number.to_bytes(4, "big"), topic, behind_body, as_bytes
    )


def _each(data: bytes, kind: np.dtype[Any], places: Ints) -> NDArray[Any]:
    """The values of this kind at each of these places, as an array."""
    windows: NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))
    return windows[places]
