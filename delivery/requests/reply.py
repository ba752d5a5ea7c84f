"""Replies to requests: the reply, the new state of the request, and the acknowledgement of its
message, in one append.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from delivery.requests import events
from delivery.requests.events import (
    REPLY_QUEUE,
    AnyRequestEvent,
    Replied,
    ReplyBody,
    TimedOut,
    event_message,
)
from delivery.requests.journal import RequestJournal
from delivery.requests.recent_replies import RecentReplies
from delivery.requests.send import Outcome
from delivery.requests.table import Request, RequestState, closed
from storage.idempotency import check_fingerprint
from storage.identifiers import Identifiers
from storage.keyed_locks import KeyedLocks
from storage.message import Appended, Message

AckBeside = Callable[[str, str, Callable[[bool], Sequence[Message]]], Awaitable[list[Appended]]]


class Replier:
    """Stores replies, one for each request. Event loop only."""

    def __init__(
        self,
        journal: RequestJournal,
        locks: KeyedLocks,
        identifiers: Identifiers,
        recent: RecentReplies,
        *,
        ack_beside: AckBeside,
    ) -> None:
        """`ack_beside(handle, message_id, make)`: append what `make` makes and, in the same unit,
        the acknowledgement of this message; `make` is called with whether it is still leased under
        the handle.
        """
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._locks = locks
        self._identifiers = identifiers
        self._recent = recent
        self._ack_beside = ack_beside

    async def reply(
        self,
        request_id: str,
        body: ReplyBody,
        *,
        handle: str | None,
        key: str | None,
        fingerprint: str,
    ) -> Outcome:
        """Store the reply and acknowledge the request's message, in one step. Durable on return.

        A reply to a request that has timed out is marked as late. The same key again returns the
        first result. Raises UnknownRequest, RequestClosed, IdempotencyKeyReused, and what `append`
        raises.
        """
        return await self._locks.shielded(self._reply(request_id, body, handle, key, fingerprint))

    async def _reply(
        self,
        request_id: str,
        body: ReplyBody,
        handle: str | None,
        key: str | None,
        fingerprint: str,
    ) -> Outcome:
        async with self._locks.lock(request_id):
            request = await self._journal.find(request_id)
            if not request.takes_a_reply:
                return self._replied_before(request, key, fingerprint)
            now_ms = self._clock.wall_ms()
            is_due = self._journal.is_due(request)
            first: list[AnyRequestEvent] = (
                [TimedOut(request_ids=[request_id], at_ms=now_ms)] if is_due else []
            )
            message_id = self._identifiers.new("msg")
            reply = events.reply_message(
                body,
                request_id,
                message_id=message_id,
                timeout_ms=request.opened.timeout_ms,
                now_ms=now_ms,
            )
            from_offset = (await self._store.offsets(REPLY_QUEUE)).end
            event = Replied(
                request_id=request_id,
                message_id=message_id,
                from_offset=from_offset,
                at_ms=now_ms,
                late=is_due or request.state is RequestState.TIMED_OUT,
                key=key,
                fingerprint=fingerprint,
            )

            def make(settled: bool) -> list[Message]:
                nonlocal event
                event = msgspec.structs.replace(event, settled=settled)
                return [reply, *map(event_message, [*first, event])]

            if handle is None:
                appended = await self._journal.append(make(False), from_reserve=False)
            else:
                appended = await self._ack_beside(handle, request.opened.message_id, make)
            self._journal.count(appended)
            event = msgspec.structs.replace(event, from_offset=appended[0].queue_offset)
            if self._journal.conditions.is_awaited(request_id):
                self._recent.keep(request_id, reply)
            for one in [*first, event]:
                self._journal.apply([request], one)
            return Outcome(request, replayed=False)

    @staticmethod
    def _replied_before(request: Request, key: str | None, fingerprint: str) -> Outcome:
        if key is None or request.reply is None or request.reply.key != key:
            raise closed(request)
        check_fingerprint(request.reply, fingerprint, key=key)
        return Outcome(request, replayed=True)
