"""Requests and their outcomes. Pure, derived: replaying their events gives it back.

    pending    -> replied | timed_out | cancelled
    timed_out  -> timed_out, with a late reply: kept and marked, once

Every other event on a closed request changes nothing. Memory holds every pending request, and the
newest closed ones.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from delivery.requests.events import AnyRequestEvent, Cancelled, Opened, Replied, TimedOut
from storage.errors import RequestClosed


class RequestState(StrEnum):
    PENDING = "pending"
    REPLIED = "replied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Request(msgspec.Struct, array_like=True):
    """A request. `deadline_ms`: when it times out, on this process's monotonic clock.
    `closed_at_ms`: when it left the state pending.
    """

    opened: Opened
    deadline_ms: int
    state: RequestState = RequestState.PENDING
    closed_at_ms: int | None = None
    reply: Replied | None = None

    @property
    def request_id(self) -> str:
        return self.opened.request_id

    @property
    def expires_ms(self) -> int:
        return self.opened.at_ms + self.opened.timeout_ms

    @property
    def takes_a_reply(self) -> bool:
        return self.reply is None and self.state is not RequestState.CANCELLED

    def apply(self, event: AnyRequestEvent) -> None:
        if isinstance(event, Replied) and self.takes_a_reply:
            self.reply = event
            if self.state is RequestState.PENDING:
                self._close(RequestState.REPLIED, event.at_ms)
        elif self.state is RequestState.PENDING and isinstance(event, Cancelled | TimedOut):
            cancelled = isinstance(event, Cancelled)
            self._close(
                RequestState.CANCELLED if cancelled else RequestState.TIMED_OUT, event.at_ms
            )

    def _close(self, state: RequestState, at_ms: int) -> None:
        self.state = state
        self.closed_at_ms = at_ms


def closed(request: Request) -> RequestClosed:
    """The error for a reply to a closed request."""
    state = (
        request.state.value
        if request.state is not RequestState.PENDING
        else RequestState.TIMED_OUT.value
    )
    return RequestClosed(f"request {request.request_id} is closed: {state}", state=state)


class RequestTable:
    """The table of requests. `closed_kept`: maximum number of closed requests in memory.

    `cancelled_kept`: maximum number of cancelled requests whose messages are known not to be
    delivered.
    """

    def __init__(self, *, closed_kept: int, cancelled_kept: int) -> None:
        self._closed_kept = closed_kept
        self._cancelled_kept = cancelled_kept
        self._pending: dict[str, Request] = {}
        self._closed: OrderedDict[str, Request] = OrderedDict()
        self._by_key: dict[str, str] = {}
        self._due: list[tuple[int, str]] = []  # a heap; with closed ones in between
        self._cancelled: OrderedDict[str, str] = OrderedDict()  # the topic of each
        self._cancelled_in: Counter[str] = Counter()
        self.has_forgotten = False

    def __iter__(self) -> Iterator[Request]:
        """The pending requests, then the closed ones, oldest first."""
        yield from self._pending.values()
        yield from self._closed.values()

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def get(self, request_id: str) -> Request | None:
        return self._pending.get(request_id) or self._closed.get(request_id)

    def by_key(self, key: str) -> Request | None:
        request_id = self._by_key.get(key)
        return None if request_id is None else self.get(request_id)

    def due(self, now_ms: int, *, most: int) -> list[str]:
        """Pending requests whose deadline has passed; each is returned once, unless `requeue` adds
        it again.
        """
        found: list[str] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < most:
            _, request_id = heapq.heappop(self._due)
            if request_id in self._pending:
                found.append(request_id)
        return found

    def requeue(self, request_ids: Iterable[str]) -> None:
        """Return these requests from `due` again, since they could not be closed."""
        for request_id in request_ids:
            request = self._pending.get(request_id)
            if request is not None:
                heapq.heappush(self._due, (request.deadline_ms, request_id))

    def add(self, request: Request) -> None:
        if request.opened.key is not None:
            self._by_key[request.opened.key] = request.request_id
        if request.state is RequestState.PENDING:
            self._pending[request.request_id] = request
            heapq.heappush(self._due, (request.deadline_ms, request.request_id))
        else:
            self._keep_closed(request)

    def remove(self, request_id: str) -> None:
        """Forget a request that was never stored."""
        request = self._pending.pop(request_id, None)
        if request is not None and request.opened.key is not None:
            del self._by_key[request.opened.key]

    def apply(self, request: Request, event: AnyRequestEvent) -> None:
        """Change the table by an event of a request."""
        request.apply(event)
        if (
            request.state is not RequestState.PENDING
            and self._pending.pop(request.request_id, None) is not None
        ):
            self._keep_closed(request)

    # ----------------------------------------------------------------------------------------------
    # cancelled

    def is_cancelled(self, request_id: str) -> bool:
        return request_id in self._cancelled

    def has_cancelled(self, topic: str) -> bool:
        return topic in self._cancelled_in

    @property
    def cancelled(self) -> list[tuple[str, str]]:
        """(request, topic) of cancelled requests, oldest first."""
        return list(self._cancelled.items())

    def note_cancelled(self, request_id: str, topic: str) -> None:
        self._cancelled[request_id] = topic
        self._cancelled_in[topic] += 1
        while len(self._cancelled) > self._cancelled_kept:
            _, forgotten = self._cancelled.popitem(last=False)
            self._cancelled_in[forgotten] -= 1
            if not self._cancelled_in[forgotten]:
                del self._cancelled_in[forgotten]

    def _keep_closed(self, request: Request) -> None:
        if request.state is RequestState.CANCELLED and request.request_id not in self._cancelled:
            self.note_cancelled(request.request_id, request.opened.topic)
        self._closed[request.request_id] = request
        while len(self._closed) > self._closed_kept:
            _, forgotten = self._closed.popitem(last=False)
            self.has_forgotten = True
            key = forgotten.opened.key
            if key is not None and self._by_key.get(key) == forgotten.request_id:
                del self._by_key[key]
