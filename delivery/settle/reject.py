"""Rejections: a consumer returns a message, for a retry or as a dead letter. Durable on return."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from delivery.groups import GroupRules
from delivery.leases.given_up import Cause
from delivery.leases.group import GroupLeases
from delivery.leases.handles import find_held, refusal_of
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import Event
from delivery.leases.queue import QueueLeases
from delivery.settle.move import Move, Mover
from delivery.settle.retry_policy import NackOutcome, backoff_ms, nack_outcome
from storage.errors import MessagingError


class Rejection(NamedTuple):
    """A rejected message. `delay_ms`: None for the backoff of the group; `unprocessed`: the
    delivery does not count as an attempt.
    """

    handle: str
    delay_ms: int | None = None
    reason: str | None = None
    unprocessed: bool = False


class Rejecter:
    """Rejects leased messages. Event loop only."""

    def __init__(self, journal: LeaseJournal, mover: Mover) -> None:
        self._journal = journal
        self._clock = journal.clock
        self._mover = mover

    async def nack(
        self, group: str, rules: GroupRules, refused: Sequence[Rejection]
    ) -> list[MessagingError | None]:
        """Redeliver the messages after a delay, or give them up after their last attempt.

        Unprocessed messages are redelivered without a delay unless one is given, as the same
        attempt. Returns the reason why each entry was refused; None if it was accepted.
        """

        def move(entry: int, one: Rejection, queue: QueueLeases, offset: int, lease: int) -> Move:
            slot = queue.slots.get(offset)
            if one.unprocessed:
                return Move(
                    queue, offset, slot.attempt - 1, lease, slot.deadline_ms, NackOutcome.AGAIN,
                    one.delay_ms or 0, one.reason, entry, is_given=True, is_unprocessed=True,
                )  # fmt: skip
            delay_ms = backoff_ms(rules, slot.attempt) if one.delay_ms is None else one.delay_ms
            reason = one.reason or "refused by its consumer"
            kind = nack_outcome(rules, slot.attempt)
            return Move(
                queue, offset, slot.attempt, lease, slot.deadline_ms, kind, delay_ms, reason, entry,
                is_given=one.reason is not None,
            )  # fmt: skip

        return await self._move_held(group, rules, refused, move)

    async def dead_letter(
        self, group: str, rules: GroupRules, refused: Sequence[Rejection]
    ) -> list[MessagingError | None]:
        """Give the messages up. Returns the same as `nack`."""
        kind = NackOutcome.DEAD_LETTER if rules.dead_letter else NackOutcome.DISCARD

        def move(entry: int, one: Rejection, queue: QueueLeases, offset: int, lease: int) -> Move:
            slot = queue.slots.get(offset)
            reason = one.reason or "given up by its consumer"
            return Move(
                queue, offset, slot.attempt, lease, slot.deadline_ms, kind, 0, reason, entry,
                is_given=one.reason is not None, cause=Cause.REQUESTED,
            )  # fmt: skip

        return await self._move_held(group, rules, refused, move)

    async def _move_held(
        self,
        group: str,
        rules: GroupRules,
        refused: Sequence[Rejection],
        move: Callable[[int, Rejection, QueueLeases, int, int], Move],
    ) -> list[MessagingError | None]:
        leases = self._journal.table.find(group)
        now_ms = self._clock.monotonic_ms()
        moves: list[Move] = []
        results: list[MessagingError | None] = [None] * len(refused)
        for entry, one in enumerate(refused):
            found = None if leases is None else find_held(leases, one.handle)
            if found is None or not found.is_leased(now_ms):
                results[entry] = refusal_of(leases, one.handle)
                continue
            moves.append(move(entry, one, *found))
            found.queue.slots.move(found.offset, Event.MOVE)
        if leases is not None and moves:
            failed = await self._journal.changes.shielded(self._move(leases, rules, moves))
            for one_move, error in failed:
                results[one_move.entry] = error
            if len(failed) == len(refused):
                raise failed[0][1]
        return results

    async def _move(
        self, leases: GroupLeases, rules: GroupRules, moves: Sequence[Move]
    ) -> list[tuple[Move, MessagingError]]:
        failed = await self._mover.move(leases, rules, moves)
        leases.rejected += _count_rejected(moves) - _count_rejected(one for one, _ in failed)
        return failed


def _count_rejected(moves: Iterable[Move]) -> int:
    return sum(not one.is_unprocessed and one.cause is not Cause.REQUESTED for one in moves)
