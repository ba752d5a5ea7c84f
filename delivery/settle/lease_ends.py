"""Ends of leases: extensions, and messages whose lease expires."""

from collections.abc import Sequence
from contextlib import suppress

from delivery.groups import GroupRules
from delivery.leases import replay
from delivery.leases.claim import ClaimedMessage
from delivery.leases.events import Expired, Extended, ExtendedMessage
from delivery.leases.group import GroupLeases
from delivery.leases.handles import Held, find_held, runs_of
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue import QueueLeases
from delivery.leases.waiters import Waiters
from delivery.settle.move import Move, Mover
from delivery.settle.retry_policy import NackOutcome, nack_outcome
from storage.errors import StorageFull, UnavailableError
from storage.message import Durability


class LeaseEnds:
    """Extends leases, and ends those that expire. Event loop only."""

    def __init__(self, journal: LeaseJournal, mover: Mover, waiters: Waiters) -> None:
        self._journal = journal
        self._clock = journal.clock
        self._mover = mover
        self._waiters = waiters

    async def extend(self, group: str, wanted: Sequence[tuple[str, int]]) -> list[int | None]:
        """Extend leases. `wanted`: (handle, length from now). Returns the new end of each lease
        (wall); None if it has ended.

        In the page cache when answered: after a power cut the lease may end when it would have
        ended without the extension.
        """
        leases = self._journal.table.find(group)
        now = self._journal.now()
        until: list[int | None] = []
        messages: list[ExtendedMessage] = []
        for handle, lease_ms in wanted:
            found = None if leases is None else find_held(leases, handle)
            if leases is None or found is None or not found.is_leased(now.monotonic_ms):
                until.append(None)
                continue
            queue, offset, lease = found
            messages.append(
                ExtendedMessage(*queue.queue, offset, lease, now.wall_ms + lease_ms, lease_ms)
            )
            until.append(now.wall_ms + lease_ms)
        if messages:
            event = Extended(group=group, messages=messages)
            replay.apply(self._journal.table, event, now)
            await self._journal.append([], [event], Durability.BUFFERED, applies=False)
        return until

    async def give_up(
        self, leases: GroupLeases, rules: GroupRules, exhausted: Sequence[ClaimedMessage]
    ) -> None:
        """Give up messages (in state MOVING) that have used up their attempts. A failed write is
        tried again.
        """
        moves = [self._last_move(rules, one.queue, one.offset) for one in exhausted]
        await self._journal.changes.shielded(
            self._mover.move(leases, rules, moves, tries_again=True)
        )

    @staticmethod
    def _last_move(rules: GroupRules, queue: QueueLeases, offset: int) -> Move:
        slot = queue.slots.get(offset)
        kind = NackOutcome.DEAD_LETTER if rules.dead_letter else NackOutcome.DISCARD
        return Move(
            queue,
            offset,
            slot.attempt,
            slot.lease,
            0,
            kind,
            0,
            "the lease of its last attempt ended",
            0,
        )

    async def end_due(self, leases: GroupLeases, rules: GroupRules) -> int:
        """End the leases and waits that are due; the number of leases."""
        now = self._journal.now()
        if not leases.has_due(now.monotonic_ms):
            return 0
        ended = leases.end_due(now.monotonic_ms)
        last: list[Move] = []
        again: list[Held] = []
        for one in ended:
            if nack_outcome(rules, one.attempt) is NackOutcome.AGAIN:
                again.append(Held(one.queue, one.offset, one.lease))
            else:
                last.append(self._last_move(rules, one.queue, one.offset))
        if again:
            event = Expired(group=leases.group, runs=runs_of(again))
            replay.apply(self._journal.table, event, now)
            leases.leases_expired += len(again)
        self._waiters.wake(leases.group)
        if again:
            # A start ends the leases by their deadlines, with the event or without it.
            with suppress(UnavailableError, StorageFull):
                await self._journal.append([], [event], Durability.BUFFERED, applies=False)
        if last:
            await self._journal.changes.shielded(self._end_last(leases, rules, last))
        return len(ended)

    async def _end_last(self, leases: GroupLeases, rules: GroupRules, last: Sequence[Move]) -> None:
        """Give up messages whose last lease ended. A failure is retried, and the messages count
        then.
        """
        failed = await self._mover.move(leases, rules, last, tries_again=True)
        leases.leases_expired += len(last) - len(failed)
