"""Logs as a broker writes them, record by record, and what can become of its transactions there."""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from storage.formats import names, properties
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.message import TransactionBits
from tests.support.logs import broker_record

COMMIT = TransactionBits.COMMIT.value
COMPRESSED = 0x301  # zlib
BORN_MS = 1_700_000_000_000
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
NO_BODY = {"__no_body": "1"}
INNER = [(b"one", "red"), (b"two", "blue"), (b"three", "red")]


class Stored(NamedTuple):
    """A record of a broker's: `items` are its properties."""

    log_offset: int
    queue_offset: int
    body: bytes
    items: Mapping[str, str]
    sys_flag: int


class BrokerLog:
    """A store's folder with one segment, in which a millisecond passes with each record."""

    def __init__(self, root: Path, *, segment_bytes: int = 1 << 18) -> None:
        self.root = root
        self.data = b""
        self._segment_bytes = segment_bytes
        self._queue_ends: Counter[tuple[str, int]] = Counter()

    def append(
        self,
        topic: str,
        body: bytes,
        items: Mapping[str, str],
        *,
        queue_number: int = 0,
        sys_flag: int = 0,
        width: int = 1,
        **fields: int,
    ) -> Stored:
        """`width`: queue offsets that the record takes."""
        queue_offset = self._queue_ends[topic, queue_number]
        self._queue_ends[topic, queue_number] += width
        log_offset = len(self.data)
        self.data += broker_record(
            log_offset,
            body,
            topic=topic,
            properties=properties.encode(items.items()),
            queue_number=queue_number,
            queue_offset=queue_offset,
            sys_flag=sys_flag,
            stored_at_ms=BORN_MS + log_offset,
            **fields,
        )
        return Stored(log_offset, queue_offset, body, items, sys_flag)

    def close(self) -> Path:
        folder = self.root / "commitlog"
        folder.mkdir(parents=True)
        filled = self.data + bytes(self._segment_bytes - len(self.data))
        (folder / names.file_name(0)).write_bytes(filled)
        return self.root

    # ----------------------------------------------------------------------------------------------
    # transactions

    def half(self, name: str, *, body: bytes = b"order", sys_flag: int = 0, **more: str) -> Stored:
        items = {
            properties.MESSAGE_ID: name,
            properties.TRANSACTION_ID: name,
            properties.PRODUCER_GROUP: "shop",
            properties.TRANSACTION_MARK: "true",
            properties.REAL_TOPIC: "orders",
            properties.REAL_QUEUE: "0",
            **more,
        }
        return self.append(names.HALF_TOPIC, body, items, sys_flag=sys_flag)

    def put_back(self, half: Stored, times: int = 1) -> Stored:
        """The half once more, to be asked about."""
        return self._again(names.HALF_TOPIC, half, {properties.CHECK_TIMES: str(times)})

    def discard(self, half: Stored) -> Stored:
        return self._again(names.HELD_TOPIC, half, {})

    def final(self, half: Stored, *, topic: str = "orders", prepared: bool = True) -> Stored:
        """`prepared`: does it name its half? The copy of one that has waited does not."""
        return self.append(
            topic,
            half.body,
            half.items,
            sys_flag=half.sys_flag | COMMIT,
            prepared_offset=half.log_offset if prepared else 0,
        )

    def op(self, *halves: Stored) -> Stored:
        body = "".join(f"{half.queue_offset}," for half in halves).encode()
        return self.append(names.OP_TOPIC, body, {"WAIT": "true", properties.TAGS: "d"})

    def _again(self, topic: str, half: Stored, more: Mapping[str, str]) -> Stored:
        return self.append(topic, half.body, {**half.items, **more}, sys_flag=half.sys_flag)


