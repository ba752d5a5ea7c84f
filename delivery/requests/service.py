"""Request and reply, over a `MessageStore`, as one object: a request is a message, and its reply is
found by the request's id.

    send.py      sends a request, once for its key
    reply.py     stores its reply, in time or late
    table.py     requests and their results, in memory
    journal.py   the table and its log, and snapshots
    events.py    the records of that log
    recent_replies.py  replies that waiting clients are about to read

What happens to a request is one append each: the request with its opening, the reply with its mark
and the acknowledgement of the request's message. The first one wins: a reply, the timeout or a
cancel; a late reply is kept beside the timeout.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from delivery.options import RequestOptions
from delivery.requests import events
from delivery.requests.events import REPLY_QUEUE, Cancelled, ReplyBody, TimedOut
from delivery.requests.journal import RequestJournal
from delivery.requests.recent_replies import RecentReplies
from delivery.requests.reply import AckBeside, Replier
from delivery.requests.send import Outcome, RepeatableKey, Requester
from delivery.requests.table import Request, RequestState, closed
from storage.clock import Clock
from storage.errors import MessageGone, OffsetExpired
from storage.identifiers import Identifiers
from storage.keyed_locks import KeyedLocks
from storage.message import Durability, Message
from storage.store import MessageStore, find_message

_TIMED_OUT_TOGETHER = 100


class Requests:
    """Requests and their replies. Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        identifiers: Identifiers,
        options: RequestOptions,
        *,
        ack_beside: AckBeside,
    ) -> None:
        """`ack_beside`: see `Replier`."""
        self._store = store
        self._clock = clock
        self._journal = RequestJournal(store, clock, options)
        self._locks = KeyedLocks()
        self._requester = Requester(self._journal, self._locks, identifiers, options)
        self._recent = RecentReplies()
        self._replier = Replier(
            self._journal, self._locks, identifiers, self._recent, ack_beside=ack_beside
        )
        self.table = self._journal.table

    # ----------------------------------------------------------------------------------------------
    # life cycle

    async def start(self) -> int:
        """Restore the table from the last snapshot and the log; the number of events replayed."""
        return await self._journal.start()

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events. The number of bytes; 0 if
        nothing has changed.
        """
        return await self._journal.save_snapshot()

    def stop(self) -> None:
        """End all waits for a reply."""
        self._journal.conditions.notify_all()

    async def drain(self) -> None:
        """Return when every change that was begun has ended."""
        await self._locks.drain()

    async def run_once(self) -> int:
        """Close the requests whose deadline has passed; their number."""
        count = 0
        while due := self.table.due(self._clock.monotonic_ms(), most=_TIMED_OUT_TOGETHER):
            try:
                count += await self._locks.shielded(self._time_out(due))
            finally:
                self.table.requeue(due)
        return count

    # ---------------------------------------------------------------------------------------------
    # asking and replying

    async def open(
        self,
        topic: str,
        make: Callable[[], Message],
        *,
        timeout_ms: int,
        key: RepeatableKey | None,
        durability: Durability | None,
    ) -> Outcome:
        """Store a request, once for its key. See `Requester.open`."""
        outcome = await self._requester.open(
            topic, make, timeout_ms=timeout_ms, key=key, durability=durability
        )
        return (
            outcome._replace(request=await self.get(outcome.request.request_id))
            if outcome.replayed
            else outcome
        )

    async def reply(
        self,
        request_id: str,
        body: ReplyBody,
        *,
        handle: str | None,
        key: str | None,
        fingerprint: str,
    ) -> Outcome:
        """Store the reply and acknowledge the request's message. See `Replier.reply`."""
        return await self._replier.reply(
            request_id, body, handle=handle, key=key, fingerprint=fingerprint
        )

    async def get(self, request_id: str) -> Request:
        """The request in its present state. Raises UnknownRequest."""
        request = await self._journal.find(request_id)
        if self._journal.is_due(request):
            await self._locks.shielded(self._time_out([request_id]))
        return request

    def call_when_closed(self, request_id: str, call: Callable[[], None]) -> None:
        """Call it once, when a pending request is closed, or the service stops."""
        self._journal.conditions.call_on_change(request_id, call)

    def forget_call(self, request_id: str, call: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._journal.conditions.forget_call(request_id, call)

    async def read_reply(self, request: Request) -> Message | None:
        """The reply; None if there is none. Raises MessageGone if retention has deleted it."""
        if request.reply is None:
            return None
        recent = self._recent.take(request.request_id)
        first = self._store.bounds(REPLY_QUEUE).first
        if recent is not None and request.reply.from_offset >= first:
            return recent
        try:
            found = await find_message(
                self._store, REPLY_QUEUE, request.reply.from_offset, request.reply.message_id
            )
        except OffsetExpired:
            found = None
        if found is None:
            raise MessageGone(f"the reply to {request.request_id} is no longer kept")
        return found

    async def cancel(self, request_id: str) -> Request:
        """Cancel the request, so that its message is not delivered any more. Durable on return.
        Raises UnknownRequest, RequestClosed.
        """
        return await self._locks.shielded(self._cancel(request_id))

    def is_cancelled_request(self, message: Message) -> bool:
        """Whether the message is that of a cancelled request."""
        asked = events.asked_by(message)
        return asked is not None and self.table.is_cancelled(asked.request_id)

    def has_cancelled_request(self, topic: str) -> bool:
        return self.table.has_cancelled(topic)

    async def _time_out(self, request_ids: Sequence[str]) -> int:
        async with AsyncExitStack() as locks:
            for request_id in sorted(request_ids):
                await locks.enter_async_context(self._locks.lock(request_id))
            known = [request for one in request_ids if (request := self.table.get(one)) is not None]
            due = [request for request in known if self._journal.is_due(request)]
            if due:
                event = TimedOut(
                    request_ids=[request.request_id for request in due], at_ms=self._clock.wall_ms()
                )
                await self._journal.record([event])
                self._journal.apply(due, event)
            return len(due)

    async def _cancel(self, request_id: str) -> Request:
        async with self._locks.lock(request_id):
            request = await self._journal.find(request_id)
            if request.state is RequestState.CANCELLED:
                return request
            if request.state is not RequestState.PENDING or self._journal.is_due(request):
                raise closed(request)
            event = Cancelled(request_id=request_id, at_ms=self._clock.wall_ms())
            await self._journal.record([event])
            self._journal.apply([request], event)
            return request
