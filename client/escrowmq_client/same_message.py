"""Whether a message that the service has is the one that a program would send. Pure."""

from base64 import b64decode

import msgspec
from msgspec import UNSET

from escrowmq_client.call import JSON, UNREADABLE
from escrowmq_client.models.messages import KnownMessage, MessageInput


def is_same(stored: KnownMessage, given: MessageInput) -> bool:
    """Compare body and content type, keys, tag, ordering key and properties, and whether there is a
    delay; the service may add properties.

    How long the delay was is not compared: it may have been changed since, and behind the delivery
    the service does not know it. Raises ValueError if the body of the stored message is not known.
    """
    return (
        _keys(stored) == _keys(given)
        and (stored.tag or None) == (given.tag or None)
        and (stored.ordering_key or None) == (given.ordering_key or None)
        and (given.properties or {}).items() <= stored.properties.items()
        and (stored.content_type or None) == _content_type(given)
        and (stored.deliver_at is None or _is_delayed(given))
        and _has_body(stored, given)
    )


def _keys(message: KnownMessage | MessageInput) -> list[str]:
    return message.keys or ([message.key] if message.key else [])


def _content_type(message: MessageInput) -> str | None:
    return JSON if message.json is not UNSET else (message.content_type or None)


def _is_delayed(message: MessageInput) -> bool:
    return any((message.delay_ms, message.deliver_at, message.delay_level))


def _has_body(stored: KnownMessage, given: MessageInput) -> bool:
    body = stored.body
    if given.json is UNSET:
        return body == _payload(given)
    try:
        return bool(msgspec.json.decode(body) == given.json)
    except UNREADABLE:
        return False


def _payload(message: MessageInput) -> bytes:
    if isinstance(message.payload, bytes):
        return message.payload
    text = message.payload or ""
    return b64decode(text) if message.payload_encoding == "base64" else text.encode()
