"""Messages as bytes: JSON or MessagePack, one message or many. Pure.

In JSON a body of bytes becomes base64, in MessagePack it stays as it is.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, structs

from escrowmq_client.call import JSON, MSGPACK
from escrowmq_client.models.messages import BatchEntry, MessageInput

Format = Literal["json", "msgpack"]


def for_json(message: MessageInput) -> MessageInput:
    """Return the message as JSON has it: with a body of text."""
    if isinstance(message.payload, bytes) and message.payload_encoding is None:
        return structs.replace(message, payload_encoding="base64")
    return message


def for_msgpack(message: MessageInput) -> MessageInput:
    """Return the message as MessagePack has it: its `json` has only values of JSON."""
    if message.json is UNSET:
        return message
    return structs.replace(message, json=msgspec.to_builtins(message.json, str_keys=True))


def numbered(messages: Iterable[MessageInput | BatchEntry]) -> list[BatchEntry]:
    """Make an entry of each message; one without an id gets its position as its id."""
    return [
        BatchEntry(item, str(position))
        if isinstance(item, MessageInput)
        else (BatchEntry(item.message, str(position)) if item.id is None else item)
        for position, item in enumerate(messages)
    ]


def batch(entries: Iterable[BatchEntry], *, atomic: bool, format: Format) -> tuple[str, bytes]:  # noqa: A002
    """Encode a batch; return its content type and its body."""
    fields: dict[str, Any] = {"atomic": atomic, "entries": _converted(entries, format)}
    if format == "msgpack":
        return MSGPACK, msgspec.msgpack.encode(fields)
    return JSON, msgspec.json.encode(fields)


def line(entry: BatchEntry, format: Format) -> bytes:  # noqa: A002
    """Encode one entry of a stream."""
    (converted,) = _converted([entry], format)
    if format == "msgpack":
        return msgspec.msgpack.encode(converted)
    return msgspec.json.encode(converted) + b"\n"


def _converted(entries: Iterable[BatchEntry], format: Format) -> list[BatchEntry]:  # noqa: A002
    convert = for_msgpack if format == "msgpack" else for_json
    return [
        entry
        if (message := convert(entry.message)) is entry.message
        else BatchEntry(message, entry.id)
        for entry in entries
    ]
