"""Sending: one message, a batch, raw bytes. Handlers over plain values; any lane may call them."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType

from app import codec
from app.exchange import Call, Reply, reply
from app.messages.build import build
from app.messages.schemas import BatchInput, BatchResult, BatchSendResult, LooseBatch, MessageInput, Receipt
from app.problems import FieldError, Refusal, as_refusal, document, invalid_field
from app.registry.topics import Topic
from app.services import Services
from storage.errors import MessagingError
from storage.message import Appended, Durability, Message

_message_decoder = msgspec.json.Decoder(MessageInput)
_batch_decoder = msgspec.json.Decoder(BatchInput)
_loose_batch_decoder = msgspec.json.Decoder(LooseBatch)

_DURABILITY = {"synced": Durability.SYNCED, "buffered": Durability.BUFFERED, UNSET: None}
_BATCH_DEPTH = 4  # of the value of a `json` field in a batch
_MAX_ERRORS = 50  # field errors in one problem; the first ones tell enough

# Message-* headers of the raw route, and the field that each one is.
_RAW_FIELDS = {
    f"message-{name.replace('_', '-')}": name
    for name in ("key", "tag", "ordering_key", "queue_id", "delay_ms", "deliver_at", "delay_level", "require_durability")
}
_RAW_PROPERTY = "message-property-"


async def send(services: Services, call: Call, topic_name: str) -> Reply:
    topic = await services.topics.get_or_create(topic_name)
    return await _send_one(services, call, topic, call.decode(_message_decoder), raw_body=None)


async def send_raw(services: Services, call: Call, topic_name: str) -> Reply:
    topic = await services.topics.get_or_create(topic_name)
    return await _send_one(services, call, topic, _from_headers(call.headers), raw_body=call.body)


async def send_batch(services: Services, call: Call, topic_name: str) -> Reply:
    topic = await services.topics.get_or_create(topic_name)
    is_atomic, entries = _decode_batch(call)
    _refuse_twin_ids(entries)
    message_ids = services.identifiers.many("msg", len(entries))
    now_ms = services.clock.wall_ms()
    outcomes = [
        _build_entry(entry.given, topic, message_id=message_id, now_ms=now_ms, pointer=f"/entries/{index}/message")
        for index, (entry, message_id) in enumerate(zip(entries, message_ids, strict=True))
    ]
    messages = [outcome for outcome in outcomes if isinstance(outcome, Message)]
    if is_atomic and len(messages) < len(outcomes):
        raise _one_refusal(outcomes)
    durability = _strongest([entry.given for entry in entries if isinstance(entry.given, MessageInput)])
    sent = await _append(services, call, topic, messages, durability, raw_body=None) if messages else _Sent([], [], False)
    return _batch_reply(services, entries, outcomes, sent, durability)


# ------------------------------------------------------------------------------------------------------------- appending


class _Sent(NamedTuple):
    """Where each message is, under which id: those of this request, or of the one that it repeats."""

    message_ids: list[str]
    places: Sequence[Appended]
    deduplicated: bool


async def _append(
    services: Services,
    call: Call,
    topic: Topic,
    messages: Sequence[Message],
    durability: Durability | None,
    *,
    raw_body: bytes | None,
) -> _Sent:
    key = call.idempotency_key
    if key is None:
        places = await services.store.append(messages, durability=durability)
    else:
        fingerprint = _fingerprint(call, is_raw=raw_body is not None)
        window_ms = topic.settings.dedup_window_ms
        before = services.sent_keys.sent_before(call.path, key, fingerprint, window_ms=window_ms)
        if before is not None:
            return _Sent([sent.message_id for sent in before.messages], await services.sent_keys.find(before), True)
        places = await services.sent_keys.append(
            call.path, key, fingerprint, messages, lambda all_: services.store.append(all_, durability=durability)
        )
    services.metrics.messages_in.inc(len(messages))
    return _Sent([message.message_id for message in messages], places, False)


def _fingerprint(call: Call, *, is_raw: bool) -> str:
    """Of the body's bytes, and on the raw route of the attributes in the headers."""
    digest = sha256(call.body)
    if is_raw:
        names = sorted(name for name in call.headers if name.startswith("message-") or name == "content-type")
        digest.update(repr([(name, call.headers[name]) for name in names]).encode())
    return digest.hexdigest()


async def _send_one(services: Services, call: Call, topic: Topic, given: MessageInput, *, raw_body: bytes | None) -> Reply:
    now_ms = services.clock.wall_ms()
    message = build(given, topic, message_id=services.identifiers.new("msg"), now_ms=now_ms, raw_body=raw_body)
    durability = _DURABILITY[given.require_durability]
    sent = await _append(services, call, topic, [message], durability, raw_body=raw_body)
    receipt = _receipt(sent.message_ids[0], sent.places[0], deduplicated=sent.deduplicated)
    headers = _send_headers(services, sent) | {"Location": f"/v1/messages/{receipt.message_id}"}
    return reply(_status(services, sent.places[0], durability), receipt, headers)


def _send_headers(services: Services, sent: _Sent) -> dict[str, str]:
    headers = {"Store-Pressure": f"{services.pressure():.2f}"}
    if sent.deduplicated:
        headers["Idempotency-Replayed"] = "true"
    return headers


def _status(services: Services, place: Appended, durability: Durability | None) -> int:
    """202: stored, but the sync that was asked for takes longer than the limit."""
    is_late = not place.durable and (durability or services.default_durability) is Durability.SYNCED
    return 202 if is_late else 201


