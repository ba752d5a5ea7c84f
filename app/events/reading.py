"""CloudEvents 1.0 as they come over HTTP: one as JSON, several as JSON, or one in headers and body.

Source: CloudEvents specification 1.0.2, its JSON format and its HTTP protocol binding. Pure.
"""

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from app.encoding import codec
from app.http.exchange import JSON
from app.messages.payload import CONTROL, MAX_FIELD_BYTES
from app.messages.schemas import MAX_ENTRIES
from app.problems import Refusal, invalid_field, under

SPEC_VERSION = "1.0"
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
HEADER = "ce-"
PROPERTY = "ce_"  # before the name of an attribute, in a message
PARTITION_KEY = "partitionkey"  # the extension of CloudEvents for partitioning
REQUIRED = ("specversion", "id", "source", "type")

NAME = re.compile(r"[a-z0-9]+")
IS_JSON = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json(?:\s*;.*)?", re.IGNORECASE)
MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:\s*;.*)?")
_URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_INT32 = range(-(2**31), 2**31)

_Members = dict[str, msgspec.Raw]
_one = msgspec.json.Decoder(_Members)
_several = msgspec.json.Decoder(
    Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_ENTRIES)]
)
_text = msgspec.json.Decoder(str)


class Event(NamedTuple):
    """`attributes`: as texts, without `datacontenttype`, which is `content_type`."""

    attributes: dict[str, str]
    content_type: str | None
    data: bytes

    @property
    def id(self) -> str:
        return self.attributes["id"]

    @property
    def source(self) -> str:
        return self.attributes["source"]


def read_structured(raw: bytes, max_values: int, *, depth: int = 0) -> Event:
    """One event as JSON. Raises Refusal."""
    members = codec.decode(_one, raw or b"{}", max_values=max_values)
    attributes: dict[str, str] = {}
    for name, value in members.items():
        if name not in ("data", "data_base64"):
            text = _attribute(f"/{codec.escape(name)}", name, bytes(value))
            if text is not None:
                attributes[name] = text
    content_type = attributes.pop("datacontenttype", None)
    _check(attributes, content_type, "/")
    data, content_type = _data(members, content_type, depth)
    return Event(attributes, content_type, data)


def read_batch(raw: bytes, max_values: int) -> list[Event | Refusal]:
    """Several events as JSON; those that are wrong are refused by themselves.

    Raises Refusal.
    """
    found: list[Event | Refusal] = []
    for index, one in enumerate(codec.decode(_several, raw or b"[]", max_values=max_values)):
        try:
            found.append(read_structured(bytes(one), max_values, depth=1))
        except Refusal as refusal:
            if refusal.code == "malformed_request":
                raise
            found.append(under(refusal, f"/{index}"))
    return found


def read_binary(headers: Mapping[str, str], body: bytes) -> Event:
    """One event whose attributes are headers, and whose data is the body. Raises Refusal."""
    attributes: dict[str, str] = {}
    for header, value in headers.items():
        if header.startswith(HEADER):
            name, pointer = header.removeprefix(HEADER), f"/headers/{header}"
            if name == "datacontenttype":
                raise invalid_field(pointer, "not_allowed", "use the header Content-Type instead")
            attributes[name] = _checked_text(pointer, name, _unquoted(pointer, value))
    content_type = headers.get("content-type") or None
    _check(attributes, content_type, f"/headers/{HEADER}")
    return Event(attributes, content_type, body)


# --------------------------------------------------------------------------------------------------
# attributes


def _attribute(pointer: str, name: str, raw: bytes) -> str | None:
    """The value as text; null is as if the attribute was not there. Raises Refusal."""
    value: Any = codec.read_json(raw, depth=1)
    if value is None:
        return None
    if isinstance(value, bool):
        return _checked_text(pointer, name, "true" if value else "false")
    if isinstance(value, int):
        if value not in _INT32:
            raise invalid_field(pointer, "out_of_range", f"{name} must have at most 32 bits")
        return _checked_text(pointer, name, str(value))
    if not isinstance(value, str):
        raise invalid_field(
            pointer, "wrong_type", f"{name} must be a string, a whole number or a boolean"
        )
    return _checked_text(pointer, name, value)


