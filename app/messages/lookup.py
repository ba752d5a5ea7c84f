"""Messages by their id and by their key: what was stored, its bytes, and what became of it."""

import asyncio
import re
from collections.abc import Iterable

from msgspec import UNSET

from app import codec, pages
from app.exchange import Call, Reply, in_pieces, reply
from app.messages.schemas import (
    MAX_BODY_BYTES,
    FoundPage,
    GroupStatus,
    KnownMessage,
    MessageQuery,
    QueryMessagesQuery,
    Trace,
    TraceEvent,
)
from app.messages.view import message_view
from app.operations import RANGE, operation
from app.problems import Refusal
from app.registry.consumer_groups import ConsumerGroup
from app.services import Services
from delivery.leases.events import LEASE_QUEUE
from delivery.offset_by_time import find_offset_by_time
from delivery.trace import LeaseTrace, LeaseTraceEvent, trace_leases
from scheduler import scheduled_message
from scheduler.schedule import Schedule
from storage.errors import (
    CorruptRecord,
    InvalidRequest,
    MessageGone,
    MessagingError,
    UnknownSchedule,
)
from storage.formats import names, properties
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.identifiers import made_at_ms
from storage.message import StoredMessage
from storage.store import LAST_MS
from txn import half_message

_FIND_PROBLEMS = (
    "message_not_found",
    "message_expired",
    "record_corrupt",
    "not_supported_by_engine",
    "overloaded",
)

_MOST_GROUPS = 1_000  # that a trace answers for
_RANGE = re.compile(r"bytes=([0-9]{0,100})-([0-9]{0,100})")
_MOST_EVENTS = 20_000  # of leases that a trace looks through; reading one takes some 50 µs
_BYTES = "application/octet-stream"
# where a message lies before it is in its topic
_WAITING = (names.HALF_TOPIC, names.TIMER_TOPIC, SCHEDULE_TOPIC)


@operation(
    "GET",
    "/v1/messages",
    "queryMessages",
    tag="messages",
    query=QueryMessagesQuery,
    answers={200: FoundPage},
    problems=[
        "topic_not_found",
        "reserved_topic",
        "invalid_page_token",
        "record_corrupt",
        "not_supported_by_engine",
        "overloaded",
    ],
)
async def query(services: Services, call: Call, query: QueryMessagesQuery) -> Reply:
    """Find messages by key. Newest first. A key matches only as a whole."""
    topic = services.topics.get(query.topic)
    token = query.page_token
    max_bytes = call.share.reserve(pages.PAGE_BYTES)
    found = await services.store.find_messages(
        query.key,
        topics=[topic.name],
        from_ms=0 if query.from_ is UNSET else codec.parse_time(query.from_, "/query/from"),
        to_ms=LAST_MS if query.to is UNSET else codec.parse_time(query.to, "/query/to"),
        older_than=None if token is UNSET else pages.decode_number_token("messages", token),
        max_messages=query.page_size + 1,
        max_bytes=max_bytes,
    )
    count = pages.fitting(
        found, query.page_size, lambda message: len(message.body), max_bytes=max_bytes
    )

    def page() -> FoundPage:
        page = FoundPage(items=[message_view(message, query.payload) for message in found[:count]])
        if len(found) > count:
            page.next_page_token = pages.encode_token("messages", str(page_end(found[count - 1])))
        return page

    return await call.answer_with(found, page)


@operation(
    "GET",
    "/v1/messages/{message_id}",
    "getMessage",
    tag="messages",
    query=MessageQuery,
    answers={200: KnownMessage},
    problems=_FIND_PROBLEMS,
)
async def get(services: Services, call: Call, message_id: str, query: MessageQuery) -> Reply:
    """Get a message.

    A message that waits for its delivery time is returned with its schedule. A half message is not
    found before its commit.
    """
    call.share.reserve(MAX_BODY_BYTES)
    message, schedule = await _stored_or_waiting(services, message_id)
    if schedule is None:
        return await call.answer_with([message], lambda: message_view(message, query.payload))

    def waiting() -> KnownMessage:
        view = message_view(message, query.payload, KnownMessage)
        view.topic, view.queue_id, view.queue_offset = schedule.topic, UNSET, UNSET
        view.schedule_id, view.deliver_at = schedule.schedule_id, codec.rfc3339(schedule.due_ms)
        return view

    return await call.answer_with([message], waiting)


