"""One record of the commit log: its layout, encode, decode.

    at        size  field                  (all numbers big-endian and signed)
     0           4  total_bytes            the whole record, this field included
     4           4  magic                  0xDAA320A7 version 1, 0xDAA320AB version 2, 0xCBD43194
                                           end of file
     8           4  body_crc               CRC-32 of the stored body, highest bit cleared
    12           4  queue_number
    16           4  flag                   the sender's, opaque
    20           8  queue_offset           the ordinal in its queue
    28           8  physical_offset        its own address in the log
    36           4  sys_flag               see below
    40           8  born_at_ms             the sender's clock
    48      8 / 20  born_host              address (4 bytes, or 16 when sys_flag says so) and port
    56           8  stored_at_ms           never goes back along the log
    64      8 / 20  store_host
    72           4  reconsume_times
    76           8  prepared_offset        on a final record: the address of its half record
    84       4 + n  body_bytes, body
          1 + n     topic_bytes, topic     version 2: 2 + n; used when the topic is longer than 127
                                           bytes
          2 + n     properties             formats/properties.py

The end-of-file record is 8 bytes, the first two fields: it says how much of the file is left, and
nothing follows it there.

Source: RocketMQ MessageExtEncoder, MessageDecoder, MessageSysFlag,
CommitLog.DefaultAppendMessageCallback.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from isal.isal_zlib import crc32

from storage.formats import properties
from storage.formats.properties import NO_BODY, PLACEHOLDER
from storage.message import QueueId, RecordHeader, StoredMessage, TransactionBits

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_END_OF_FILE = 0xCBD43194

MAGIC_AT = 4
MAGICS_START = MAGIC_V1.to_bytes(4, "big")[:3]  # of both versions of a record
assert MAGIC_V2.to_bytes(4, "big").startswith(MAGICS_START)

END_OF_FILE_BYTES = 8
FIXED_BYTES = 91  # version 1 with IPv4 hosts: everything but body, topic and properties
V1_TOPIC_BYTES = 127
IPV6_MORE_BYTES = 12
HEAD_BYTES = FIXED_BYTES + 2 * IPV6_MORE_BYTES  # all before the body, whatever the hosts

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

# The host that our records name as theirs: a loopback address that no broker has (its bytes say
# EMQ), at a broker's default port. It is never connected to. It identifies the writer of a record:
# one of ours without a unit item is damaged, a broker's is not.
HOST = b"\x7fEMQ" + struct.pack(">i", 10911)
USUAL_HEADER = RecordHeader(flag=0, sys_flag=0, born_host=HOST, reconsume_times=0)

# of `sys_flag`, what a copy of a message has too
KEPT_FLAGS = ~(TRANSACTION_MASK | STORE_HOST_IPV6)

_MAGICS = (MAGIC_V1, MAGIC_V2)
# to look one up costs a tenth of making it
_TRANSACTION = {bits.value: bits for bits in TransactionBits}
_START = struct.Struct(">iI")
_PLACED = struct.Struct(">iI20xq")
_QUEUED = struct.Struct(">12xi4xq")
_HEADER = struct.Struct(">iIIiiqqiq8sq8siqi")  # with IPv4 hosts: up to and with body_bytes
_HEADER_TO_BORN = struct.Struct(">iIIiiqqiq")
_AFTER_BORN = struct.Struct(">q")
_AFTER_STORE = struct.Struct(">iqi")
_LENGTH = struct.Struct(">h")
# with IPv4 hosts: what `skim` gives, and magic and body_bytes
_SKIMMED = struct.Struct(">4xI4xi4xq8xi16xq20xi")
assert _SKIMMED.size == _HEADER.size
assert _HEADER.size + 1 + _LENGTH.size == FIXED_BYTES


class DamagedRecord(ValueError):
    """The bytes are not a record; the text says in which way."""


class Record(NamedTuple):
    """Every field of a record as it is stored; `properties` and `body` are raw, hosts are address
    and port together.
    """

    magic: int
    body_crc: int
    queue_number: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def transaction(self) -> TransactionBits:
        return transaction_bits(self.sys_flag)


class Head(NamedTuple):
    """Fields in the first `HEAD_BYTES` of a record; nothing is checked."""

    queue_number: int
    queue_offset: int
    sys_flag: int
    store_host: bytes
    topic_at: int  # where the length of the topic is, from the beginning of the record
    topic_length_bytes: int


def transaction_bits(sys_flag: int) -> TransactionBits:
    return _TRANSACTION[sys_flag & TRANSACTION_MASK]


def body_crc(body: bytes) -> int:
    """RocketMQ's CRC of a body: never negative as a Java int."""
    return crc32(body) & 0x7FFFFFFF