def _checked_text(pointer: str, name: str, value: str) -> str:
    """Raises Refusal."""
    if not NAME.fullmatch(name):
        raise invalid_field(
            pointer, "invalid_format", "an attribute name has only the characters a to z and 0 to 9"
        )
    if CONTROL.search(value):
        raise invalid_field(pointer, "invalid_format", f"{name} must have no control characters")
    return value


def _check(attributes: Mapping[str, str], content_type: str | None, place: str) -> None:
    """Raise Refusal for the first attribute that the specification does not allow.

    `place`: the pointers of attributes without their names.
    """
    for name, code, detail in _wrong(attributes, content_type):
        raise invalid_field(f"{place}{name}", code, detail)


def _wrong(
    attributes: Mapping[str, str], content_type: str | None
) -> Iterator[tuple[str, str, str]]:
    for name in REQUIRED:
        if not attributes.get(name):
            code = "invalid_format" if name in attributes else "missing"
            yield name, code, f"an event has a {name}, which is not empty"
    if attributes["specversion"] != SPEC_VERSION:
        yield "specversion", "not_allowed", f"specversion must be {SPEC_VERSION}"
    if not _URI_REFERENCE.fullmatch(attributes["source"]):
        yield "source", "invalid_format", "source must be a URI reference"
    if attributes.get("subject") == "":
        yield "subject", "invalid_format", "subject must not be empty"
    schema = attributes.get("dataschema")
    if schema is not None and not (_URI_REFERENCE.fullmatch(schema) and _SCHEME.match(schema)):
        yield "dataschema", "invalid_format", "dataschema must be a URI"
    if content_type is not None and not (
        len(content_type) <= MAX_FIELD_BYTES and MEDIA_TYPE.fullmatch(content_type)
    ):
        yield "datacontenttype", "invalid_format", "datacontenttype must be a media type"
    if len(attributes.get(PARTITION_KEY, "").encode("utf-8")) > MAX_FIELD_BYTES:
        yield PARTITION_KEY, "out_of_range", f"{PARTITION_KEY} has at most {MAX_FIELD_BYTES} bytes"
    if "time" in attributes:
        try:
            codec.parse_time(attributes["time"], "/time")
        except Refusal:
            yield "time", "invalid_format", "time must be of RFC 3339"


def _unquoted(pointer: str, value: str) -> str:
    """The value of a header: perhaps in quotes, and percent-encoded. Raises Refusal."""
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise invalid_field(pointer, "invalid_format", "is not percent-encoded UTF-8") from None


# --------------------------------------------------------------------------------------------------
# data


def _data(members: _Members, content_type: str | None, depth: int) -> tuple[bytes, str | None]:
    """(the data, its media type). Raises Refusal."""
    if "data_base64" in members:
        if "data" in members:
            raise invalid_field(
                "/data", "not_allowed", "an event has data or data_base64, not both"
            )
        try:
            text = _text.decode(members["data_base64"])
            return binascii.a2b_base64(text, strict_mode=True), content_type
        except (msgspec.ValidationError, ValueError):
            raise invalid_field("/data_base64", "invalid_format", "is not base64") from None
    if "data" not in members:
        return b"", content_type
    raw = bytes(members["data"])
    if content_type is None or IS_JSON.fullmatch(content_type):
        return codec.compact(raw, depth=depth + 1), content_type or JSON
    value = codec.read_json(raw, depth=depth + 1)
    if not isinstance(value, str):
        raise invalid_field("/data", "wrong_type", f"data of type {content_type} must be a string")
    return value.encode("utf-8"), content_type
