"""Sending: one message, a batch, raw bytes. Handlers over plain values; any lane may call them."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from app.bodies.thread import THREAD_BYTES
from app.encoding import codec, message_pack
from app.http.exchange import JSON, Call, Reply, RequestLimit, reply
from app.idempotency.keys import KeyedRequest
from app.idempotency.stored_responses import StoredResponse
from app.messages import plain_rows, raw_headers
from app.messages.build import build, request_limit
from app.messages.forms import OF_BATCH, Form, form_of
from app.messages.payload import BATCH_DEPTH, Batch, JudgedEntry
from app.messages.plain import PlainSend
from app.messages.plain_rows import PlainBatch
from app.messages.schemas import (
    BatchEntry,
    BatchInput,
    BatchResult,
    BatchSendResult,
    MessageInput,
    Receipt,
)
from app.operations import IDEMPOTENCY_KEY, WRITING, operation
from app.problems import Problem, Refusal, document, invalid_field, is_malformed, under
from app.registry.payload_schema import ChecksPending
from app.registry.topics import Topic
from app.services import Services
from scheduler import scheduled_message
from storage.errors import MessagingError
from storage.formats.properties import REAL_TOPIC, SCHEDULE_ID
from storage.idempotency import fingerprint_of
from storage.message import Appended, Durability, Message, Sureness

_SEND_PROBLEMS = (
    "topic_not_found", "queue_not_found", "idempotency_in_progress", "message_too_large",
    "idempotency_key_reused",
    "rate_limited", "unsupported_combination", "reserved_topic", "not_supported_by_engine",
    *WRITING,
)  # fmt: skip
_SENT = ("Location", "Store-Pressure", "Idempotency-Replayed")

_Entries = Sequence[BatchEntry | JudgedEntry]

DURABILITY = {one.value: one for one in Durability} | {UNSET: None}
_STRENGTH = {one: strength for strength, one in enumerate(Durability)}
ENTRY_COST_BYTES = 256  # an entry takes as long as so many bytes of a message, be they fewer
_MAX_ERRORS = 50  # field errors in one problem; the first ones tell enough


def limit(services: Services, topic_name: str) -> RequestLimit:
    """How long a request that sends one message as JSON may be."""
    return request_limit(services.topics.to_use(topic_name))


def limit_raw(services: Services, topic_name: str) -> RequestLimit:
    """How long a request that sends one message as it is may be."""
    limit_bytes = services.topics.to_use(topic_name).settings.max_message_bytes
    return RequestLimit(limit_bytes, limit_bytes)


@operation(
    "POST",
    "/v1/topics/{topic}/messages",
    "sendMessage",
    tag="messages",
    scopes=["send"],
    body=MessageInput,
    example={
        "key": "8812",
        "tag": "created",
        "json": {"order_id": 8812, "total": "19.90"},
        "properties": {"source": "shop"},
    },
    answers={201: Receipt, 202: Receipt},
    answer_headers=_SENT,
    headers=[IDEMPOTENCY_KEY],
    problems=_SEND_PROBLEMS,
    limit=limit,
)
async def send(services: Services, call: Call, topic_name: str, given: MessageInput) -> Reply:
    """Send a message.

    202 means that the message is stored, but the requested sync takes longer than the limit.
    """
    topic = services.topics.to_use(topic_name)
    return await _send_one(services, call, topic, given, raw_body=None)


async def _decode_batch(call: Call) -> Batch | PlainBatch:
    form = _form_of(call)
    if len(call.body) <= THREAD_BYTES and "idempotency-key" not in call.headers:
        plain_batch = await call.work(lambda: form.plain_batch(call.body, call.max_values))
        if plain_batch is not None:
            return plain_batch
    return await _decode_entries(call)


async def _decode_entries(call: Call) -> Batch:
    form, raw = _form_of(call), call.body or b"{}"
    try:
        return await call.thread.read(form.read_right_batch, raw, call.max_values)
    except Refusal as refusal:
        if refusal.code != "validation_failed":
            raise
    return await call.thread.read(form.read_batch, raw, call.max_values, is_slow=True)


def _form_of(call: Call) -> Form:
    """Raises Refusal."""
    return form_of(call.media_type if call.body else JSON, OF_BATCH)


@operation(
    "POST",
    "/v1/topics/{topic}/messages/batch",
    "sendMessageBatch",
    tag="messages",
    scopes=["send"],
    body=BatchInput,
    body_types=[message_pack.MEDIA_TYPE],
    decode=_decode_batch,
    example={
        "entries": [
            {"id": "a", "message": {"json": {"n": 1}}},
            {"id": "b", "message": {"payload": "two"}},
        ]
    },
    answers={201: BatchSendResult, 207: BatchSendResult},
    answer_headers=_SENT[1:],
    headers=[IDEMPOTENCY_KEY],
    problems=_SEND_PROBLEMS,
)
async def send_batch(
    services: Services, call: Call, topic_name: str, given: Batch | PlainBatch
) -> Reply:
    """Send up to 1,000 messages in one append.

    All or none; with `atomic: false` each as it can, and 207 where one cannot.
    """
    topic = services.topics.to_use(topic_name)
    if isinstance(given, PlainBatch):
        answer = await _send_plain_batch(services, call, topic, given)
        if answer is not None:
            return answer
        given = await _decode_entries(call)
    traceparent = call.traceparent
    is_atomic, entries = given
    _refuse_twin_ids(entries)
    request = await _keyed(call, "sendMessageBatch", topic)
    message_ids = services.identifiers.many("msg", len(entries))
    now_ms = services.clock.wall_ms()

    def make() -> tuple[dict[int, Message], dict[int, Problem]]:
        messages, refusals = _build_entries(
            entries,
            message_ids,
            topic,
            now_ms,
            traceparent=traceparent,
            copies=services.replicas.copies,
        )
        if is_atomic and refusals:
            raise _one_refusal(refusals.values())
        return messages, {index: document(refusal) for index, refusal in refusals.items()}

    make = await call.thread.ahead(_cost_of(call, entries), make)
    if not services.topics.knows(topic.name) and make()[0]:
        await services.topics.ensure(topic)
    # Nothing is awaited from here to the append: this request is the only one of its key.
    before = await _look_up(services, request, topic)
    if before is not None:
        return await _batch_again(services, entries, before)
    messages, refused = make()
    taken = [entries[index].message for index in messages]
    durability = strongest_of([given for given in taken if isinstance(given, MessageInput)])
    places = await append_all(
        services, request, topic, messages, durability, status=207 if refused else 201,
        refused=refused
    )  # fmt: skip
    receipts = {
        index: receipt_of(message, place)
        for (index, message), place in zip(messages.items(), places, strict=True)
    }
    status = status_of(services, places[0], durability) if places else 201
    return _batch_reply(services, entries, receipts, refused, status=status, replayed=False)


@operation(
    "POST",
    "/v1/topics/{topic}/messages/raw",
    "sendMessageRaw",
    tag="messages",
    scopes=["send"],
    takes_bytes=True,
    answers={201: Receipt, 202: Receipt},
    answer_headers=_SENT,
    headers=raw_headers.HEADERS,
    problems=_SEND_PROBLEMS,
    limit=limit_raw,
)
async def send_raw(services: Services, call: Call, topic_name: str) -> Reply:
    """Send the request body as a message.

    The body may be of any media type. `Message-Property-<name>` headers become properties.
    """
    topic = services.topics.to_use(topic_name)
    try:
        return await _send_one(
            services, call, topic, raw_headers.message_of(call.headers), raw_body=call.body
        )
    except Refusal as refusal:
        refusal.errors = [
            msgspec.structs.replace(error, pointer=raw_headers.header_of(error.pointer))
            for error in refusal.errors
        ]
        raise


def _build_entries(
    entries: _Entries,
    message_ids: Sequence[str],
    topic: Topic,
    now_ms: int,
    *,
    traceparent: str | None,
    copies: int,
) -> tuple[dict[int, Message], dict[int, Refusal]]:
    """The messages of a batch and the refusals of the entries of which none can be made, by
    index.
    """
    messages: dict[int, Message] = {}
    refusals: dict[int, Refusal] = {}
    pending = []
    for index, (entry, message_id) in enumerate(zip(entries, message_ids, strict=True)):
        given = entry.message
        try:
            if isinstance(given, Refusal):
                raise given
            built = build(
                given,
                topic,
                message_id=message_id,
                now_ms=now_ms,
                depth=BATCH_DEPTH,
                traceparent=traceparent,
                copies=copies,
            )
            messages[index] = scheduled_message.delay(built, now_ms)
        except ChecksPending as one:
            pending += one.checks
        except MessagingError as error:
            refusals[index] = _refused_entry(error, index)
    if pending:
        raise ChecksPending(pending)
    return messages, refusals


# --------------------------------------------------------------------------------------------------
# appending


async def _keyed(
    call: Call, operation: str, topic: Topic, *, is_raw: bool = False
) -> KeyedRequest | None:
    """The request's idempotency; None where it has no Idempotency-Key."""
    key = call.idempotency_key
    if key is None:
        return None
    return KeyedRequest(
        f"{operation} {topic.name}", key, await call.work(lambda: _fingerprint(call, is_raw=is_raw))
    )