def encode(record: Record) -> bytes:
    topic = record.topic.encode("utf-8")
    topic_length = struct.pack(">b" if record.magic == MAGIC_V1 else ">h", len(topic))
    total = (
        FIXED_BYTES - 16 - 1
        + len(record.born_host) + len(record.store_host)
        + len(topic_length) + len(topic) + len(record.body) + len(record.properties)
    )  # fmt: skip
    return b"".join(
        [
            _HEADER_TO_BORN.pack(
                total,
                record.magic,
                record.body_crc,
                record.queue_number,
                record.flag,
                record.queue_offset,
                record.physical_offset,
                record.sys_flag,
                record.born_at_ms,
            ),
            record.born_host,
            _AFTER_BORN.pack(record.stored_at_ms),
            record.store_host,
            _AFTER_STORE.pack(record.reconsume_times, record.prepared_offset, len(record.body)),
            record.body,
            topic_length,
            topic,
            _LENGTH.pack(len(record.properties)),
            record.properties,
        ]
    )


def encode_end_of_file(remaining_bytes: int) -> bytes:
    return _START.pack(remaining_bytes, MAGIC_END_OF_FILE)


def start(raw: bytes, at: int = 0) -> tuple[int, int]:
    """(total_bytes, magic) of the record that begins at `at`; nothing is checked."""
    total, magic = _START.unpack_from(raw, at)
    return total, magic


def is_end_of_file(raw: bytes, at: int) -> bool:
    """Does an end-of-file record begin there?"""
    return at + END_OF_FILE_BYTES <= len(raw) and start(raw, at)[1] == MAGIC_END_OF_FILE


def stated_bytes(raw: bytes, at: int, log_offset: int) -> int:
    """The length of the record at `at` which states that it is stored at this log offset; 0 where
    none does. Cheap.
    """
    if at < 0 or at + FIXED_BYTES > len(raw):
        return 0
    total, magic, place = _PLACED.unpack_from(raw, at)
    return total if place == log_offset and magic in _MAGICS and total >= FIXED_BYTES else 0


def stated_queue(raw: bytes, at: int) -> tuple[int, int]:
    """(queue_number, queue_offset) of the record that begins at `at`; nothing is checked."""
    number, queue_offset = _QUEUED.unpack_from(raw, at)
    return number, queue_offset


def head(raw: bytes) -> Head | None:
    """The head of the record that these bytes begin; None where they are too few."""
    if len(raw) < _HEADER.size:
        return None
    _, magic, _, queue_number, _, queue_offset, _, sys_flag, _ = _HEADER_TO_BORN.unpack_from(raw)
    _, cursor = _host(raw, _HEADER_TO_BORN.size, sys_flag & BORN_HOST_IPV6)
    store_host, cursor = _host(raw, cursor + _AFTER_BORN.size, sys_flag & STORE_HOST_IPV6)
    body_at = cursor + _AFTER_STORE.size
    if len(raw) < body_at:
        return None
    _, _, body_bytes = _AFTER_STORE.unpack_from(raw, cursor)
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    return Head(
        queue_number, queue_offset, sys_flag, store_host, body_at + body_bytes, topic_length_bytes
    )


