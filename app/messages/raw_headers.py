"""A raw message in its headers: the body is its bytes, `Message-*` headers are its attributes."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from app.encoding import codec
from app.messages.schemas import MAX_DELAY_MS, MAX_KEYS, MessageInput
from app.named_schemas import REFERENCE
from app.operations import IDEMPOTENCY_KEY, HeaderParameter
from app.problems import invalid_field
from storage.message import KEY_SEPARATOR

_TEXT = {"type": "string", "minLength": 1, "maxLength": 3 * 255}  # percent-encoded
HEADERS = (
    IDEMPOTENCY_KEY,
    HeaderParameter(
        "Message-Key",
        (
            "The key. This header and the other texts are ASCII; percent-encode other characters "
            "as UTF-8."
        ),
        _TEXT,
    ),
    HeaderParameter(
        "Message-Keys",
        (
            "Instead of Message-Key: several keys, separated by spaces or commas; a comma in a key "
            "is percent-encoded."
        ),
        {"type": "string", "minLength": 1, "maxLength": MAX_KEYS * (3 * 255 + 1)},
    ),
    HeaderParameter("Message-Tag", "The tag.", _TEXT),
    HeaderParameter("Message-Ordering-Key", "Messages of one ordering key stay in order.", _TEXT),
    HeaderParameter(
        "Message-Queue-Id", "The queue.", {"type": "integer", "minimum": 0, "maximum": 1_023}
    ),
    HeaderParameter(
        "Message-Delay-Ms",
        "Delay before delivery, in milliseconds.",
        {"type": "integer", "minimum": 0, "maximum": MAX_DELAY_MS},
    ),
    # Without `format: date-time`: a generator that makes times of such texts puts none into a
    # header, and leaves the route out.
    HeaderParameter(
        "Message-Deliver-At",
        "Delivery time, RFC 3339.",
        {"type": "string", "minLength": 1, "maxLength": 64},
    ),
    HeaderParameter(
        "Message-Delay-Level",
        "Delay as a level of RocketMQ.",
        {"type": "integer", "minimum": 1, "maximum": 18},
    ),
    HeaderParameter(
        "Message-Require-Durability",
        "Minimum durability before the response is sent.",
        {"$ref": REFERENCE.format(name="Durability")},
    ),
)

# Message-* headers of the raw route, and the field that each one is.
_FIELDS = {
    f"message-{name.replace('_', '-')}": name
    for name in (
        "key",
        "tag",
        "ordering_key",
        "queue_id",
        "delay_ms",
        "deliver_at",
        "delay_level",
        "require_durability",
    )
}
_PROPERTY = "message-property-"
_KEYS = "message-keys"


def message_of(headers: Mapping[str, str]) -> MessageInput:
    """The attributes of a raw message."""
    values: dict[str, Any] = {}
    own: dict[str, str] = {}
    for name, text in headers.items():
        if not name.startswith("message-"):
            continue
        pointer = f"/headers/{name}"
        if name == _KEYS:
            parts = text.replace(",", KEY_SEPARATOR).split(KEY_SEPARATOR)
            values["keys"] = [_percent_decoded(part, pointer) for part in parts if part]
            continue
        value = _percent_decoded(text, pointer)
        if name.startswith(_PROPERTY):
            own[name.removeprefix(_PROPERTY)] = value
        elif name in _FIELDS:
            values[_FIELDS[name]] = value
        else:
            raise invalid_field(pointer, "unknown_field", f"there is no header {name}")
    if own:
        values["properties"] = own
    content_type = headers.get("content-type")
    if content_type:
        values["content_type"] = content_type
    return codec.convert(values, MessageInput, pointer="")


def header_of(pointer: str) -> str:
    """The header of a field of a raw message."""
    field, _, rest = pointer.removeprefix("/").partition("/")
    if field in ("headers", "body"):
        return pointer
    if field == "properties":
        return f"/headers/{_PROPERTY}{rest}"
    return (
        "/headers/content-type"
        if field == "content_type"
        else f"/headers/message-{field.replace('_', '-')}"
    )


def _percent_decoded(text: str, pointer: str) -> str:
    try:
        return unquote(text, errors="strict") if text.isascii() else _not_ascii(pointer)
    except UnicodeDecodeError:
        raise invalid_field(pointer, "invalid_format", "is not percent-encoded UTF-8") from None


def _not_ascii(pointer: str) -> str:
    raise invalid_field(
        pointer, "invalid_format", "must be ASCII; write other characters as percent-encoded UTF-8"
    )
