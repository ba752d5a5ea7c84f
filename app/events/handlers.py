"""Publishing events (CloudEvents 1.0). Handlers over plain values; any lane may call them."""

import asyncio
from collections.abc import Awaitable, Sequence

from msgspec import UNSET

from app.events import reading
from app.events.reading import Event
from app.http.exchange import Call, Reply, reply
from app.idempotency.keys import KeyedRequest
from app.messages.build import build
from app.messages.payload import MAX_FIELD_BYTES
from app.messages.schemas import BatchResult, BatchSendResult, MessageInput
from app.messages.send import begin_keyed, receipt_of, status_of
from app.operations import WRITING, HeaderParameter, operation
from app.problems import Refusal, document, under
from app.registry.payload_schema import until_checked
from app.registry.topics import Topic
from app.services import Services
from storage.errors import IdempotencyKeyReused, MessagingError
from storage.idempotency import fingerprint_of
from storage.message import Appended, Message

_SHOWN = 200  # characters of an attribute in a problem
_HEADERS = tuple(
    HeaderParameter(f"Ce-{name.title()}", f"In binary mode: the attribute {name}.")
    for name in (*reading.REQUIRED, "subject", "time", "dataschema")
)


@operation(
    "POST",
    "/v1/topics/{topic}/events",
    "publishCloudEvent",
    tag="messages", scopes=["send"],
    takes_bytes=True,
    body_types=[reading.STRUCTURED, reading.BATCH],
    answers={201: BatchSendResult, 207: BatchSendResult},
    answer_headers=["Store-Pressure"],
    headers=_HEADERS,
    problems=(
        "topic_not_found", "message_too_large", "idempotency_in_progress",
        "idempotency_key_reused", "unsupported_combination", "reserved_topic", *WRITING,
    ),
)  # fmt: skip
async def publish(services: Services, call: Call, topic_name: str) -> Reply:
    """Publish events in the form of CloudEvents 1.0.

    One as `application/cloudevents+json`, up to 1,000 as `application/cloudevents-batch+json`, or
    one in binary mode: attributes in `ce-` headers, data in the body, of any media type. `id` and
    `source` together make an event repeatable, for the topic's dedup_window_ms. A single event that
    is wrong is 422; of several each is taken as it can, and 207 means that one cannot.
    """
    topic = services.topics.to_use(topic_name)
    media_type = call.media_type if "content-type" in call.headers else ""
    if media_type == reading.BATCH:
        events = await call.work(lambda: reading.read_batch(call.body, call.max_values))
        return _answer(services, await _publish_all(services, call, topic, events))
    if media_type.startswith("application/cloudevents") and media_type != reading.STRUCTURED:
        raise Refusal(
            "unsupported_media_type",
            f"the content type must be {reading.STRUCTURED}, {reading.BATCH} or, in binary mode, "
            "that of the data",
        )
    if media_type == reading.STRUCTURED:
        event = await call.work(lambda: reading.read_structured(call.body, call.max_values))
    else:
        event = reading.read_binary(call.headers, call.body)
    return _answer(services, [await (await _begin(services, call, topic, event))])


async def _publish_all(
    services: Services, call: Call, topic: Topic, events: Sequence[Event | Refusal]
) -> list[BatchResult]:
    """Results of the events, which are appended in their order."""
    begun: list[asyncio.Future[BatchResult]] = []
    by_key: dict[str, asyncio.Future[BatchResult]] = {}
    for index, event in enumerate(events):
        if isinstance(event, Event):
            twin = by_key.get(_key(event))
            if twin is not None:
                await asyncio.wait({twin})
            result = asyncio.ensure_future(await _begin_one(services, call, topic, event, index))
            by_key[_key(event)] = result
        else:
            result = asyncio.ensure_future(_refused(event))
        begun.append(result)
    return await asyncio.gather(*begun)


async def _begin_one(
    services: Services, call: Call, topic: Topic, event: Event, index: int
) -> Awaitable[BatchResult]:
    """Begin to store one event, as `_begin` does; a refusal is a result, too."""
    try:
        appending = await _begin(services, call, topic, event)
    except MessagingError as error:
        return _refused(under(error, f"/{index}"))

    async def result() -> BatchResult:
        try:
            return await appending
        except MessagingError as error:
            return await _refused(error)

    return result()


async def _begin(
    services: Services, call: Call, topic: Topic, event: Event
) -> Awaitable[BatchResult]:
    """Begin to append an event; what becomes of it. Raises MessagingError."""
    request = KeyedRequest(f"publishCloudEvent {topic.name}", _key(event), _fingerprint(event))
    given, message_id = _message(event), services.identifiers.new("msg")

    def built() -> Message:
        return build(
            given,
            topic,
            message_id=message_id,
            now_ms=services.clock.wall_ms(),
            raw_body=event.data,
            traceparent=call.traceparent,
        )

    async def begin() -> BatchResult | tuple[Message, Awaitable[list[Appended]]]:
        make = await services.body_thread.ahead(len(event.data), built)
        if not services.topics.knows(topic.name):
            make()  # an event that is refused leaves no topic behind
            await services.topics.ensure(topic)
        # Nothing is awaited from here to the append: this is the only one of its key.
        try:
            before = await services.idempotency.lookup(
                request, window_ms=topic.settings.dedup_window_ms
            )
        except IdempotencyKeyReused:
            raise Refusal(
                "idempotency_key_reused",
                "an event with this source and id was published before, with other content",
                context={"id": event.id[:_SHOWN], "source": event.source[:_SHOWN]},
            ) from None
        if before is not None:
            ((stored, place),) = await services.idempotency.find(before)
            receipt = receipt_of(stored, place, deduplicated=True)
            return BatchResult(status=before.status, receipt=receipt)
        message = make()
        return message, begin_keyed(services, request, topic, {0: message}, None)

    begun = await until_checked(begin)

    async def result() -> BatchResult:
        if isinstance(begun, BatchResult):
            return begun
        message, appending = begun
        (place,) = await appending
        services.metrics.messages_in.inc()
        return BatchResult(
            status=status_of(services, place, None), receipt=receipt_of(message, place)
        )

    return result()


def _message(event: Event) -> MessageInput:
    """The message of an event: its id is the key and its type the tag, where they can be."""
    ordering_key = event.attributes.get(reading.PARTITION_KEY)
    return MessageInput(
        key=event.id if _is_word(event.id) else UNSET,
        tag=event.attributes["type"] if _is_tag(event.attributes["type"]) else UNSET,
        ordering_key=ordering_key or UNSET,
        content_type=UNSET if event.content_type is None else event.content_type,
        properties={f"{reading.PROPERTY}{name}": text for name, text in event.attributes.items()},
    )


def _is_word(text: str) -> bool:
    return " " not in text and len(text.encode("utf-8")) <= MAX_FIELD_BYTES


def _is_tag(text: str) -> bool:
    return _is_word(text) and "|" not in text


def _key(event: Event) -> str:
    """A source has no space, so no two events that differ have one key."""
    return f"{event.source} {event.id}"


def _fingerprint(event: Event) -> str:
    described = repr((event.content_type, sorted(event.attributes.items())))
    return fingerprint_of(described.encode(), event.data)


async def _refused(error: MessagingError) -> BatchResult:
    problem = document(error)
    return BatchResult(status=problem.status, problem=problem)


def _answer(services: Services, results: Sequence[BatchResult]) -> Reply:
    rejected = sum(result.problem is not UNSET for result in results)
    body = BatchSendResult(
        accepted=len(results) - rejected, rejected=rejected, results=list(results)
    )
    return reply(207 if rejected else 201, body, services.pressure_header())