def inner_batch(
    log: BrokerLog, topic: str, given: Sequence[tuple[bytes, str]], *, count: int | None = None
) -> Stored:
    """Messages (body and tag) that a broker stores as one record; `count`: as it states it."""
    body = b""
    for number, (inner, tag) in enumerate(given):
        items = {properties.MESSAGE_ID: f"inner_{number}", properties.TAGS: tag}
        raw = properties.encode(items.items())
        total = 4 * 5 + len(inner) + 2 + len(raw)
        body += struct.pack(">iiiii", total, 0, 0, 7, len(inner)) + inner
        body += struct.pack(">h", len(raw)) + raw
    stated = len(given) if count is None else count
    items = {properties.MESSAGE_ID: "batch", "INNER_NUM": str(stated)}
    return log.append(topic, body, items, sys_flag=0x80 | 0x40, width=stated)


def with_every_kind(root: Path) -> dict[str, int]:
    """A record of every kind, and their counts."""
    _every_kind(BrokerLog(root)).close()
    return {
        "inner_batch": 1,
        "light_queue": 2,
        "reply": 1,
        "pop_retry": 2,
        "pop_progress": 3,
        "trace": 1,
        "system": 2,
        "unqueued": 2,
    }


def _every_kind(log: BrokerLog) -> BrokerLog:
    named = {properties.MESSAGE_ID: "m"}
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0,3"}
    log.append("orders", b"ordinary", named)
    inner_batch(log, "orders", INNER)
    log.append("orders", b"light", named | light)
    log.append("bills", b"light", named | light)
    log.append(names.REPLY_TOPIC, b"reply", named | {"MSG_TYPE": "reply"})
    log.append("%RETRY%shop_orders", b"popped", named | {"1ST_POP_TIME": "1"})
    log.append("%RETRY%shop+orders", b"popped", named | {"1ST_POP_TIME": "1"})
    log.append("%RETRY%shop", b"a retry", named)
    log.append(REVIVE, b"{}", {"TAGS": "ck"}, queue_number=3)
    log.append(REVIVE, b"{}", {"TAGS": "bAck"}, queue_number=3)
    waits = {"TAGS": "ack", "REAL_TOPIC": REVIVE, "REAL_QID": "3", "TIMER_OUT_MS": "4102444800000"}
    log.append(names.TIMER_TOPIC, b"{}", waits)
    log.append("RMQ_SYS_TRACE_TOPIC", b"trace", named)
    log.append("OFFSET_MOVED_EVENT", b"event", named)
    log.append("rmq_sys_SYNC_BROKER_MEMBER_a", b"sync", named)
    log.append("orders", b"prepared", named, sys_flag=0x4, width=0)
    log.append("orders", b"rolled back", named, sys_flag=0xC, width=0)
    log.half("tx")
    log.append("orders", b"last", named)
    return log


# --------------------------------------------------------------------------------------------------
# what becomes of a transaction


def _commit(log: BrokerLog, half: Stored) -> None:
    log.final(half)
    log.op(half)


def _commit_of_a_copy(log: BrokerLog, half: Stored) -> None:
    copy = log.put_back(log.put_back(half), 2)
    log.final(copy)
    log.op(copy)


def _commit_then_put_back(log: BrokerLog, half: Stored) -> None:
    log.final(half)
    log.put_back(half)
    log.op(half)


def _commit_again_before_the_op(log: BrokerLog, half: Stored) -> None:
    log.final(half)
    log.final(log.put_back(half))
    log.op(half)


def _commit_again_behind_the_op(log: BrokerLog, half: Stored) -> None:
    copy = log.put_back(half)
    _commit(log, half)
    _commit(log, copy)


def _commit_after_rollback(log: BrokerLog, half: Stored) -> None:
    log.op(half)
    log.final(half)
    log.op(half)


def _commit_of_a_copy_after_rollback(log: BrokerLog, half: Stored) -> None:
    copy = log.put_back(half)
    log.op(half)
    log.final(copy)


def _commit_twice_after_rollback(log: BrokerLog, half: Stored) -> None:
    log.op(half)
    log.final(half)
    log.final(half)


def _commit_delayed(log: BrokerLog, half: Stored) -> None:
    log.final(half, topic=SCHEDULE_TOPIC)
    log.op(half)
    log.final(half, prepared=False)


