"""Chooses the messages of one receive: those that are open again first, then those that were never
scanned.

The group's queues have their turns. A message that is not for the group (by its filter, cancelled,
ended by a reset) is settled; one that has to wait for its key in an ordered group is left open; one
that has had all its attempts is given up; one that cannot be read becomes a dead letter.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol, TypeVar

from delivery.filters.filtered_read import MAX_SCANNED, read_matching
from delivery.filters.filters import EVERYTHING, Filter
from delivery.groups import GroupRules, filter_of
from delivery.leases import retry_message
from delivery.leases.claim import Claim, ClaimedMessage
from delivery.leases.damage import KeepingDamage, Unreadable
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import Event, State
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_reader import QueueReader
from delivery.leases.queue_slots import Slot
from delivery.receive.group_queues import GroupQueues
from delivery.receive.skip import Skipper, Why, why_skipped
from delivery.settle.lease_ends import LeaseEnds
from storage.errors import CorruptRecord, OffsetExpired, StorageFull
from storage.formats.compression import BodyNotDecompressed
from storage.formats.stored_record import Found, StoredRecord, message_of
from storage.message import Message, StoredMessage
from storage.opening import each_opened, is_compressed

F = TypeVar("F", StoredMessage, StoredRecord)

_SCAN_READS = 10  # of these in one receive, so that others get their turn
_ORDERED_MESSAGES = 256  # read at once where some may have to wait for their keys
# Of one queue of an ordered group, behind which nothing is looked at: messages that wait for their
# keys, some 35 bytes each where they are close together, and chunks of slots, 13 KB each, where
# they do not.
_MOST_PASSED = 1_000_000
_MOST_CHUNKS = 10_000


class CancelledRequests(Protocol):
    """Knows the messages of cancelled requests, which stay in their topics, undelivered."""

    def is_cancelled_request(self, message: Message) -> bool: ...

    def has_cancelled_request(self, topic: str) -> bool:
        """False: none of the topic's is."""


class _Nothing:
    def is_cancelled_request(self, message: Message) -> bool:
        return False

    def has_cancelled_request(self, topic: str) -> bool:
        return False


NONE_CANCELLED = _Nothing()


class _OpenBatch:
    """Open messages of a queue that are examined together, by what becomes of them.

    `left`: the offsets to look at when all is done, or has failed: whatever of them nothing has
    become of is open again then. Claimed and settled ones are taken out at once, exhausted ones
    when the skipping and the keeping of damage have succeeded, skipped and unreadable ones never.
    """

    __slots__ = ("exhausted", "left", "skipped", "unreadable")

    def __init__(self, left: dict[int, None]) -> None:
        self.left = left
        self.skipped: list[tuple[int, Why]] = []
        self.unreadable: list[Unreadable] = []
        self.exhausted: list[ClaimedMessage] = []


