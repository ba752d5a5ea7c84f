"""Plain messages as MessagePack: what `plain_rows.py` takes of JSON."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.encoding import message_pack
from app.messages.plain import PlainSend
from app.messages.plain_rows import PlainBatch, PlainEntry
from app.messages.schemas import MAX_ENTRIES
from app.problems import Refusal

T = TypeVar("T")


class PackedPlain(PlainSend, forbid_unknown_fields=True, gc=False):
    """A `PlainSend` whose payload is text or bytes."""

    payload: Any = UNSET


class PackedPlainEntry(PlainEntry, forbid_unknown_fields=True, gc=False):
    """A `PlainEntry` with such a message."""

    message: PackedPlain


_Entries = Annotated[list[PackedPlainEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class PackedPlainBatch(PlainBatch, forbid_unknown_fields=True, gc=False):
    """A `PlainBatch` with such entries."""

    entries: _Entries  # type: ignore[assignment]


def plain_batch(raw: bytes, max_values: int) -> PlainBatch | None:
    """Read a plain batch, as `plain_rows.plain_batch` does."""
    return _plain(_plain_batch_decoder, raw, max_values)


def plain_entry(raw: bytes, max_values: int) -> PlainEntry | None:
    """Read a plain entry, as `plain_rows.plain_entry` does."""
    return _plain(_plain_entry_decoder, raw, max_values)


def _plain(decoder: "msgspec.msgpack.Decoder[T]", raw: bytes, max_values: int) -> T | None:
    if len(raw) > max_values:
        return None  # the ordinary way counts
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def body_of(payload: Any, json: Raw | UnsetType, depth: int) -> bytes | None:
    """The `plain_rows.BodyOf` of MessagePack."""
    if json is UNSET:
        if isinstance(payload, str):
            return payload.encode()
        return payload if isinstance(payload, bytes) else None
    if payload is not UNSET:
        return None
    try:
        return message_pack.as_json(bytes(json), "/json", depth=depth)
    except Refusal:
        return None


_plain_batch_decoder = msgspec.msgpack.Decoder(PackedPlainBatch)
_plain_entry_decoder = msgspec.msgpack.Decoder(PackedPlainEntry)
