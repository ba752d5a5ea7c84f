"""From what a client sent to a message for the store: one payload form, every rule of names, sizes and characters."""

import binascii
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import UNSET

from app import codec
from app.exchange import RequestLimit
from app.messages.schemas import MessageInput, PayloadInput
from app.problems import FieldError, Refusal, invalid_field
from app.registry.topics import MessageType, Topic
from scheduler.scheduled_message import with_delay
from storage.errors import MessageTooLarge, UnsupportedCombination
from storage.formats import properties
from storage.formats.delay_levels import DELAYS_MS
from storage.message import ORDERING_KEY, Message, QueueId, queue_for

MAX_FIELD_BYTES = 255
MAX_PROPERTIES_BYTES = 16 << 10
JSON = "application/json"
_LONGEST_ESCAPE = 6  # bytes of a request for a byte of a message: \\u0001; base64 and UTF-8 written as escapes take less
_ENVELOPE_BYTES = 128 << 10  # of a request beside the message's body: 16 KiB of properties as escapes, names and brackets
_BASE64_PIECE = 1 << 20
_LONGEST_DELAY_MS = 1_000 * 365 * 86_400_000  # so that no time has more digits for its year than RFC 3339
TRACEPARENT = "traceparent"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f-\x9f]")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}")


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
) -> Message:
    """`raw_body`: the body, where it does not stand in a field. `depth`: how deep in the request the message stands.
    `traceparent`: of the request; it goes with the message as a property, unless the sender set that himself.

    A delay is noted on the message (`scheduler/scheduled_message.py`), which is still one for its real queue.
    Raises Refusal (its pointers are within the message), MessageTooLarge, UnsupportedCombination, UnknownQueue, ChecksPending.
    """
    body, content_type = _body(given, depth) if raw_body is None else (raw_body, _content_type(given))
    _check_size(body, topic.settings.max_message_bytes, f"topic {topic.name}")
    if topic.payload_schema is not None:
        place = "/body" if raw_body is not None else "/payload" if given.json is UNSET else "/json"
        topic.payload_schema.check(body, pointer=place)
    system = {}
    if given.ordering_key is not UNSET:
        system[ORDERING_KEY] = _text(given.ordering_key, "/ordering_key")
    if content_type is not None:
        system[properties.CONTENT_TYPE] = content_type
    key = None if given.key is UNSET else _text(given.key, "/key", spaces=False)
    tag = None if given.tag is UNSET else _text(given.tag, "/tag", spaces=False)
    if tag is not None and "|" in tag:
        raise invalid_field("/tag", "invalid_format", "a tag has no |")
    own = {} if given.properties is UNSET else _properties(given.properties)
    if own:
        _check_total(key, tag, given.ordering_key or None, own)
    if traceparent is not None:
        own = {TRACEPARENT: traceparent, **own}
    delay = _delay(given, topic, now_ms)
    if transactional:
        _check_type(topic, "transactional")
    if delay is not None:
        if ORDERING_KEY in system:
            raise UnsupportedCombination(
                "a delayed message has no ordering_key: its place in the order would be a matter of time"
            )
        _check_type(topic, "delayed")
    elif not transactional:
        _check_type(topic, "fifo" if ORDERING_KEY in system else "normal")
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
    """How long a request with one message for the topic may be. White space around and in its JSON counts."""
    limit_bytes = topic.settings.max_message_bytes
    return RequestLimit(_LONGEST_ESCAPE * limit_bytes + _ENVELOPE_BYTES, limit_bytes)


def build_reply(given: PayloadInput, *, limit_bytes: int) -> tuple[bytes, str | None, dict[str, str]]:
    """(body, content type, the replier's own properties), under the rules of messages. Raises Refusal, MessageTooLarge."""
    body, content_type = _body(given, 1)
    _check_size(body, limit_bytes, "the request's topic")
    own = {} if given.properties is UNSET else _properties(given.properties)
    if own:
        _check_total(None, None, None, own)
    return body, content_type, own


def _check_size(body: bytes, limit_bytes: int, whose: str) -> None:
    if len(body) > limit_bytes:
        raise MessageTooLarge(f"the body has {len(body)} bytes, {whose} allows {limit_bytes}", limit_bytes=limit_bytes)


def _body(given: PayloadInput, depth: int) -> tuple[bytes, str | None]:
    """(the bytes to keep, their content type)."""
    content_type = _content_type(given)
    if given.json is not UNSET:
        if given.payload is not UNSET:
            raise invalid_field("/payload", "not_allowed", "a message has a payload or json, not both")
        if content_type is not None and content_type != JSON:
            raise invalid_field("/content_type", "not_allowed", f"the content type of json is {JSON}")
        if given.payload_encoding != "utf8":
            raise invalid_field("/payload_encoding", "not_allowed", "payload_encoding goes with payload")
        return codec.compact(bytes(given.json), depth=depth), JSON
    if given.payload is UNSET:
        raise invalid_field("/payload", "missing", "a message has a payload or json")
    if given.payload_encoding == "utf8":
        return given.payload.encode("utf-8"), content_type
    try:
        return _from_base64(given.payload), content_type
    except ValueError as error:
        raise invalid_field("/payload", "invalid_format", f"the payload is not base64: {error}") from None


