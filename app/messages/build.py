"""Messages for the store, from client input, by the rules of the topic."""

from typing import NamedTuple

from msgspec import UNSET

from app.encoding import codec
from app.http.exchange import RequestLimit
from app.messages.payload import (
    body_of,
    check_text,
    check_total,
    content_type_of,
    place_of,
    properties_of,
)
from app.messages.schemas import MessageInput, PayloadInput
from app.problems import FieldError, Refusal, invalid_field
from app.registry.topics import MessageType, Topic
from scheduler.scheduled_message import with_delay
from storage.errors import MessageTooLarge, UnsupportedCombination
from storage.formats import properties
from storage.formats.delay_levels import DELAYS_MS
from storage.message import KEY_SEPARATOR, ORDERING_KEY, Message, QueueId, queue_for

# bytes of a request for a byte of a message: \\u0001; base64 and UTF-8 written as escapes take less
_LONGEST_ESCAPE = 6
# of a request beside the message's body: 16 KiB of properties as escapes, names and brackets
_ENVELOPE_BYTES = 128 << 10
# so that no time has more digits for its year than RFC 3339
_LONGEST_DELAY_MS = 1_000 * 365 * 86_400_000
TRACEPARENT = "traceparent"


def build(
    given: MessageInput,
    topic: Topic,
    *,
    message_id: str,
    now_ms: int,
    raw_body: bytes | None = None,
    depth: int = 1,
    transactional: bool = False,
    traceparent: str | None = None,
    copies: int = 1,
) -> Message:
    """`raw_body`: the body, where it is not in a field. `depth`: how deep in the request
    the message stands. `traceparent`: of the request; it goes with the message as a property,
    unless the sender set that himself. `copies`: the machines that are to have each message.

    A delay is noted on the message (`scheduler/scheduled_message.py`), which is still one for its
    real queue. Raises Refusal (its pointers are within the message), MessageTooLarge,
    UnsupportedCombination, UnknownQueue, ChecksPending.
    """
    body, content_type = (
        body_of(given, depth) if raw_body is None else (raw_body, content_type_of(given))
    )
    _check_size(body, topic.settings.max_message_bytes, f"topic {topic.name}")
    if topic.payload_schema is not None:
        place = "/body" if raw_body is not None else place_of(given)
        topic.payload_schema.check(body, pointer=place)
    if given.require_durability == "replicated" and copies == 1:
        raise invalid_field(
            "/require_durability",
            "not_allowed",
            "replicated is not available: the service does not wait for replicas "
            "(ESCROWMQ_REPLICA__COPIES is 1)",
        )
    system = {}
    if given.ordering_key is not UNSET:
        system[ORDERING_KEY] = check_text(given.ordering_key, "/ordering_key")
    if content_type is not None:
        system[properties.CONTENT_TYPE] = content_type
    key = _key(given)
    tag = None if given.tag is UNSET else check_text(given.tag, "/tag", spaces=False)
    if tag is not None and "|" in tag:
        raise invalid_field("/tag", "invalid_format", "a tag must not contain |")
    own = {} if given.properties is UNSET else _own_properties(given)
    if traceparent is not None:
        own = {TRACEPARENT: traceparent, **own}
    delay = _delay(given, topic, now_ms)
    _check_types(topic, transactional, delay is not None, ORDERING_KEY in system)
    message = Message(
        queue=_queue(given, topic),
        message_id=message_id,
        body=body,
        born_at_ms=now_ms,
        key=key,
        tag=tag,
        properties=own,
        system=system,
    )
    if delay is None:
        return message
    return with_delay(message, delay_ms=delay.delay_ms, due_ms=delay.due_ms)


def request_limit(topic: Topic) -> RequestLimit:
    """How long a request with one message for the topic may be.

    White space around and in its JSON counts.
    """
    limit_bytes = topic.settings.max_message_bytes
    return RequestLimit(request_bytes(limit_bytes), limit_bytes)


def request_bytes(message_bytes: int) -> int:
    """How long a request with a message of so many bytes may be."""
    return _LONGEST_ESCAPE * message_bytes + _ENVELOPE_BYTES


def build_reply(
    given: PayloadInput, *, limit_bytes: int
) -> tuple[bytes, str | None, dict[str, str]]:
    """(body, content type, the replier's own properties), under the rules of messages.

    Raises Refusal, MessageTooLarge.
    """
    body, content_type = body_of(given, 1)
    _check_size(body, limit_bytes, "the request's topic")
    own = {} if given.properties is UNSET else _own_properties(given)
    return body, content_type, own


