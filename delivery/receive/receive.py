"""Receives: let messages be chosen, lease them, note it in the log, answer; wait where there is
nothing.

A grant is answered once it is in the page cache: it survives a killed process. A power cut may take
it with it; then its messages are delivered again, for the same attempt and under another lease: no
count of attempts goes back, none is lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import msgspec

from delivery.groups import GroupRules
from delivery.leases import receipt_handle, retry_message
from delivery.leases.attempts import Attempt
from delivery.leases.claim import Claim, ClaimedMessage
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue_reader import QueueReader
from delivery.leases.waiters import Waiters
from delivery.receive.group_queues import GroupQueues
from delivery.receive.select import CancelledRequests, MessageSelector, has_passed_many
from delivery.settle.lease_ends import LeaseEnds
from storage.errors import GroupActive
from storage.formats.stored_record import Found, body_bytes_of, message_of
from storage.identifiers import Random
from storage.message import Durability, QueueId, StoredMessage
from storage.opening import opened_to_show


class Room(Protocol):
    """Memory for what a receive answers with."""

    def reserve(self, byte_count: int) -> int:
        """Reserve so many bytes, or fewer, before messages are read. Raises an error of its own."""

    async def fit(self, found: Sequence[Found]) -> None:
        """Raise an error of its own unless there is room for these messages; nothing is leased
        then.
        """


class Request(NamedTuple):
    """`attempt_id`: the same one again is the same receive, as long as its leases last."""

    max_messages: int
    max_bytes: int
    lease_ms: int
    wait_ms: int = 0
    worker: str | None = None
    attempt_id: str | None = None
    room: Room | None = None


class LeasedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, leased until `expires_at_ms` (wall)."""

    found: Found
    attempt: int
    handle: str
    expires_at_ms: int

    @property
    def message(self) -> StoredMessage:
        return message_of(self.found)