def _fingerprint(call: Call, *, is_raw: bool) -> str:
    """The fingerprint of the body, and on the raw route of the attributes in the headers."""
    if not is_raw:
        return fingerprint_of(call.body)
    names = sorted(name for name in call.headers if name.startswith("message-"))
    attributes = repr([(name, call.headers[name]) for name in names])
    return fingerprint_of(call.body, attributes.encode())


async def _look_up(
    services: Services, request: KeyedRequest | None, topic: Topic
) -> StoredResponse | None:
    """Asked before anything is built: what was taken once is answered again, whatever has changed
    meanwhile.
    """
    return (
        None
        if request is None
        else await services.idempotency.lookup(request, window_ms=topic.settings.dedup_window_ms)
    )


async def append_all(
    services: Services,
    request: KeyedRequest | None,
    topic: Topic,
    messages: Mapping[int, Message],
    durability: Durability | None,
    *,
    status: int = 201,
    refused: Mapping[int, Problem] | None = None,
) -> list[Appended]:
    """`messages`: by entry of the request."""
    if request is None:
        places = await _append(services, topic, list(messages.values()), durability)
    else:
        places = await begin_keyed(
            services, request, topic, messages, durability, status=status, refused=refused
        )
    services.metrics.messages_in.inc(len(messages))
    return places


