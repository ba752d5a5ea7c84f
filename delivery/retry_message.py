"""A message that is handed out again, or given up: how it lies in the retry and dead-letter topics of its group. Pure.

Both are copies with the message's own id, key, tag and properties, and these reserved ones:

    RETRY_TOPIC          the topic that it was sent to                                  RocketMQ's
    RECONSUME_TIME       how often it was handed out                                    RocketMQ's
    ORIGIN_MESSAGE_ID    its id                                                         RocketMQ's
    __origin             the queue and the queue offset of its first delivery, "2:1041"
    __generation         of the group, when it was put off: a reset ends those of before
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, __reason    of a dead letter

Source: RocketMQ AbstractSendMessageProcessor#consumerSendMsgBack.
"""

from typing import NamedTuple

import msgspec

from storage.formats import names, properties
from storage.message import Message, QueueId, StoredMessage

_ORIGIN = "__origin"
_GENERATION = "__generation"
_REASON = "__reason"
_OF_A_DEAD_LETTER = frozenset({properties.DLQ_ORIGIN_TOPIC, properties.DLQ_ORIGIN_MESSAGE_ID, _REASON})


class Origin(NamedTuple):
    """Where a message was delivered first."""

    queue: QueueId
    queue_offset: int


def retry_queue(group: str) -> QueueId:
    return QueueId(names.retry_topic(group), 0)


def dead_letter_queue(group: str) -> QueueId:
    return QueueId(names.dead_letter_topic(group), 0)


def origin_of(message: StoredMessage) -> Origin:
    """Of a message that was put off by a broker, which does not say, the topic is known and the rest is where it lies."""
    topic = message.system.get(properties.RETRY_TOPIC)
    if topic is None:
        return Origin(message.queue, message.queue_offset)
    number, _, offset = message.system.get(_ORIGIN, "").partition(":")
    if number.isdigit() and offset.isdigit():
        return Origin(QueueId(topic, int(number)), int(offset))
    return Origin(QueueId(topic, message.queue.number), message.queue_offset)


def attempts_of(message: Message) -> int:
    """How often it was handed out, before it came to where it lies."""
    return _number(message.system.get(properties.RECONSUME_TIME, ""))


def generation_of(message: Message) -> int:
    return _number(message.system.get(_GENERATION, ""))


def reason_of(message: Message) -> str | None:
    return message.system.get(_REASON)


def as_delivered(message: StoredMessage) -> StoredMessage:
    """A message of the retry or dead-letter topic as its consumers know it: in the place of its first delivery."""
    origin = origin_of(message)
    return msgspec.structs.replace(message, queue=origin.queue, queue_offset=origin.queue_offset)


def retry_copy(message: StoredMessage, group: str, *, attempts: int, generation: int) -> Message:
    """What goes to the group's retry topic, at once or after a delay."""
    return _copy(message, retry_queue(group), attempts=attempts, more={_GENERATION: str(generation)})


def dead_letter_copy(message: StoredMessage, group: str, *, attempts: int, reason: str) -> Message:
    return _copy(
        message,
        dead_letter_queue(group),
        attempts=attempts,
        more={
            properties.DLQ_ORIGIN_TOPIC: origin_of(message).queue.topic,
            properties.DLQ_ORIGIN_MESSAGE_ID: message.message_id,
            _REASON: reason,
        },
    )


def _copy(message: StoredMessage, queue: QueueId, *, attempts: int, more: dict[str, str]) -> Message:
    origin = origin_of(message)
    system = {name: value for name, value in message.system.items() if name not in _OF_A_DEAD_LETTER}
    system |= {
        properties.RETRY_TOPIC: origin.queue.topic,
        properties.RECONSUME_TIME: str(attempts),
        properties.ORIGIN_MESSAGE_ID: system.get(properties.ORIGIN_MESSAGE_ID, message.message_id),
        _ORIGIN: f"{origin.queue.number}:{origin.queue_offset}",
        **more,
    }
    return Message(
        queue=queue,
        message_id=message.message_id,
        body=message.body,
        born_at_ms=message.born_at_ms,
        key=message.key,
        tag=message.tag,
        properties=message.properties,
        system=system,
        transaction=message.transaction,  # as a broker copies it; the half is not named again
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
