"""Messages as MessagePack: with the fields of JSON, but that `payload` may be binary, and `json` is
any value that JSON has.

A `json` that was read is JSON from then on. As `payload.py` this file is imported by the process of
large bodies.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from app.encoding import message_pack
from app.messages.payload import BATCH_DEPTH, LINE_DEPTH, Batch, JudgedEntry
from app.messages.schemas import LooseBatch, LooseEntry, MessageInput
from app.problems import Refusal, invalid_field


class PackedMessage(MessageInput, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A `MessageInput` whose payload is text or bytes."""

    payload: Any = UNSET


def read_right_batch(raw: bytes, max_values: int) -> Batch:
    """Read a valid batch, as `payload.read_batch` does."""
    batch = message_pack.decode(_batch_decoder, raw, max_values=max_values)
    return Batch(
        batch.atomic,
        [
            JudgedEntry(entry.id, _message(bytes(entry.message), BATCH_DEPTH))
            for entry in batch.entries
        ],
    )


def read_batch(raw: bytes, max_values: int) -> Batch:
    """Read a batch entry by entry, as `payload.read_batch_by_entry` does. An invalid message takes
    20 us.
    """
    batch = message_pack.decode(_batch_decoder, raw, max_values=max_values)
    return Batch(batch.atomic, [_judged(entry, BATCH_DEPTH) for entry in batch.entries])


def read_entry(raw: bytes, max_values: int) -> JudgedEntry:
    """A value of a stream, as `payload.read_line`."""
    return _judged(message_pack.decode(_entry_decoder, raw, max_values=max_values), LINE_DEPTH)


def _judged(entry: LooseEntry, depth: int) -> JudgedEntry:
    """Raises Refusal malformed_request."""
    try:
        return JudgedEntry(entry.id, _message(bytes(entry.message), depth))
    except Refusal as refusal:
        if refusal.code == "malformed_request":
            raise
        return JudgedEntry(entry.id, refusal)


def _message(raw: bytes, depth: int) -> PackedMessage:
    # which were counted with the whole
    message = message_pack.decode(_message_decoder, raw, max_values=len(raw))
    if message.payload is not UNSET and not isinstance(message.payload, str | bytes):
        raise invalid_field("/payload", "wrong_type", "Expected `string` or binary")
    if message.json is not UNSET:
        message.json = Raw(message_pack.as_json(bytes(message.json), "/json", depth=depth))
    return message


_batch_decoder = msgspec.msgpack.Decoder(LooseBatch)
_entry_decoder = msgspec.msgpack.Decoder(LooseEntry)
_message_decoder = msgspec.msgpack.Decoder(PackedMessage)
