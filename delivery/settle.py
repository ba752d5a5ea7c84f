"""Settling: acknowledge, refuse, extend, give up; and what becomes of a lease that ends without a word.

An acknowledgement is on disk when it is answered. A message that moves, to wait for its retry or to the dead letters, does so
in one append with the event that settles it: it is never in both places, nor in none.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from delivery import receipt, retry_message
from delivery.groups import GroupRules
from delivery.journal import LeaseJournal
from delivery.lease_events import (
    Acked,
    AnyLeaseEvent,
    DeadLettered,
    Discarded,
    Expired,
    Extended,
    ExtendedMessage,
    Retried,
    Returned,
    ReturnedMessage,
    Run,
)
from delivery.lease_table import GroupLeases, QueueLeases
from delivery.retry_policy import Fate, backoff_ms, fate
from delivery.slots import State
from delivery.taking import Taken
from delivery.waiters import Waiters
from scheduler import scheduled_message
from storage.errors import (
    CorruptRecord,
    LeaseExpired,
    MessagingError,
    OffsetExpired,
    OffsetOutOfRange,
    StorageFull,
    UnavailableError,
    UnknownTopic,
)
from storage.message import Appended, Durability, Message, StoredMessage

_ACKED_KEPT = 20_000  # handles, so that an acknowledgement whose answer was lost may be sent again
_APPEND_MESSAGES = 400
_APPEND_BYTES = 1 << 20
_TRY_AGAIN_MS = 1_000

log = structlog.get_logger()


class Refused(NamedTuple):
    """`delay_ms`: None for the group's own wait."""

    handle: str
    delay_ms: int | None = None
    reason: str | None = None


class _Move(NamedTuple):
    """What is to become of a message that is held (in state MOVING); `deadline_ms`: when its lease would have ended."""

    queue: QueueLeases
    offset: int
    attempt: int
    lease: int
    deadline_ms: int
    fate: Fate
    delay_ms: int
    reason: str | None
    entry: int  # of the request


_Piece = list[tuple[_Move, StoredMessage | None]]