def _from_base64(text: str) -> bytes:
    """The bytes. Decoded in pieces, as each holds the GIL. Raises ValueError."""
    pieces: list[bytes] = []
    for start in range(0, len(text), _BASE64_PIECE):
        if pieces and len(pieces[-1]) < _BASE64_PIECE // 4 * 3:
            raise ValueError("Excess data after padding")
        pieces.append(binascii.a2b_base64(text[start : start + _BASE64_PIECE], strict_mode=True))
    return b"".join(pieces)


def _content_type(given: PayloadInput) -> str | None:
    return None if given.content_type is UNSET else _text(given.content_type, "/content_type")


def _text(value: str, pointer: str, *, spaces: bool = True) -> str:
    # What can be printed has no control characters: that is asked first, as it costs a tenth of the search.
    is_plain = value.isprintable() and (spaces or " " not in value)
    if not is_plain and (_CONTROL if spaces else _CONTROL_OR_SPACE).search(value):
        what = "control characters" if spaces else "spaces or control characters"
        raise invalid_field(pointer, "invalid_format", f"must be without {what}")
    if len(value) > 63 and len(value.encode("utf-8")) > MAX_FIELD_BYTES:  # one character is at most four bytes
        raise invalid_field(pointer, "out_of_range", f"must be at most {MAX_FIELD_BYTES} bytes of UTF-8")
    return value


def check_text(value: str, pointer: str, *, spaces: bool = True) -> str:
    """A text of the API that is stored as a property: at most 255 bytes, no control characters. Raises Refusal."""
    return _text(value, pointer, spaces=spaces)


def _properties(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        place = f"/properties/{name.replace('~', '~0').replace('/', '~1')[:200]}"
        if not _PROPERTY_NAME.fullmatch(name):
            raise invalid_field(place, "invalid_format", "a property name is 1 to 127 letters, digits, '_', '.' or '-'")
        if properties.is_reserved(name):
            raise invalid_field(place, "not_allowed", "the property name is reserved")
        if _CONTROL.search(value):
            raise invalid_field(place, "invalid_format", "must be without control characters")
    return given


def _check_total(key: str | None, tag: str | None, ordering_key: str | None, own: dict[str, str]) -> None:
    texts: Iterable[str] = (key or "", tag or "", ordering_key or "", *own.keys(), *own.values())
    total = sum(len(text.encode("utf-8")) for text in texts)
    if total > MAX_PROPERTIES_BYTES:
        detail = f"properties, key, tag and ordering key take {total} bytes together, {MAX_PROPERTIES_BYTES} are allowed"
        raise invalid_field("/properties", "out_of_range", detail)


class _Delay(NamedTuple):
    """One of the two."""

    delay_ms: int | None
    due_ms: int | None


def _delay(given: MessageInput, topic: Topic, now_ms: int) -> _Delay | None:
    """None where it is delivered at once: without a delay, with one of nothing, or at a time that is past."""
    if given.delay_ms is UNSET and given.deliver_at is UNSET and given.delay_level is UNSET:
        return None
    named = [name for name in ("delay_ms", "deliver_at", "delay_level") if getattr(given, name) is not UNSET]
    if len(named) > 1:
        errors = [FieldError(f"/{name}", "not_allowed", f"only one of {', '.join(named)}") for name in named]
        raise Refusal("validation_failed", "a message has one delay at most", errors=errors)
    if given.deliver_at is not UNSET:
        due_ms = codec.parse_time(given.deliver_at, "/deliver_at")
        check_delay_limit(due_ms - now_ms, topic, "/deliver_at")
        return _Delay(None, due_ms) if due_ms > now_ms else None
    delay_ms = DELAYS_MS[given.delay_level - 1] if given.delay_level is not UNSET else given.delay_ms or 0
    check_delay_limit(delay_ms, topic, f"/{named[0]}")
    return _Delay(delay_ms, None) if delay_ms else None


def check_delay_limit(delay_ms: int, topic: Topic, pointer: str) -> None:
    """One limit, the topic's, and the refusal says it. Raises Refusal."""
    limit_ms = min(topic.settings.max_delay_ms, _LONGEST_DELAY_MS)
    if delay_ms > limit_ms:
        detail = f"topic {topic.name} allows a delay of at most {limit_ms} ms"
        errors = [FieldError(pointer, "out_of_range", detail)]
        raise Refusal("validation_failed", detail, errors=errors, context={"max_delay_ms": str(limit_ms)})


def _check_type(topic: Topic, kind: MessageType) -> None:
    allowed = topic.settings.message_types
    if kind not in allowed:
        raise UnsupportedCombination(f"topic {topic.name} takes {', '.join(allowed)} messages, not {kind}")


def _queue(given: MessageInput, topic: Topic) -> QueueId:
    """A named queue wins, as where RocketMQ's sender selects one; then it is the sender who keeps a key to its queue."""
    if given.queue_id is not UNSET:
        return topic.queue(given.queue_id)
    if given.ordering_key is not UNSET:
        return topic.queue(queue_for(given.ordering_key, topic.settings.queues))
    return topic.next_queue()
