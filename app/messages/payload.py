"""From what a client sent to the bytes and the properties of a message: every rule that needs no
topic.

What takes long with the size of a body is done in the process of large bodies
(`app/bodies/process.py`), which imports this file and no more than it needs. Its outcome comes back
in place of what was sent, as a `Made`.
"""

import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from app.encoding import codec
from app.messages.schemas import (
    BatchEntry,
    BatchInput,
    LooseBatch,
    LooseEntry,
    MessageInput,
    PayloadInput,
    ReplyInput,
)
from app.problems import Refusal, invalid_field
from storage.formats import properties

T = TypeVar("T")

MAX_FIELD_BYTES = 255
MAX_PROPERTIES_BYTES = 16 << 10
JSON = "application/json"
BATCH_DEPTH = 4  # of the value of a `json` field in a batch
LINE_DEPTH = 2  # and in a stream
_BASE64_PIECE = 1 << 20
_MAX_TEXT = 4_096  # characters of a field beside the body that are passed on

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f-\x9f]")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}")


def body_of(given: PayloadInput, depth: int) -> tuple[bytes, str | None]:
    """(the bytes to keep, their content type).

    `depth`: how deep in the request the message is. Raises Refusal.
    """
    content_type = content_type_of(given)
    if given.json is not UNSET:
        if given.payload is not UNSET:
            raise invalid_field(
                "/payload", "not_allowed", "a message has a payload or json, not both"
            )
        if content_type is not None and content_type != JSON:
            raise invalid_field(
                "/content_type", "not_allowed", f"with json the content type must be {JSON}"
            )
        if given.payload_encoding != "utf8":
            raise invalid_field(
                "/payload_encoding", "not_allowed", "payload_encoding is only allowed with payload"
            )
        return codec.serialise(bytes(given.json), depth=depth), JSON
    if given.payload is UNSET:
        if isinstance(given, MADE):
            return _made_body(given.made, depth)
        raise invalid_field("/payload", "missing", "a message needs a payload or json")
    if isinstance(given.payload, bytes):  # of MessagePack
        if given.payload_encoding != "utf8":
            raise invalid_field(
                "/payload_encoding",
                "not_allowed",
                "payload_encoding is only allowed with a payload that is a string",
            )
        return given.payload, content_type
    if given.payload_encoding == "utf8":
        return given.payload.encode("utf-8"), content_type
    try:
        return _from_base64(given.payload), content_type
    except ValueError as error:
        raise invalid_field(
            "/payload", "invalid_format", f"the payload is not base64: {error}"
        ) from None


def place_of(given: PayloadInput) -> str:
    """The pointer of the body."""
    if isinstance(given, MADE):
        return given.made.place
    return "/payload" if given.json is UNSET else "/json"


def _from_base64(text: str) -> bytes:
    """The bytes. Decoded in pieces, as each holds the GIL. Raises ValueError."""
    pieces: list[bytes] = []
    for start in range(0, len(text), _BASE64_PIECE):
        if pieces and len(pieces[-1]) < _BASE64_PIECE // 4 * 3:
            raise ValueError("Excess data after padding")
        pieces.append(binascii.a2b_base64(text[start : start + _BASE64_PIECE], strict_mode=True))
    return b"".join(pieces)


def content_type_of(given: PayloadInput) -> str | None:
    return None if given.content_type is UNSET else check_text(given.content_type, "/content_type")


def check_text(value: str, pointer: str, *, spaces: bool = True) -> str:
    """A text of the API that is stored as a property: at most 255 bytes, no control characters.

    Raises Refusal.
    """
    # What can be printed has no control characters: that is asked first, as it costs a tenth of the
    # search.
    is_plain = value.isprintable() and (spaces or " " not in value)
    if not is_plain and (CONTROL if spaces else _CONTROL_OR_SPACE).search(value):
        what = "control characters" if spaces else "spaces or control characters"
        raise invalid_field(pointer, "invalid_format", f"must have no {what}")
    # one character is at most four bytes
    if len(value) > 63 and len(value.encode("utf-8")) > MAX_FIELD_BYTES:
        raise invalid_field(
            pointer, "out_of_range", f"must be at most {MAX_FIELD_BYTES} bytes of UTF-8"
        )
    return value


def properties_of(given: PayloadInput) -> dict[str, str]:
    """The sender's own, where there are some. Raises Refusal."""
    assert given.properties is not UNSET
    if isinstance(given, MADE):
        return _value(given.made.own)
    for name, value in given.properties.items():
        place = f"/properties/{name.replace('~', '~0').replace('/', '~1')[:200]}"
        if not _PROPERTY_NAME.fullmatch(name):
            raise invalid_field(
                place,
                "invalid_format",
                "a property name is 1 to 127 letters, digits, '_', '.' or '-'",
            )
        if properties.is_reserved(name):
            raise invalid_field(place, "not_allowed", "the property name is reserved")
        if CONTROL.search(value):
            raise invalid_field(place, "invalid_format", "must have no control characters")
    return given.properties


