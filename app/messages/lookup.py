"""Lookup of messages by id, key and log offset: the message, its bytes, and its trace."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET

from app.encoding import codec, pages
from app.http.exchange import Call, Reply, in_pieces, reply
from app.messages.find import at_log_offset, stored_or_waiting, with_transaction
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
from app.problems import Refusal, invalid_field
from app.registry.consumer_groups import ConsumerGroup
from app.services import Reading, Services
from delivery.leases.events import LEASE_QUEUE
from delivery.offset_by_time import find_offset_by_time
from delivery.trace import LeaseTrace, LeaseTraceEvent, trace_leases
from scheduler.schedule import Schedule
from storage.formats import properties
from storage.formats.compression import BodyNotDecompressed
from storage.message import StoredMessage
from storage.opening import opened, opened_to_show
from storage.store import LAST_MS, KeyQuery

_FIND_PROBLEMS = (
    "message_not_found",
    "message_expired",
    "record_corrupt",
    "not_supported_by_engine",
)

_MOST_GROUPS = 1_000  # that a trace answers for
_RANGE = re.compile(r"(?i:bytes)=([0-9]{0,100})-([0-9]{0,100})")
_MOST_EVENTS = 20_000  # of leases that a trace looks through; reading one takes some 50 µs
_BYTES = "application/octet-stream"


@operation(
    "GET",
    "/v1/messages",
    "queryMessages",
    tag="messages",
    scopes=["receive", "operate"],
    checks_access=True,
    query=QueryMessagesQuery,
    answers={200: FoundPage},
    problems=["topic_not_found", "reserved_topic", "invalid_page_token", *_FIND_PROBLEMS],
    by_replica=True,
)
async def query(reading: Reading, call: Call, query: QueryMessagesQuery) -> Reply:
    """Find messages by key or by log offset.

    By `topic` and `key`: the newest first; a key matches only as a whole. By the `log_offset` of a
    receipt or a log line: the message of that place; several if a RocketMQ broker stored them as
    one batch.
    """
    if query.log_offset is not UNSET:
        call.access.check_unlimited()
        return await _at_offset(reading, call, query, query.log_offset)
    if query.topic is UNSET:
        raise invalid_field("/query/topic", "missing", "topic and key, or log_offset, are needed")
    if query.key is UNSET:
        raise invalid_field("/query/key", "missing", "key is needed with topic")
    call.access.check_topic(query.topic)
    topic = reading.topics.get(query.topic)
    token = query.page_token
    max_bytes = call.share.reserve(pages.PAGE_BYTES)
    found = await reading.store.find_messages(
        KeyQuery(
            query.key,
            topics=[topic.name],
            from_ms=0 if query.from_ is UNSET else codec.parse_time(query.from_, "/query/from"),
            to_ms=LAST_MS if query.to is UNSET else codec.parse_time(query.to, "/query/to"),
            older_than=None if token is UNSET else pages.decode_number_token("messages", token),
            max_messages=query.page_size + 1,
            max_bytes=max_bytes,
        )
    )

    def token_behind(shown: Sequence[StoredMessage]) -> str:
        return pages.encode_token("messages", str(page_end(shown[-1])))

    return await _page(call, query, found, max_bytes, token_behind)


async def _at_offset(
    reading: Reading, call: Call, query: QueryMessagesQuery, log_offset: int
) -> Reply:
    for name, value in (
        ("topic", query.topic),
        ("key", query.key),
        ("from", query.from_),
        ("to", query.to),
    ):
        if value is not UNSET:
            raise invalid_field(
                f"/query/{name}", "not_allowed", f"{name} is not allowed with log_offset"
            )
    token, kind = query.page_token, f"messages at {log_offset}"
    begin = 0 if token is UNSET else pages.decode_number_token(kind, token)
    max_bytes = call.share.reserve(pages.PAGE_BYTES)
    found = (await at_log_offset(reading, log_offset))[begin:]

    def token_behind(shown: Sequence[StoredMessage]) -> str:
        return pages.encode_token(kind, str(begin + len(shown)))

    return await _page(call, query, found, max_bytes, token_behind)


async def _page(
    call: Call,
    query: QueryMessagesQuery,
    found: Sequence[StoredMessage],
    max_bytes: int,
    token_behind: Callable[[Sequence[StoredMessage]], str],
) -> Reply:
    """The first of the messages found; the next page begins where `token_behind` says."""
    count = pages.fitting(
        found, query.page_size, lambda message: len(message.body), max_bytes=max_bytes
    )
    shown: Sequence[StoredMessage] = found[:count]
    if query.payload != "omit":
        shown = await opened_to_show(shown, max_bytes)

    def page() -> FoundPage:
        page = FoundPage(items=[message_view(message, query.payload) for message in shown])
        if len(found) > len(shown):
            page.next_page_token = token_behind(shown)
        return page

    return await call.answer_with(shown, page)


@operation(
    "GET",
    "/v1/messages/{message_id}",
    "getMessage",
    tag="messages",
    scopes=["receive", "operate"],
    checks_access=True,
    query=MessageQuery,
    answers={200: KnownMessage},
    problems=[*_FIND_PROBLEMS, "payload_unreadable"],
    by_replica=True,
)
async def get(reading: Reading, call: Call, message_id: str, query: MessageQuery) -> Reply:
    """Get a message.

    The offset message id of a RocketMQ broker gives the message that the broker stored there, in
    this log. A message that waits for its delivery time is returned with its schedule. A half
    message is not found before its commit.
    """
    call.share.reserve(MAX_BODY_BYTES)
    message, schedule = await _found(reading, call, message_id)
    if query.payload != "omit":
        message = await _opened(message)
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
    scopes=["receive", "operate"],
    checks_access=True,
    answers={200: bytes, 206: bytes},
    answer_headers=["Content-Range"],
    headers=[RANGE],
    problems=[*_FIND_PROBLEMS, "payload_unreadable", "range_not_satisfiable"],
    by_replica=True,
)
async def get_payload(reading: Reading, call: Call, message_id: str) -> Reply:
    """Get the body of a message as it was sent.

    A request for several ranges, or for something other than a byte range, gets the whole body.
    """
    call.share.reserve(MAX_BODY_BYTES)
    message, _ = await _found(reading, call, message_id)
    body = (await _opened(message)).body
    call.share.fit(len(body))
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
    # If-Range never holds: the body has no ETag (RFC 9110, 13.1.5)
    header = "" if "if-range" in call.headers else call.headers.get("range", "")
    wanted = _range(header, len(body))
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
    scopes=["receive", "operate"],
    checks_access=True,
    answers={200: Trace},
    problems=_FIND_PROBLEMS,
)
async def trace(services: Services, call: Call, message_id: str) -> Reply:
    """Get the history of a message.

    `groups` has the status of the message for each group that reads the topic, and so the reason
    why a group does not receive it.
    """
    try:
        message, schedule = await _found(services, call, message_id)
    except Refusal as refusal:
        if call.access.is_limited:  # to whom the transaction may not belong
            raise
        raise await with_transaction(services, message_id, refusal) from None
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
        readers = _readers(services, call, schedule.topic)
        found.groups = [GroupStatus(group=one.name, status="delayed") for one in readers]
        return reply(200, found)
    queue_id, queue_offset = message.queue.number, message.queue_offset
    found.items += [
        TraceEvent(at=stored.at, event="queued", queue_id=queue_id, queue_offset=queue_offset),
        TraceEvent(event="indexed"),  # It was found by its id.
    ]
    begin = (await find_offset_by_time(services.store, LEASE_QUEUE, message.stored_at_ms))[0]
    leases = await trace_leases(services.store, message, begin=begin, most_events=_MOST_EVENTS)
    found.items += [
        _event_view(one) for one in leases.happened if call.access.may_use_group(one.group)
    ]
    found.groups = await _group_statuses(services, call, message, leases)
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


async def _found(
    reading: Reading, call: Call, message_id: str
) -> tuple[StoredMessage, Schedule | None]:
    """The result of `stored_or_waiting`, if the key is for the topic. Raises as it does, and
    Refusal forbidden.
    """
    message, schedule = await stored_or_waiting(reading, message_id)
    call.access.check_topic(message.queue.topic if schedule is None else schedule.topic)
    return message, schedule


def _readers(
    services: Services, call: Call, topic: str, more: Iterable[str] = ()
) -> list[ConsumerGroup]:
    """The groups that read the topic, and those of these names, by name; of those that the key is
    for.
    """
    named = set(more)
    found = [
        group
        for group in services.consumer_groups.all()
        if call.access.may_use_group(group.name)
        and (group.name in named or any(one.topic == topic for one in group.rules.subscriptions))
    ]
    return sorted(found, key=lambda group: group.name)[:_MOST_GROUPS]


async def _group_statuses(
    services: Services, call: Call, message: StoredMessage, leases: LeaseTrace
) -> list[GroupStatus]:
    statuses: list[GroupStatus] = []
    topic = message.queue.topic
    for group in _readers(services, call, topic, [one.group for one in leases.happened]):
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


def page_end(message: StoredMessage) -> int:
    """The position of the next page. Only engines with log offsets offer the lookup."""
    assert message.log_offset is not None
    return message.log_offset


async def _opened(message: StoredMessage) -> StoredMessage:
    """The message with its body decompressed. Raises Refusal payload_unreadable."""
    try:
        return await opened(message)
    except BodyNotDecompressed as error:
        raise Refusal(
            "payload_unreadable",
            f"the body of message {message.message_id[:100]} cannot be decompressed: {error}",
        ) from None


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
