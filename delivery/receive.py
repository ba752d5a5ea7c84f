"""Receiving: choose queues, read, lend, note it in the log, answer; wait where there is nothing.

A grant is answered once it is in the page cache: it survives a killed process. A power cut may take it with it; then its
messages are handed out again, for the same attempt and under another lease: no count of attempts goes back, none is lost.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import structlog

from delivery import receipt, retry_message
from delivery.filtered_read import read_matching
from delivery.filters import Filter
from delivery.groups import GroupRules, Start, filter_of
from delivery.journal import LeaseJournal
from delivery.lease_events import Leased, Position, Reset
from delivery.lease_table import Attempt, GroupLeases, QueueLeases
from delivery.settle import Settling
from delivery.skipping import Skipping, Why, why_skipped
from delivery.slots import State
from delivery.taking import Taken, Taking
from delivery.waiters import Waiters
from storage.errors import CorruptRecord, OffsetExpired, UnknownTopic
from storage.identifiers import Random
from storage.message import Durability, Message, QueueId, StoredMessage

_SCAN_CODES = 16_000  # messages that a filter may pass over in one read by the hash of their tag
_SCAN_READS = 10  # of these in one receive, so that others get their turn
_ORDERED_MESSAGES = 256  # read at once where some may have to wait for their keys
_MOST_PASSED = 10_000  # of one queue of an ordered group: behind so many that wait for their keys nothing is looked at
_READ_BYTES = 8 << 20
_LEARN_MESSAGES = 512

log = structlog.get_logger()


class Request(NamedTuple):
    """`attempt_id`: the same one again is the same receive, as long as its leases last."""

    max_messages: int
    max_bytes: int
    lease_ms: int
    wait_ms: int = 0
    worker: str | None = None
    attempt_id: str | None = None


class HandedOut(NamedTuple):
    """A message, lent until `expires_at_ms` (wall)."""

    message: StoredMessage
    attempt: int
    handle: str
    expires_at_ms: int


class Withdrawn(Protocol):
    """Messages that lie in their topics and are not handed out any more."""

    def is_withdrawn(self, message: Message) -> bool: ...

    def has_withdrawn(self, topic: str) -> bool:
        """False: none of the topic's is."""


class _Nothing:
    def is_withdrawn(self, message: Message) -> bool:
        return False

    def has_withdrawn(self, topic: str) -> bool:
        return False


NOTHING_WITHDRAWN = _Nothing()


