"""Columns of a record as a row of `commitlog`, and the kinds of records."""

from collections.abc import Iterable
from enum import IntFlag, auto

from storage.formats import names
from storage.formats.delay_levels import SCHEDULE_TOPIC

HALF = "half"
OP = "op"
FINAL = "final"  # a message in its real topic that came out of a transaction
MESSAGE = "message"
HELD = "held"
CHECK = "check"
DELAYED = "delayed"  # waits in a delay topic
DELAYED_AGAIN = "delayed_again"  # a copy of one, stored before the segment of the first went
RETRY = "retry"
DEAD_LETTER = "dead_letter"
SYSTEM = "system"  # EscrowMQ's own topics that have no kind of their own
DAMAGED = "damaged"
FILLER = "filler"
MISSING = "missing"

KINDS = (HALF, OP, FINAL, MESSAGE, HELD, CHECK, DELAYED, DELAYED_AGAIN, RETRY, DEAD_LETTER, SYSTEM)
# rows that are no record; together with the records they are every byte of the log
STRETCHES = (DAMAGED, FILLER, MISSING)


class Role(IntFlag):
    """Role of a record in its transaction; 0 for a record outside transactions."""

    HALF = auto()
    COMMIT_OP = auto()
    ROLLBACK_OP = auto()
    PLAIN_OP = auto()  # a broker's, which does not say which way it went
    NAMED = auto()  # a message in its real topic that names its half
    # one that names none: of a half at log offset 0, or a broker's delivery of one that waited
    UNNAMED = auto()
    WAITING = auto()  # a message of a transaction in a delay topic
    WAITING_AGAIN = auto()
    ARRIVED = auto()  # one that has waited, in its real topic
    HELD = auto()
    RESUMED = auto()
    # beside NAMED, UNNAMED or WAITING: this service wrote it, and never without an op
    OURS = auto()
    DAMAGED = auto()  # of a stretch that is no record
    FILLER = auto()
    # beside HALF: a broker's final that went into the half topic instead of its own
    ASTRAY = auto()


_OF_TOPIC = {
    names.HALF_TOPIC: HALF,
    names.OP_TOPIC: OP,
    names.HELD_TOPIC: HELD,
    names.CHECK_TOPIC: CHECK,
    SCHEDULE_TOPIC: DELAYED,
    names.TIMER_TOPIC: DELAYED,
}
_OF_PREFIX = {"%RETRY%": RETRY, "%DLQ%": DEAD_LETTER}
_OUR_TOPICS = "rmq_sys_escrowmq_"
NOTED = (names.CHECK_TOPIC, names.LEASE_TOPIC, names.SCHEDULE_MARK_TOPIC, names.OFFSET_TOPIC)


def kind_of_topic(topic: str) -> str:
    """MESSAGE for a real topic: whether it is a final, the record's transaction bits say."""
    known = _OF_TOPIC.get(topic) or next(
        (kind for prefix, kind in _OF_PREFIX.items() if topic.startswith(prefix)), None
    )
    if known is None and topic.startswith(_OUR_TOPICS):
        return SYSTEM
    return known or MESSAGE


# name -> Spark type. A reader is asked for some of them and works out no others: name few, pay for
# few.
COLUMNS = {
    "segment": "bigint",  # log offset at which the record's file begins
    "log_offset": "bigint",
    "record_bytes": "bigint",  # of a row that is no record the length of the stretch
    "kind": "string",
    "role": "int",  # bits of Role
    "damage": "string",  # why a stretch is damaged
    "is_verified": "boolean",  # false: whole by itself, in a damaged unit
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "flag": "int",
    "sys_flag": "int",
    "is_commit": "boolean",  # has the COMMIT bits: it came out of a transaction
    "born_at": "timestamp",
    "stored_at": "timestamp",
    "stored_ms": "bigint",  # the same as it is stored, which need not be a date
    "reconsume_times": "int",
    "prepared_offset": "bigint",
    "body_bytes": "int",
    "body_crc": "bigint",
    "message_id": "string",
    "message_hash": "bigint",  # 28 bits of the id of a message of a transaction
    "transaction_id": "string",
    "producer_group": "string",
    "group_hash": "bigint",  # of producer_group (decode/hashes.py)
    "real_topic": "string",
    "real_queue_id": "int",
    "transaction_mark": "string",  # "true" on a half, and on what a broker makes of one
    "key": "string",  # all its keys, with a space between each two
    "tag": "string",
    "schedule_id": "string",
    "check_times": "int",  # how often a broker had asked when it stored the half again
    "decision": "string",  # on an op of ours: commit or rollback
    "half_offsets": "array<bigint>",  # on an op: queue offsets of the halves it names
    "first_half_offset": "bigint",  # the smallest of them
    "message_count": "int",  # on the first half of a transaction of ours
    "event": "string",  # on a check: what happened
    "note": "string",  # JSON that the service noted down for itself: the bodies of NOTED topics
    "facts": "string",  # JSON, on the first half of a transaction of ours
    "decided_by": "string",  # on an op of ours
    "check_answer": "string",  # JSON, on the op of a decision by a check
    "due_ms": "bigint",  # of a message that waits in a delay topic
    # JSON, on a copy of one that waits, stored before the segment of the first went
    "so_far": "string",
    # on a copy for a redelivery, or in a dead-letter topic: the number of deliveries so far
    "attempts": "int",
    "retry_topic": "string",  # on such a copy: the topic that it was sent to
    "origin_id": "string",  # its first message id
    "origin_place": "string",  # the queue and the queue offset of its first delivery
    "key_hashes": "array<bigint>",  # by which the key index finds it
    "properties": "string",  # as they are stored
    "body": "binary",
}


def schema_text(names: Iterable[str] = tuple(COLUMNS)) -> str:
    """The columns as a schema for `spark.read`."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in names)
