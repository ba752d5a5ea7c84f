"""Messages as CloudEvents 1.0 over HTTP: one as JSON, or one in headers and body.

A message that came as an event goes out with the attributes that it came with. Source: CloudEvents
specification 1.0.2, its JSON format and its HTTP protocol binding. Pure.
"""

import binascii
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from app.encoding import codec
from app.events.reading import (
    HEADER,
    IS_JSON,
    MEDIA_TYPE,
    NAME,
    PARTITION_KEY,
    PROPERTY,
    REQUIRED,
    SPEC_VERSION,
    STRUCTURED,
)
from app.problems import Refusal
from storage.formats import properties
from storage.message import StoredMessage
from storage.opening import is_compressed

TYPE = "escrowmq.message"  # of a message without a tag
_TEXT, _BYTES = "text/plain; charset=utf-8", "application/octet-stream"
# What a header has as it is: printable ASCII without the space, the quote and the percent sign.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class OutgoingEvent(NamedTuple):
    """`headers`: of the request, beside those of every request."""

    headers: dict[str, str]
    body: bytes


def write_structured(message: StoredMessage, more: Mapping[str, str | int]) -> OutgoingEvent:
    """The event as JSON. `more`: further attributes."""
    attributes, content_type = _attributes(message), _content_type(message)
    head = codec.encode(attributes | {"datacontenttype": content_type} | dict(more))
    return OutgoingEvent(
        {"Content-Type": f"{STRUCTURED}; charset=utf-8"},
        head[:-1] + _data(_body(message), content_type) + b"}",
    )


def write_binary(message: StoredMessage, more: Mapping[str, str | int]) -> OutgoingEvent:
    """The event with its attributes in headers. `more`: further attributes."""
    attributes = {**_attributes(message), **more}
    headers = {
        f"{HEADER}{name}": quote(str(value), safe=_PLAIN) for name, value in attributes.items()
    }
    return OutgoingEvent({"Content-Type": _content_type(message)} | headers, _body(message))


def _attributes(message: StoredMessage) -> dict[str, str]:
    """The attributes of the message as it was published; if it had none, they are made of its
    fields.
    """
    came = {
        name.removeprefix(PROPERTY): text
        for name, text in message.properties.items()
        if name.startswith(PROPERTY) and _is_attribute(name.removeprefix(PROPERTY))
    }
    if all(came.get(name) for name in REQUIRED):
        return came
    made = {
        "specversion": SPEC_VERSION,
        "id": message.message_id,
        "source": f"/v1/topics/{message.queue.topic}",
        "type": message.tag or TYPE,
        "time": codec.rfc3339(message.born_at_ms),
    }
    if message.keys:
        made["subject"] = message.keys[0]
    if message.ordering_key:
        made[PARTITION_KEY] = message.ordering_key
    return made


def _is_attribute(name: str) -> bool:
    return NAME.fullmatch(name) is not None and name not in ("data", "datacontenttype")


def _content_type(message: StoredMessage) -> str:
    known = message.system.get(properties.CONTENT_TYPE)
    if known and MEDIA_TYPE.fullmatch(known) and known.isascii() and known.isprintable():
        return known
    try:
        message.body.decode("utf-8")
    except UnicodeDecodeError:
        return _BYTES
    return _TEXT


def _body(message: StoredMessage) -> bytes:
    """Empty where it could not be decompressed."""
    return b"" if is_compressed(message) else message.body


def _data(body: bytes, content_type: str) -> bytes:
    """The member with the data: JSON as it is, a text, or bytes in base64."""
    if not body:
        return b""
    if IS_JSON.fullmatch(content_type):
        try:
            return b',"data":' + codec.compact(body, depth=1)
        except Refusal:  # it says JSON, and is none
            return _base64(body)
    try:
        return b',"data":' + codec.encode(body.decode("utf-8"))
    except UnicodeDecodeError:
        return _base64(body)


def _base64(body: bytes) -> bytes:
    return b',"data_base64":"' + binascii.b2a_base64(body, newline=False) + b'"'
