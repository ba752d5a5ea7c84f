"""Opens requests: the message and its opening in one append, once for each idempotency key."""

from collections.abc import Callable
from typing import NamedTuple

from delivery.options import RequestOptions
from delivery.requests import events
from delivery.requests.events import Opened, event_message
from delivery.requests.journal import RequestJournal
from delivery.requests.table import Request
from storage.errors import Backpressure
from storage.idempotency import KeysInProgress, check_fingerprint, lookup_key
from storage.identifiers import Identifiers
from storage.keyed_locks import KeyedLocks
from storage.message import Durability, Message


class RepeatableKey(NamedTuple):
    """An idempotency key. `fingerprint`: of the request body; `window_ms`: how long the key is
    remembered.
    """

    key: str
    fingerprint: str
    window_ms: int


class Outcome(NamedTuple):
    """A stored request. `replayed`: it was stored by an earlier call with the same key."""

    request: Request
    replayed: bool


class Requester:
    """Stores requests, each once for its key. Event loop only."""

    def __init__(
        self,
        journal: RequestJournal,
        locks: KeyedLocks,
        identifiers: Identifiers,
        options: RequestOptions,
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._locks = locks
        self._identifiers = identifiers
        self._options = options
        self._running = KeysInProgress()

    async def open(
        self,
        topic: str,
        make: Callable[[], Message],
        *,
        timeout_ms: int,
        key: RepeatableKey | None,
        durability: Durability | None,
    ) -> Outcome:
        """Store a request, once for its key. `make`: makes its message, when it is needed.

        Raises IdempotencyKeyReused, IdempotencyInProgress, Backpressure, and what `make` and
        `append` raise.
        """
        look_up = None if key is None else lookup_key(f"sendRequest {topic}", key.key)
        if look_up is None or key is None:
            return Outcome(
                await self._locks.shielded(
                    self._open(topic, make, timeout_ms, None, None, durability)
                ),
                False,
            )
        self._running.begin(look_up)
        try:
            known = await self._asked_before(look_up, key)
            if known is not None:
                return Outcome(known, replayed=True)
            # Here and not in the change itself: who leaves while it is stored leaves the key to the
            # table.
            storing = self._open(topic, make, timeout_ms, look_up, key.fingerprint, durability)
            return Outcome(await self._locks.shielded(storing), replayed=False)
        finally:
            self._running.end(look_up)

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
        if self._journal.table.pending_count >= limit:
            raise Backpressure(
                f"{self._journal.table.pending_count} requests wait for their replies, the limit "
                f"is {limit}"
            )
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
            fingerprint=fingerprint,
        )
        request = Request(opened, self._clock.monotonic_ms() + timeout_ms)
        asking = events.as_request(
            message, request_id, timeout_ms=timeout_ms, reply_by_ms=request.expires_ms
        )
        async with self._locks.lock(request_id):
            # Known before it is stored: a consumer may reply before the one who asks has been
            # answered.
            self._journal.table.add(request)
            self._journal.unstored.add(request_id)
            try:
                appended = await self._store.append(
                    [asking, event_message(opened)], durability=durability
                )
            except BaseException:
                self._journal.table.remove(request_id)
                raise
            finally:
                self._journal.unstored.discard(request_id)
            self._journal.count(appended)
        return request

    async def _asked_before(self, look_up: str, key: RepeatableKey) -> Request | None:
        known = self._journal.table.by_key(look_up)
        if known is None and self._journal.table.has_forgotten:
            known = await self._journal.recall(look_up)
        if known is None or self._clock.wall_ms() - known.opened.at_ms > key.window_ms:
            return None
        check_fingerprint(known.opened, key.fingerprint, key=key.key)
        return known