class Receiver:
    """Claims messages for a consumer group. Event loop only."""

    def __init__(
        self,
        journal: LeaseJournal,
        queues: GroupQueues,
        ends: LeaseEnds,
        waiters: Waiters,
        randomness: Random,
        cancelled_requests: CancelledRequests,
        *,
        has_members: Callable[[str], bool],
    ) -> None:
        """`has_members`: of a group; what its members own is not leased."""
        self._has_members = has_members
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._ends = ends
        self._waiters = waiters
        self._randomness = randomness
        self._queues = queues
        self._selector = MessageSelector(journal, queues, ends, cancelled_requests)
        self._reader = QueueReader(journal.store)
        self._locks: dict[str, asyncio.Lock] = {}
        self._granting: dict[tuple[str, str], asyncio.Event] = {}

    def claim_lock(self, group: str) -> asyncio.Lock:
        """Held while messages of the group are chosen: who moves its positions holds it too."""
        return self._locks.setdefault(group, asyncio.Lock())

    async def check_no_leases(self, group: str) -> None:
        """Raises GroupActive where messages of the group are leased."""
        async with self.claim_lock(group):
            leases = self._journal.table.find(group)
            count = 0 if leases is None else leases.count_held()
            if count:
                raise GroupActive(f"{count} messages of group {group} are leased")

    async def receive(self, group: str, rules: GroupRules, request: Request) -> list[LeasedMessage]:
        """Lease the messages that are there now, if any.

        Raises GroupActive, UnknownGroup, and what `append` and `read` raise.
        """
        leases = self._journal.table.group(group)
        if leases.has_due(self._clock.monotonic_ms()):
            await self._ends.end_due(leases, rules)
        if request.attempt_id is None:
            return await self._grant(leases, rules, request)
        return await self._receive_once(leases, rules, request, request.attempt_id)

    async def again(self, group: str, attempt_id: str) -> list[LeasedMessage]:
        """The messages that an earlier receive of this attempt holds still, in the same leases."""
        return await self._again(self._journal.table.group(group), attempt_id)

    async def _receive_once(
        self, leases: GroupLeases, rules: GroupRules, request: Request, attempt_id: str
    ) -> list[LeasedMessage]:
        """Receive; another call of the same attempt waits until this one is in the log."""
        name = (leases.group, attempt_id)
        while True:
            again = await self._again(leases, attempt_id, request.room, request.max_bytes)
            if again:
                return again
            granting = self._granting.get(name)
            if granting is None:
                break
            await granting.wait()
        granting = self._granting[name] = asyncio.Event()
        try:
            found = await self._grant(leases, rules, request)
        finally:
            del self._granting[name]
            granting.set()
        if found:
            self._waiters.wake_twins(*name)
        return found

    async def begin_wait(
        self, group: str, rules: GroupRules, request: Request, call: Callable[[], None]
    ) -> None:
        """Call `call` once when it may be worth receiving again, which may be before this
        returns. Raises UnknownGroup.
        """
        self._journal.check_exists(group)
        leases = self._journal.table.group(group)
        queues: list[tuple[QueueId, int]] = []
        for queue in await self._queues.of(leases, rules):
            end = (await self._store.offsets(queue.queue)).end
            if queue.slots.cursor < end and not has_passed_many(queue, rules):
                # a receive looks at so much and no more: it goes on after others had their turn
                await asyncio.sleep(0)
                call()
                return
            queues.append((queue.queue, end))
        self._journal.check_current(leases)
        self._waiters.add(group, queues, call, attempt_id=request.attempt_id)

    def end_wait(self, group: str, call: Callable[[], None]) -> None:
        """Do not call `call` any more.

        Where it was called, what it was called for is for another consumer.
        """
        self._waiters.remove(group, call)

    async def begin(self, group: str, rules: GroupRules) -> None:
        """Let a group that starts at the end begin there.

        Before the first receive by these rules. Durable on return.
        """
        async with self.claim_lock(group):
            await self._queues.begin(self._journal.table.group(group), rules)

    # ----------------------------------------------------------------------------------------------
    # granting

    async def _grant(
        self, leases: GroupLeases, rules: GroupRules, request: Request
    ) -> list[LeasedMessage]:
        group = leases.group
        with ExitStack() as claims:  # the claim outlasts the lock
            async with self.claim_lock(group):
                self._journal.check_current(leases)
                if self._has_members(group):
                    raise GroupActive(f"members share the queues of group {group}")
                claim = claims.enter_context(self._claim(leases, request))
                await self._selector.select(claim, rules)
                if request.room is not None:
                    await request.room.fit([one.found for one in claim.messages])
            if not claim.messages and not claim.arrived:
                return []
            event = claim.event(worker=request.worker, attempt_id=request.attempt_id)
            await self._journal.append([], [event], Durability.BUFFERED, applies=False)
        if event.attempt_id is not None:
            places = [(one.queue.index, one.offset) for one in claim.messages]
            attempt = Attempt(claim.lease, claim.until_ms, claim.deadline_ms, places)
            claim.leases.attempts.note(
                event.attempt_id, attempt, claim.deadline_ms - request.lease_ms
            )
        if claim.is_full:
            self._waiters.wake(group)  # there may be more
        return self._leased(claim.messages, claim.lease, claim.until_ms)

    def _claim(self, leases: GroupLeases, request: Request) -> Claim:
        max_bytes = request.max_bytes
        if request.room is not None:
            max_bytes = request.room.reserve(max_bytes)
        return Claim(
            leases,
            self._journal.now(),
            lease=self._randomness.getrandbits(63) or 1,
            lease_ms=request.lease_ms,
            max_messages=request.max_messages,
            max_bytes=max_bytes,
            undone=lambda: self._waiters.wake(leases.group),
        )

    def _leased(
        self, taken: list[ClaimedMessage], lease: int, until_ms: int
    ) -> list[LeasedMessage]:
        handles = receipt_handle.encode([(one.queue.hash, one.offset) for one in taken], lease)
        return [
            LeasedMessage(
                retry_message.as_delivered(one.message) if one.queue.is_retry else one.found,
                one.attempt,
                handle,
                until_ms,
            )
            for one, handle in zip(taken, handles, strict=True)
        ]

    async def _again(
        self,
        leases: GroupLeases,
        attempt_id: str,
        room: Room | None = None,
        max_bytes: int = 0,
    ) -> list[LeasedMessage]:
        """The messages that an earlier receive of this attempt holds still, in the same leases.

        `max_bytes`: of the room that is reserved at first. What is read beyond it is counted each
        time it has doubled, so that many who ask again read no more than there is room for.
        """
        attempt = leases.attempts.find(attempt_id)
        if attempt is None:
            return []
        now = self._journal.now()
        found: list[LeasedMessage] = []
        counted_bytes = 0 if room is None else room.reserve(max_bytes)
        read_bytes = 0
        for queue, offset in leases.attempts.still_leased(attempt, now.monotonic_ms):
            slot = queue.slots.get(offset)
            message = await self._reader.read_one(queue.queue, offset)
            if message is not None:
                (message,) = await opened_to_show([message], 0)
                until_ms = attempt.until_ms
                if slot.deadline_ms != attempt.deadline_ms:
                    until_ms = now.wall_ms + slot.deadline_ms - now.monotonic_ms
                found += self._leased(
                    [ClaimedMessage(queue, offset, slot.attempt, message)], attempt.lease, until_ms
                )
                read_bytes += body_bytes_of(message)
                if room is not None and read_bytes > counted_bytes:
                    await room.fit([one.found for one in found])
                    counted_bytes = 2 * read_bytes
        if room is not None:
            await room.fit([one.found for one in found])
        if not found and leases.attempts.find(attempt_id) is attempt:
            leases.attempts.forget(attempt_id)
        return found