def decode(raw: bytes, at: int = 0) -> Record:
    """The record that begins at `at`. The lengths must add up; its checksums are not looked at.

    Raises DamagedRecord.
    """
    available = len(raw) - at
    if available < FIXED_BYTES:
        raise DamagedRecord(f"{available} bytes are less than the shortest record")
    (
        total, magic, crc, queue_number, flag, queue_offset, physical_offset, sys_flag, born_at_ms,
        born_host, stored_at_ms, store_host, reconsume_times, prepared_offset, body_bytes,
    ) = _HEADER.unpack_from(raw, at)  # fmt: skip
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise DamagedRecord(f"magic is {magic:#010x}")
    if not FIXED_BYTES <= total <= available:
        raise DamagedRecord(f"length is {total}, {available} bytes are there")
    body_at = at + _HEADER.size
    ipv6_hosts = (sys_flag & (BORN_HOST_IPV6 | STORE_HOST_IPV6)).bit_count()
    if ipv6_hosts:
        if total < FIXED_BYTES + ipv6_hosts * IPV6_MORE_BYTES:
            raise DamagedRecord(f"length is {total}, which is too little for its IPv6 hosts")
        cursor = at + _HEADER_TO_BORN.size
        born_host, cursor = _host(raw, cursor, sys_flag & BORN_HOST_IPV6)
        (stored_at_ms,) = _AFTER_BORN.unpack_from(raw, cursor)
        store_host, cursor = _host(raw, cursor + _AFTER_BORN.size, sys_flag & STORE_HOST_IPV6)
        reconsume_times, prepared_offset, body_bytes = _AFTER_STORE.unpack_from(raw, cursor)
        body_at = cursor + _AFTER_STORE.size
    end = at + total
    topic_at = body_at + body_bytes
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    if body_bytes < 0 or topic_at + topic_length_bytes > end:
        raise DamagedRecord(f"body length is {body_bytes} in a record of {total}")
    topic_bytes = int.from_bytes(raw[topic_at : topic_at + topic_length_bytes], "big", signed=True)
    properties_at = topic_at + topic_length_bytes + topic_bytes
    if topic_bytes < 0 or properties_at + _LENGTH.size > end:
        raise DamagedRecord(f"topic length is {topic_bytes} in a record of {total}")
    (properties_bytes,) = _LENGTH.unpack_from(raw, properties_at)
    properties_at += _LENGTH.size
    if properties_bytes < 0 or properties_at + properties_bytes != end:
        raise DamagedRecord(
            f"properties length is {properties_bytes}, {end - properties_at} bytes are left of "
            "the record"
        )
    try:
        topic = raw[
            topic_at + topic_length_bytes : topic_at + topic_length_bytes + topic_bytes
        ].decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedRecord("the topic is not UTF-8") from None
    return Record(
        magic, crc, queue_number, flag, queue_offset, physical_offset, sys_flag, born_at_ms,
        born_host, stored_at_ms,
        store_host, reconsume_times, prepared_offset, raw[body_at:topic_at], topic,
        raw[properties_at:end],
    )  # fmt: skip


def skim(raw: bytes, at: int, total: int) -> tuple[bytes, int, int, int, int, bytes]:
    """(topic, queue_number, queue_offset, sys_flag, stored_at_ms, properties) of a record that a
    scan has found whole.

    For those who look at every record of a log: nothing is checked, topic and properties are as
    they are stored.
    """
    magic, queue_number, queue_offset, sys_flag, stored_at_ms, body_bytes = _SKIMMED.unpack_from(
        raw, at
    )
    if sys_flag & (BORN_HOST_IPV6 | STORE_HOST_IPV6):
        record = decode(raw[at : at + total])
        topic = record.topic.encode("utf-8")
        return (
            topic,
            record.queue_number,
            record.queue_offset,
            record.sys_flag,
            record.stored_at_ms,
            record.properties,
        )
    cursor = at + _SKIMMED.size + body_bytes
    begin = cursor + (1 if magic == MAGIC_V1 else 2)
    end = begin + int.from_bytes(raw[cursor:begin], "big")
    return (
        raw[begin:end],
        queue_number,
        queue_offset,
        sys_flag,
        stored_at_ms,
        raw[end + _LENGTH.size : at + total],
    )


def _host(raw: bytes, at: int, is_ipv6: int) -> tuple[bytes, int]:
    length = 20 if is_ipv6 else 8
    return raw[at : at + length], at + length


def to_message(record: Record) -> StoredMessage:
    """The record as a message: properties parsed and split into the sender's own and the reserved
    ones.
    """
    message_id, key, tag, own, reserved = properties.of_message(record.properties)
    body, sys_flag, header = record.body, record.sys_flag, None
    if NO_BODY in reserved:
        del reserved[NO_BODY]
        body = b"" if body == PLACEHOLDER else body
    # As `header_of`, written out
    if sys_flag & KEPT_FLAGS or record.born_host != HOST or record.reconsume_times or record.flag:
        header = header_of(record.flag, sys_flag, record.born_host, record.reconsume_times)
    return StoredMessage(
        queue=queue_id(record.topic, record.queue_number),
        message_id=message_id,
        body=body,
        born_at_ms=record.born_at_ms,
        key=key,
        tag=tag,
        properties=own,
        system=reserved,
        transaction=record.transaction,
        prepared_log_offset=record.prepared_offset,
        header=header,
        queue_offset=record.queue_offset,
        stored_at_ms=record.stored_at_ms,
        log_offset=record.physical_offset,
    )


def header_of(
    flag: int, sys_flag: int, born_host: bytes, reconsume_times: int
) -> RecordHeader | None:
    """The header fields that a message keeps of its record; None where they are the usual ones."""
    kept = sys_flag & KEPT_FLAGS
    if flag or kept or reconsume_times or born_host != HOST:
        return RecordHeader(flag, kept, born_host, reconsume_times)
    return None


def is_of_a_broker(header: RecordHeader | None) -> bool:
    """Was the message sent to a broker? Copies of it have the address of its sender, too."""
    return header is not None and header.born_host != HOST


queue_id = lru_cache(maxsize=4_096)(QueueId)  # to make one takes five times as long
