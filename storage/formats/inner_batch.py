"""Inner batches: several messages of a producer that a broker stores as one record.

A broker does so for a topic with the attribute `queue.type=BatchCQ`. The record takes as many queue
offsets as it has messages, from its own on; its body is the messages one behind another:

    size   field             (all numbers big-endian and signed)
    4      total_bytes       the whole message, this field included
    4 + 4  magic, body_crc   0, not used
    4      flag              the sender's
    4 + n  body_bytes, body
    2 + n  properties

Topic, queue, hosts and times of all of them are those of the record. Source: RocketMQ
MessageDecoder#encodeMessage and #decodeMessage, BatchConsumeQueue.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from storage.formats import record as records
from storage.formats.record import DamagedRecord, Record

FLAG = 0x80  # of sys_flag
MOST_MESSAGES = (1 << 15) - 1  # a broker counts them in a signed 16-bit number
_NEEDS_UNWRAP = 0x40
_COUNT = re.compile(rb"(?:^|\x02)INNER_NUM\x01([0-9]{1,5})(?:\x02|$)")
_HEAD = struct.Struct(">i8xii")
_LENGTH = struct.Struct(">h")


class InnerMessage(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def width(sys_flag: int, own: bytes) -> int:
    """The number of queue offsets that a record with these properties takes: 1 for an inner batch
    with a count that no broker writes.
    """
    if not sys_flag & FLAG:
        return 1
    found = _COUNT.search(own)
    count = 1 if found is None else int(found[1])
    return count if 1 <= count <= MOST_MESSAGES else 1


def messages(body: bytes) -> Iterator[InnerMessage]:
    """The messages in the body of an inner batch. Raises DamagedRecord."""
    at = 0
    while at < len(body):
        if at + _HEAD.size > len(body):
            raise DamagedRecord(f"{len(body) - at} bytes of the batch are no message")
        total, flag, body_bytes = _HEAD.unpack_from(body, at)
        body_at, end = at + _HEAD.size, at + total
        properties_at = body_at + body_bytes + _LENGTH.size
        if body_bytes < 0 or not properties_at <= end <= len(body):
            raise DamagedRecord(f"a message of the batch has length {total}")
        if _LENGTH.unpack_from(body, properties_at - _LENGTH.size)[0] != end - properties_at:
            raise DamagedRecord("the properties of a message of the batch do not end with it")
        inner = InnerMessage(flag, body[body_at : body_at + body_bytes], body[properties_at:end])
        yield inner
        at = end


class Batch:
    """An inner batch whose messages are read one by one."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.count = width(record.sys_flag, record.properties)

    @cached_property
    def _messages(self) -> Sequence[InnerMessage]:
        return tuple(messages(self.record.body))

    def record_at(self, queue_offset: int) -> Record | None:
        """The message at this offset of the queue as a record of its own; None if the batch does
        not have it.

        Raises DamagedRecord.
        """
        record, number = self.record, queue_offset - self.record.queue_offset
        if not 0 <= number < self.count:
            return None
        found = self._messages
        if len(found) != self.count:
            raise DamagedRecord(f"the batch counts {self.count} messages and has {len(found)}")
        inner = found[number]
        return record._replace(
            body_crc=records.body_crc(inner.body),
            flag=inner.flag,
            queue_offset=queue_offset,
            sys_flag=record.sys_flag & ~(FLAG | _NEEDS_UNWRAP),
            body=inner.body,
            properties=inner.properties,
        )