def _discard_then(decide: Callable[[BrokerLog, Stored], None]) -> Callable[..., None]:
    def both(log: BrokerLog, half: Stored) -> None:
        copy = log.put_back(half)
        log.discard(copy)
        decide(log, copy)

    return both


def _put_back_after_a_delay(log: BrokerLog, half: Stored) -> None:
    """A check of a half with a delay: the copy waits, and names the half topic as its own."""
    on_the_way = {**half.items, "DELAY": "2", properties.REAL_TOPIC: names.HALF_TOPIC}
    log.append(SCHEDULE_TOPIC, half.body, on_the_way)


def _commit_into_the_half_topic(log: BrokerLog, half: Stored) -> None:
    _put_back_after_a_delay(log, half)
    astray = {**half.items, properties.REAL_TOPIC: names.HALF_TOPIC}
    copy = log.append(names.HALF_TOPIC, half.body, astray)
    again = log.final(copy, topic=names.HALF_TOPIC)
    log.op(copy)
    log.final(again, topic=names.HALF_TOPIC)
    log.op(again)


def _commit_without_body(log: BrokerLog, half: Stored) -> None:
    """This service delivers the empty body, a broker its placeholder."""
    for name, body, mark in (("ours", b"", {}), ("brokers", b"\0", NO_BODY)):
        empty = log.half(f"{half.items[properties.MESSAGE_ID]}.{name}", body=b"\0", **NO_BODY)
        items = {key: value for key, value in empty.items.items() if key not in NO_BODY}
        log.final(empty._replace(body=body, items=items | mark))
        log.op(empty)
    _commit(log, half)


# name -> (verdict, what is done after the half)
FATES: dict[str, tuple[str, Callable[[BrokerLog, Stored], None]]] = {
    "committed": ("committed_once", _commit),
    "copy_committed": ("committed_once", _commit_of_a_copy),
    "asked_once_more": ("committed_once", _commit_then_put_back),
    "final_without_op": ("committed_once", lambda log, half: log.final(half)),
    "delayed": ("committed_once", _commit_delayed),
    "without_body": ("committed_once", _commit_without_body),
    "rolled_back": ("rolled_back_clean", lambda log, half: log.op(half)),
    "undecided": ("undecided", lambda log, half: log.put_back(half)),
    "put_back_delayed": ("undecided", _put_back_after_a_delay),
    "discarded": ("undecided_held", _discard_then(lambda log, half: None)),
    "late": ("resolved_late", _discard_then(_commit)),
    "again_before_op": ("committed_duplicated", _commit_again_before_the_op),
    "again_behind_op": ("committed_duplicated", _commit_again_behind_the_op),
    "after_rollback": ("rolled_back_but_delivered", _commit_after_rollback),
    "copy_after_rollback": ("rolled_back_but_delivered", _commit_of_a_copy_after_rollback),
    "twice_after_rollback": ("rolled_back_but_delivered", _commit_twice_after_rollback),
    "discarded_after_rollback": (
        "rolled_back_but_delivered",
        _discard_then(_commit_after_rollback),
    ),
    "astray": ("final_missing", _commit_into_the_half_topic),
}


def plant(root: Path) -> tuple[BrokerLog, dict[str, str]]:
    """Every fate, of a plain and of a compressed body; the verdict of each transaction."""
    log = BrokerLog(root)
    log.append("orders", b"an ordinary message", {properties.MESSAGE_ID: "plain"})
    truth: dict[str, str] = {}
    for sys_flag in (0, COMPRESSED):
        for name, (verdict, befall) in FATES.items():
            transaction_id = f"{name}.{sys_flag:x}"
            befall(log, log.half(transaction_id, sys_flag=sys_flag))
            truth[transaction_id] = verdict
            if name == "without_body":
                truth |= {f"{transaction_id}.{each}": verdict for each in ("ours", "brokers")}
    log.close()
    return log, truth