def begin_keyed(
    services: Services,
    request: KeyedRequest,
    topic: Topic,
    messages: Mapping[int, Message],
    durability: Durability | None,
    *,
    status: int = 201,
    refused: Mapping[int, Problem] | None = None,
) -> Awaitable[list[Appended]]:
    """Begin the append; when this returns no other can begin for the same key."""

    async def append(all_: Sequence[Message]) -> list[Appended]:
        return await _append(services, topic, all_, durability)

    return services.idempotency.append(
        request, topic.name, messages, append, status=status, refused=refused
    )


async def _append(
    services: Services, topic: Topic, messages: Sequence[Message], durability: Durability | None
) -> list[Appended]:
    """The append has begun when this first waits, but where the topic is being deleted.

    Raises UnknownTopic, and RegistryUnavailable where the topic may have been deleted since its
    messages were checked.
    """
    if not any(map(scheduled_message.is_delayed, messages)):
        topic.refuse_in_doubt()
        return await services.store.append(messages, durability=durability)
    async with services.topics.using([topic.name]):
        services.topics.get(topic.name)
        return await services.store.append(messages, durability=durability)


async def _send_one(
    services: Services, call: Call, topic: Topic, given: MessageInput, *, raw_body: bytes | None
) -> Reply:
    is_raw = raw_body is not None
    request = await _keyed(
        call, "sendMessageRaw" if is_raw else "sendMessage", topic, is_raw=is_raw
    )
    now_ms = services.clock.wall_ms()
    message_id, traceparent = services.identifiers.new("msg"), call.traceparent

    def make() -> Message:
        built = build(
            given,
            topic,
            message_id=message_id,
            now_ms=now_ms,
            raw_body=raw_body,
            traceparent=traceparent,
            copies=services.replicas.copies,
        )
        return scheduled_message.delay(built, now_ms)

    make = await call.ahead(make)
    if not services.topics.knows(topic.name):
        make()  # a message that is refused leaves no topic behind
        await services.topics.ensure(topic)
    # Nothing is awaited from here to the append: this request is the only one of its key.
    before = await _look_up(services, request, topic)
    if before is not None:
        ((stored, place),) = await services.idempotency.find(before)
        receipt = receipt_of(stored, place, deduplicated=True)
        return reply(
            before.status, receipt, _send_headers(services, replayed=True) | _location(receipt)
        )
    message = make()
    durability = DURABILITY[given.require_durability]
    (place,) = await append_all(services, request, topic, {0: message}, durability)
    receipt = receipt_of(message, place)
    headers = _send_headers(services, replayed=False) | _location(receipt)
    return reply(status_of(services, place, durability), receipt, headers)


