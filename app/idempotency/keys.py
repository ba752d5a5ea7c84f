"""Idempotency keys of sends, and the responses that their requests got.

Derived from a topic of EscrowMQ's own in the log.

A keyed request appends one small message more, in the same unit as its own: the key, the
fingerprint of the request, its status, and for each message where to begin to look for it. So a
start replays only the keyed requests since the last snapshot, and a receipt is looked up when its
request is really repeated. (A begin needs none of this: its half message carries the key.)

Memory holds the newest keys (`stored_responses.py`). An older one is looked up in the log, but only
where the window of its topic reaches back further than memory does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from app.idempotency.stored_responses import (
    KEPT_BYTES,
    MessagePlace,
    ResponseTable,
    StoredResponse,
    pack,
    unpack,
)
from app.problems import Problem
from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import IdempotencyInProgress, UnknownQueue
from storage.formats import parts
from storage.formats.names import IDEMPOTENCY_TOPIC
from storage.idempotency import KeysInProgress, check_fingerprint, lookup_key
from storage.message import Appended, Message, QueueId, StoredMessage
from storage.store import KeyQuery, MessageStore, find_message

SNAPSHOT = "sent_keys"
_SNAPSHOT_SLICE = 5_000
_QUEUE = QueueId(IDEMPOTENCY_TOPIC, 0)


class KeyedRequest(NamedTuple):
    """`scope`: the operation and topic that the key belongs to; `fingerprint`: of what was sent."""

    scope: str
    key: str
    fingerprint: str


Append = Callable[[Sequence[Message]], Awaitable[list[Appended]]]

_decoder = msgspec.json.Decoder(StoredResponse)


class IdempotencyKeys:
    """Idempotency keys of stored sends, with their responses. Event loop only."""

    def __init__(self, store: MessageStore, clock: Clock, *, kept_bytes: int = KEPT_BYTES) -> None:
        """`kept_bytes`: of memory, that the newest keys may take; older keys are looked up in the
        log.
        """
        self._store = store
        self._clock = clock
        self._table = ResponseTable(kept_bytes)
        self._running = KeysInProgress()
        self._tasks: set[asyncio.Task[list[Appended]]] = set()
        self._log = DerivedTable(store, SNAPSHOT, {_QUEUE: OnDamage.REFUSE})

    async def start(self) -> None:
        """Give the table back from the last snapshot and the log."""
        await self._store.create_topic(IDEMPOTENCY_TOPIC, queue_count=1)
        data = await self._log.load()
        for part in parts.read(data) if data is not None else ():
            for response in unpack(part):
                self._table.keep(response)
        async for response in self._log.replay(_QUEUE, _response_of):
            self._table.keep(response)
        if self._log.positions()[_QUEUE] > len(self._table):
            self._table.note_forgotten()

    async def lookup(self, request: KeyedRequest, *, window_ms: int) -> StoredResponse | None:
        """The response to the request that this one repeats, or None.

        A caller that gets None and begins the append before it awaits anything else is the only one
        with this key. Raises IdempotencyKeyReused, IdempotencyInProgress.
        """
        identity = (request.scope, request.key)
        self._running.check(identity)
        response = self._table.get(*identity)
        from_ms = self._clock.wall_ms() - window_ms
        if response is None and self._reaches_back_further(from_ms):
            self._running.begin(identity)
            try:
                response = await self._recall(request, from_ms)
            finally:
                self._running.end(identity)
        if response is None or response.stored_at_ms < from_ms:
            return None
        check_fingerprint(response, request.fingerprint, key=request.key)
        return response

    def _reaches_back_further(self, from_ms: int) -> bool:
        """May there be a key of that time or later that memory has forgotten?"""
        if not self._table.has_forgotten:
            return False
        oldest = self._table.oldest
        return oldest is None or oldest.stored_at_ms >= from_ms

    async def _recall(self, request: KeyedRequest, from_ms: int) -> StoredResponse | None:
        """Look up a response in the log that memory has forgotten."""
        marks = await self._store.find_messages(
            KeyQuery(
                lookup_key(request.scope, request.key),
                topics=[IDEMPOTENCY_TOPIC],
                from_ms=max(0, from_ms),
                older_than=self._table.forgotten_end or None,
                max_messages=1,
            )
        )
        return _response_of(marks[0]) if marks else None

    def append(
        self,
        request: KeyedRequest,
        topic: str,
        messages: Mapping[int, Message],
        append: Append,
        *,
        status: int = 201,
        refused: Mapping[int, Problem] | None = None,
    ) -> Awaitable[list[Appended]]:
        """Append the messages (by entry of the request) and, in the same unit, their key and the
        response.

        It has begun when this returns: a repeated request is refused from now on.
        """
        self._running.begin((request.scope, request.key))
        task = asyncio.ensure_future(
            self._append(request, topic, messages, append, status, dict(refused or {}))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The append goes on when the sender has gone, and its key must be known then.
        return asyncio.shield(task)

    async def drain(self) -> None:
        """Return once every request that was begun has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def find(self, response: StoredResponse) -> list[tuple[StoredMessage, Appended]]:
        """The messages of an earlier send, with their places and durability by now.

        Raises IdempotencyInProgress while they are not visible yet, which only buffered ones are
        not.
        """
        found = []
        for message in response.messages:
            queue = QueueId(message.topic or response.topic, message.queue_number)
            stored = await self._find(queue, message.from_offset, message.message_id)
            if stored is None:
                raise IdempotencyInProgress(
                    f"message {message.message_id} is stored, but cannot be read yet"
                )
            place = Appended(
                queue,
                stored.queue_offset,
                stored.log_offset,
                stored.stored_at_ms,
                self._store.sureness_of(stored.log_offset),
            )
            found.append((stored, place))
        return found

    async def _find(
        self, queue: QueueId, from_offset: int, message_id: str
    ) -> StoredMessage | None:
        try:
            is_before = from_offset < (await self._store.offsets(queue)).first
        except UnknownQueue:
            is_before = True
        if is_before:
            # Its topic may have been deleted and created again: the request was carried out all the
            # same.
            found = await self._store.find_messages(KeyQuery(
                message_id, topics=[queue.topic], by_id=True, with_deleted=True, max_messages=1
            ))  # fmt: skip
            if found:
                return found[0]
        return await find_message(self._store, queue, from_offset, message_id)

    async def save_snapshot(self) -> int:
        """Save the table. The number of bytes; 0 if nothing has changed."""

        def encode() -> Iterator[bytes]:
            packed = self._table.packed()
            slices = range(0, len(packed), _SNAPSHOT_SLICE)
            yield parts.head(len(slices))
            for at in slices:
                yield parts.framed(pack(packed[at : at + _SNAPSHOT_SLICE]))

        return await self._log.save_snapshot(encode)

    async def _append(
        self,
        request: KeyedRequest,
        topic: str,
        messages: Mapping[int, Message],
        append: Append,
        status: int,
        refused: dict[int, Problem],
    ) -> list[Appended]:
        try:
            now_ms = self._clock.wall_ms()
            places = [
                MessagePlace(
                    one.message_id,
                    one.queue.number,
                    (await self._store.offsets(one.queue)).end,
                    entry,
                    "" if one.queue.topic == topic else one.queue.topic,
                )
                for entry, one in messages.items()
            ]
            response = StoredResponse(*request, topic, now_ms, status, places, refused)
            body, key = msgspec.json.encode(response), lookup_key(request.scope, request.key)
            mark = Message(
                queue=_QUEUE, message_id="", body=body, born_at_ms=now_ms, key=key, tag="sent"
            )
            *appended, marked = await append([*messages.values(), mark])
            self._table.keep(_stored(response, marked))
            self._log.count([marked])
            return appended
        finally:
            self._running.end((request.scope, request.key))


def _response_of(mark: StoredMessage) -> StoredResponse:
    return _stored(_decoder.decode(mark.body), mark)


def _stored(response: StoredResponse, mark: Appended | StoredMessage) -> StoredResponse:
    """The response with the time of the log, which does not go back when the clock does: a key does
    not expire sooner for that.
    """
    return msgspec.structs.replace(
        response, log_offset=mark.log_offset, stored_at_ms=mark.stored_at_ms
    )
