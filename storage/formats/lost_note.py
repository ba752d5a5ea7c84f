"""A note of lost messages: the record that a repair leaves in the log in the place of what it took
out.

    topic       names.LOST_TOPIC, queue 0
    sys_flag    ROLLBACK: neither a broker nor this service ever makes a queue entry for the record
                itself
    body        JSON, [[topic, queue number, first, end], ...], then spaces up to the length that is
                to be filled. Where that is
                too long for the place: bytes 0xc1 up to the length, with which MessagePack never
                begins, then the same rows in MessagePack, with the number of messages in place of
                `end`

Offsets from `first` up to `end` of such a queue are taken and their messages are lost: a replay
gives each of them an entry that points to the note, and reading one of them is a CorruptRecord.
Where `first` equals `end` nothing of the queue is left, and it goes on at `end`. So no queue offset
is ever used a second time.

A note is a unit of its own where it ends on a word border, a record of the unit that it is in
where `item` names that unit, and else, between the records of a broker, a record by RocketMQ's
rules.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from storage.formats import record as records
from storage.formats import unit
from storage.formats.names import LOST_TOPIC
from storage.formats.record import Record
from storage.formats.unit import UnitItem
from storage.message import OffsetRange, QueueId, TransactionBits

ROWS = 100  # in one note that is appended; a note that fills a place has all of them
_BROKER_HOST = b"\x7f\0\0\1" + (10911).to_bytes(4, "big")
_SEAL_DIGITS = b"0" * 8 + b"\x02"  # until the unit's bytes are known
_ROWS = list[tuple[str, int, int, int]]
_decoder = msgspec.json.Decoder(_ROWS)
_short_decoder = msgspec.msgpack.Decoder(_ROWS)
_SHORT_PADDING = b"\xc1"


class LostRange(NamedTuple):
    """Offsets of one queue whose messages are lost."""

    queue: QueueId
    offsets: OffsetRange


class TooShort(ValueError):
    """The place is too short for the note."""


def read(body: bytes) -> list[LostRange]:
    if body.startswith(b"["):
        return [
            LostRange(QueueId(topic, number), OffsetRange(first, end))
            for topic, number, first, end in _decoder.decode(body)
        ]
    rows = _short_decoder.decode(body.lstrip(_SHORT_PADDING))
    return [
        LostRange(QueueId(topic, number), OffsetRange(first, first + count))
        for topic, number, first, count in rows
    ]


def encode_unit(
    lost: Iterable[LostRange],
    *,
    begin: int,
    synced_offset: int,
    epoch: int,
    stored_at_ms: int,
    length: int | None = None,
) -> bytes:
    """The note as a unit of its own; `length` is what it must fill exactly. Raises TooShort."""
    item = UnitItem(begin, synced_offset, epoch, 1)
    return sealed(
        encode_record(
            lost, begin=begin, stored_at_ms=stored_at_ms, item=item, is_last=True, length=length
        )
    )


def sealed(unit_bytes: bytes) -> bytes:
    """The unit with the seal that belongs to its bytes."""
    begin = unit_bytes[: -len(_SEAL_DIGITS)]
    return begin + unit.seal_of(begin)


def encode_record(
    lost: Iterable[LostRange],
    *,
    begin: int,
    stored_at_ms: int,
    item: UnitItem | None,
    is_last: bool,
    length: int | None = None,
) -> bytes:
    """The note as one record; of the unit that `item` names, which is sealed afterwards.

    Raises TooShort.
    """
    lost = list(lost)
    body = msgspec.json.encode([(*row.queue, *row.offsets) for row in lost])
    tail = b"" if item is None else unit.encode_item(item)
    if item is not None and is_last:
        tail += unit.SEAL_START + _SEAL_DIGITS
    others = records.FIXED_BYTES + len(LOST_TOPIC) + len(tail)
    if length is None:
        length = others + len(body)
        length += -(begin + length) % unit.ALIGNMENT
    if others + len(body) <= length:
        body = body.ljust(length - others)
    else:
        short = msgspec.msgpack.encode(
            [(*row.queue, row.offsets.first, row.offsets.end - row.offsets.first) for row in lost]
        )
        if others + len(short) > length:
            raise TooShort(f"{length} bytes cannot hold a note of {others + len(short)}")
        body = short.rjust(length - others, _SHORT_PADDING)
    host = _BROKER_HOST if item is None else records.HOST
    return records.encode(
        Record(
            magic=records.MAGIC_V1,
            body_crc=records.body_crc(body),
            queue_number=0,
            flag=0,
            queue_offset=0,
            physical_offset=begin,
            sys_flag=TransactionBits.ROLLBACK,
            born_at_ms=stored_at_ms,
            born_host=host,
            stored_at_ms=stored_at_ms,
            store_host=host,
            reconsume_times=0,
            prepared_offset=0,
            body=body,
            topic=LOST_TOPIC,
            properties=tail,
        )
    )
