"""Request and reply, over a `MessageStore`: a request is a message, and its reply is stored and found by the request's id.

What happens to a request is one append each: the request with its opening, the reply with its mark and the acknowledgement of
the request's message. The first one wins: a reply, the timeout or a cancel; a late reply is kept beside the timeout.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import NamedTuple

import msgspec

from delivery import request_events
from delivery.options import RequestOptions
from delivery.request_events import (
    REPLY_QUEUE,
    REQUEST_QUEUE,
    AnyRequestEvent,
    Cancelled,
    Opened,
    Replied,
    ReplyBody,
    TimedOut,
    event_message,
    read_event,
)
from delivery.request_table import Request, RequestState, RequestTable
from storage.clock import Clock
from storage.errors import (
    Backpressure,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    MessageGone,
    OffsetExpired,
    RequestClosed,
    UnknownRequest,
)
from storage.identifiers import Identifiers
from storage.message import Appended, Durability, Message, StoredMessage
from storage.store import (
    AppliedPrefix,
    KeyLookup,
    MessageStore,
    Snapshot,
    Snapshots,
    SyncedPosition,
    find_message,
)
from storage.turns import Turns
from storage.watchers import Watchers

SNAPSHOT = "requests"
_READ_MESSAGES = 512
_READ_BYTES = 4 << 20
_TIMED_OUT_TOGETHER = 100
_MOST_EVENTS = 8  # that one request has: opened, timed out, replied late

AckBeside = Callable[[str, str, Callable[[bool], Sequence[Message]]], Awaitable[list[Appended]]]


class RepeatableKey(NamedTuple):
    """`print`: of what was sent; `window_ms`: how long the key counts."""

    key: str
    print: str
    window_ms: int


class Outcome(NamedTuple):
    """`replayed`: it was asked for before, and this is what has become of it."""

    request: Request
    replayed: bool


class _Dump(msgspec.Struct, array_like=True):
    requests: list[Request]
    cancelled: list[tuple[str, str]]
    has_forgotten: bool


_dump_decoder = msgspec.msgpack.Decoder(_Dump)


class Requests:
    """The event loop's. `start` before anything else."""

    def __init__(
        self, store: MessageStore, clock: Clock, identifiers: Identifiers, options: RequestOptions, *, ack_beside: AckBeside
    ) -> None:
        """`ack_beside(handle, message_id, make)`: append what `make` makes and, in the same unit, the acknowledgement of this
        message; `make` is told whether it is still lent under the handle.
        """
        self._store = store
        self._clock = clock
        self._identifiers = identifiers
        self._options = options
        self._ack_beside = ack_beside
        self.table = RequestTable(closed_kept=options.closed_kept, cancelled_kept=options.cancelled_kept)
        self._turns = Turns()
        self._watchers = Watchers()
        self._under_way: set[str] = set()  # keys whose request is being stored
        self._unstored: set[str] = set()  # requests that are known before they are in the log
        self._applied = AppliedPrefix()
        self._kept_end = 0
        self._is_stopping = False

    # ------------------------------------------------------------------------------------------------------ life cycle

    async def start(self) -> int:
        """Give the table back from the last snapshot and the log; the number of events replayed."""
        for queue in (REQUEST_QUEUE, REPLY_QUEUE):
            await self._store.create_topic(queue.topic, queue_count=1)
        begin = (await self._store.offsets(REQUEST_QUEUE)).first
        snapshot = await self._store.load_snapshot(SNAPSHOT) if isinstance(self._store, Snapshots) else None
        if snapshot is not None:
            self._load(_dump_decoder.decode(snapshot.data))
            begin = max(begin, snapshot.positions[REQUEST_QUEUE])
        at = begin
        while events := await self._store.read(REQUEST_QUEUE, at, max_messages=_READ_MESSAGES, max_bytes=_READ_BYTES):
            for message in events:
                self._replay(read_event(message))
            at += len(events)
        self._applied.restart(at)
        self._kept_end = begin
        return at - begin

    def stop(self) -> None:
        """Nobody waits any longer."""
        self._is_stopping = True
        self._watchers.wake_all()

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        await self._turns.drain()

    async def save_snapshot(self) -> bool:
        """Keep the table, so that a start replays only what came later. False where nothing has changed or none can be kept."""
        end = self._applied.end
        if not isinstance(self._store, Snapshots) or end == self._kept_end:
            return False
        stored = [request for request in self.table if request.request_id not in self._unstored]
        dump = _Dump(stored, self.table.cancelled, self.table.has_forgotten)
        await self._store.save_snapshot(SNAPSHOT, Snapshot((msgspec.msgpack.encode(dump),), {REQUEST_QUEUE: end}))
        self._kept_end = end
        return True

    async def run_once(self) -> int:
        """Close the requests whose time is up; how many."""
        closed = 0
        while due := self.table.due(self._clock.monotonic_ms(), most=_TIMED_OUT_TOGETHER):
            try:
                closed += await self._turns.uncancelled(self._time_out(due))
            finally:
                self.table.put_back(due)
        return closed

    # ------------------------------------------------------------------------------------------------------------ asking

    async def open(
        self,
        topic: str,
        make: Callable[[], Message],
        *,
        timeout_ms: int,
        key: RepeatableKey | None,
        durability: Durability | None,
    ) -> Outcome:
        """Store a request, once for its key. `make`: its message, asked for when it is needed.

        Raises IdempotencyKeyReused, IdempotencyInProgress, Backpressure, and what `make` and `append` raise.
        """
        look_up = None if key is None else _lookup_key(topic, key.key)
        if look_up is None or key is None:
            return Outcome(await self._turns.uncancelled(self._open(topic, make, timeout_ms, None, None, durability)), False)
        if look_up in self._under_way:
            raise IdempotencyInProgress
        self._under_way.add(look_up)
        try:
            known = await self._asked_before(look_up, key)
            if known is not None:
                return Outcome(known, replayed=True)
            # Here and not in the change itself: who leaves while it is stored leaves the key to the table.
            storing = self._open(topic, make, timeout_ms, look_up, key.print, durability)
            return Outcome(await self._turns.uncancelled(storing), replayed=False)
        finally:
            self._under_way.discard(look_up)

    async def get(self, request_id: str) -> Request:
        """As it is now. Raises UnknownRequest."""
        request = await self._find(request_id)
        if self._is_due(request):
            await self._turns.uncancelled(self._time_out([request_id]))
        return request

    async def wait(self, request: Request, *, timeout_ms: int) -> None:
        """Return when it has left pending, the time is up, or the service stops. It may be cancelled."""
        if request.state is RequestState.PENDING and not self._is_stopping:
            await self._watchers.wait(request.request_id, timeout_ms=timeout_ms)

    async def read_reply(self, request: Request) -> StoredMessage | None:
        """None where there is none. Raises MessageGone where the log has dropped it."""
        if request.reply is None:
            return None
        try:
            found = await find_message(self._store, REPLY_QUEUE, request.reply.from_offset, request.reply.message_id)
        except OffsetExpired:
            found = None
        if found is None:
            raise MessageGone(f"the reply to {request.request_id} is no longer kept")
        return found

    async def cancel(self, request_id: str) -> Request:
        """Its message is not handed out any more. Durable on return. Raises UnknownRequest, RequestClosed."""
        return await self._turns.uncancelled(self._cancel(request_id))

    # ---------------------------------------------------------------------------------------------------------- replying

    async def reply(
        self, request_id: str, body: ReplyBody, *, handle: str | None, key: str | None, fingerprint: str
    ) -> Outcome:
        """Store the reply and be done with the request's message, in one step. Durable on return.

        Late where the request has timed out. Asked again with the same key: what was answered then. Raises UnknownRequest,
        RequestClosed, IdempotencyKeyReused, and what `append` raises.
        """
        return await self._turns.uncancelled(self._reply(request_id, body, handle, key, fingerprint))

    def is_withdrawn(self, message: Message) -> bool:
        """Is it a request that was cancelled?"""
        asked = request_events.asked_by(message)
        return asked is not None and self.table.is_cancelled(asked.request_id)

    def has_withdrawn(self, topic: str) -> bool:
        return self.table.has_cancelled(topic)

    # ----------------------------------------------------------------------------------------------------------- changes

    async def _open(
        self,
        topic: str,
        make: Callable[[], Message],
        timeout_ms: int,
        key: str | None,
        fingerprint: str | None,
        durability: Durability | None,
    ) -> Request:
        limit = self._options.max_pending
        if self.table.pending_count >= limit:
            raise Backpressure(f"{self.table.pending_count} requests wait for their replies, the limit is {limit}")
        message = make()
        request_id = self._identifiers.new("req")
        now_ms = self._clock.wall_ms()
        opened = Opened(
            request_id=request_id,
            message_id=message.message_id,
            topic=topic,
            at_ms=now_ms,
            timeout_ms=timeout_ms,
            key=key,
            print=fingerprint,
        )
        request = Request(opened, self._clock.monotonic_ms() + timeout_ms)
        asking = request_events.as_request(message, request_id, timeout_ms=timeout_ms, reply_by_ms=request.expires_ms)
        async with self._turns.of(request_id):
            # Known before it is stored: a consumer may reply before the one who asks has been answered.
            self.table.add(request)
            self._unstored.add(request_id)
            try:
                appended = await self._store.append([asking, event_message(opened)], durability=durability)
            except BaseException:
                self.table.remove(request_id)
                raise
            finally:
                self._unstored.discard(request_id)
            self._count(appended)
        return request

    async def _time_out(self, request_ids: Sequence[str]) -> int:
        async with AsyncExitStack() as turns:
            for request_id in sorted(request_ids):
                await turns.enter_async_context(self._turns.of(request_id))
            due = [request for one in request_ids if (request := self.table.get(one)) is not None and self._is_due(request)]
            if due:
                event = TimedOut(request_ids=[request.request_id for request in due], at_ms=self._clock.wall_ms())
                await self._record([event])
                self._apply(due, event)
            return len(due)

    async def _cancel(self, request_id: str) -> Request:
        async with self._turns.of(request_id):
            request = await self._find(request_id)
            if request.state is RequestState.CANCELLED:
                return request
            if request.state is not RequestState.PENDING or self._is_due(request):
                raise _closed(request)
            event = Cancelled(request_id=request_id, at_ms=self._clock.wall_ms())
            await self._record([event])
            self._apply([request], event)
            return request

    async def _reply(self, request_id: str, body: ReplyBody, handle: str | None, key: str | None, fingerprint: str) -> Outcome:
        async with self._turns.of(request_id):
            request = await self._find(request_id)
            if not request.takes_a_reply:
                return self._replied_before(request, key, fingerprint)
            now_ms = self._clock.wall_ms()
            is_due = self._is_due(request)
            first: list[AnyRequestEvent] = [TimedOut(request_ids=[request_id], at_ms=now_ms)] if is_due else []
            message_id = self._identifiers.new("msg")
            reply = request_events.reply_message(
                body, request_id, message_id=message_id, timeout_ms=request.opened.timeout_ms, now_ms=now_ms
            )
            from_offset = (await self._store.offsets(REPLY_QUEUE)).end
            event = Replied(
                request_id=request_id,
                message_id=message_id,
                from_offset=from_offset,
                at_ms=now_ms,
                late=is_due or request.state is RequestState.TIMED_OUT,
                key=key,
                print=fingerprint,
            )

            def make(settled: bool) -> list[Message]:
                nonlocal event
                event = msgspec.structs.replace(event, settled=settled)
                return [reply, *map(event_message, [*first, event])]

            if handle is None:
                appended = await self._append(make(False), from_reserve=False)
            else:
                appended = await self._ack_beside(handle, request.opened.message_id, make)
            self._count(appended)
            event = msgspec.structs.replace(event, from_offset=appended[0].queue_offset)
            for one in [*first, event]:
                self._apply([request], one)
            return Outcome(request, replayed=False)

    @staticmethod
    def _replied_before(request: Request, key: str | None, fingerprint: str) -> Outcome:
        if key is None or request.reply is None or request.reply.key != key:
            raise _closed(request)
        if request.reply.print != fingerprint:
            raise IdempotencyKeyReused
        return Outcome(request, replayed=True)

    def _is_due(self, request: Request) -> bool:
        return request.state is RequestState.PENDING and request.deadline_ms <= self._clock.monotonic_ms()

    def _apply(self, requests: Sequence[Request], event: AnyRequestEvent) -> None:
        for request in requests:
            self.table.apply(request, event)
            self._watchers.wake(request.request_id)

    async def _record(self, events: Sequence[AnyRequestEvent]) -> None:
        """From the reserve: a full disk keeps no request open."""
        self._count(await self._append([event_message(event) for event in events], from_reserve=True))

    async def _append(self, messages: Sequence[Message], *, from_reserve: bool) -> list[Appended]:
        appended = await self._store.append(messages, durability=Durability.SYNCED, from_reserve=from_reserve)
        if not appended[-1].durable and isinstance(self._store, SyncedPosition):
            await self._store.wait_durable(appended[-1])
        return appended

    def _count(self, appended: Sequence[Appended]) -> None:
        for place in appended:
            if place.queue == REQUEST_QUEUE:
                self._applied.add(place.queue_offset)

    # ----------------------------------------------------------------------------------------------------------- finding

    async def _find(self, request_id: str) -> Request:
        known = self.table.get(request_id)
        if known is None and self.table.has_forgotten:
            known = await self._recall(request_id)
        if known is None:
            raise UnknownRequest(f"request {request_id[:200]} does not exist")
        return known

    async def _asked_before(self, look_up: str, key: RepeatableKey) -> Request | None:
        known = self.table.by_key(look_up)
        if known is None and self.table.has_forgotten:
            known = await self._recall(look_up)
        if known is None or self._clock.wall_ms() - known.opened.at_ms > key.window_ms:
            return None
        if known.opened.print != key.print:
            raise IdempotencyKeyReused
        return await self.get(known.request_id)

    async def _recall(self, sought: str) -> Request | None:
        """A closed request that memory has forgotten, by its id or its key, from its events in the log."""
        if not isinstance(self._store, KeyLookup):
            return None
        found = await self._store.find_messages(sought, topics=[REQUEST_QUEUE.topic], max_messages=_MOST_EVENTS)
        events = [read_event(message) for message in reversed(found)]
        opened = next((event for event in reversed(events) if isinstance(event, Opened)), None)
        if opened is None:
            return None
        known = self.table.get(opened.request_id)  # somebody else may have been quicker
        if known is not None:
            return known
        if opened.request_id != sought:
            return await self._find(opened.request_id)
        request = Request(opened, self._deadline_of(opened))
        for event in events:
            request.apply(event)
        # Whoever looks at it now may come again, and a reply to it is known to all.
        self.table.add(request)
        return request

    # ------------------------------------------------------------------------------------------------------------ replay

    def _load(self, dump: _Dump) -> None:
        self.table.has_forgotten = dump.has_forgotten
        for request_id, topic in dump.cancelled:
            self.table.note_cancelled(request_id, topic)
        for request in dump.requests:
            request.deadline_ms = self._deadline_of(request.opened)
            self.table.add(request)

    def _replay(self, event: AnyRequestEvent) -> None:
        if isinstance(event, Opened):
            self.table.add(Request(event, self._deadline_of(event)))
            return
        for request_id in request_events.requests_of(event):
            request = self.table.get(request_id)
            if request is not None:
                self.table.apply(request, event)

    def _deadline_of(self, opened: Opened) -> int:
        """On the monotonic clock; whatever the wall clock did, it is at most the timeout from now."""
        left_ms = opened.at_ms + opened.timeout_ms - self._clock.wall_ms()
        return self._clock.monotonic_ms() + max(0, min(left_ms, opened.timeout_ms))


def _closed(request: Request) -> RequestClosed:
    state = request.state.value if request.state is not RequestState.PENDING else RequestState.TIMED_OUT.value
    return RequestClosed(f"request {request.request_id} is closed: {state}", state=state)


def _lookup_key(topic: str, key: str) -> str:
    """What a request is looked up by; of one length, whatever the client has made up."""
    return sha256(f"sendRequest {topic} {key}".encode()).hexdigest()[:32]