def _key(given: MessageInput) -> str | None:
    """The text of its key or keys, as a record has it. Raises Refusal."""
    if given.keys is UNSET:
        return None if given.key is UNSET else check_text(given.key, "/key", spaces=False)
    if given.key is not UNSET:
        raise invalid_field("/keys", "not_allowed", "a message has a key or keys, not both")
    first_at: dict[str, int] = {}
    for at, key in enumerate(given.keys):
        check_text(key, f"/keys/{at}", spaces=False)
        if first_at.setdefault(key, at) != at:
            raise invalid_field(
                f"/keys/{at}", "not_allowed", f"is the same key as /keys/{first_at[key]}"
            )
    return KEY_SEPARATOR.join(given.keys)


def _own_properties(given: PayloadInput) -> dict[str, str]:
    """The properties that the sender has set. Raises Refusal."""
    own = properties_of(given)
    if own:
        check_total(given, own)
    return own


def _check_size(body: bytes, limit_bytes: int, whose: str) -> None:
    if len(body) > limit_bytes:
        raise MessageTooLarge(
            f"the body has {len(body)} bytes, {whose} allows {limit_bytes}", limit_bytes=limit_bytes
        )


class _Delay(NamedTuple):
    """One of the two."""

    delay_ms: int | None
    due_ms: int | None


def _delay(given: MessageInput, topic: Topic, now_ms: int) -> _Delay | None:
    """The delay of the message; None if it is delivered at once: without a delay, with a delay of
    0, or at a time that is past.
    """
    if given.delay_ms is UNSET and given.deliver_at is UNSET and given.delay_level is UNSET:
        return None
    named = [
        name
        for name in ("delay_ms", "deliver_at", "delay_level")
        if getattr(given, name) is not UNSET
    ]
    if len(named) > 1:
        errors = [
            FieldError(f"/{name}", "not_allowed", f"only one of {', '.join(named)}")
            for name in named
        ]
        raise Refusal("validation_failed", "a message has at most one delay", errors=errors)
    if given.deliver_at is not UNSET:
        due_ms = codec.parse_time(given.deliver_at, "/deliver_at")
        check_delay_limit(due_ms - now_ms, topic, "/deliver_at")
        return _Delay(None, due_ms) if due_ms > now_ms else None
    delay_ms = (
        DELAYS_MS[given.delay_level - 1] if given.delay_level is not UNSET else given.delay_ms or 0
    )
    check_delay_limit(delay_ms, topic, f"/{named[0]}")
    return _Delay(delay_ms, None) if delay_ms else None


def check_delay_limit(delay_ms: int, topic: Topic, pointer: str) -> None:
    """One limit, the topic's, and the refusal says it. Raises Refusal."""
    limit_ms = min(topic.settings.max_delay_ms, _LONGEST_DELAY_MS)
    if delay_ms > limit_ms:
        detail = f"topic {topic.name} allows a delay of at most {limit_ms} ms"
        errors = [FieldError(pointer, "out_of_range", detail)]
        raise Refusal(
            "validation_failed", detail, errors=errors, context={"max_delay_ms": str(limit_ms)}
        )


def _check_types(topic: Topic, transactional: bool, is_delayed: bool, is_ordered: bool) -> None:
    """Raise UnsupportedCombination where the topic takes no such messages."""
    allowed = topic.settings.message_types
    if transactional and "transactional" not in allowed:
        raise _not_taken(topic, "transactional")
    if is_delayed:
        if is_ordered:
            raise UnsupportedCombination(
                "a delayed message has no ordering_key: its place in the order would be a matter "
                "of time"
            )
        if "delayed" not in allowed:
            raise _not_taken(topic, "delayed")
    elif not transactional:
        kind: MessageType = "fifo" if is_ordered else "normal"
        if kind not in allowed:
            raise _not_taken(topic, kind)


def _not_taken(topic: Topic, kind: MessageType) -> UnsupportedCombination:
    allowed = ", ".join(topic.settings.message_types)
    return UnsupportedCombination(f"topic {topic.name} allows {allowed} messages, not {kind}")


def _queue(given: MessageInput, topic: Topic) -> QueueId:
    """A named queue wins, as where RocketMQ's sender selects one; then it is the sender who keeps a
    key to its queue.
    """
    if given.queue_id is not UNSET:
        return topic.queue(given.queue_id)
    if given.ordering_key is not UNSET:
        return topic.queue(queue_for(given.ordering_key, topic.settings.queues))
    return topic.next_queue()
