"""The table of requests and the log that it is derived from: events, snapshots, and what memory has
forgotten.
"""

from collections.abc import Iterator, Sequence

import msgspec

from delivery.options import RequestOptions
from delivery.requests import events
from delivery.requests.events import (
    REPLY_QUEUE,
    REQUEST_QUEUE,
    AnyRequestEvent,
    Opened,
    event_message,
    read_event,
)
from delivery.requests.table import Request, RequestState, RequestTable
from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import UnknownRequest
from storage.keyed_conditions import KeyedConditions
from storage.message import Appended, Durability, Message
from storage.store import KeyQuery, MessageStore

SNAPSHOT = "requests"
_MOST_EVENTS = 8  # that one request has: opened, timed out, replied late


class _Dump(msgspec.Struct, array_like=True):
    requests: list[Request]
    cancelled: list[tuple[str, str]]
    has_forgotten: bool


_dump_decoder = msgspec.msgpack.Decoder(_Dump)


class RequestJournal:
    """Records every change of the table of requests in the log. Event loop only."""

    def __init__(self, store: MessageStore, clock: Clock, options: RequestOptions) -> None:
        self.store = store
        self.clock = clock
        self.table = RequestTable(
            closed_kept=options.closed_kept, cancelled_kept=options.cancelled_kept
        )
        self.conditions = KeyedConditions()  # for a request to leave its state
        self.unstored: set[str] = set()  # requests that are known before they are in the log
        self._log = DerivedTable(store, SNAPSHOT, {REQUEST_QUEUE: OnDamage.REFUSE})

    async def start(self) -> int:
        """Restore the table from the last snapshot and the log; the number of events replayed."""
        for queue in (REQUEST_QUEUE, REPLY_QUEUE):
            await self.store.create_topic(queue.topic, queue_count=1)
        data = await self._log.load()
        if data is not None:
            self._load(_dump_decoder.decode(data))
        count = 0
        async for event in self._log.replay(REQUEST_QUEUE, read_event):
            self._replay(event)
            count += 1
        return count

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events.

        The number of bytes; 0 if nothing has changed.
        """

        def encode() -> Iterator[bytes]:
            stored = [request for request in self.table if request.request_id not in self.unstored]
            yield msgspec.msgpack.encode(
                _Dump(stored, self.table.cancelled, self.table.has_forgotten)
            )

        return await self._log.save_snapshot(encode)

    # ----------------------------------------------------------------------------------------------
    # changes

    def is_due(self, request: Request) -> bool:
        """Whether the deadline of a pending request has passed."""
        return (
            request.state is RequestState.PENDING
            and request.deadline_ms <= self.clock.monotonic_ms()
        )

    def apply(self, requests: Sequence[Request], event: AnyRequestEvent) -> None:
        """Apply an event that is in the log."""
        for request in requests:
            self.table.apply(request, event)
            self.conditions.notify(request.request_id)

    async def record(self, events: Sequence[AnyRequestEvent]) -> None:
        """Append events. Uses the reserve, so that requests are closed on a full disk, too."""
        self.count(await self.append([event_message(event) for event in events], from_reserve=True))

    async def append(self, messages: Sequence[Message], *, from_reserve: bool) -> list[Appended]:
        """Append messages and events. Durable on return."""
        return await self._log.append(
            messages, durability=Durability.SYNCED, from_reserve=from_reserve
        )

    def count(self, appended: Sequence[Appended]) -> None:
        """Note that the table reflects these events, of those that were appended."""
        self._log.count(appended)

    # ----------------------------------------------------------------------------------------------
    # finding

    async def find(self, request_id: str) -> Request:
        """The request, from memory or the log. Raises UnknownRequest."""
        known = self.table.get(request_id)
        if known is None and self.table.has_forgotten:
            known = await self.recall(request_id)
        if known is None:
            raise UnknownRequest(f"request {request_id[:200]} does not exist")
        return known

    async def recall(self, sought: str) -> Request | None:
        """A closed request that is no longer in memory, by its id or its key, from its events in
        the log.
        """
        found = await self.store.find_messages(
            KeyQuery(sought, topics=[REQUEST_QUEUE.topic], max_messages=_MOST_EVENTS)
        )
        events = [read_event(message) for message in reversed(found)]
        opened = next((event for event in reversed(events) if isinstance(event, Opened)), None)
        if opened is None:
            return None
        known = self.table.get(opened.request_id)  # another reply may have been quicker
        if known is not None:
            return known
        if opened.request_id != sought:
            return await self.find(opened.request_id)
        request = Request(opened, self.deadline_of(opened))
        for event in events:
            request.apply(event)
        # A client that looks at it now may do so again, and a reply to it is known to all.
        self.table.add(request)
        return request

    # ----------------------------------------------------------------------------------------------
    # replay

    def _load(self, dump: _Dump) -> None:
        self.table.has_forgotten = dump.has_forgotten
        for request_id, topic in dump.cancelled:
            self.table.note_cancelled(request_id, topic)
        for request in dump.requests:
            request.deadline_ms = self.deadline_of(request.opened)
            self.table.add(request)

    def _replay(self, event: AnyRequestEvent) -> None:
        if isinstance(event, Opened):
            self.table.add(Request(event, self.deadline_of(event)))
            return
        for request_id in events.requests_of(event):
            request = self.table.get(request_id)
            if request is not None:
                self.table.apply(request, event)

    def deadline_of(self, opened: Opened) -> int:
        """The deadline on the monotonic clock; at most the timeout from now, even if the wall clock
        was set.
        """
        left_ms = opened.at_ms + opened.timeout_ms - self.clock.wall_ms()
        return self.clock.monotonic_ms() + max(0, min(left_ms, opened.timeout_ms))
