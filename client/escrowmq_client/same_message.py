"""Whether a message that the service has is the one that a program would send. Pure."""

from base64 import b64decode

import msgspec
from msgspec import UNSET

from escrowmq_client.call import UNREADABLE
from escrowmq_client.models.messages import KnownMessage, MessageInput


def is_same(stored: KnownMessage, given: MessageInput) -> bool:
    """Compare body, keys, tag, ordering key and properties; the service may add properties.

    Raises ValueError if the body of the stored message is not known.
    """
    return (
        _keys(stored) == _keys(given)
        and (stored.tag or None) == (given.tag or None)
        and (stored.ordering_key or None) == (given.ordering_key or None)
        and (given.properties or {}).items() <= stored.properties.items()
        and _has_body(stored, given)
    )


def _keys(message: KnownMessage | MessageInput) -> list[str]:
    return message.keys or ([message.key] if message.key else [])


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