def check_total(given: PayloadInput, own: dict[str, str]) -> None:
    """Check the size of the properties with that of the keys, the tag and the ordering key.

    Raises Refusal.
    """
    named: tuple[str, ...] = ()
    if isinstance(given, MessageInput):
        named = (given.key or "", *(given.keys or ()), given.tag or "", given.ordering_key or "")
    total = sum(len(text.encode("utf-8")) for text in (*named, *own.keys(), *own.values()))
    if total > MAX_PROPERTIES_BYTES:
        detail = (
            f"properties, keys, tag and ordering key take {total} bytes together, "
            f"{MAX_PROPERTIES_BYTES} are allowed"
        )
        raise invalid_field("/properties", "out_of_range", detail)


# --------------------------------------------------------------------------------------------------
# whole requests


class JudgedEntry(NamedTuple):
    """A `BatchEntry` of a batch whose messages were decoded one by one."""

    id: str | UnsetType
    message: MessageInput | Refusal


class Batch(NamedTuple):
    """A batch from a request. The entry of a message that cannot be decoded has the refusal, so
    that the others can continue.
    """

    is_atomic: bool
    entries: Sequence[BatchEntry | JudgedEntry]


def read_batch(raw: bytes, max_values: int) -> Batch:
    """Raises Refusal."""
    batch = codec.decode(_batch_decoder, raw, max_values=max_values)
    return Batch(batch.atomic, batch.entries)


def read_batch_by_entry(raw: bytes, max_values: int) -> Batch:
    """Decode each message by itself. Raises Refusal where what is around the messages is wrong."""
    loose = codec.decode(_loose_batch_decoder, raw, max_values=max_values)
    return Batch(loose.atomic, list(map(_judged, loose.entries)))


def read_line(raw: bytes, max_values: int) -> BatchEntry | JudgedEntry:
    """A line of a stream. Raises Refusal where what is around its message is wrong."""
    try:
        return codec.decode(_entry_decoder, raw, max_values=max_values)
    except Refusal as refusal:
        if refusal.code != "validation_failed":
            raise
    return _judged(codec.decode(_loose_entry_decoder, raw, max_values=max_values))


def _judged(entry: LooseEntry) -> JudgedEntry:
    try:
        return JudgedEntry(entry.id, codec.decode(_message_decoder, bytes(entry.message)))
    except Refusal as refusal:
        return JudgedEntry(entry.id, refusal)


# --------------------------------------------------------------------------------------------------
# in another process


class Made(NamedTuple):
    """A message's body and properties as they are stored.

    `place`: where the body was given. `levels`: so many arrays and objects of it are open at once,
    or a few more where they are few.
    """

    place: str
    body: tuple[bytes, str | None] | Refusal
    levels: int
    own: dict[str, str] | Refusal


class MadeMessage(MessageInput, kw_only=True, gc=False):
    """A message without `payload` and `json`, of which `made` was made."""

    made: Made


class MadeReply(ReplyInput, kw_only=True, gc=False):
    """A reply without `payload` and `json`, of which `made` was made."""

    made: Made


MADE = (MadeMessage, MadeReply)


def make(given: PayloadInput) -> MadeMessage | MadeReply:
    """Do what takes long with the size of the body."""
    levels = 0 if given.json is UNSET else codec.levels_of(bytes(given.json))
    body, own = _outcome(lambda: body_of(given, 0)), _outcome(lambda: _own(given))
    # No text but the payload may be so long: a cut one is refused in the same words.
    fields: dict[str, Any] = {
        name: value[:_MAX_TEXT] if isinstance(value, str) else value
        for name, value in msgspec.structs.asdict(given).items()
    }
    fields |= {"payload": UNSET, "json": UNSET, "made": Made(place_of(given), body, levels, own)}
    if given.properties is not UNSET:
        fields["properties"] = {}
    return MadeReply(**fields) if isinstance(given, ReplyInput) else MadeMessage(**fields)


def _own(given: PayloadInput) -> dict[str, str]:
    if given.properties is UNSET:
        return {}
    own = properties_of(given)
    check_total(given, own)
    return own


def _outcome(work: Callable[[], T]) -> T | Refusal:
    try:
        return work()
    except Refusal as refusal:
        return refusal


def _value(outcome: T | Refusal) -> T:
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def _made_body(made: Made, depth: int) -> tuple[bytes, str | None]:
    # How deep a value is counts before what is in it, and behind what is wrong around it.
    if not isinstance(made.body, Refusal) or made.body.code == "malformed_request":
        codec.check_levels(made.levels, depth)
    return _value(made.body)


_message_decoder = msgspec.json.Decoder(MessageInput)
_batch_decoder = msgspec.json.Decoder(BatchInput)
_loose_batch_decoder = msgspec.json.Decoder(LooseBatch)
_entry_decoder = msgspec.json.Decoder(BatchEntry)
_loose_entry_decoder = msgspec.json.Decoder(LooseEntry)