def _location(receipt: Receipt) -> dict[str, str]:
    return {"Location": f"/v1/messages/{receipt.message_id}"}


def _send_headers(services: Services, *, replayed: bool) -> dict[str, str]:
    return services.pressure_header() | ({"Idempotency-Replayed": "true"} if replayed else {})


def status_of(services: Services, place: Appended, durability: Durability | None) -> int:
    return 202 if is_late(services, place.sureness, durability) else 201


def can_have(services: Services, durability: Durability | None) -> bool:
    """Can the service give that much?"""
    return durability is not Durability.REPLICATED or services.replicas.copies > 1


def is_late(services: Services, sureness: Sureness, durability: Durability | None) -> bool:
    """Would it take longer than the limit to make a stored message as sure as was requested?"""
    if durability is None and sureness.durable:
        return False
    asked = durability or services.default_durability
    reached = sureness.durability
    return reached is not asked and _STRENGTH[reached] < _STRENGTH[asked]


def receipt_of(message: Message, place: Appended, *, deduplicated: bool = False) -> Receipt:
    durability, _, copies = place.sureness
    receipt = Receipt(
        message_id=message.message_id,
        topic=place.queue.topic,
        log_offset=UNSET if place.log_offset is None else place.log_offset,
        stored_at=codec.rfc3339(place.stored_at_ms),
        durability=durability.value,
        copies=copies if copies > 1 else UNSET,
        deduplicated=deduplicated,
    )
    if scheduled_message.is_delayed(message):
        receipt.topic = message.system[REAL_TOPIC]
        receipt.schedule_id = message.system[SCHEDULE_ID]
        receipt.deliver_at = codec.rfc3339(scheduled_message.due_ms_at(message, place.stored_at_ms))
    else:
        receipt.queue_id = place.queue.number
        receipt.queue_offset = place.queue_offset
    return receipt


# --------------------------------------------------------------------------------------------------
# batch


def _refuse_twin_ids(entries: _Entries) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.id is not UNSET:
            if entry.id in seen:
                raise invalid_field(
                    f"/entries/{index}/id", "not_allowed", f"two entries have the id {entry.id}"
                )
            seen.add(entry.id)