class MessageSelector:
    """Chooses messages for a receive. Event loop only; the caller holds the group's turn."""

    def __init__(
        self,
        journal: LeaseJournal,
        queues: GroupQueues,
        ends: LeaseEnds,
        cancelled_requests: CancelledRequests,
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._queues = queues
        self._ends = ends
        self._cancelled_requests = cancelled_requests
        self._skipper = Skipper(journal)
        self._damage = KeepingDamage(journal)
        self._reader = QueueReader(journal.store)

    async def select(self, claim: Claim, rules: GroupRules) -> None:
        """Claim messages of the group's queues in turn, until the claim is full.

        Raises what `append` and `read` raise; what was claimed till then stays claimed.

        A full disk that keeps damage from being recorded holds up its queue alone: it is raised
        where nothing else was claimed.
        """
        leases = claim.leases
        queues = await self._queues.of(leases, rules)
        if rules.may_skip:
            await self._skipper.skip_new(leases, queues, rules)
        leases.turn += 1
        at = leases.turn % len(queues)
        queues = queues[at:] + queues[:at]
        for queue in queues:
            await self._queues.learn(queue, rules)
            # Again, since some of the messages that it claimed may have expired or been cancelled.
            while (
                queue.has_open and not claim.is_full and await self._claim_open(claim, queue, rules)
            ):
                pass
        for queue in queues:
            if claim.is_full:
                return
            await self._claim_new(claim, queue, rules)
        if claim.held_up is not None and not claim.messages:
            raise claim.held_up

    async def _claim_open(self, claim: Claim, queue: QueueLeases, rules: GroupRules) -> bool:
        """Claim open messages of the queue, as many as there is room for; those that cannot or must
        not be delivered are settled on the way. False: it had none, or the disk is full.

        Each of the offsets is taken from the open ones first. Whatever happens, those of which
        nothing has become are open again at the end.
        """
        may_skip = rules.may_skip and not queue.is_retry
        end = (await self._store.offsets(queue.queue)).end if may_skip else 0
        now_ms = self._journal.now().wall_ms
        offsets = queue.claim_open(claim.left)
        batch = _OpenBatch(dict.fromkeys(offsets))
        try:
            async for offset, message in self._reader.read_each(queue.queue, offsets):
                shown = None if message is None or claim.is_full else await _shown(message)
                slot = queue.slots.get(offset)
                if slot.state != State.OPEN:  # it was settled meanwhile
                    del batch.left[offset]
                elif isinstance(message, CorruptRecord):
                    is_new = not slot.was_delivered
                    batch.unreadable.append(
                        Unreadable(queue, offset, slot.attempt, 0, message, is_new)
                    )
                elif message is None or not self._is_to_come(
                    claim.leases, queue, rules, message, slot.was_delivered
                ):
                    self._settle_undelivered(claim, queue, slot, message)
                    del batch.left[offset]
                elif (
                    may_skip
                    and not slot.was_delivered
                    and (why := why_skipped(rules, message, end=end, now_ms=now_ms))
                ):
                    batch.skipped.append((offset, why))
                else:
                    self._claim_wanted(claim, queue, rules, batch, slot, message, shown)
            await self._skipper.skip(claim.leases, queue, batch.skipped)
            is_kept = await self._keep(claim, rules, batch.unreadable)
            for one in batch.exhausted:
                del batch.left[one.offset]
        finally:
            _reopen(queue, batch.left)
        if batch.exhausted:
            await self._ends.give_up(claim.leases, rules, batch.exhausted)
        return bool(offsets) and is_kept

    def _claim_wanted(
        self,
        claim: Claim,
        queue: QueueLeases,
        rules: GroupRules,
        batch: _OpenBatch,
        slot: Slot,
        message: StoredMessage,
        shown: StoredMessage | CorruptRecord | None,
    ) -> None:
        """Claim an open message that the group wants, if it fits. One without attempts left is put
        with the exhausted ones of the batch, to be given up later; one that cannot be decompressed
        with the unreadable ones.

        `shown`: the message as it is delivered; None where the claim is full.
        """
        if slot.attempt >= rules.max_attempts:
            batch.exhausted.append(ClaimedMessage(queue, slot.offset, slot.attempt, message))
            queue.slots.move(slot.offset, Event.MOVE)
        elif isinstance(shown, CorruptRecord):
            batch.unreadable.append(_not_decompressed(queue, slot, message, shown))
        elif shown is not None and claim.fits(shown):
            attempt = (
                slot.attempt + 1
                if slot.was_delivered
                else self._first_attempt(claim, queue, message)
            )
            claim.add(queue, slot.offset, attempt, shown, slot)
            claim.keys.add((queue.index, message.ordering_key or ""))
            del batch.left[slot.offset]

    def _settle_undelivered(
        self, claim: Claim, queue: QueueLeases, slot: Slot, message: StoredMessage | None
    ) -> None:
        """Settle an open message that is not to be delivered. None: it has expired."""
        if message is not None and not slot.was_delivered:
            # a retry that came back, though it is not delivered
            self._first_attempt(claim, queue, message)
        queue.settle_claimed(slot.offset)

    async def _claim_new(self, claim: Claim, queue: QueueLeases, rules: GroupRules) -> None:
        """Claim messages that were never scanned; damaged ones become dead letters."""
        slots, wanted = queue.slots, filter_of(rules.subscriptions, queue.queue.topic)
        is_plain = wanted is EVERYTHING and not rules.ordered and not queue.is_retry
        is_plain = is_plain and not self._cancelled_requests.has_cancelled_request(
            queue.queue.topic
        )
        for number in range(_SCAN_READS):
            bounds = await self._store.offsets(queue.queue)
            queue.drop_below(bounds.first)
            if claim.is_full or slots.cursor >= bounds.end or has_passed_many(queue, rules):
                return
            try:
                if is_plain:
                    has_left = await self._claim_plain(claim, queue)
                else:
                    # Few at first: what is read behind the last one that there is room for is read
                    # in vain.
                    has_left = await self._claim_chosen(
                        claim, queue, wanted, min(_ORDERED_MESSAGES, claim.left << 2 * number)
                    )
                if has_left and not claim.is_full:
                    await self._claim_open(claim, queue, rules)
            except CorruptRecord:
                damages = await self._reader.damage_from(queue.queue, slots.cursor, bounds.end)
                found = [
                    Unreadable(queue, offset, 0, 0, damage, is_new=True)
                    for offset, damage in enumerate(damages, slots.cursor)
                ]
                if not await self._keep(claim, rules, found):
                    return

    async def _keep(self, claim: Claim, rules: GroupRules, found: Sequence[Unreadable]) -> bool:
        """Turn messages that cannot be read into dead letters.

        False where the disk is full: they stay where they are.
        """
        try:
            if found:
                await self._damage.keep(claim.leases, rules, found)
        except StorageFull as full:
            claim.held_up = full
            return False
        return True

    async def _claim_plain(self, claim: Claim, queue: QueueLeases) -> bool:
        """Claim the next messages without looking at them: nothing keeps them from the group.

        True: one whose body cannot be decompressed was left open.
        """
        slots = queue.slots
        try:
            found = await self._store.read_records(
                queue.queue,
                slots.cursor,
                max_scanned=claim.left,
                max_messages=claim.left,
                max_bytes=max(1, claim.left_bytes),
            )
        except OffsetExpired as expired:
            await self._reader.check_expired(queue.queue, slots.cursor, expired)
            return False
        taken = found.records
        if True in [record.is_compressed for record in taken]:
            shown = await _all_shown(taken, claim.left_bytes)
            taken = [one for one in takewhile(_is_whole, shown) if isinstance(one, StoredRecord)]
            if not taken and shown:
                queue.leave_open(slots.cursor, "")
                slots.advance_to(slots.cursor + 1)
                return True
        if taken and claim.fits(taken[0]):
            claim.add_run(queue, slots.cursor, taken)
            slots.advance_to(slots.cursor + len(taken))
        return False

    async def _claim_chosen(
        self, claim: Claim, queue: QueueLeases, wanted: Filter, most: int
    ) -> bool:
        """Claim the next messages one by one: some are not for the group, some must wait for their
        key.

        `most`: the most messages that are read in an ordered group. True: one whose body cannot be
        decompressed was left open.
        """
        slots, order = queue.slots, queue.order
        count = claim.left if order is None else most
        try:
            messages, end = await read_matching(
                self._store,
                queue.queue,
                slots.cursor,
                wanted,
                max_scanned=MAX_SCANNED,
                max_messages=count,
                max_bytes=max(1, claim.left_bytes),
            )
        except OffsetExpired as expired:
            await self._reader.check_expired(queue.queue, slots.cursor, expired)
            return False
        has_left = False
        all_shown = await _all_shown(messages, claim.left_bytes)
        if len(all_shown) < len(messages):
            end = messages[len(all_shown)].queue_offset
        for message, shown in zip(messages, all_shown, strict=False):
            offset = message.queue_offset
            if queue.is_retry and not self._is_current(claim.leases, message):
                continue
            if self._cancelled_requests.is_cancelled_request(message):
                # a retry that came back, though it is not delivered
                self._first_attempt(claim, queue, message)
                continue
            if isinstance(shown, StoredMessage) and not claim.fits(shown):
                end = offset
                break
            key = message.ordering_key or ""
            is_ours = (queue.index, key) in claim.keys
            if order is not None and order.is_blocked(key) and (order.has_open(key) or not is_ours):
                queue.leave_open(offset, key)
                continue
            if isinstance(shown, CorruptRecord):
                has_left = True
                queue.leave_open(offset, key)
                continue
            claim.add(queue, offset, self._first_attempt(claim, queue, message), shown)
            if order is not None:
                order.note(offset, key, is_held=True)
                claim.keys.add((queue.index, key))
        slots.advance_to(end)
        return has_left

    def _first_attempt(self, claim: Claim, queue: QueueLeases, message: StoredMessage) -> int:
        """The attempt of a message that was never delivered from this queue; a retry is counted as
        arrived.
        """
        if not queue.is_retry:
            return 1
        if self._is_current(claim.leases, message):
            origin = str(retry_message.origin_of(message).queue)
            claim.arrived[origin] = claim.arrived.get(origin, 0) + 1
            claim.leases.retries.note_arrived({origin: 1})
        return retry_message.attempts_of(message) + 1

    def _is_to_come(
        self,
        leases: GroupLeases,
        queue: QueueLeases,
        rules: GroupRules,
        message: StoredMessage,
        was_delivered: bool,
    ) -> bool:
        """Is the message still to be delivered? A filter is asked once: a message that was
        delivered before is delivered again, whatever the group's rules are now.
        """
        if self._cancelled_requests.is_cancelled_request(message):
            return False
        return was_delivered or self._is_wanted(leases, queue, rules, message)

    def _is_wanted(
        self, leases: GroupLeases, queue: QueueLeases, rules: GroupRules, message: StoredMessage
    ) -> bool:
        if queue.is_retry:
            return self._is_current(leases, message)
        return filter_of(rules.subscriptions, queue.queue.topic).matches(message)

    @staticmethod
    def _is_current(leases: GroupLeases, message: StoredMessage) -> bool:
        """Is this retry not ended by a reset?"""
        return not leases.retries.is_void(
            str(retry_message.origin_of(message).queue), retry_message.generation_of(message)
        )


def _reopen(queue: QueueLeases, offsets: Iterable[int]) -> None:
    for offset in offsets:
        if queue.slots.state(offset) in (State.OPEN, State.MOVING):
            queue.reopen(offset)


async def _shown(message: F | CorruptRecord) -> F | CorruptRecord:
    """The message with its body decompressed; damage where that is not possible."""
    if isinstance(message, CorruptRecord) or not is_compressed(message):
        return message
    return (await _all_shown([message], 0))[0]


async def _all_shown(messages: Sequence[F], max_bytes: int) -> Sequence[F | CorruptRecord]:
    """`_shown` of the first of these: as many as `each_opened` has."""
    if not any(map(is_compressed, messages)):
        return messages
    return [
        _damage_of(message, result) if isinstance(result, BodyNotDecompressed) else result
        for message, result in zip(messages, await each_opened(messages, max_bytes), strict=False)
    ]


def _damage_of(message: Found, error: BodyNotDecompressed) -> CorruptRecord:
    log_offset = message_of(message).log_offset
    return CorruptRecord(None, -1 if log_offset is None else log_offset, str(error))


def _is_whole(shown: Found | CorruptRecord) -> bool:
    return not isinstance(shown, CorruptRecord)


def _not_decompressed(
    queue: QueueLeases, slot: Slot, message: StoredMessage, damage: CorruptRecord
) -> Unreadable:
    is_new = not slot.was_delivered
    attempt = retry_message.attempts_of(message) if is_new and queue.is_retry else slot.attempt
    return Unreadable(queue, slot.offset, attempt, 0, damage, is_new, message)


def has_passed_many(queue: QueueLeases, rules: GroupRules) -> bool:
    """Does so much wait for its keys that nothing behind it is looked at?"""
    slots = queue.slots
    return rules.ordered and (
        slots.counts[State.OPEN] >= _MOST_PASSED or slots.chunk_count >= _MOST_CHUNKS
    )
