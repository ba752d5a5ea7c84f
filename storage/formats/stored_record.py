"""A whole record as its bytes and the places of its parts: what is read of a queue without decoding
each field.

A reader of many messages needs the body, a few numbers and the property string. The rest of a
record is decoded where it is needed (`StoredRecord.message`).
"""

import struct
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from storage.formats import inner_batch, properties, unit
from storage.formats import record as records
from storage.formats.properties import NO_BODY, PLACEHOLDER
from storage.formats.queue_entry import Fields
from storage.formats.record import (
    FIXED_BYTES,
    HOST,
    MAGIC_V1,
    MAGIC_V2,
    V1_TOPIC_BYTES,
    DamagedRecord,
    Record,
)
from storage.formats.row import rows_of
from storage.message import QueueId, StoredMessage

# formats/record.py up to body_bytes, with IPv4 hosts
HEADER = struct.Struct(">iI4xi4xqqiq8xq8x4x8xi")
LENGTH = struct.Struct(">h")  # of the properties, in front of them
# of a record of another form than nearly all have: its parts are elsewhere, or mean something else
UNUSUAL_FLAGS = (
    records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6 | records.COMPRESSED | inner_batch.FLAG
)
_IPV6_HOSTS = records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6
_NOT_TRANSACTION = ~records.TRANSACTION_MASK
_PLACED = struct.Struct(">28xq")
# flag, sys_flag, born_host, reconsume_times; with IPv4 hosts
_KEPT = struct.Struct(">16xi16xi8x8s16xi")
_PREPARED = struct.Struct(">q4x")  # in front of the body
assert HEADER.size + 1 + LENGTH.size == FIXED_BYTES


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """The bytes of the record of a queue entry. The properties extend to the end of the record."""

    data: bytes
    queue: QueueId
    queue_offset: int
    born_at_ms: int
    stored_at_ms: int
    body_at: int
    body_end: int
    properties_at: int
    is_compressed: bool = False

    @property
    def body_bytes(self) -> int:
        return self.body_end - self.body_at

    @property
    def body(self) -> bytes:
        return self.data[self.body_at : self.body_end]

    @property
    def tag(self) -> str | None:
        found = properties.match_plain(self.data, self.properties_at)
        if found is None or b"TAGS" in found[5]:
            return properties.decode(self.data[self.properties_at :]).get(properties.TAGS)
        return None if found[4] is None else found[4].decode("ascii")

    def message(self) -> StoredMessage:
        """Decode the message that the record holds."""
        found = properties.match_plain(self.data, self.properties_at)
        split = properties.split_rest(found[5]) if found is not None else None
        if found is None or split is None:
            message_id, key, tag, own, reserved = properties.of_message(
                self.data[self.properties_at :]
            )
        else:
            own, reserved = split
            message_id = found[1].decode("ascii")
            key, more_keys, tag = [
                None if text is None else text.decode("ascii") for text in found.group(2, 3, 4)
            ]
            if key is not None and more_keys is not None:
                key += more_keys
        flag, sys_flag, born_host, reconsume_times = _KEPT.unpack_from(self.data)
        header = None
        # As `header_of`, written out: the call takes a twentieth of the time of all this.
        if flag or sys_flag & _NOT_TRANSACTION or reconsume_times or born_host != HOST:
            if sys_flag & _IPV6_HOSTS:
                return records.to_message(records.decode(self.data))
            header = records.header_of(flag, sys_flag, born_host, reconsume_times)
        body = self.body
        if NO_BODY in reserved:
            del reserved[NO_BODY]
            body = b"" if body == PLACEHOLDER else body
        return StoredMessage(
            queue=self.queue,
            message_id=message_id,
            body=body,
            born_at_ms=self.born_at_ms,
            key=key,
            tag=tag,
            properties=own,
            system=reserved,
            transaction=records.transaction_bits(sys_flag),
            prepared_log_offset=_PREPARED.unpack_from(self.data, self.body_at - _PREPARED.size)[0],
            header=header,
            queue_offset=self.queue_offset,
            stored_at_ms=self.stored_at_ms,
            log_offset=_PLACED.unpack_from(self.data)[0],
        )


