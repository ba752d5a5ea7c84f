"""Moves unsettled messages: back into their queue, to a retry, to the dead letters, or out.

A message moves in one append with the event that settles it: it is never in both places, nor in
none.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from delivery.groups import GroupRules
from delivery.leases import retry_message
from delivery.leases.damage import Unreadable, note_kept, settled_as_damaged
from delivery.leases.events import (
    AnyLeaseEvent,
    DeadLettered,
    Discarded,
    GivenReason,
    Released,
    ReleasedMessage,
    Retried,
    Returned,
    ReturnedMessage,
    Run,
)
from delivery.leases.given_up import Cause
from delivery.leases.group import GroupLeases
from delivery.leases.handles import Held, runs_of
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_reader import QueueReader
from delivery.leases.waiters import Waiters
from delivery.settle.given_up import GivenUp, GivenUpLog
from delivery.settle.retry_policy import NackOutcome
from scheduler import scheduled_message
from storage.errors import CorruptRecord, MessagingError
from storage.message import Durability, Message, StoredMessage

_APPEND_MESSAGES = 400
_APPEND_BYTES = 1 << 20
_TRY_AGAIN_MS = 1_000

log = structlog.get_logger()


class Move(NamedTuple):
    """The move of a message that is in state MOVING.

    `attempt`: deliveries that count; `deadline_ms`: the end of its lease; `is_given`: the reason is
    the consumer's own; `cause`: why the message is given up.
    """

    queue: QueueLeases
    offset: int
    attempt: int
    lease: int
    deadline_ms: int
    nack_outcome: NackOutcome
    delay_ms: int
    reason: str | None
    entry: int  # of the request
    is_given: bool = False
    is_unprocessed: bool = False  # the last delivery does not count
    cause: Cause = Cause.EXHAUSTED


_Piece = list[tuple[Move, StoredMessage | CorruptRecord | None]]


class Mover:
    """Moves messages to retries and dead letters. Event loop only."""

    def __init__(self, journal: LeaseJournal, waiters: Waiters, given_up_log: GivenUpLog) -> None:
        self._journal = journal
        self._reader = QueueReader(journal.store)
        self._clock = journal.clock
        self._waiters = waiters
        self._given_up_log = given_up_log

    async def move(
        self,
        leases: GroupLeases,
        rules: GroupRules,
        moves: Sequence[Move],
        *,
        tries_again: bool = False,
    ) -> list[tuple[Move, MessagingError]]:
        """Move messages, in pieces; the moves that failed, each with its error. A message whose
        move failed is leased again, until the end of its lease or the next try.
        """
        failed: list[tuple[Move, MessagingError]] = []

        def hold_again(one: Move, error: MessagingError) -> None:
            until_ms = self._clock.monotonic_ms() + _TRY_AGAIN_MS
            leases.hold_again(one.queue, one.offset, until_ms if tries_again else one.deadline_ms)
            failed.append((one, error))

        def stays(one: Move) -> bool:
            """Whether the message waits in its own queue: the group is ordered, or there is no
            delay.
            """
            return one.nack_outcome is NackOutcome.AGAIN and (rules.ordered or not one.delay_ms)

        staying = [one for one in moves if stays(one)]

        async def append(piece: _Piece) -> None:
            try:
                self._journal.check_current(leases)
                if stays(piece[0][0]):
                    messages, events = self._returned(leases.group, piece)
                else:
                    messages, events = self._moved(leases, rules, piece)
                await self._journal.append(messages, events, Durability.SYNCED)
                note_kept(leases, rules, _unreadable(piece))
                self._given_up_log.note(leases, _given_up(piece))
            except MessagingError as error:
                for one, _ in piece:
                    hold_again(one, error)

        if staying:
            await append([(one, None) for one in staying])
        async for piece in self._pieces([one for one in moves if not stays(one)], hold_again):
            await append(piece)
        self._waiters.wake(leases.group)
        return failed

    async def _pieces(
        self, moves: Sequence[Move], hold_again: Callable[[Move, MessagingError], None]
    ) -> AsyncIterator[_Piece]:
        """Moves with their messages, as many in a piece as one append may hold; None where the
        message has expired.

        Each piece is read when the one before has been appended, so that one of them is in memory
        and others have their turns. `hold_again`: called with those that cannot be read now.
        """
        piece: _Piece = []
        left_bytes, left = _APPEND_BYTES, _APPEND_MESSAGES
        for one in moves:
            try:
                message = await self._read(one)
            except MessagingError as error:
                hold_again(one, error)
                continue
            size = len(message.body) if isinstance(message, StoredMessage) else 0
            if piece and (left <= 0 or size > left_bytes):
                yield piece
                piece = []
                left_bytes, left = _APPEND_BYTES, _APPEND_MESSAGES
            piece.append((one, message))
            left_bytes -= size
            left -= 1
        if piece:
            yield piece

    async def _read(self, move: Move) -> StoredMessage | CorruptRecord | None:
        try:
            found = await self._reader.read(move.queue.queue, move.offset, 1, 1)
        except CorruptRecord as damage:
            return damage
        if not found:
            log.error(
                "message_lost",
                queue=str(move.queue.queue),
                queue_offset=move.offset,
                reason="it has expired",
            )
            return None
        return found[0]

    def _returned(self, group: str, piece: _Piece) -> tuple[list[Message], list[AnyLeaseEvent]]:
        """The events for messages that stay in their queue."""
        now_ms = self._clock.wall_ms()
        returned = [one for one, _ in piece if not one.is_unprocessed]
        released = [one for one, _ in piece if one.is_unprocessed]
        events: list[AnyLeaseEvent] = []
        if returned:
            messages = [ReturnedMessage(*_wait_of(one, now_ms)) for one in returned]
            events.append(
                Returned(group=group, messages=messages, reasons=_given_reasons(returned))
            )
        if released:
            given_back = [ReleasedMessage(*_wait_of(one, now_ms), one.attempt) for one in released]
            events.append(
                Released(group=group, messages=given_back, reasons=_given_reasons(released))
            )
        return [], events

    def _moved(
        self, leases: GroupLeases, rules: GroupRules, piece: _Piece
    ) -> tuple[list[Message], list[AnyLeaseEvent]]:
        """The copies of messages that move to another topic, and the events that settle them in
        their queue.
        """
        now_ms = self._clock.wall_ms()
        group = leases.group
        copies: list[Message] = []
        settled: dict[tuple[NackOutcome, bool], list[Move]] = {}
        waiting: dict[bool, dict[str, int]] = {False: {}, True: {}}  # by `is_unprocessed`
        for one, message in piece:
            if isinstance(message, CorruptRecord):
                continue
            kind = NackOutcome.DISCARD if message is None else one.nack_outcome
            settled.setdefault((kind, one.is_unprocessed), []).append(one)
            if message is None:
                continue
            if kind is NackOutcome.AGAIN:
                origin = str(retry_message.origin_of(message).queue)
                counts = waiting[one.is_unprocessed]
                counts[origin] = counts.get(origin, 0) + 1
                copy = retry_message.retry_copy(
                    message, group, attempts=one.attempt, generation=leases.retries.generation
                )
                delayed = scheduled_message.with_delay(copy, delay_ms=one.delay_ms, again=True)
                copies.append(scheduled_message.delay(delayed, now_ms))
            elif kind is NackOutcome.DEAD_LETTER:
                reason = one.reason or ""
                copies.append(
                    retry_message.dead_letter_copy(
                        message, group, attempts=one.attempt, reason=reason
                    )
                )
        events: list[AnyLeaseEvent] = []
        for (kind, unprocessed), moves in settled.items():
            runs, reasons = _runs_of(moves), _given_reasons(moves)
            if kind is NackOutcome.AGAIN:
                events.append(
                    Retried(
                        group=group,
                        runs=runs,
                        waiting=waiting[unprocessed],
                        generation=leases.retries.generation,
                        reasons=reasons,
                        unprocessed=unprocessed,
                    )
                )
            else:
                events.append(
                    (DeadLettered if kind is NackOutcome.DEAD_LETTER else Discarded)(
                        group=group, runs=runs, reasons=reasons
                    )
                )
        if unreadable := _unreadable(piece):
            letters, event = settled_as_damaged(leases, rules, unreadable, now_ms)
            copies += letters
            events.append(event)
        return copies, events


def _wait_of(one: Move, now_ms: int) -> tuple[str, int, int, int, int, int]:
    """The fields of `ReturnedMessage`."""
    topic, number = one.queue.queue
    return topic, number, one.offset, one.lease, now_ms + one.delay_ms, one.delay_ms


def _runs_of(moves: Iterable[Move]) -> list[Run]:
    return runs_of([Held(one.queue, one.offset, one.lease) for one in moves])


def _given_reasons(moves: Iterable[Move]) -> list[GivenReason]:
    """The reasons that consumers gave, each with its messages."""
    given: dict[str, list[Move]] = {}
    for one in moves:
        if one.is_given and one.reason is not None:
            given.setdefault(one.reason, []).append(one)
    return [GivenReason(reason, _runs_of(found)) for reason, found in given.items()]


def _given_up(piece: _Piece) -> list[GivenUp]:
    """The messages that became dead letters, or were dropped instead."""
    return [
        GivenUp(message, one.attempt, one.cause, one.nack_outcome is NackOutcome.DEAD_LETTER)
        for one, message in piece
        if isinstance(message, StoredMessage) and one.nack_outcome is not NackOutcome.AGAIN
    ]


def _unreadable(piece: _Piece) -> list[Unreadable]:
    return [
        Unreadable(one.queue, one.offset, one.attempt, one.lease, message, is_new=False)
        for one, message in piece
        if isinstance(message, CorruptRecord)
    ]
