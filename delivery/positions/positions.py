"""Committed offsets of a group in its queues, and their reset.

What the group has received under leases is in the table of leases; its committed offset is
the settled prefix. Elsewhere the offset is what was committed to the store.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from delivery.groups import GroupRules
from delivery.leases import retry_message
from delivery.leases.backlog import backlog_of, count_retries_elsewhere
from delivery.leases.commits import commit_together
from delivery.leases.events import Deleted, Position, Reset, Run, TopicDeleted
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import State
from delivery.leases.position_limit import PositionLimit
from delivery.leases.queue import QueueLeases
from delivery.leases.waiters import Waiters
from delivery.receive.group_queues import GroupQueues
from delivery.receive.receive import Receiver
from storage.errors import CorruptRecord, OffsetBeyondEnd, OffsetExpired, UnknownTopic
from storage.message import Durability, QueueId

_LETTERS = 1_000  # dead letters that one event names


class Move(NamedTuple):
    """The effect of a reset in one queue.

    `settled`: settled messages, of those in between and of those from `from_offset` on; `again`:
    those of them that are delivered again. `leases`, `retries`: how many end.
    """

    queue: QueueId
    from_offset: int
    to_offset: int
    settled: int
    again: int
    leases: int
    retries: int

    @property
    def affected(self) -> int:
        return abs(self.to_offset - self.from_offset)


class QueueLag(NamedTuple):
    """Numbers of messages in one queue, before any filter. `waiting`: for a retry, or, in an
    ordered group, for their key; `oldest_ready_ms`: when the oldest ready message was stored;
    `skipped`: in total, by the group's rules; `damaged`: in total, with unreadable records.
    """

    queue: QueueId
    offset: int
    end: int
    ready: int
    leased: int
    waiting: int
    oldest_ready_ms: int | None
    skipped: int
    damaged: int


class Positions:
    """Reads and sets the positions of groups. Event loop only."""

    def __init__(
        self,
        journal: LeaseJournal,
        queues: GroupQueues,
        receiver: Receiver,
        waiters: Waiters,
        limit: PositionLimit,
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._queues = queues
        self._receiver = receiver
        self._waiters = waiters
        self._limit = limit

    async def get(self, group: str, queue: QueueId) -> int | None:
        """The committed offset: everything below is settled. None if the group has neither
        committed nor received anything.
        """
        leases = self._journal.table.find(group)
        if leases is None:
            return await self._store.committed_offset(group, queue)
        known = leases.find(queue)
        return await self._queues.committed(leases, queue) if known is None else known.slots.prefix

    async def set(self, group: str, positions: Mapping[QueueId, int]) -> None:
        """Continue at these offsets; leases in these queues end. Durable on return. Raises
        LimitReached, UnknownGroup.
        """
        async with self._receiver.claim_lock(group):
            self._journal.check_exists(group)
            await self._check_limits(group, positions, pointer="/offsets")
            leases = self._journal.table.group(group)
            leased, free = [], []
            for queue, offset in positions.items():
                if leases.is_recreated or leases.find(queue) is not None:
                    leased.append(Position(*queue, offset))
                else:
                    free.append((queue, offset))
            await commit_together(self._store, group, free)
            if leased:
                await self._reset(leases, leased)
        self._waiters.wake(group)

    async def plan(self, group: str, positions: Mapping[QueueId, int]) -> list[Move]:
        """The effect of a reset to these offsets, in each queue."""
        leases = self._journal.table.find(group)
        return await self._plan(
            group, positions, {} if leases is None else await self._retries_of(leases, positions)
        )

    async def _check_limits(self, group: str, queues: Iterable[QueueId], *, pointer: str) -> None:
        await self._limit.check_group(group, queues, pointer=pointer)
        self._limit.check_total(group, queues, pointer=pointer)

    async def _plan(
        self, group: str, positions: Mapping[QueueId, int], begun: Mapping[QueueId, Sequence[Run]]
    ) -> list[Move]:
        """The effect in one queue. `begun`: see `_retries_of`."""
        leases = self._journal.table.find(group)
        waiting = {} if leases is None else leases.retries.waiting
        moves = []
        for queue, offset in positions.items():
            begin = await self.get(group, queue)
            if begin is None:
                begin = (await self._store.offsets(queue)).first
            known = self._find(group, queue)
            settled = again = max(0, begin - offset)
            leased, retries = 0, waiting.get(str(queue), 0) + len(begun.get(queue, ()))
            if known is not None:
                # Up to the cursor the group has looked at everything; what has no slot there it is
                # done with.
                cursor, counts = known.slots.cursor, known.slots.counts
                low, ahead, unsettled = min(begin, offset), 0, 0
                for slot in known.slots:
                    unsettled += slot.offset >= low
                    ahead += slot.offset >= offset
                settled, again = max(0, cursor - low) - unsettled, max(0, cursor - offset) - ahead
                leased = counts[State.LEASED] + counts[State.ACKING] + counts[State.MOVING]
                retries += counts[State.WAITING]
            moves.append(Move(queue, begin, offset, settled, again, leased, retries))
        return moves

    async def reset(self, group: str, positions: Mapping[QueueId, int]) -> list[Move]:
        """Continue at these offsets. The leases and the waiting retries of these queues end.
        Durable on return. Raises LimitReached, UnknownGroup.
        """
        async with self._receiver.claim_lock(group):
            self._journal.check_exists(group)
            await self._check_limits(group, positions, pointer="/topic")
            leases = self._journal.table.group(group)
            begun = await self._retries_of(leases, positions)
            moves = await self._plan(group, positions, begun)
            given = [Position(*queue, offset) for queue, offset in positions.items()]
            await self._reset(
                leases,
                given,
                ends_retries=True,
                voided=[run for runs in begun.values() for run in runs],
            )
        self._waiters.wake(group)
        return moves

    async def delete(self, group: str) -> None:
        """Forget the group's positions, leases and retries, so that a new group of the same name
        has none.
        """
        dead_letters = retry_message.dead_letter_queue(group)
        async with self._receiver.claim_lock(group):
            generation = self._journal.table.group(group).retries.generation + 1
            retry_end = await self._end_of(retry_message.retry_queue(group))
            noted = -1
            # Again where the append of a dead letter had begun before: it is one of this group too.
            while (dead_letter_end := await self._end_of(dead_letters)) != noted:
                event = Deleted(
                    group=group,
                    generation=generation,
                    retry_end=retry_end,
                    dead_letter_end=dead_letter_end,
                )
                await self._journal.append([], [event], Durability.SYNCED)
                noted = dead_letter_end
            await self._store.forget_offsets(group)
        self._waiters.wake_all(group)

    async def _end_of(self, queue: QueueId) -> int:
        try:
            return (await self._store.offsets(queue)).end
        except UnknownTopic:
            return 0

    async def end_topic(self, group: str, topic: str, dead_letters: Sequence[int]) -> None:
        """Forget the group's position in a deleted topic, and end its leases, retries and these
        dead letters. Durable on return.
        """
        async with self._receiver.claim_lock(group):
            leases = self._journal.table.group(group)
            queues = [one.queue for one in leases.queues_of(topic)]
            begun = await self._retries_of(leases, queues) if queues else {}
            if not (
                queues
                or dead_letters
                or any(queue.partition("/")[0] == topic for queue in leases.retries.waiting)
            ):
                return
            pieces = [
                list(dead_letters[at : at + _LETTERS])
                for at in range(0, len(dead_letters), _LETTERS)
            ] or [[]]
            generation = leases.retries.generation + 1
            events = [
                TopicDeleted(group=group, topic=topic, generation=generation, dead_letters=piece)
                for piece in pieces
            ]
            voided = [run for runs in begun.values() for run in runs]
            events[0] = msgspec.structs.replace(events[0], voided=voided)
            for event in events:
                await self._journal.append([], [event], Durability.SYNCED)
        self._waiters.wake_all(group)

    async def lag(self, group: str, rules: GroupRules) -> tuple[list[QueueLag], int]:
        """(each queue of the group, messages that wait for a retry elsewhere)."""
        leases = self._journal.table.group(group)
        if rules.ordered:
            async with self._receiver.claim_lock(group):
                for one in leases.queues:
                    await self._queues.learn(one, rules)
        queues: list[QueueId] = [retry_message.retry_queue(group)]
        for topic in dict.fromkeys(one.topic for one in rules.subscriptions):
            try:
                queues += await self._store.queues(topic)
            except UnknownTopic:
                continue
        found = [await self._lag_of(group, queue) for queue in queues]
        retries = found[0]
        known = leases.find(retries.queue)
        attempted = reopened = 0
        if known is not None:
            attempted, reopened = known.count_attempted(), known.ready
        return found, count_retries_elsewhere(
            leases, retries.ready, reopened=reopened, attempted=attempted
        )

    async def _lag_of(self, group: str, queue: QueueId) -> QueueLag:
        bounds = await self._store.offsets(queue)
        known = self._find(group, queue)
        if known is None:
            leases = self._journal.table.group(group)
            begin = max(bounds.first, await self._queues.start_of(leases, queue))
            oldest_ms = await self._stored_ms(queue, begin, bounds.end)
            return QueueLag(
                queue, begin, bounds.end, bounds.end - begin, 0, 0, oldest_ms, skipped=0, damaged=0
            )
        slots, backlog = known.slots, backlog_of(known, bounds, reopened=known.ready)
        first = known.first_ready
        oldest = slots.cursor if first is None else first
        return QueueLag(
            queue,
            slots.prefix,
            bounds.end,
            *backlog,
            await self._stored_ms(queue, max(oldest, bounds.first), bounds.end),
            self._journal.table.group(group).skipped.get(str(queue), 0),
            self._journal.table.group(group).damaged.get(str(queue), 0),
        )

    async def _stored_ms(self, queue: QueueId, offset: int, end: int) -> int | None:
        if offset >= end:
            return None
        try:
            (message,) = await self._store.read(queue, offset, max_messages=1, max_bytes=1)
        except (OffsetExpired, CorruptRecord):
            return None
        return message.stored_at_ms

    async def _reset(
        self,
        leases: GroupLeases,
        positions: Sequence[Position],
        *,
        ends_retries: bool = False,
        voided: Sequence[Run] = (),
    ) -> None:
        event = Reset(
            group=leases.group,
            positions=list(positions),
            generation=leases.retries.generation + 1,
            ends_retries=ends_retries,
            voided=list(voided),
        )
        await self._journal.append([], [event], Durability.SYNCED)

    async def _retries_of(
        self, leases: GroupLeases, queues: Container[QueueId]
    ) -> dict[QueueId, list[Run]]:
        """Messages of these queues in the retry topic that the group has scanned."""
        retries = leases.find(leases.retry_queue)
        found: dict[QueueId, list[Run]] = {}
        for slot in [] if retries is None else list(retries.slots):
            assert retries is not None
            try:
                (message,) = await self._store.read(
                    retries.queue, slot.offset, max_messages=1, max_bytes=1
                )
            except (OffsetExpired, OffsetBeyondEnd, CorruptRecord):
                continue
            origin = retry_message.origin_of(message).queue
            if origin in queues:
                found.setdefault(origin, []).append(Run(*retries.queue, slot.offset, 1, slot.lease))
        return found

    def _find(self, group: str, queue: QueueId) -> QueueLeases | None:
        leases = self._journal.table.find(group)
        return None if leases is None else leases.find(queue)