def _receipt(message_id: str, place: Appended, *, deduplicated: bool) -> Receipt:
    return Receipt(
        message_id=message_id,
        topic=place.queue.topic,
        queue_id=place.queue.number,
        queue_offset=place.queue_offset,
        log_offset=UNSET if place.log_offset is None else place.log_offset,
        stored_at=codec.rfc3339(place.stored_at_ms),
        durability="synced" if place.durable else "buffered",
        deduplicated=deduplicated,
    )


# ----------------------------------------------------------------------------------------------------------------- batch


class _Entry(NamedTuple):
    id: str | UnsetType
    given: MessageInput | Refusal


def _decode_batch(call: Call) -> tuple[bool, list[_Entry]]:
    """(atomic, entries). Where a message cannot be decoded, its entry holds why, and the others can go on."""
    try:
        batch = call.decode(_batch_decoder)
    except Refusal as refusal:
        if refusal.code != "validation_failed":
            raise
        loose = call.decode(_loose_batch_decoder)
        return loose.atomic, [
            _Entry(entry.id, _decode_message(bytes(entry.message), f"/entries/{index}/message"))
            for index, entry in enumerate(loose.entries)
        ]
    return batch.atomic, [_Entry(entry.id, entry.message) for entry in batch.entries]


def _decode_message(raw: bytes, pointer: str) -> MessageInput | Refusal:
    try:
        return codec.decode(_message_decoder.decode, raw, pointer=pointer)
    except Refusal as refusal:
        return refusal


def _refuse_twin_ids(entries: Iterable[_Entry]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if isinstance(entry.id, str):
            if entry.id in seen:
                raise invalid_field(f"/entries/{index}/id", "not_allowed", f"two entries have the id {entry.id}")
            seen.add(entry.id)


def _build_entry(
    given: MessageInput | Refusal, topic: Topic, *, message_id: str, now_ms: int, pointer: str
) -> Message | Refusal:
    if isinstance(given, Refusal):
        return given
    try:
        return build(given, topic, message_id=message_id, now_ms=now_ms, pointer=pointer, depth=_BATCH_DEPTH)
    except Refusal as refusal:
        return refusal
    except MessagingError as error:
        reason = as_refusal(error)
        reason.errors = reason.errors or [FieldError(pointer, reason.code, reason.detail)]
        return reason


def _one_refusal(outcomes: Iterable[Message | Refusal]) -> Refusal:
    """Why an atomic batch is refused: the first reason, with the fields of all that have the same one."""
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    first = refusals[0]
    alike = [refusal for refusal in refusals if refusal.code == first.code]
    errors = [error for refusal in alike for error in refusal.errors][:_MAX_ERRORS]
    return Refusal(first.code, first.detail, errors=errors, context=first.context, headers=first.headers)


def _strongest(given: Iterable[MessageInput]) -> Durability | None:
    """What one append must promise so that every message has what it asked for."""
    asked = {message.require_durability for message in given}
    if "synced" in asked:
        return Durability.SYNCED
    return Durability.BUFFERED if asked == {"buffered"} else None


def _batch_reply(
    services: Services,
    entries: Sequence[_Entry],
    outcomes: Sequence[Message | Refusal],
    sent: _Sent,
    durability: Durability | None,
) -> Reply:
    stored = iter(zip(sent.message_ids, sent.places, strict=True))
    results = []
    accepted = 0
    for entry, outcome in zip(entries, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            problem = document(outcome)
            results.append(BatchResult(id=entry.id, status=problem.status, problem=problem))
            continue
        message_id, place = next(stored)
        receipt = _receipt(message_id, place, deduplicated=sent.deduplicated)
        results.append(BatchResult(id=entry.id, status=_status(services, place, durability), receipt=receipt))
        accepted += 1
    rejected = len(results) - accepted
    body = BatchSendResult(accepted=accepted, rejected=rejected, results=results)
    return reply(207 if rejected else 201, body, _send_headers(services, sent))


# ------------------------------------------------------------------------------------------------------------------- raw


def _from_headers(headers: Mapping[str, str]) -> MessageInput:
    """The attributes of a raw message."""
    values: dict[str, Any] = {}
    own: dict[str, str] = {}
    for name, text in headers.items():
        if not name.startswith("message-"):
            continue
        pointer = f"/headers/{name}"
        value = _percent_decoded(text, pointer)
        if name.startswith(_RAW_PROPERTY):
            own[name.removeprefix(_RAW_PROPERTY)] = value
        elif name in _RAW_FIELDS:
            values[_RAW_FIELDS[name]] = value
        else:
            raise invalid_field(pointer, "unknown_field", f"there is no header {name}")
    if own:
        values["properties"] = own
    content_type = headers.get("content-type")
    if content_type:
        values["content_type"] = content_type
    return codec.convert(values, MessageInput, pointer="/headers")


def _percent_decoded(text: str, pointer: str) -> str:
    try:
        return unquote(text, errors="strict") if text.isascii() else _not_ascii(pointer)
    except UnicodeDecodeError:
        raise invalid_field(pointer, "invalid_format", "is not percent-encoded UTF-8") from None


def _not_ascii(pointer: str) -> str:
    raise invalid_field(pointer, "invalid_format", "must be ASCII; write other characters as percent-encoded UTF-8")