class Settling:
    """The event loop's."""

    def __init__(self, journal: LeaseJournal, waiters: Waiters) -> None:
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._waiters = waiters
        self._acked: OrderedDict[str, None] = OrderedDict()

    # -------------------------------------------------------------------------------------------------------------- ack

    async def ack(self, group: str, handles: Sequence[str]) -> list[bool]:
        """Which of the messages are done with: all but those whose lease has ended. Raises what `append` raises."""
        leases = self._journal.table.find(group)
        if leases is None:
            return [False] * len(handles)
        now_ms = self._clock.monotonic_ms()
        accepted: list[bool] = []
        held: list[tuple[QueueLeases, int, int]] = []
        entries: list[int] = []
        for entry, handle in enumerate(handles):
            found = self._find(leases, handle)
            is_held = False
            if found is not None:
                queue, offset, lease = found
                if queue.slots.is_leased(offset, lease, now_ms):
                    queue.slots.set_state(offset, State.ACKING)
                    is_held = True
                else:
                    # One that is under way is told once more: when this is on disk, so is the first.
                    slot = queue.slots.get(offset)
                    is_held = slot.state == State.ACKING and slot.lease == lease
                if is_held:
                    held.append(found)
                    entries.append(entry)
            accepted.append(is_held or handle in self._acked)
        if held:
            try:
                await self._journal.append([], [Acked(group=group, runs=_runs(held))], Durability.SYNCED)
            except BaseException:
                self._hold_again(leases, held)
                raise
            for entry, (queue, offset, _) in zip(entries, held, strict=True):
                # Where a reset lies before it in the log, the lease had ended, and another may hold the message by now.
                accepted[entry] = queue.slots.is_settled(offset)
            self._keep_acked(handle for handle, is_acked in zip(handles, accepted, strict=True) if is_acked)
            if any(queue.has_open for queue, _, _ in held if queue.order is not None):
                self._waiters.wake(group)  # a key is free
        return accepted

    async def ack_beside(self, handle: str, message_id: str, make: Callable[[bool], Sequence[Message]]) -> list[Appended]:
        """Append messages and, in the same unit, the acknowledgement of this message, in whatever group the handle lends it.

        `make` is told whether the handle is this message's, and that still lent or done with already. Durable on return. Raises
        what `append` raises.
        """
        is_its_own = await self._names(handle, message_id)
        for leases in self._journal.table if is_its_own else ():
            found = self._find(leases, handle)
            if found is None or not found[0].slots.is_leased(found[1], found[2], self._clock.monotonic_ms()):
                continue
            queue, offset, _ = found
            queue.slots.set_state(offset, State.ACKING)
            try:
                event = Acked(group=leases.group, runs=_runs([found]))
                appended = await self._journal.append(make(True), [event], Durability.SYNCED)
            except BaseException:
                self._hold_again(leases, [found])
                raise
            self._keep_acked([handle])
            if queue.order is not None and queue.has_open:
                self._waiters.wake(leases.group)  # a key is free
            return appended
        return await self._journal.append(make(is_its_own and handle in self._acked), [], Durability.SYNCED)

    async def _names(self, handle: str, message_id: str) -> bool:
        """Is it this message that lies where the handle says?"""
        found = next((found for leases in self._journal.table if (found := self._find(leases, handle)) is not None), None)
        if found is None:
            return False
        try:
            messages = await self._store.read(found[0].queue, found[1], max_messages=1, max_bytes=1)
        except (OffsetOutOfRange, UnknownTopic, CorruptRecord):
            return False
        return any(message.message_id == message_id for message in messages)

    def _keep_acked(self, handles: Iterable[str]) -> None:
        for handle in handles:
            self._acked[handle] = None
        while len(self._acked) > _ACKED_KEPT:
            self._acked.popitem(last=False)

    @staticmethod
    def _hold_again(leases: GroupLeases, held: Sequence[tuple[QueueLeases, int, int]]) -> None:
        for queue, offset, _ in held:
            leases.hold_again(queue, offset, queue.slots.get(offset).deadline_ms)

    @staticmethod
    def _find(leases: GroupLeases, handle: str) -> tuple[QueueLeases, int, int] | None:
        """(queue, offset, lease) that the handle names."""
        parts = receipt.decode(handle)
        if parts is None:
            return None
        queue = leases.by_hash(parts[0])
        return None if queue is None else (queue, parts[1], parts[2])

    # ----------------------------------------------------------------------------------------------------------- extend

    async def extend(self, group: str, wanted: Sequence[tuple[str, int]]) -> list[int | None]:
        """`wanted`: (handle, how long from now on). Until when (wall) each message is lent now; None where its lease has ended.

        In the page cache when it is answered: a power cut may take it, and the lease ends when it would have.
        """
        leases = self._journal.table.find(group)
        now = self._journal.now()
        until: list[int | None] = []
        messages: list[ExtendedMessage] = []
        for handle, lease_ms in wanted:
            found = None if leases is None else self._find(leases, handle)
            if leases is None or found is None or not found[0].slots.is_leased(found[1], found[2], now.monotonic_ms):
                until.append(None)
                continue
            queue, offset, lease = found
            messages.append(ExtendedMessage(*queue.queue, offset, lease, now.wall_ms + lease_ms, lease_ms))
            leases.extend(queue, offset, now.monotonic_ms + lease_ms)
            until.append(now.wall_ms + lease_ms)
        if messages:
            await self._journal.append([], [Extended(group=group, messages=messages)], Durability.BUFFERED, applies=False)
        return until

    # ------------------------------------------------------------------------------------------- refuse, and give up

    async def nack(self, group: str, rules: GroupRules, refused: Sequence[Refused]) -> list[MessagingError | None]:
        """Hand the messages out again, after a wait; or give them up, where that was their last attempt.

        Why each entry was refused; None where it was accepted.
        """

        def move(entry: int, one: Refused, queue: QueueLeases, offset: int, lease: int) -> _Move:
            slot = queue.slots.get(offset)
            delay_ms = backoff_ms(rules, slot.attempt) if one.delay_ms is None else one.delay_ms
            reason = one.reason or "refused by its consumer"
            kind = fate(rules, slot.attempt)
            return _Move(queue, offset, slot.attempt, lease, slot.deadline_ms, kind, delay_ms, reason, entry)

        return await self._move_held(group, rules, refused, move)

    async def dead_letter(self, group: str, rules: GroupRules, refused: Sequence[Refused]) -> list[MessagingError | None]:
        """Give the messages up. As `nack`."""
        kind = Fate.DEAD_LETTER if rules.dead_letter else Fate.DISCARD

        def move(entry: int, one: Refused, queue: QueueLeases, offset: int, lease: int) -> _Move:
            slot = queue.slots.get(offset)
            reason = one.reason or "given up by its consumer"
            return _Move(queue, offset, slot.attempt, lease, slot.deadline_ms, kind, 0, reason, entry)

        return await self._move_held(group, rules, refused, move)

    async def _move_held(
        self,
        group: str,
        rules: GroupRules,
        refused: Sequence[Refused],
        move: Callable[[int, Refused, QueueLeases, int, int], _Move],
    ) -> list[MessagingError | None]:
        leases = self._journal.table.find(group)
        now_ms = self._clock.monotonic_ms()
        moves: list[_Move] = []
        results: list[MessagingError | None] = [None] * len(refused)
        for entry, one in enumerate(refused):
            found = None if leases is None else self._find(leases, one.handle)
            if found is None or not found[0].slots.is_leased(found[1], found[2], now_ms):
                results[entry] = LeaseExpired()
                continue
            moves.append(move(entry, one, *found))
            found[0].slots.set_state(found[1], State.MOVING)
        if leases is not None and moves:
            failed = await self._journal.changes.uncancelled(self._move(leases, rules, moves))
            for one_move, error in failed:
                results[one_move.entry] = error
            if len(failed) == len(refused):
                raise failed[0][1]
        return results

    async def give_up(self, leases: GroupLeases, rules: GroupRules, exhausted: Sequence[Taken]) -> None:
        """Messages (in state MOVING) that have had all their attempts. What cannot be written now is tried again."""
        moves = [self._last_move(rules, one.queue, one.offset) for one in exhausted]
        await self._journal.changes.uncancelled(self._move(leases, rules, moves, tries_again=True))

    @staticmethod
    def _last_move(rules: GroupRules, queue: QueueLeases, offset: int) -> _Move:
        slot = queue.slots.get(offset)
        kind = Fate.DEAD_LETTER if rules.dead_letter else Fate.DISCARD
        return _Move(queue, offset, slot.attempt, slot.lease, 0, kind, 0, "the lease of its last attempt ended", 0)

    async def end_due(self, leases: GroupLeases, rules: GroupRules) -> int:
        """End the leases whose time is up, and the waits; how many leases."""
        now_ms = self._clock.monotonic_ms()
        due_ms = leases.wheel.next_ms()
        if due_ms is None or due_ms > now_ms:
            return 0
        ended = leases.end_due(now_ms)
        last: list[_Move] = []
        again: list[tuple[QueueLeases, int, int]] = []
        for one in ended:
            if fate(rules, one.attempt) is Fate.AGAIN:
                one.queue.put_back(one.offset)
                again.append((one.queue, one.offset, one.lease))
            else:
                last.append(self._last_move(rules, one.queue, one.offset))
        self._waiters.wake(leases.group)
        if again:
            # For those who read the log; the table does not need it, so it may fail.
            with suppress(UnavailableError, StorageFull):
                event = Expired(group=leases.group, runs=_runs(again))
                await self._journal.append([], [event], Durability.BUFFERED, applies=False)
        if last:
            await self._journal.changes.uncancelled(self._move(leases, rules, last, tries_again=True))
        return len(ended)

    # ------------------------------------------------------------------------------------------------------------ moving

    async def _move(
        self, leases: GroupLeases, rules: GroupRules, moves: Sequence[_Move], *, tries_again: bool = False
    ) -> list[tuple[_Move, MessagingError]]:
        """In pieces; which of them failed, and why. What failed is held again, until its lease ends or it is tried again."""
        failed: list[tuple[_Move, MessagingError]] = []

        def hold_again(one: _Move, error: MessagingError) -> None:
            until_ms = self._clock.monotonic_ms() + _TRY_AGAIN_MS
            leases.hold_again(one.queue, one.offset, until_ms if tries_again else one.deadline_ms)
            failed.append((one, error))

        def stays(one: _Move) -> bool:
            """In order, or at once: it is handed out again from where it lies."""
            return one.fate is Fate.AGAIN and (rules.ordered or not one.delay_ms)

        staying = [one for one in moves if stays(one)]
        pieces: list[_Piece] = [[(one, None) for one in staying]] if staying else []
        pieces += await self._pieces([one for one in moves if not stays(one)], hold_again)
        for piece in pieces:
            try:
                if stays(piece[0][0]):
                    messages, events = self._returned(leases.group, piece)
                else:
                    messages, events = self._moved(leases, piece)
                await self._journal.append(messages, events, Durability.SYNCED)
            except MessagingError as error:
                for one, _ in piece:
                    hold_again(one, error)
        self._waiters.wake(leases.group)
        return failed

    async def _pieces(self, moves: Sequence[_Move], hold_again: Callable[[_Move, MessagingError], None]) -> list[_Piece]:
        """With their messages, as many in a piece as one append may hold; None where the log no longer has the message.

        `hold_again`: told of those that cannot be read now.
        """
        pieces: list[_Piece] = []
        left_bytes = left = 0
        for one in moves:
            try:
                message = await self._read(one)
            except MessagingError as error:
                hold_again(one, error)
                continue
            size = 0 if message is None else len(message.body)
            if not pieces or left <= 0 or size > left_bytes:
                pieces.append([])
                left_bytes, left = _APPEND_BYTES, _APPEND_MESSAGES
            pieces[-1].append((one, message))
            left_bytes -= size
            left -= 1
        return pieces

    async def _read(self, move: _Move) -> StoredMessage | None:
        try:
            (message,) = await self._store.read(move.queue.queue, move.offset, max_messages=1, max_bytes=1)
        except (OffsetExpired, CorruptRecord) as error:
            log.error("message_lost", queue=str(move.queue.queue), queue_offset=move.offset, reason=str(error))
            return None
        return message

    def _returned(self, group: str, piece: _Piece) -> tuple[list[Message], list[AnyLeaseEvent]]:
        """What is appended for messages that stay where they are."""
        now_ms = self._clock.wall_ms()
        returned = [
            ReturnedMessage(*one.queue.queue, one.offset, one.lease, now_ms + one.delay_ms, one.delay_ms) for one, _ in piece
        ]
        return [], [Returned(group=group, messages=returned)]

    def _moved(self, leases: GroupLeases, piece: _Piece) -> tuple[list[Message], list[AnyLeaseEvent]]:
        """What is appended for messages that go elsewhere: their copies, and what settles them here."""
        now_ms = self._clock.wall_ms()
        group = leases.group
        copies: list[Message] = []
        settled: dict[Fate, list[tuple[QueueLeases, int, int]]] = {}
        waiting: dict[str, int] = {}
        for one, message in piece:
            kind = Fate.DISCARD if message is None else one.fate
            settled.setdefault(kind, []).append((one.queue, one.offset, one.lease))
            if message is None:
                continue
            if kind is Fate.AGAIN:
                origin = str(retry_message.origin_of(message).queue)
                waiting[origin] = waiting.get(origin, 0) + 1
                copy = retry_message.retry_copy(message, group, attempts=one.attempt, generation=leases.generation)
                delayed = scheduled_message.with_delay(copy, delay_ms=one.delay_ms, again=True)
                copies.append(scheduled_message.put_off(delayed, now_ms))
            elif kind is Fate.DEAD_LETTER:
                reason = one.reason or ""
                copies.append(retry_message.dead_letter_copy(message, group, attempts=one.attempt, reason=reason))
        events: list[AnyLeaseEvent] = []
        for kind, held in settled.items():
            runs = _runs(held)
            if kind is Fate.AGAIN:
                events.append(Retried(group=group, runs=runs, waiting=waiting, generation=leases.generation))
            else:
                events.append((DeadLettered if kind is Fate.DEAD_LETTER else Discarded)(group=group, runs=runs))
        return copies, events


def _runs(held: Sequence[tuple[QueueLeases, int, int]]) -> list[Run]:
    """Neighbours under one lease together."""
    runs: list[Run] = []
    last: tuple[QueueLeases, int, int] | None = None
    first = count = 0
    for queue, offset, lease in held:
        if last is not None and queue is last[0] and lease == last[2] and offset == first + count:
            count += 1
            continue
        if last is not None:
            runs.append(Run(*last[0].queue, first, count, last[2]))
        last, first, count = (queue, offset, lease), offset, 1
    if last is not None:
        runs.append(Run(*last[0].queue, first, count, last[2]))
    return runs
