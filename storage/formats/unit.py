r"""The append unit: what one append call wrote, kept or cut as a whole.

A unit is one or more records behind one another. RocketMQ sees ordinary records; what makes them a
unit are two property items at the end of their property strings, which it skips or carries along:

    own properties   0x02 padding   unit item                        every record
    own properties   0x02 padding   unit item   seal                 the last record

The padding makes every record end on a multiple of 8 bytes. Both items are whole 8-byte words, so
they are at word borders and a scan finds them without parsing.

    unit item, 48 bytes, the same in every record of the unit
    at  size  field
     0     7  "__unit" 0x01
     7    12  first_offset    hexadecimal, where the unit begins in the log
    19    12  synced_offset   up to where the log was known to be on disk when this was appended
    31     8  epoch           of the store; rises at each start after a crash
    39     4  record_count
    43     4  check           the low 16 bits of the crc32c of the 36 digits before it
    47     1  0x02

    seal, 16 bytes
     0     7  "__seal" 0x01
     7     8  crc32c of every byte of the unit before these digits, hexadecimal
    15     1  0x02

The `check` of the unit item exists for one question: is a record whose item names another place a
copy that a broker made of an older record (item intact), or is it damaged (item not intact)?
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c
from isal.isal_zlib import crc32

from storage.errors import InvalidMessage
from storage.formats import properties, queue_entry
from storage.formats.delay_levels import SCHEDULE_TOPIC, due_ms
from storage.formats.record import (
    BORN_HOST_IPV6,
    FIXED_BYTES,
    HOST,
    MAGIC_V1,
    MAGIC_V2,
    USUAL_HEADER,
    V1_TOPIC_BYTES,
)
from storage.message import RecordHeader, Row

ALIGNMENT = 8
UNIT_ITEM_BYTES = 48
SEAL_BYTES = 16
UNIT_ITEM_START = b"__unit\x01"
SEAL_START = b"__seal\x01"
MAX_RECORDS = 0xFFFF
MAX_LOG_OFFSET = 1 << 48

_VALUE_END = b"\x02"
_DIGITS = struct.Struct("12s12s8s4s4s")
_CRC_MASK = 0x7FFFFFFF  # body_crc of formats/record.py, inlined in the loop below

# formats/record.py up to body_bytes, with the constant middle packed apart
_HEAD = struct.Struct(">iIIiiqq48si")
_MIDDLE = struct.Struct(">iq8sq8siq")
_HEAD_IPV6 = struct.Struct(">iIIiiqq60si")  # the same of a message that was born at an IPv6 address
_MIDDLE_IPV6 = struct.Struct(">iq20sq8siq")
_LENGTH_BYTES = 2  # of the properties
_LENGTHS = [struct.pack(">h", n) for n in range(properties.MAX_PROPERTIES_BYTES + 1)]
_PADDING = [_VALUE_END * n for n in range(ALIGNMENT)]
assert _MIDDLE.size == 48
assert _MIDDLE_IPV6.size == 60
assert _HEAD.size + 1 + _LENGTH_BYTES == FIXED_BYTES
assert len(UNIT_ITEM_START) + _DIGITS.size + 1 == UNIT_ITEM_BYTES
assert UNIT_ITEM_BYTES % ALIGNMENT == SEAL_BYTES % ALIGNMENT == 0


class UnitItem(NamedTuple):
    first_offset: int
    synced_offset: int
    epoch: int
    record_count: int


class _Header(NamedTuple):
    """The header of a message as the loop of `encode` uses it."""

    pack_head: Callable[..., bytes]
    head_bytes: int
    flag: int
    sys_flag: int
    born_host: bytes
    reconsume_times: int
    pack_middle: Callable[..., bytes]


class EncodedUnit(NamedTuple):
    """A unit. The lists have one item a record, but for the parts.

    `parts`: its bytes up to the name of the seal, not joined yet. `places`: log offsets. `entries`:
    for the consume queues.
    """

    parts: list[bytes]
    places: list[int]
    entries: list[bytes]
    end: int  # the log offset behind it

    @property
    def byte_count(self) -> int:
        return self.end - self.places[0]

    @property
    def data(self) -> bytes:
        """All bytes of the unit."""
        data = b"".join(self.parts)
        return data + _seal(crc32c(data))

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """All bytes of the unit, in pieces of at most so many; the seal is worked out on
        the way.
        """
        crc = waiting_bytes = 0
        waiting: list[bytes] = []
        for part in self.parts:
            for at in range(0, len(part), piece_bytes):
                waiting.append(part[at : at + piece_bytes])
                waiting_bytes += len(waiting[-1])
                if waiting_bytes >= piece_bytes:
                    data = b"".join(waiting)
                    piece, rest = data[:piece_bytes], data[piece_bytes:]
                    waiting, waiting_bytes = [rest], len(rest)
                    crc = crc32c(piece, crc)
                    yield piece
        rest = b"".join(waiting)
        rest += _seal(crc32c(rest, crc))
        for at in range(0, len(rest), piece_bytes):
            yield rest[at : at + piece_bytes]


def encode_item(item: UnitItem) -> bytes:
    digits = b"%012x%012x%08x%04x" % item
    return b"%b%b%04x%b" % (UNIT_ITEM_START, digits, crc32c(digits) & 0xFFFF, _VALUE_END)


def decode_item(raw: bytes, at: int = 0) -> UnitItem | None:
    """The unit item at `at`; None where there is none or it is not intact."""
    end = at + UNIT_ITEM_BYTES
    if len(raw) < end or not raw.startswith(UNIT_ITEM_START, at):
        return None
    digits = raw[at + len(UNIT_ITEM_START) : end - 1]
    try:
        first_offset, synced_offset, epoch, record_count, _ = (
            int(field, 16) for field in _DIGITS.unpack(digits)
        )
    except ValueError:
        return None
    item = UnitItem(first_offset, synced_offset, epoch, record_count)
    # Compared as bytes: int() also takes capitals, spaces, signs and underscores, none of which we
    # write.
    return item if min(item) >= 0 and raw[at:end] == encode_item(item) else None


def seal_of(data: bytes | memoryview) -> bytes:
    """The seal that belongs behind these bytes of a unit (which end with the seal's name)."""
    return _seal(crc32c(data))


def _seal(crc: int) -> bytes:
    return b"%08x%b" % (crc, _VALUE_END)


def encode(
    rows: Sequence[Row],
    queue_offsets: Sequence[int],
    *,
    first_offset: int,
    synced_offset: int,
    epoch: int,
    stored_at_ms: int,
) -> EncodedUnit:
    """The rows, at least one, as one unit that begins at `first_offset`.

    Every record ends on a multiple of 8.

    Raises InvalidMessage when the properties of a message are longer than a record can hold.
    """
    # This loop is the price of a message in a batch (benchmarks/append.py): what is constant is
    # packed once, what is known is looked up, and no helper is called for the common shape of a
    # message.
    item = encode_item(UnitItem(first_offset, synced_offset, epoch, len(rows)))
    tails = [padding + item for padding in _PADDING]
    parts: list[bytes] = []
    places: list[int] = []
    entries: list[bytes] = []
    place = first_offset
    left = len(rows)
    topic = None
    topic_field = middle = b""
    magic = MAGIC_V1
    pack_head, head_bytes, flag, sys_flag, host, times, pack_middle = _USUAL
    fixed_bytes = FIXED_BYTES
    header: RecordHeader | None = None
    has_levels = False
    flags = born_at_ms = prepared_offset = -1
    lengths = _LENGTHS
    pack_entry = queue_entry.encode
    for (
        queue,
        own,
        body,
        tags_code,
        row_born_at_ms,
        row_flags,
        row_prepared_offset,
        row_header,
    ), queue_offset in zip(rows, queue_offsets, strict=True):
        row_topic, queue_number = queue
        if row_topic is not topic:
            topic = row_topic
            magic, topic_field = _topic_field(topic)
            fixed_bytes = head_bytes + len(topic_field) + _LENGTH_BYTES
            has_levels = topic == SCHEDULE_TOPIC
        if (
            row_born_at_ms is not born_at_ms
            or row_flags is not flags
            or row_prepared_offset is not prepared_offset
            or row_header is not header
        ):
            born_at_ms, flags, prepared_offset = row_born_at_ms, row_flags, row_prepared_offset
            if row_header is not header:
                header = row_header
                pack_head, head_bytes, flag, sys_flag, host, times, pack_middle = (
                    _USUAL if header is None else _of_header(header)
                )
                fixed_bytes = head_bytes + len(topic_field) + _LENGTH_BYTES
            middle = pack_middle(
                sys_flag | flags, born_at_ms, host, stored_at_ms, HOST, times, prepared_offset
            )
        left -= 1
        properties_bytes = len(own) + (UNIT_ITEM_BYTES if left else UNIT_ITEM_BYTES + SEAL_BYTES)
        body_bytes = len(body)
        size = fixed_bytes + body_bytes + properties_bytes
        padding_bytes = -(place + size) & (ALIGNMENT - 1)
        size += padding_bytes
        properties_bytes += padding_bytes
        if properties_bytes > properties.MAX_PROPERTIES_BYTES:
            message_id = properties.decode(own).get(properties.MESSAGE_ID)
            raise InvalidMessage(
                f"the properties of message {message_id} take {properties_bytes} bytes"
            )
        parts += (
            pack_head(
                size, magic, crc32(body) & _CRC_MASK, queue_number, flag, queue_offset, place,
                middle, body_bytes
            ),
            body,
            topic_field,
            lengths[properties_bytes],
            own,
            tails[padding_bytes],
        )  # fmt: skip
        if has_levels:
            due = due_ms(own, stored_at_ms)
            tags_code = tags_code if due is None else due
        places.append(place)
        entries.append(pack_entry(place, size, tags_code))
        place += size
    parts.append(SEAL_START)
    return EncodedUnit(parts, places, entries, place)


def _of_header(header: RecordHeader) -> _Header:
    is_ipv6 = header.sys_flag & BORN_HOST_IPV6
    head, middle = (_HEAD_IPV6, _MIDDLE_IPV6) if is_ipv6 else (_HEAD, _MIDDLE)
    return _Header(
        head.pack,
        head.size,
        header.flag,
        header.sys_flag,
        header.born_host,
        header.reconsume_times,
        middle.pack,
    )


_USUAL = _of_header(USUAL_HEADER)


@lru_cache(maxsize=1_024)
def _topic_field(topic: str) -> tuple[int, bytes]:
    raw = topic.encode("utf-8")
    if len(raw) <= V1_TOPIC_BYTES:
        return MAGIC_V1, struct.pack(">b", len(raw)) + raw
    return MAGIC_V2, struct.pack(">h", len(raw)) + raw