@operation(
    "GET",
    "/v1/messages/{message_id}/payload",
    "getMessagePayload",
    tag="messages",
    answers={200: bytes, 206: bytes},
    answer_headers=["Content-Range"],
    headers=[RANGE],
    problems=[*_FIND_PROBLEMS, "range_not_satisfiable"],
)
async def get_payload(services: Services, call: Call, message_id: str) -> Reply:
    """Get the body of a message as it was sent.

    A request for several ranges, or for something other than a byte range, gets the whole body.
    """
    call.share.reserve(MAX_BODY_BYTES)
    message, _ = await _stored_or_waiting(services, message_id)
    body = message.body
    call.share.hold(len(body))
    content_type = message.system.get(properties.CONTENT_TYPE, _BYTES)
    headers = {
        "Accept-Ranges": "bytes",
        # A browser must not run what some producer has sent: it would run as a page of this
        # service.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    media_type = content_type if content_type.isascii() else _BYTES
    wanted = _range(call.headers.get("range", ""), len(body))
    if wanted is not None and not wanted:
        raise Refusal(
            "range_not_satisfiable",
            f"the body has {len(body)} bytes",
            headers={"Content-Range": f"bytes */{len(body)}"},
        )
    if wanted is None:
        return Reply(200, in_pieces(body), headers, media_type)
    headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{len(body)}"
    return Reply(206, in_pieces(body[wanted.start : wanted.stop]), headers, media_type)


@operation(
    "GET",
    "/v1/messages/{message_id}/trace",
    "getMessageTrace",
    tag="messages",
    answers={200: Trace},
    problems=_FIND_PROBLEMS,
)
async def trace(services: Services, _: Call, message_id: str) -> Reply:
    """Get the history of a message.

    `groups` has the status of the message for each group that reads the topic, and so the reason
    why a group does not receive it.
    """
    try:
        message, schedule = await _stored_or_waiting(services, message_id)
    except Refusal as refusal:
        raise await _with_transaction(services, message_id, refusal) from None
    stored = TraceEvent(
        at=codec.rfc3339(message.stored_at_ms),
        event="stored",
        log_offset=UNSET if message.log_offset is None else message.log_offset,
    )
    found = Trace(
        message_id=message.message_id,
        topic=message.queue.topic if schedule is None else schedule.topic,
        transaction_id=message.system.get(properties.TRANSACTION_ID) or UNSET,
        items=[TraceEvent(at=codec.rfc3339(message.born_at_ms), event="born"), stored],
        groups=[],
    )
    if schedule is not None:
        found.schedule_id, found.deliver_at = schedule.schedule_id, codec.rfc3339(schedule.due_ms)
        readers = _readers(services, schedule.topic)
        found.groups = [GroupStatus(group=one.name, status="delayed") for one in readers]
        return reply(200, found)
    queue_id, queue_offset = message.queue.number, message.queue_offset
    found.items += [
        TraceEvent(at=stored.at, event="queued", queue_id=queue_id, queue_offset=queue_offset),
        TraceEvent(event="indexed"),  # It was found by its id.
    ]
    begin = (await find_offset_by_time(services.store, LEASE_QUEUE, message.stored_at_ms))[0]
    leases = await trace_leases(services.store, message, begin=begin, most_events=_MOST_EVENTS)
    found.items += [_event_view(one) for one in leases.happened]
    found.groups = await _group_statuses(services, message, leases)
    if leases.until_ms is not None:
        found.told_until = codec.rfc3339(leases.until_ms)
    return reply(200, found)


def _event_view(event: LeaseTraceEvent) -> TraceEvent:
    return TraceEvent(
        at=codec.rfc3339(event.at_ms),
        event=event.event,
        group=event.group,
        attempt=UNSET if event.attempt is None else event.attempt,
        worker=UNSET if event.worker is None else event.worker,
        reason=UNSET if event.reason is None else event.reason,
    )


def _readers(services: Services, topic: str, more: Iterable[str] = ()) -> list[ConsumerGroup]:
    """The groups that read the topic, and those of these names, by name."""
    named = set(more)
    found = [
        group
        for group in services.consumer_groups.all()
        if group.name in named or any(one.topic == topic for one in group.rules.subscriptions)
    ]
    return sorted(found, key=lambda group: group.name)[:_MOST_GROUPS]


async def _group_statuses(
    services: Services, message: StoredMessage, leases: LeaseTrace
) -> list[GroupStatus]:
    statuses: list[GroupStatus] = []
    topic = message.queue.topic
    for group in _readers(services, topic, [one.group for one in leases.happened]):
        found = await services.delivery.status(group.name, group.rules, message, leases)
        view = GroupStatus(group=group.name, status=found.status)
        if found.until_ms is not None:
            view.until = codec.rfc3339(found.until_ms)
        if found.status == "filtered":
            view.filter = next(
                one.expression for one in group.rules.subscriptions if one.topic == topic
            )
        statuses.append(view)
        await asyncio.sleep(0)  # a condition may take milliseconds
    return statuses


async def _with_transaction(services: Services, message_id: str, refusal: Refusal) -> Refusal:
    """The refusal of an unknown message; where an undecided or rolled-back transaction has the
    message, it says which.
    """
    if refusal.code != "message_not_found":
        return refusal
    halves = await services.store.find_messages(
        message_id, topics=[names.HALF_TOPIC], by_id=True, max_messages=1
    )
    if not halves:
        return refusal
    transaction_id = half_message.transaction_id_of(halves[0])
    try:
        transaction = await services.transactions.get(transaction_id)
    except MessagingError:
        return refusal
    state = transaction.state.value
    return Refusal(
        refusal.code,
        f"message {message_id[:100]} is in transaction {transaction_id}, which is "
        f"{state.replace('_', ' ')}",
        context={"transaction_id": transaction_id, "state": state},
    )


def page_end(message: StoredMessage) -> int:
    """Where the next page goes on. Only engines with log offsets offer the lookup."""
    assert message.log_offset is not None
    return message.log_offset


async def _find(services: Services, message_id: str) -> StoredMessage:
    """Raises Refusal message_not_found, message_expired, record_corrupt."""
    if not message_id.isprintable() or len(message_id) > 255:
        raise InvalidRequest(
            "a message id is 1 to 255 printable characters", pointer="/path/message_id"
        )
    topics = [topic.name for topic in services.topics.all()]
    try:
        found = await services.store.find_messages(
            message_id, topics=topics, by_id=True, max_messages=1
        )
        if not found and await _has_expired(services, message_id):
            raise MessageGone(
                f"message {message_id[:100]} was stored too long ago: retention has dropped all "
                "of that time"
            )
    except CorruptRecord as damage:
        raise Refusal(
            "record_corrupt", f"the message {message_id[:100]} may be in a damaged place"
        ) from damage
    if not found:
        raise Refusal("message_not_found", f"message {message_id[:100]} does not exist")
    return found[0]


async def _stored_or_waiting(
    services: Services, message_id: str
) -> tuple[StoredMessage, Schedule | None]:
    """The message; with its schedule, where it waits for its time. Raises as `_find`."""
    try:
        return await _find(services, message_id), None
    except Refusal as refusal:
        if refusal.code != "message_not_found":
            raise
    waiting = await _waiting(services, message_id)
    # Where there is none, it may have been delivered between the two looks.
    return waiting or (await _find(services, message_id), None)


async def _waiting(services: Services, message_id: str) -> tuple[StoredMessage, Schedule] | None:
    """None where no message of this id waits for its time. Raises Refusal record_corrupt."""
    try:
        schedule = await services.schedules.get(f"sch_{message_id.removeprefix('msg_')}")
    except UnknownSchedule:
        return None
    if schedule.message_id != message_id or schedule.state.is_finished:
        return None
    queue, queue_offset = scheduled_message.message_at(schedule.entry.place)
    try:
        (message,) = await services.store.read(queue, queue_offset, max_messages=1, max_bytes=1)
    except CorruptRecord as damage:
        raise Refusal("record_corrupt", f"the message {message_id[:100]} is damaged") from damage
    return message, schedule


async def _has_expired(services: Services, message_id: str) -> bool:
    """Was the id made before all that is left was stored?

    Not so of a message which waits for its time or its decision.
    """
    made_ms, admin = made_at_ms(message_id, "msg"), services.store.admin
    if made_ms is None or admin is None:
        return False
    oldest_ms = await admin.oldest_stored_at_ms()
    if oldest_ms is None or made_ms >= oldest_ms:
        return False
    return not await services.store.find_messages(
        message_id, topics=_WAITING, by_id=True, max_messages=1
    )


def _range(header: str, length: int) -> range | None:
    """The bytes of a Range header: empty behind the end; None where it is not one range (RFC 9110,
    14.2).
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, last = max(0, length - int(match[2])), length - 1
    else:
        first, last = int(match[1]), min(int(match[2] or length), length - 1)
        if match[2] and int(match[2]) < first:
            return None  # it is no range
    return range(first, max(first, last + 1))
