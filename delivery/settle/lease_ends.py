"""When leases end: later, where their consumers ask for it, and what becomes of a message whose
lease ends without a word.
"""

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
    """Extends leases and ends those that are due. Event loop only."""

    def __init__(self, journal: LeaseJournal, mover: Mover, waiters: Waiters) -> None:
        self._journal = journal
        self._clock = journal.clock
        self._mover = mover
        self._waiters = waiters

    async def extend(self, group: str, wanted: Sequence[tuple[str, int]]) -> list[int | None]:
        """`wanted`: (handle, how long from now on).

        The end of each lease now (wall); None where it has ended.

        In the page cache when it is answered: a power cut may take it, and the lease ends when it
        would have.
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
        """Messages (in state MOVING) that have had all their attempts.

        What cannot be written now is tried again.
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
        """End the leases whose time is up, and the waits; how many leases."""
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
        """Give up messages whose last lease ended; what fails is tried again, and counted then."""
        failed = await self._mover.move(leases, rules, last, tries_again=True)
        leases.leases_expired += len(last) - len(failed)