Found = StoredMessage | StoredRecord
"""A message as it was read: decoded, or as its record."""


def message_of(found: Found) -> StoredMessage:
    return found.message() if isinstance(found, StoredRecord) else found


def body_bytes_of(found: Found) -> int:
    return found.body_bytes if isinstance(found, StoredRecord) else len(found.body)


def of_queue(
    queue: QueueId, queue_offsets: Iterable[int], entries: Iterable[Fields], found: Iterable[bytes]
) -> list[StoredRecord]:
    """The records of a queue, from the bytes that were found where their entries point, each as
    long as its entry says.

    Each is checked as `record.decode` does, and must state the queue, the offset and the place at
    which it was found: the records end before the first one that does not.
    """
    checked: list[StoredRecord] = []
    add, unpack, unpack_length = checked.append, HEADER.unpack_from, LENGTH.unpack_from
    topic, number = queue
    usual_magic, field = topic_field(topic)
    body_at, more_bytes = HEADER.size, len(field) + LENGTH.size
    for data, queue_offset, (place, length, _) in zip(found, queue_offsets, entries, strict=False):
        if length < FIXED_BYTES:
            break
        (
            total, magic, stated_number, stated_offset, stated_place, sys_flag, born_at_ms,
            stored_at_ms, body_bytes,
        ) = unpack(data)  # fmt: skip
        if (
            total != length
            or stated_place != place
            or stated_offset != queue_offset
            or stated_number != number
        ):
            break
        body_end = body_at + body_bytes
        properties_at = body_end + more_bytes
        if (
            magic == usual_magic
            and not sys_flag & UNUSUAL_FLAGS
            and body_bytes >= 0
            and properties_at <= length
            and data.startswith(field, body_end)
            and unpack_length(data, properties_at - 2)[0] == length - properties_at
        ):
            add(
                StoredRecord(
                    data,
                    queue,
                    queue_offset,
                    born_at_ms,
                    stored_at_ms,
                    body_at,
                    body_end,
                    properties_at,
                )
            )
            continue
        try:
            record = records.decode(data)
        except DamagedRecord:
            break
        if record.topic != topic or sys_flag & inner_batch.FLAG:
            break
        add(of_record(record, data))
    return checked


def of_record(record: Record, data: bytes | None = None) -> StoredRecord:
    """The same of a record that was decoded; `data`: its bytes, where the caller has them."""
    data = records.encode(record) if data is None else data
    properties_at = len(data) - len(record.properties)
    topic_bytes = len(record.topic.encode("utf-8")) + (1 if record.magic == MAGIC_V1 else 2)
    body_end = properties_at - LENGTH.size - topic_bytes
    return StoredRecord(
        data,
        records.queue_id(record.topic, record.queue_number),
        record.queue_offset,
        record.born_at_ms,
        record.stored_at_ms,
        body_end - len(record.body),
        body_end,
        properties_at,
        bool(record.sys_flag & records.COMPRESSED),
    )


def of_message(message: StoredMessage) -> StoredRecord:
    """The record that a message would be stored as, for an engine that stores none."""
    encoded = unit.encode(
        rows_of([message]),
        [message.queue_offset],
        first_offset=message.log_offset or 0,
        synced_offset=0,
        epoch=0,
        stored_at_ms=message.stored_at_ms,
    )
    return of_record(records.decode(encoded.data))


@lru_cache(maxsize=1_024)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The version of a record with this topic, and the topic's length and name in it, as
    formats/unit.py writes them.
    """
    name = topic.encode("utf-8")
    if len(name) <= V1_TOPIC_BYTES:
        return MAGIC_V1, bytes([len(name)]) + name
    return MAGIC_V2, LENGTH.pack(len(name)) + name
