"""Streams of messages as server-sent events, at most so many of them unacknowledged.

Source of the form: the HTML standard, section Server-sent events.
"""

import asyncio
from collections.abc import AsyncGenerator

from msgspec import UNSET

from app.bodies.budget import NoRoom
from app.consume.handlers import AnswerRoom, check_text, json_of_received, size_of_found
from app.consume.schemas import StreamQuery
from app.http.exchange import Call, pieces_of
from app.operations import WRITING, Events, operation
from app.problems import Refusal, closing_event
from app.services import Services
from delivery.receive.receive import LeasedMessage
from delivery.streams import Stream, StreamOptions
from storage.errors import MessagingError

_MAX_BYTES = 1 << 20  # of messages that are taken together
_RETRY_MS = 1_000  # after which a browser connects again


@operation(
    "GET",
    "/v1/groups/{group}/stream",
    "streamMessages",
    tag="consume", scopes=["receive"],
    query=StreamQuery,
    streams=True,
    answers={200: Events},
    problems=[
        "group_not_found", "reserved_topic", "group_active", "unsupported_combination",
        "too_many_waiting", *WRITING,
    ],
)  # fmt: skip
async def stream(
    services: Services, call: Call, group: str, query: StreamQuery
) -> AsyncGenerator[bytes, None]:
    """Receive messages under leases as server-sent events, for as long as you like.

    An event `message` has the receipt handle as its `id`, and as `data` a message as in a receive.
    At most `credit` messages are unacknowledged: an acknowledgement makes room for the next. After
    a lost connection the leases that last are given to the next stream of the group, with the same
    handles. An event `closing` says why the stream ends, with a problem as `data`.
    """
    rules = services.consumer_groups.get(group).rules
    services.members.check_unused(group)
    services.consumer_groups.check_not_pushed(group)
    if not rules.subscriptions:
        raise Refusal(
            "unsupported_combination",
            f"group {group} reads no topic: PUT the group with its topics",
        )
    options = StreamOptions(
        credit=query.credit,
        lease_ms=rules.lease_ms if query.lease_ms is UNSET else query.lease_ms,
        worker=check_text(query.worker, "/query/worker"),
    )
    services.long_polls.enter()
    open_stream = services.delivery.streams.open(group, options)
    ended = asyncio.Event()
    watcher = asyncio.ensure_future(_until_ended(services, call, ended))
    try:
        yield b"retry: %d\n\n" % _RETRY_MS
        async for piece in _events(services, call, group, query, open_stream, ended):
            yield piece
    finally:
        watcher.cancel()
        services.delivery.streams.close(open_stream)
        services.long_polls.exit()


async def _events(
    services: Services,
    call: Call,
    group: str,
    query: StreamQuery,
    open_stream: Stream,
    ended: asyncio.Event,
) -> AsyncGenerator[bytes, None]:
    while not ended.is_set():
        try:
            rules = services.consumer_groups.get(group).rules
            services.consumer_groups.check_not_pushed(group)
            found = await open_stream.take(rules, max_bytes=_MAX_BYTES, memory=AnswerRoom(call))
            found_bytes = sum(size_of_found(one.found) for one in found)
            for one in found:
                event = _message(one, query)
                call.share.hold(found_bytes + len(event))
                for piece in pieces_of(event):
                    yield piece
            call.share.hold(0)  # the client has taken them
            if found:
                services.metrics.messages_out.inc(len(found))
            elif not await open_stream.wait(rules, timeout_ms=services.keep_alive_ms, ended=ended):
                yield b": keep-alive\n\n"
        except NoRoom as full:
            if not await _has_room(services, call, full.byte_count, ended):
                yield b": keep-alive\n\n"
        except MessagingError as error:
            yield closing_event(error)
            return
    if services.is_stopping:
        yield closing_event(Refusal("shutting_down"))


async def _has_room(services: Services, call: Call, byte_count: int, ended: asyncio.Event) -> bool:
    """Wait until messages of so many bytes may have room, or `ended` is set; False: neither came
    for as long as a connection may be silent.
    """
    woken = asyncio.Event()
    call.share.call_when_room(byte_count, woken.set)
    waits = [asyncio.ensure_future(one.wait()) for one in (woken, ended)]
    try:
        done, _ = await asyncio.wait(
            waits, timeout=services.keep_alive_ms / 1_000, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        for one in waits:
            one.cancel()
        if not woken.is_set() or ended.is_set():
            call.share.forget_call(woken.set)


async def _until_ended(services: Services, call: Call, ended: asyncio.Event) -> None:
    """Set `ended` once the client has left, or the service stops."""
    waits = [
        asyncio.ensure_future(call.until_gone()),
        asyncio.ensure_future(services.stopping.wait()),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        ended.set()
    finally:
        for one in waits:
            one.cancel()


def _message(one: LeasedMessage, query: StreamQuery) -> bytes:
    # JSON has no line breaks outside of texts, and none in them
    return b"id: %b\nevent: message\ndata: %b\n\n" % (
        one.handle.encode("ascii"),
        json_of_received(one, query.payload),
    )