def _refused_entry(error: MessagingError, index: int) -> Refusal:
    """Raise the refusal of the whole body if it is not JSON: that is found only here, if the error
    is in a `json` field.
    """
    if is_malformed(error):
        raise error
    return under(error, f"/entries/{index}/message")


def _one_refusal(refusals: Iterable[Refusal]) -> Refusal:
    """Why an atomic batch is refused: the first reason, with the fields of all that have the same
    one.
    """
    first, *others = refusals
    errors = [
        error
        for refusal in (first, *others)
        if refusal.code == first.code
        for error in refusal.errors
    ][:_MAX_ERRORS]
    return Refusal(
        first.code, first.detail, errors=errors, context=first.context, headers=first.headers
    )


def strongest_of(given: Iterable[MessageInput | PlainSend]) -> Durability | None:
    """The durability of one append that gives every message at least its own."""
    asked = {message.require_durability for message in given}
    if "replicated" in asked:
        return Durability.REPLICATED
    if "synced" in asked:
        return Durability.SYNCED
    if UNSET in asked or not asked:
        return None
    return Durability.BUFFERED if "buffered" in asked else Durability.MEMORY


async def _send_plain_batch(
    services: Services, call: Call, topic: Topic, batch: PlainBatch
) -> Reply | None:
    """Append the batch and answer; None where it is not plain after all, and nothing was done."""
    entries = batch.entries
    entry_ids = [entry.id for entry in entries]
    given_ids = [entry_id for entry_id in entry_ids if entry_id is not UNSET]
    if not services.topics.knows(topic.name) or len(set(given_ids)) < len(given_ids):
        return None
    messages = [entry.message for entry in entries]
    message_ids = services.identifiers.many("msg", len(entries))
    now_ms, traceparent, body_of = (
        services.clock.wall_ms(),
        call.traceparent,
        _form_of(call).body_of,
    )
    rows = await call.thread.run(
        _cost_of(call, entries),
        lambda: plain_rows.rows_of(
            messages,
            topic,
            message_ids,
            body_of,
            now_ms=now_ms,
            depth=BATCH_DEPTH,
            traceparent=traceparent,
        ),
    )
    if rows is None:
        return None
    durability = strongest_of(messages)
    if not can_have(services, durability):
        return None
    placed = await plain_rows.append_rows(services.store, rows, durability=durability)
    services.metrics.messages_in.inc(len(rows))
    status = 202 if is_late(services, placed.sureness, durability) else 201
    body = plain_rows.answer_of(entry_ids, message_ids, rows, placed, status=status)
    return Reply(201, body.encode(), _send_headers(services, replayed=False))


def _cost_of(call: Call, entries: Sequence[object]) -> int:
    """Bytes of one message that take as long as these entries."""
    return max(len(call.body), len(entries) * ENTRY_COST_BYTES)


async def _batch_again(services: Services, entries: _Entries, before: StoredResponse) -> Reply:
    found = await services.idempotency.find(before)
    receipts = {
        sent.entry: receipt_of(message, place, deduplicated=True)
        for sent, (message, place) in zip(before.messages, found, strict=True)
    }
    return _batch_reply(services, entries, receipts, before.refused, status=201, replayed=True)


def _batch_reply(
    services: Services,
    entries: _Entries,
    receipts: Mapping[int, Receipt],
    refused: Mapping[int, Problem],
    *,
    status: int,
    replayed: bool,
) -> Reply:
    """`status`: of what was stored; all of it in one append."""
    results = [
        BatchResult(id=entry.id, status=status, receipt=receipts[index])
        if index in receipts
        else BatchResult(id=entry.id, status=refused[index].status, problem=refused[index])
        for index, entry in enumerate(entries)
    ]
    body = BatchSendResult(accepted=len(receipts), rejected=len(refused), results=results)
    return reply(207 if refused else 201, body, _send_headers(services, replayed=replayed))
