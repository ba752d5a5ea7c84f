"""Pages of records as the service stores them: a header of 40 bytes, then the records. Pure.

    at  size  field                  (all numbers big-endian and signed)
     0     4  magic           "EMQR"
     4     2  version         1
     6     2  header_bytes    where the first record begins
     8     8  next_offset     where to continue reading
    16     8  min_offset      the first offset of the queue that can be read
    24     8  max_offset      one after the last offset of the queue
    32     4  record_count
    36     4  result          0 found, 1 no_new_message, 2 no_matched_message

A record is RocketMQ's: it begins with its length and ends with its properties. Source:
docs/formats.md.
"""

import struct
from datetime import datetime, timedelta, timezone
from zlib import crc32

from escrowmq_client.errors import InvalidAnswer
from escrowmq_client.models.messages import Message, MessagePage

_PAGE = struct.Struct(">4shhqqqii")
# up to the time at which the message was born; the hosts follow
_RECORD = struct.Struct(">iIIiiqqiq")
_RESULTS = ("found", "no_new_message", "no_matched_message")
_LONG_TOPIC = 0xDAA320AB
_BORN_HOST_IPV6, _STORE_HOST_IPV6 = 0x10, 0x20
_COMPRESSED = 0x1
_COMPRESSIONS = {0: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}  # by 0x700 of the flags
_BETWEEN = 12  # bytes: how often a broker had it consumed, and where its half message is
_NO_BODY = "__no_body"  # on a message without a body, which is stored with one byte
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RESERVED = frozenset(
    """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CHECK_IMMUNITY_TIME_IN_SECONDS CLUSTER
    CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC
    DUP_INFO EXTEND_UNIQ_INFO INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET INNER_NUM
    INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE
    ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME
    REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC
    TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS
    TIMER_ROLL_TIMES TRACE_ON TRANSACTION_CHECK_TIMES TRANSFER_FLAG TRAN_MSG
    TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT
    """.split()
)


class Record(Message, frozen=True, kw_only=True):
    """A message read from its record: with its bytes, and its position in the log."""

    raw_body: bytes
    """The body as it is stored."""
    compression: str | None = None
    """How a client of RocketMQ has compressed the body: lz4, zstd or zlib; None if it has not."""
    log_offset: int

    @property
    def body(self) -> bytes:
        """The bytes of the body. Raises ValueError if it is compressed."""
        if self.compression is not None:
            raise ValueError(f"the body is compressed ({self.compression}); raw_body has it")
        return self.raw_body


def read_page(data: bytes) -> MessagePage:
    """Decode a page; its messages are `Record`s. Raises InvalidAnswer."""
    try:
        magic, version, at, next_offset, min_offset, max_offset, count, result = _PAGE.unpack_from(
            data
        )
        if magic != b"EMQR" or version != 1:
            raise InvalidAnswer(f"no page of records: {magic!r}, version {version}")
        messages: list[Message] = []
        for _ in range(int(count)):
            message, at = _read_record(data, at)
            messages.append(message)
        return MessagePage(
            messages=messages,
            next_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            result=_RESULTS[int(result)],
        )
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise InvalidAnswer(f"no page of records: {error}") from error


def _read_record(data: bytes, begin: int) -> tuple[Record, int]:
    """Decode the record that begins there; return it and the end of it."""
    (
        length, magic, body_crc, queue_id, _, queue_offset, log_offset, flag, born_at_ms,
    ) = _RECORD.unpack_from(data, begin)  # fmt: skip
    at = begin + _RECORD.size + (20 if flag & _BORN_HOST_IPV6 else 8)
    (stored_at_ms,) = struct.unpack_from(">q", data, at)
    at += 8 + (20 if flag & _STORE_HOST_IPV6 else 8) + _BETWEEN
    (body_bytes,) = struct.unpack_from(">i", data, at)
    body, at = data[at + 4 : at + 4 + body_bytes], at + 4 + body_bytes
    if crc32(body) & 0x7FFFFFFF != body_crc:
        raise InvalidAnswer(f"the body at offset {queue_offset} is damaged")
    topic_length = 2 if magic == _LONG_TOPIC else 1
    topic_end = at + topic_length + int.from_bytes(data[at : at + topic_length], "big")
    found = _properties(data[topic_end + 2 : begin + length].decode())
    keys = list(dict.fromkeys(filter(None, found.get("KEYS", "").split(" "))))
    record = Record(
        message_id=found.get("UNIQ_KEY", ""),
        topic=data[at + topic_length : topic_end].decode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        key=keys[0] if keys else None,
        keys=keys if len(keys) > 1 else None,
        tag=found.get("TAGS"),
        ordering_key=found.get("__SHARDINGKEY"),
        content_type=found.get("__content_type"),
        transaction_id=found.get("__transactionId__"),
        properties=_of_the_sender(found),
        born_at=_time(born_at_ms),
        stored_at=_time(stored_at_ms),
        raw_body=b"" if _NO_BODY in found and body == b"\0" else body,
        compression=_COMPRESSIONS.get(flag & 0x700, "unknown") if flag & _COMPRESSED else None,
    )
    return record, begin + length


def _properties(text: str) -> dict[str, str]:
    """Return all items of a property string, those of the service included."""
    items = (item.partition("\x01") for item in text.split("\x02"))
    return {name: value for name, _, value in items if name and value}


def _of_the_sender(found: dict[str, str]) -> dict[str, str]:
    """Return the properties that the sender gave."""
    own = {
        name: value
        for name, value in found.items()
        if name not in _RESERVED and not name.startswith("__")
    }
    empty = found.get("__empty")
    return own | dict.fromkeys(empty.split(","), "") if empty else own


def _time(wall_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=wall_ms)
