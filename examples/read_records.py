"""Reads a queue as records: a hundred lines that a program in any language can be written after.

    python examples/read_records.py http://127.0.0.1:8080 orders 0

The layout is in docs/formats.md. ESCROWMQ_API_KEY has the key, where the service wants one.
"""

import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from zlib import crc32

RECORDS = "application/vnd.escrowmq.records"

_PAGE = struct.Struct(">4shhqqqii")
# up to the time at which the message was born; the hosts follow
_RECORD = struct.Struct(">iIIiiqqiq")
_RESULTS = ("found", "no_new_message", "no_matched_message")
_LONG_TOPIC = 0xDAA320AB
_BORN_HOST_IPV6, _STORE_HOST_IPV6 = 0x10, 0x20
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


class Message(NamedTuple):
    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    born_at_ms: int
    stored_at_ms: int
    key: str | None
    tag: str | None
    properties: dict[str, str]  # the sender's own
    body: bytes


class Page(NamedTuple):
    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    result: str


def read_page(data: bytes) -> Page:
    magic, version, at, next_offset, min_offset, max_offset, count, result = _PAGE.unpack_from(data)
    if magic != b"EMQR" or version != 1:
        raise ValueError(f"no page of records: {magic!r}, version {version}")
    messages = []
    for _ in range(count):
        message, at = _read_record(data, at)
        messages.append(message)
    return Page(messages, next_offset, min_offset, max_offset, _RESULTS[result])


def _read_record(data: bytes, begin: int) -> tuple[Message, int]:
    (
        length, magic, body_crc, queue_id, _, queue_offset, log_offset, flag, born_at_ms,
    ) = _RECORD.unpack_from(data, begin)  # fmt: skip
    at = begin + _RECORD.size + (20 if flag & _BORN_HOST_IPV6 else 8)
    (stored_at_ms,) = struct.unpack_from(">q", data, at)
    # how often a broker had it consumed, where its half is
    at += 8 + (20 if flag & _STORE_HOST_IPV6 else 8) + 12
    (body_bytes,) = struct.unpack_from(">i", data, at)
    body, at = data[at + 4 : at + 4 + body_bytes], at + 4 + body_bytes
    if crc32(body) & 0x7FFFFFFF != body_crc:
        raise ValueError(f"the body at offset {queue_offset} is damaged")
    topic_length = 2 if magic == _LONG_TOPIC else 1
    topic_end = at + topic_length + int.from_bytes(data[at : at + topic_length], "big")
    topic = data[at + topic_length : topic_end].decode()
    items = [
        item.partition("\x01")
        for item in data[topic_end + 2 : begin + length].decode().split("\x02")
    ]
    found = {name: value for name, _, value in items if name and value}
    own = {
        name: value
        for name, value in found.items()
        if name not in _RESERVED and not name.startswith("__")
    }
    own |= dict.fromkeys(found["__empty"].split(","), "") if "__empty" in found else {}
    message = Message(
        found.get("UNIQ_KEY", ""), topic, queue_id, queue_offset, log_offset, born_at_ms,
        stored_at_ms, found.get("KEYS"),
        found.get("TAGS"), own, body,
    )  # fmt: skip
    return message, begin + length


def read_queue(
    service: str, topic: str, queue: int, offset: int = 0, *, api_key: str | None = None
) -> Iterator[Message]:
    """The messages from an offset to the end of the queue."""
    while True:
        query = urlencode({"offset": offset, "max_messages": 1_000})
        url = f"{service}/v1/topics/{quote(topic, safe='')}/queues/{queue}/messages?{query}"
        headers = {"Accept": RECORDS} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        with urlopen(Request(url, headers=headers)) as answer:
            page = read_page(answer.read())
        yield from page.messages
        offset = page.next_offset
        if offset >= page.max_offset:
            return


if __name__ == "__main__":
    for one in read_queue(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), api_key=os.environ.get("ESCROWMQ_API_KEY")
    ):
        sys.stdout.write(
            f"{one.queue_offset} {one.message_id} {one.key or '-'} {one.tag or '-'} "
            f"{len(one.body)} bytes\n"
        )