class Receiving:
    """The event loop's."""

    def __init__(
        self, journal: LeaseJournal, settling: Settling, waiters: Waiters, randomness: Random, withdrawn: Withdrawn
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._settling = settling
        self._waiters = waiters
        self._randomness = randomness
        self._withdrawn = withdrawn
        self._skipping = Skipping(journal)
        self._locks: dict[str, asyncio.Lock] = {}
        self._granting: dict[tuple[str, str], asyncio.Event] = {}

    def taking(self, group: str) -> asyncio.Lock:
        """Held while messages of the group are chosen: who moves its positions holds it too."""
        return self._locks.setdefault(group, asyncio.Lock())

    async def receive(self, group: str, rules: GroupRules, request: Request) -> list[HandedOut]:
        """What there is now, if anything. Raises what `append` and `read` raise."""
        leases = self._journal.table.group(group)
        await self._settling.end_due(leases, rules)
        if request.attempt_id is None:
            return await self._grant(group, rules, request)
        return await self._receive_once(leases, rules, request, request.attempt_id)

    async def _receive_once(self, leases: GroupLeases, rules: GroupRules, request: Request, attempt_id: str) -> list[HandedOut]:
        """Whoever asks for the same meanwhile waits until this one is in the log."""
        name = (leases.group, attempt_id)
        while True:
            again = await self._again(leases, attempt_id)
            if again:
                return again
            granting = self._granting.get(name)
            if granting is None:
                break
            await granting.wait()
        granting = self._granting[name] = asyncio.Event()
        try:
            found = await self._grant(leases.group, rules, request)
        finally:
            del self._granting[name]
            granting.set()
        if found:
            self._waiters.wake_twins(*name)
        return found

    async def wait(self, group: str, rules: GroupRules, request: Request, *, timeout_ms: float) -> None:
        """Return when it may be worth receiving again, or the time is up. It may be cancelled."""
        leases = self._journal.table.group(group)
        queues: list[tuple[QueueId, int]] = []
        for queue in await self._queues(leases, rules):
            end = (await self._store.offsets(queue.queue)).end
            if queue.slots.cursor < end and not _has_passed_many(queue, rules):
                await asyncio.sleep(0)  # a receive looks at so much and no more: it goes on after others had their turn
                return
            queues.append((queue.queue, end))
        await self._waiters.wait(group, queues, timeout_ms=timeout_ms, attempt_id=request.attempt_id)

    async def begin(self, group: str, rules: GroupRules) -> None:
        """Let a group that starts at the end begin there: in those of its queues in which it has no position yet.

        Before anybody receives by these rules: who does begins at the first message.
        """
        if rules.start is not Start.LATEST:
            return
        async with self.taking(group):
            leases = self._journal.table.group(group)
            positions = []
            for topic in dict.fromkeys(one.topic for one in rules.subscriptions):
                for queue in await self._store.queues(topic):
                    if leases.find(queue) is None and await self.committed(leases, queue) is None:
                        end = (await self._store.offsets(queue)).end
                        positions.append(Position(*queue, end))
            if positions:
                event = Reset(group=group, positions=positions, generation=leases.generation)
                await self._journal.append([], [event], Durability.SYNCED)

    async def committed(self, leases: GroupLeases, queue: QueueId) -> int | None:
        """The offset of a queue that the group never received from; None where it has not said, or was made anew since."""
        return None if leases.is_anew else await self._store.committed_offset(leases.group, queue)

    # ---------------------------------------------------------------------------------------------------------- granting

    async def _grant(self, group: str, rules: GroupRules, request: Request) -> list[HandedOut]:
        async with self.taking(group):
            now = self._journal.now()
            taking = Taking(
                self._journal.table.group(group),
                lease=self._randomness.getrandbits(63) or 1,
                deadline_ms=now.monotonic_ms + request.lease_ms,
                max_messages=request.max_messages,
                max_bytes=request.max_bytes,
            )
            try:
                await self._take(taking, rules)
            except BaseException:
                taking.take_back()
                self._waiters.wake(group)
                raise
        if not taking.taken and not taking.arrived:
            taking.told()
            return []
        attempt_id = request.attempt_id if taking.taken else None
        until_ms = now.wall_ms + request.lease_ms
        scans, passed = taking.scans()
        event = Leased(
            group=group,
            lease=taking.lease,
            until_ms=until_ms,
            lease_ms=request.lease_ms,
            runs=taking.runs(),
            scans=scans,
            passed=passed,
            arrived=taking.arrived,
            worker=request.worker,
            attempt_id=attempt_id,
        )
        try:
            await self._journal.append([], [event], Durability.BUFFERED, applies=False)
        except BaseException:
            taking.take_back()
            self._waiters.wake(group)
            raise
        taking.told()
        if attempt_id is not None:
            places = [(one.queue.index, one.offset) for one in taking.taken]
            attempt = Attempt(taking.lease, until_ms, taking.deadline_ms, places)
            taking.leases.note_attempt(attempt_id, attempt, now.monotonic_ms)
        if taking.is_full:
            self._waiters.wake(group)  # there may be more
        return self._handed_out(taking.taken, taking.lease, until_ms)

    def _handed_out(self, taken: list[Taken], lease: int, until_ms: int) -> list[HandedOut]:
        handles = receipt.encode([(one.queue.hash, one.offset) for one in taken], lease)
        return [
            HandedOut(
                retry_message.as_delivered(one.message) if one.queue.is_retry else one.message,
                one.attempt,
                handle,
                until_ms,
            )
            for one, handle in zip(taken, handles, strict=True)
        ]

    async def _again(self, leases: GroupLeases, attempt_id: str) -> list[HandedOut]:
        """What an earlier receive of this name was given and still holds, under the same leases."""
        attempt = leases.attempts.get(attempt_id)
        if attempt is None:
            return []
        now = self._journal.now()
        found = []
        for queue, offset in leases.held_of(attempt, now.monotonic_ms):
            slot = queue.slots.get(offset)
            message = await self._read_one(queue.queue, offset)
            if message is not None:
                until_ms = attempt.until_ms
                if slot.deadline_ms != attempt.deadline_ms:
                    until_ms = now.wall_ms + slot.deadline_ms - now.monotonic_ms
                found += self._handed_out([Taken(queue, offset, slot.attempt, message)], attempt.lease, until_ms)
        if not found and leases.attempts.get(attempt_id) is attempt:
            del leases.attempts[attempt_id]
        return found

    # ------------------------------------------------------------------------------------------------------------ taking

    async def _take(self, taking: Taking, rules: GroupRules) -> None:
        leases = taking.leases
        queues = await self._queues(leases, rules)
        if rules.may_skip:
            await self._skipping.skip_new(leases, queues, rules)
        leases.turn += 1
        at = leases.turn % len(queues)
        queues = queues[at:] + queues[:at]
        for queue in queues:
            await self._learn(queue, rules)
            # Again, since of those that it took some may turn out to be for nobody.
            while queue.has_open and not taking.is_full and await self._take_open(taking, queue, rules):
                pass
        for queue in queues:
            if taking.is_full:
                return
            await self._take_new(taking, queue, rules)

    async def _queues(self, leases: GroupLeases, rules: GroupRules) -> list[QueueLeases]:
        """Those that the group reads, its retry queue the first."""
        retries = retry_message.retry_queue(leases.group)
        found = [leases.find(retries) or leases.open(retries, leases.retry_start)]
        for topic in dict.fromkeys([one.topic for one in rules.subscriptions]):
            try:
                queues = await self._store.queues(topic)
            except UnknownTopic:
                continue  # it was deleted: the group reads what is left
            found += [leases.find(one) or leases.open(one, await self._position(leases, one)) for one in queues]
        return found

    async def _position(self, leases: GroupLeases, queue: QueueId) -> int:
        """Where a group begins in a queue that it has never received from: one that starts at the end has its position."""
        committed = await self.committed(leases, queue)
        return (await self._store.offsets(queue)).first if committed is None else committed

    async def _learn(self, queue: QueueLeases, rules: GroupRules) -> None:
        if queue.is_learned and (queue.order is not None) == rules.ordered:
            return
        if not rules.ordered:
            queue.learn(None)
            return
        keys = []
        offsets = [slot.offset for slot in queue.slots]
        for offset, message in [pair async for pair in self._read_each(queue.queue, offsets)]:
            if message is None:
                queue.slots.settle(offset, 1)
            else:
                keys.append((offset, message.ordering_key or ""))
        queue.learn(keys)

    async def _take_open(self, taking: Taking, queue: QueueLeases, rules: GroupRules) -> bool:
        """Look at as many as there is room for. False where there were none."""
        exhausted: list[Taken] = []
        skipped: list[tuple[int, Why]] = []
        may_skip = rules.may_skip and not queue.is_retry
        end, now_ms = (await self._store.offsets(queue.queue)).end if may_skip else 0, self._journal.now().wall_ms
        offsets = queue.take_open(taking.left)
        left = dict.fromkeys(offsets)
        try:
            async for offset, message in self._read_each(queue.queue, offsets):
                slot = queue.slots.get(offset)
                if slot.state != State.OPEN:
                    pass  # it was settled meanwhile
                elif message is None or not self._is_to_come(taking.leases, queue, rules, message, slot.attempt):
                    if message is not None and not slot.attempt:
                        self._first_attempt(taking, queue, message)  # it has come back, though nobody gets it
                    queue.settle_taken(offset)
                elif may_skip and not slot.attempt and (why := why_skipped(rules, message, end=end, now_ms=now_ms)):
                    skipped.append((offset, why))
                    continue
                elif slot.attempt >= rules.max_attempts:
                    exhausted.append(Taken(queue, offset, slot.attempt, message))
                    queue.slots.set_state(offset, State.MOVING)
                    continue
                elif not taking.fits(message):
                    continue
                else:
                    attempt = slot.attempt or self._first_attempt(taking, queue, message) - 1
                    taking.lend(queue, offset, attempt + 1, message)
                    taking.keys.add((queue.index, message.ordering_key or ""))
                del left[offset]
            await self._skipping.skip(taking.leases, queue, skipped)
            for one in exhausted:
                del left[one.offset]
        finally:
            for offset in left:
                if queue.slots.state(offset) != State.SETTLED:
                    queue.put_back(offset)
        if exhausted:
            await self._settling.give_up(taking.leases, rules, exhausted)
        return bool(offsets)

    async def _take_new(self, taking: Taking, queue: QueueLeases, rules: GroupRules) -> None:
        slots, wanted = queue.slots, filter_of(rules.subscriptions, queue.queue.topic)
        is_plain = wanted.is_everything and not rules.ordered and not queue.is_retry
        is_plain = is_plain and not self._withdrawn.has_withdrawn(queue.queue.topic)
        for _ in range(_SCAN_READS):
            bounds = await self._store.offsets(queue.queue)
            queue.drop_below(bounds.first)
            if taking.is_full or slots.cursor >= bounds.end or _has_passed_many(queue, rules):
                return
            if is_plain:
                await self._take_plain(taking, queue)
            else:
                await self._take_chosen(taking, queue, wanted)

    async def _take_plain(self, taking: Taking, queue: QueueLeases) -> None:
        """All as they come."""
        slots = queue.slots
        messages = await self._read(queue.queue, slots.cursor, taking.left, taking.left_bytes)
        if not messages:
            slots.advance_to(slots.cursor + 1)  # damaged: it can never be handed out
        elif taking.fits(messages[0]):
            taking.lend_run(queue, slots.cursor, messages)
            slots.advance_to(slots.cursor + len(messages))

    async def _take_chosen(self, taking: Taking, queue: QueueLeases, wanted: Filter) -> None:
        """One by one: some are not for the group, some must wait for their key."""
        slots, order = queue.slots, queue.order
        count = taking.left if order is None else _ORDERED_MESSAGES
        try:
            messages, end = await read_matching(
                self._store,
                queue.queue,
                slots.cursor,
                wanted,
                max_scanned=_SCAN_CODES,
                max_messages=count,
                max_bytes=max(1, taking.left_bytes),
            )
        except (CorruptRecord, OffsetExpired) as error:
            log.error("message_damaged", queue=str(queue.queue), queue_offset=slots.cursor, reason=str(error))
            slots.advance_to(slots.cursor + 1)
            return
        for message in messages:
            offset = message.queue_offset
            if queue.is_retry and not self._is_current(taking.leases, message):
                continue
            if self._withdrawn.is_withdrawn(message):
                self._first_attempt(taking, queue, message)  # it has come back, though nobody gets it
                continue
            if not taking.fits(message):
                end = offset
                break
            key = message.ordering_key or ""
            is_ours = (queue.index, key) in taking.keys
            if order is not None and order.is_blocked(key) and (order.has_open(key) or not is_ours):
                slots.put(offset, 1, State.OPEN, attempt=0)
                order.note(offset, key, is_held=False)
                continue
            taking.lend(queue, offset, self._first_attempt(taking, queue, message), message)
            if order is not None:
                order.note(offset, key, is_held=True)
                taking.keys.add((queue.index, key))
        slots.advance_to(end)

    def _first_attempt(self, taking: Taking, queue: QueueLeases, message: StoredMessage) -> int:
        """Of a message that is handed out from here for the first time."""
        if not queue.is_retry:
            return 1
        if self._is_current(taking.leases, message):
            origin = str(retry_message.origin_of(message).queue)
            taking.arrived[origin] = taking.arrived.get(origin, 0) + 1
            taking.leases.note_arrived({origin: 1})
        return retry_message.attempts_of(message) + 1

    def _is_to_come(
        self, leases: GroupLeases, queue: QueueLeases, rules: GroupRules, message: StoredMessage, attempt: int
    ) -> bool:
        """A filter is asked once: what was handed out before comes again, whatever the group's rules are now."""
        if self._withdrawn.is_withdrawn(message):
            return False
        return attempt > 0 or self._is_wanted(leases, queue, rules, message)

    def _is_wanted(self, leases: GroupLeases, queue: QueueLeases, rules: GroupRules, message: StoredMessage) -> bool:
        if queue.is_retry:
            return self._is_current(leases, message)
        return filter_of(rules.subscriptions, queue.queue.topic).matches(message)

    @staticmethod
    def _is_current(leases: GroupLeases, message: StoredMessage) -> bool:
        """Is this retry not ended by a reset?"""
        return not leases.is_void(retry_message.origin_of(message).queue, retry_message.generation_of(message))

    # ----------------------------------------------------------------------------------------------------------- reading

    async def _read(self, queue: QueueId, offset: int, count: int, max_bytes: int) -> list[StoredMessage]:
        """Empty where the first one is damaged, which is told in the log and passed over."""
        try:
            return await self._store.read(queue, offset, max_messages=count, max_bytes=max(1, max_bytes))
        except CorruptRecord as damage:
            log.error("message_damaged", queue=str(queue), queue_offset=offset, reason=str(damage))
            return []
        except OffsetExpired:
            return []

    async def _read_one(self, queue: QueueId, offset: int) -> StoredMessage | None:
        found = await self._read(queue, offset, 1, 1)
        return found[0] if found else None

    async def _read_each(self, queue: QueueId, offsets: list[int]) -> AsyncIterator[tuple[int, StoredMessage | None]]:
        """Each message with its offset, neighbours read together; None for one that is damaged or no longer there."""
        at = 0
        while at < len(offsets):
            first = offsets[at]
            count = 1
            while at + count < len(offsets) and count < _LEARN_MESSAGES and offsets[at + count] == first + count:
                count += 1
            messages = await self._read(queue, first, count, _READ_BYTES)
            for message in messages or (None,):
                yield offsets[at], message
                at += 1


def _has_passed_many(queue: QueueLeases, rules: GroupRules) -> bool:
    return rules.ordered and queue.slots.counts[State.OPEN] >= _MOST_PASSED
