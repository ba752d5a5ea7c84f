"""Consecutive records of a queue as one piece of bytes, checked and taken apart together.

What `stored_record.of_queue` checks of one record after another is here checked of all of them at once, by numpy. A record of
another form than nearly all have (one with IPv6 hosts, say) makes no block, as one that is damaged.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.formats import record as records
from storage.formats import stored_record
from storage.formats.queue_entry import ENTRY_BYTES
from storage.message import QueueId

Ints = NDArray[np.int64]

_ENTRY = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])
assert _ENTRY.itemsize == ENTRY_BYTES

# What is looked at of a record (formats/record.py) up to its body, with IPv4 hosts.
_FIELDS = {
    "total_bytes": (">i4", 0),
    "magic": (">u4", 4),
    "queue_number": (">i4", 12),
    "queue_offset": (">i8", 20),
    "physical_offset": (">i8", 28),
    "sys_flag": (">i4", 36),
    "born_at_ms": (">i8", 40),
    "stored_at_ms": (">i8", 56),
    "body_bytes": (">i4", 84),
}
_BODY_AT = 88
_HEAD = np.dtype(
    {
        "names": list(_FIELDS),
        "formats": [form for form, _ in _FIELDS.values()],
        "offsets": [at for _, at in _FIELDS.values()],
        "itemsize": _BODY_AT,
    }
)
_HEAD_BYTES = np.dtype(f"V{_BODY_AT}")  # copied as they are, in a tenth of the time
_LENGTH = np.dtype(">i2")  # of the properties, in front of them
_IPV6_HOSTS = records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6


class Entries(NamedTuple):
    """The places of the records that some entries of a queue point to."""

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


class RecordBlock(NamedTuple):
    """Whole records with consecutive offsets of one queue, one behind the other in `data`. The columns are places in it."""

    data: bytes
    queue: QueueId
    queue_offset: int  # of the first record
    begins: Ints
    body_ends: Ints
    properties_at: Ints
    ends: Ints
    born_at_ms: Ints
    stored_at_ms: Ints

    def columns(self) -> Columns:
        """Take the records apart."""
        data, count = self.data, len(self.begins)
        bodies = zip((self.begins + _BODY_AT).tolist(), self.body_ends.tolist(), strict=True)
        properties = zip(self.properties_at.tolist(), self.ends.tolist(), strict=True)
        return Columns(
            [self.queue] * count,
            range(self.queue_offset, self.queue_offset + count),
            [data[begin:end] for begin, end in bodies],
            [data[begin:end] for begin, end in properties],
            self.born_at_ms.tolist(),
            self.stored_at_ms.tolist(),
        )


def entries_of(data: bytes) -> Entries:
    """The places in a whole number of queue entries."""
    found = np.frombuffer(data, _ENTRY)
    return Entries(found["physical_offset"].astype(np.int64), found["record_bytes"].astype(np.int64))


def of_queue(queue: QueueId, queue_offset: int, entries: Entries, data: bytes) -> RecordBlock | None:
    """The records of a queue from an offset on, of which `data` was found where their entries point.

    None unless each passes the checks of `stored_record.of_queue` and has the form of nearly all records. The entries are at
    least one and none is shorter than a record can be.
    """
    offsets, lengths = entries
    count = len(lengths)
    ends = lengths.cumsum()
    if ends[-1] != len(data):
        return None
    begins = ends - lengths
    magic, field, field_kind = _expected(queue.topic)
    heads = _each(data, _HEAD_BYTES, begins).view(_HEAD)
    body_bytes = heads["body_bytes"].astype(np.int64)
    body_ends = begins + _BODY_AT + body_bytes
    properties_at = body_ends + len(field) + _LENGTH.itemsize
    is_as_expected = (
        (heads["total_bytes"] == lengths)
        & (heads["physical_offset"] == offsets)
        & (heads["queue_offset"] == np.arange(queue_offset, queue_offset + count))
        & (heads["queue_number"] == queue.number)
        & (heads["magic"] == magic)
        & (heads["sys_flag"] & _IPV6_HOSTS == 0)
        & (body_bytes >= 0)
        & (properties_at <= ends)
    )
    if not is_as_expected.all() or _each(data, field_kind, body_ends).tobytes() != field * count:
        return None
    if (_each(data, _LENGTH, body_ends + len(field)) != ends - properties_at).any():
        return None
    born_at_ms, stored_at_ms = heads["born_at_ms"], heads["stored_at_ms"]
    return RecordBlock(data, queue, queue_offset, begins, body_ends, properties_at, ends, born_at_ms, stored_at_ms)


@lru_cache(maxsize=1_024)
def _expected(topic: str) -> tuple[int, bytes, np.dtype[Any]]:
    """The version of a record with this topic, the topic's length and name in it, and the kind of array that holds these."""
    magic, field = stored_record.topic_field(topic)
    return magic, field, np.dtype(f"V{len(field)}")


def _each(data: bytes, kind: np.dtype[Any], places: Ints) -> NDArray[Any]:
    """What is at each of these places, as an array of this kind."""
    windows: NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))
    return windows[places]
