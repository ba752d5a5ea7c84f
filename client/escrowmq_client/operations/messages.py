"""Operations of messages: send, find, get."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from escrowmq_client import encoding
from escrowmq_client.call import (
    MSGPACK,
    NDJSON,
    Answer,
    Call,
    all_accepted,
    body_of,
    decoded,
    json_headers,
    keyed,
    query,
)
from escrowmq_client.encoding import Format
from escrowmq_client.errors import Unreachable, error_of
from escrowmq_client.models.messages import (
    BatchEntry,
    BatchResult,
    BatchSendResult,
    FoundPage,
    KnownMessage,
    MessageInput,
    PayloadView,
    Receipt,
    Trace,
)

MOST_IN_A_STREAM = 1_000  # The service reads as many lines before their results are read.


def send_message(
    topic: str, message: MessageInput, *, idempotency_key: str | None = None
) -> Call[Receipt]:
    """Send a message. It is stored when the call returns.

    Without an `idempotency_key` the client makes one, and keeps it over its own repetitions.

    Raises NotFound (topic_not_found, queue_not_found); ProblemError: validation_failed,
    message_too_large, unsupported_combination (a type of message that the topic does not allow),
    storage_full.
    """
    return Call(
        "sendMessage",
        "POST",
        "/v1/topics/{topic}/messages",
        decoded(Receipt),
        parts={"topic": topic},
        headers=json_headers(keyed(idempotency_key)),
        body=msgspec.json.encode(encoding.for_json(message)),
    )


def send(
    topic: str,
    *,
    json: Any = UNSET,
    payload: str | bytes | None = None,
    key: str | None = None,
    keys: list[str] | None = None,
    tag: str | None = None,
    ordering_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    content_type: str | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
    require_durability: Literal["memory", "buffered", "synced", "replicated"] | None = None,
    idempotency_key: str | None = None,
) -> Call[Receipt]:
    """Send a message with these fields: `json` or `payload` is its body.

    `json` may be anything that msgspec encodes: dicts, dataclasses, Structs, datetimes ...
    `key`, or each of several `keys`, finds the message again, `tag` is for filters, messages with
    the same `ordering_key` stay in order. It is stored when the call returns; the refusals are
    those of `send_message`.

        receipt = client.send("orders", json={"id": 1}, key="o1")
    """
    message = MessageInput(
        json=json,
        payload=payload,
        key=key,
        keys=keys,
        tag=tag,
        ordering_key=ordering_key,
        properties=None if properties is None else dict(properties),
        content_type=content_type,
        delay_ms=delay_ms,
        deliver_at=deliver_at,
        require_durability=require_durability,
    )
    return send_message(topic, message, idempotency_key=idempotency_key)


def send_message_batch(
    topic: str,
    entries: Iterable[MessageInput | BatchEntry],
    *,
    atomic: bool = True,
    format: Format = "json",  # noqa: A002  the word for it
    idempotency_key: str | None = None,
) -> Call[BatchSendResult]:
    """Send up to 1,000 messages in one append.

    They are stored all or none; with `atomic=False` each as it can. `format="msgpack"` sends bodies
    of bytes as they are, without base64.

    Raises Refused if an entry was refused (only with `atomic=False`), and what `send_message`
    raises.
    """
    media_type, body = encoding.batch(encoding.numbered(entries), atomic=atomic, format=format)
    return Call(
        "sendMessageBatch",
        "POST",
        "/v1/topics/{topic}/messages/batch",
        all_accepted(BatchSendResult),
        parts={"topic": topic},
        headers={"Content-Type": media_type, **keyed(idempotency_key)},
        body=body,
    )


def send_message_raw(
    topic: str,
    body: bytes,
    *,
    content_type: str | None = None,
    key: str | None = None,
    keys: list[str] | None = None,
    tag: str | None = None,
    ordering_key: str | None = None,
    queue_id: int | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
    delay_level: int | None = None,
    require_durability: Literal["memory", "buffered", "synced", "replicated"] | None = None,
    properties: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
) -> Call[Receipt]:
    """Send a body of bytes of any media type, without base64.

    Names of `properties` are stored in lower case. Raises what `send_message` raises.
    """
    given = {
        "Content-Type": content_type,
        "Message-Key": key,
        "Message-Tag": tag,
        "Message-Ordering-Key": ordering_key,
        "Message-Queue-Id": queue_id,
        "Message-Delay-Ms": delay_ms,
        "Message-Deliver-At": deliver_at,
        "Message-Delay-Level": delay_level,
        "Message-Require-Durability": require_durability,
        **{f"Message-Property-{name}": value for name, value in (properties or {}).items()},
    }
    return Call(
        "sendMessageRaw",
        "POST",
        "/v1/topics/{topic}/messages/raw",
        decoded(Receipt),
        parts={"topic": topic},
        headers={
            **{name: _header(value) for name, value in given.items() if value is not None},
            **({} if keys is None else {"Message-Keys": " ".join(map(quote, keys))}),
            **keyed(idempotency_key),
        },
        body=body,
    )


def publish_cloud_event(
    topic: str, body: bytes, headers: Mapping[str, str]
) -> Call[BatchSendResult]:
    """Publish an event, or up to 1,000, in the form of CloudEvents 1.0.

    `body` and `headers` are those that an SDK of CloudEvents makes for HTTP, in structured, batched
    or binary mode. An event that was published before, by its `source` and `id`, is not stored
    again.

    Raises Refused if an event of several was refused; ProblemError (validation_failed with the
    attribute's name, idempotency_key_reused), and what `send_message` raises.
    """
    return Call(
        "publishCloudEvent",
        "POST",
        "/v1/topics/{topic}/events",
        all_accepted(BatchSendResult),
        parts={"topic": topic},
        headers=dict(headers),
        body=body,
    )


def send_message_stream(
    topic: str,
    entries: Iterable[MessageInput | BatchEntry],
    *,
    format: Format = "json",  # noqa: A002  the word for it
    idempotency_key: str | None = None,
) -> Call[list[BatchResult]]:
    """Send up to 1,000 messages one after another; return a result for each, in order.

    A message that is refused does not stop the others: look at each result, or call its `stored()`.
    `send_stream` sends any number. Raises NotFound (topic_not_found).
    """
    lines = [encoding.line(entry, format) for entry in encoding.numbered(entries)]
    if len(lines) > MOST_IN_A_STREAM:
        raise ValueError(f"at most {MOST_IN_A_STREAM} messages; `send_stream` sends any number")
    return stream_call(topic, lines, format, idempotency_key)


def stream_call(
    topic: str,
    lines: Sequence[bytes],
    format: Format,  # noqa: A002  the word for it
    idempotency_key: str | None,
) -> Call[list[BatchResult]]:
    """Make a call that sends encoded entries."""
    expected = len(lines)
    media_type = MSGPACK if format == "msgpack" else NDJSON
    return Call(
        "sendMessageStream",
        "POST",
        "/v1/topics/{topic}/messages/stream",
        lambda answer: _results(answer, expected),
        parts={"topic": topic},
        headers={"Content-Type": media_type, **keyed(idempotency_key)},
        body=b"".join(lines),
    )


def query_messages(
    topic: str | None = None,
    key: str | None = None,
    *,
    log_offset: int | None = None,
    from_: datetime | None = None,
    to: datetime | None = None,
    payload: PayloadView | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[FoundPage]:
    """Find messages of a topic by one of their keys, newest first; or the message at the log offset
    of a receipt, without a topic and a key.

    A key matches only as a whole. Raises NotFound (topic_not_found, message_not_found);
    ProblemError (message_expired).
    """
    return Call(
        "queryMessages",
        "GET",
        "/v1/messages",
        decoded(FoundPage),
        query=query(
            topic=topic,
            key=key,
            log_offset=log_offset,
            from_=from_,
            to=to,
            payload=payload,
            page_size=page_size,
            page_token=page_token,
        ),
    )


def get_message(message_id: str, *, payload: PayloadView | None = None) -> Call[KnownMessage]:
    """Get a message, also one that waits for its delivery time.

    A half message is not found before its commit. Raises NotFound (message_not_found); ProblemError
    (message_expired).
    """
    return Call(
        "getMessage",
        "GET",
        "/v1/messages/{message_id}",
        decoded(KnownMessage),
        parts={"message_id": message_id},
        query=query(payload=payload),
    )


def get_message_payload(message_id: str, *, byte_range: str | None = None) -> Call[bytes]:
    """Get the body of a message as it was sent; `byte_range="bytes=0-99"` gets a part of it.

    Raises NotFound (message_not_found); ProblemError (message_expired, range_not_satisfiable).
    """
    return Call(
        "getMessagePayload",
        "GET",
        "/v1/messages/{message_id}/payload",
        body_of,
        parts={"message_id": message_id},
        headers={} if byte_range is None else {"Range": byte_range},
    )


def get_message_trace(message_id: str) -> Call[Trace]:
    """Get the history of a message: where it was stored, and its deliveries to each group.

    Raises NotFound (message_not_found); ProblemError (message_expired).
    """
    return Call(
        "getMessageTrace",
        "GET",
        "/v1/messages/{message_id}/trace",
        decoded(Trace),
        parts={"message_id": message_id},
    )


_line = msgspec.json.Decoder(BatchResult)


def _results(answer: Answer, expected: int) -> list[BatchResult]:
    """Read the results of a stream; raise if it ended before its last one."""
    results = [_line.decode(line) for line in answer.body.split(b"\n") if line]
    if len(results) == expected:
        return results
    last = results[-1].problem if results else None
    if last is not None:
        raise error_of(last)
    raise Unreachable("the stream ended before its last result", outcome_unknown=True)


def _header(value: str | int | datetime) -> str:
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    plain = text.isascii() and text.isprintable() and text == text.strip() and "%" not in text
    return text if plain else quote(text)
