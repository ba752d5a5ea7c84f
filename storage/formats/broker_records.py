"""Records that a RocketMQ broker writes and this service does not: which of them are served, and
which are kept in the log and in their queues without being served.

Pure. Source: RocketMQ TopicValidator, PopAckConstants, KeyBuilder, MessageExtBrokerInner.
"""

from functools import lru_cache
from typing import NamedTuple

from storage.formats import inner_batch, names
from storage.formats.delay_levels import SCHEDULE_TOPIC


class Kind(NamedTuple):
    meaning: str
    is_served: bool = False


INNER_BATCH = "inner_batch"
LIGHT_QUEUE = "light_queue"
REPLY = "reply"
POP_RETRY = "pop_retry"
POP_PROGRESS = "pop_progress"
TRACE = "trace"
SYSTEM = "system"
UNQUEUED = "unqueued"

KINDS = {
    INNER_BATCH: Kind("batches stored as one record each; their messages are served", True),
    LIGHT_QUEUE: Kind("messages that a broker also serves in light queues (%LMQ%)", True),
    REPLY: Kind("replies that a broker stored for its own clients"),
    POP_RETRY: Kind("messages that a POP consumer did not acknowledge"),
    POP_PROGRESS: Kind("check points and acknowledgements of POP consumers"),
    TRACE: Kind("traces of messages"),
    SYSTEM: Kind("messages of other topics that RocketMQ keeps for itself"),
    UNQUEUED: Kind("prepared or rolled-back records, which are in no queue"),
}
"""In the order in which they are reported."""

_LIGHT_QUEUES = b"INNER_MULTI_DISPATCH\x01"
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_WAITS_FOR_REVIVAL = f"REAL_TOPIC\x01{_REVIVE_PREFIX}".encode()
_FIRST_POP = b"1ST_POP_TIME\x01"
_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_UNIT = b"__unit\x01"  # on a reply that this service wrote
_KNOWN = (
    names.HALF_TOPIC,
    names.OP_TOPIC,
    names.HELD_TOPIC,
    names.TIMER_TOPIC,
    SCHEDULE_TOPIC,
)
_NOT_QUEUED = 0x4  # of sys_flag: prepared, and, with another bit, rolled back


class OfTopic(NamedTuple):
    """The kinds that records of one topic have.

    `kind`: of most, None for what this service writes itself; `marked`: of those whose properties
    have `mark`, if there is one.
    """

    kind: str | None = None
    mark: bytes = b""
    marked: str | None = None
    is_ours: bool = False

    @property
    def sign(self) -> bytes | None:
        """Bytes in the properties of every queued record, but an inner batch, that has a kind; None
        where none has.
        """
        return b"" if self.kind is not None else self.mark or None


def kind_of(topic: bytes, sys_flag: int, own: bytes) -> str | None:
    """One of KINDS; None for what this service writes itself. `own`: the property string."""
    kinds = of_topic(topic)
    if kinds.is_ours:
        return None
    if sys_flag & (inner_batch.FLAG | _NOT_QUEUED):
        return INNER_BATCH if sys_flag & inner_batch.FLAG else UNQUEUED
    if kinds.mark and kinds.mark in own:
        return kinds.marked
    return kinds.kind


@lru_cache(maxsize=1_024)
def of_topic(topic: bytes) -> OfTopic:
    name = topic.decode("utf-8", errors="replace")
    if name.startswith(names.OWN_PREFIX):
        return OfTopic(is_ours=True)
    if name == names.TIMER_TOPIC:
        return OfTopic(mark=_WAITS_FOR_REVIVAL, marked=POP_PROGRESS)
    if name in _KNOWN or name.startswith(names.DEAD_LETTER_PREFIX):
        return OfTopic()
    if name.startswith(names.RETRY_PREFIX):
        return OfTopic(mark=_FIRST_POP, marked=POP_RETRY)
    if name.startswith(_REVIVE_PREFIX):
        return OfTopic(POP_PROGRESS)
    if name == _TRACE_TOPIC:
        return OfTopic(TRACE)
    if name == names.REPLY_TOPIC:
        return OfTopic(REPLY, mark=_UNIT)
    if names.is_reserved_name(name):
        return OfTopic(SYSTEM)
    return OfTopic(mark=_LIGHT_QUEUES, marked=LIGHT_QUEUE)
