"""Retries and dead letters of a message, as stored in the retry and dead-letter topics of its
group. Pure.

Both are copies with the message's own id, key, tag and properties, and these reserved ones:

    RETRY_TOPIC          the topic that it was sent to                                  RocketMQ's
    RECONSUME_TIME       number of deliveries; as in the field of the header,
                         alone in a copy of a broker's message                          RocketMQ's
    ORIGIN_MESSAGE_ID    its id (a broker notes store host and log offset)              RocketMQ's
    WAIT                 "false", in a copy of a broker's message                       RocketMQ's
    DELAY                "0", in a dead letter of a broker's message                    RocketMQ's
    __origin             the queue and the queue offset of its first delivery, "2:1041"
    __generation         of the group at that time: a reset ends those of earlier ones
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, __reason    of a dead letter
    __damaged            of a dead letter whose message could not be read: the log offset of its
                         record, or "unknown"

A message that could not be read is kept as a stub: a dead letter without a body, named by the place
of the message.

Source: RocketMQ AbstractSendMessageProcessor#consumerSendMsgBack.
"""

from typing import NamedTuple

import msgspec

from delivery.groups import MOST_ATTEMPTS
from storage.formats import names, properties
from storage.formats import record as records
from storage.formats.delay_levels import DELAY_LEVEL
from storage.message import Message, QueueId, StoredMessage, resend

_ORIGIN = "__origin"
_GENERATION = "__generation"
_REASON = "__reason"
_DAMAGED = "__damaged"
_UNKNOWN = "unknown"
_STUB_ID = "damaged_"
_OF_A_DEAD_LETTER = frozenset(
    {properties.DLQ_ORIGIN_TOPIC, properties.DLQ_ORIGIN_MESSAGE_ID, _REASON, _DAMAGED}
)


class Origin(NamedTuple):
    """The place of a message's first delivery."""

    queue: QueueId
    queue_offset: int


def retry_queue(group: str) -> QueueId:
    return QueueId(names.retry_topic(group), 0)


def dead_letter_queue(group: str) -> QueueId:
    return QueueId(names.dead_letter_topic(group), 0)


def origin_of(message: StoredMessage) -> Origin:
    """The place of the message's first delivery. For a retry that a broker delayed only the topic
    is known, and the rest is its present place.
    """
    topic = message.system.get(properties.RETRY_TOPIC)
    if topic is None:
        return Origin(message.queue, message.queue_offset)
    number, _, offset = message.system.get(_ORIGIN, "").partition(":")
    if number.isdigit() and offset.isdigit():
        return Origin(QueueId(topic, int(number)), int(offset))
    return Origin(QueueId(topic, message.queue.number), message.queue_offset)


def attempts_of(message: Message) -> int:
    """Number of deliveries before the message was stored at its present place.

    A broker counts in the header alone, also in its copies of EscrowMQ's messages. Its record may
    have any number; one above the maximum number of attempts is taken as that.
    """
    noted = _number(message.system.get(properties.RECONSUME_TIME, ""))
    if message.header is not None:
        noted = max(noted, message.header.reconsume_times)
    return min(noted, MOST_ATTEMPTS)


def generation_of(message: Message) -> int:
    return _number(message.system.get(_GENERATION, ""))


def reason_of(message: Message) -> str | None:
    return message.system.get(_REASON)


def is_stub(message: Message) -> bool:
    """Whether a dead letter replaces a message that could not be read."""
    return _DAMAGED in message.system


def may_be_stub_id(message_id: str, queue: QueueId) -> bool:
    """Whether the id may be that of a stub for a message of this queue."""
    return message_id.startswith(f"{_STUB_ID}{queue.topic}_{queue.number}_")


def damaged_log_offset(stub: Message) -> int | None:
    """The log offset of the damaged record; None if it is unknown."""
    noted = stub.system.get(_DAMAGED, _UNKNOWN)
    return None if noted == _UNKNOWN else _number(noted)


def as_delivered(message: StoredMessage) -> StoredMessage:
    """The message of a retry or dead-letter topic, as consumers know it: at the place of its first
    delivery.
    """
    origin = origin_of(message)
    return msgspec.structs.replace(message, queue=origin.queue, queue_offset=origin.queue_offset)


def retry_copy(message: StoredMessage, group: str, *, attempts: int, generation: int) -> Message:
    """The copy of a message for the group's retry topic, at once or after a delay."""
    return _copy(
        message, retry_queue(group), attempts=attempts, more={_GENERATION: str(generation)}
    )


def dead_letter_copy(message: StoredMessage, group: str, *, attempts: int, reason: str) -> Message:
    own = {DELAY_LEVEL: "0"} if records.is_of_a_broker(message.header) else {}
    return _copy(
        message,
        dead_letter_queue(group),
        attempts=attempts,
        more={
            **own,
            properties.DLQ_ORIGIN_TOPIC: origin_of(message).queue.topic,
            properties.DLQ_ORIGIN_MESSAGE_ID: message.message_id,
            _REASON: reason,
        },
    )


def stub(
    group: str, place: Origin, *, attempts: int, reason: str, log_offset: int | None, now_ms: int
) -> Message:
    """The dead letter of a message that cannot be read. The id of the message is unknown, so the
    stub is named by its place.
    """
    queue, queue_offset = place
    message_id = f"{_STUB_ID}{queue.topic}_{queue.number}_{queue_offset}"
    system = {
        properties.RETRY_TOPIC: queue.topic,
        properties.RECONSUME_TIME: str(attempts),
        properties.DLQ_ORIGIN_TOPIC: queue.topic,
        _ORIGIN: f"{queue.number}:{queue_offset}",
        _REASON: reason,
        _DAMAGED: _UNKNOWN if log_offset is None else str(log_offset),
    }
    return Message(
        queue=dead_letter_queue(group),
        message_id=message_id,
        body=b"",
        born_at_ms=now_ms,
        system=system,
    )


def unreadable_dead_letter(
    group: str, queue_offset: int, *, reason: str, log_offset: int | None, now_ms: int
) -> StoredMessage:
    """The entry listed in place of a dead letter whose own record is damaged."""
    place = Origin(dead_letter_queue(group), queue_offset)
    shown = stub(group, place, attempts=0, reason=reason, log_offset=log_offset, now_ms=now_ms)
    fields = {name: getattr(shown, name) for name in shown.__struct_fields__}
    return StoredMessage(**fields, queue_offset=queue_offset, stored_at_ms=now_ms)


def _copy(
    message: StoredMessage, queue: QueueId, *, attempts: int, more: dict[str, str]
) -> Message:
    origin = origin_of(message)
    system = {
        name: value for name, value in message.system.items() if name not in _OF_A_DEAD_LETTER
    }
    system |= {
        properties.RETRY_TOPIC: origin.queue.topic,
        properties.ORIGIN_MESSAGE_ID: system.get(properties.ORIGIN_MESSAGE_ID, message.message_id),
        _ORIGIN: f"{origin.queue.number}:{origin.queue_offset}",
        **more,
    }
    if records.is_of_a_broker(message.header):
        system.pop(properties.RECONSUME_TIME, None)
        system[properties.WAIT] = "false"
    else:
        system[properties.RECONSUME_TIME] = str(attempts)
    header = msgspec.structs.replace(
        message.header or records.USUAL_HEADER, reconsume_times=attempts
    )
    # With the transaction's bits, as a broker copies it; the half is not named again.
    return resend(message, queue, system, prepared_log_offset=0, header=header)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
