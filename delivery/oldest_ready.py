"""Since when the oldest message that a group could receive has been stored.

That time is in the log, and no scrape is to wait for the disk: a loop reads it, for a queue whose
oldest message has changed. Times never go back in a queue, so what was read of an older message
says which queues need not be read: few reads a group.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from delivery.groups import GroupRules
from delivery.leases.backlog import first_ready_of, work_of
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.position_limit import PositionLimit
from delivery.receive.group_queues import GroupQueues
from delivery.turns import Turns
from storage.errors import CorruptRecord, OffsetOutOfRange, UnknownQueue, UnknownTopic
from storage.message import QueueId

_MOST_WORK = 16_384  # queues of one run
_MOST_READS = 500  # of one run
_READ_WORK = 16  # as much work as so many queues


class _Known(NamedTuple):
    """A message of a queue, with the time at which it was stored."""

    offset: int
    stored_at_ms: int


_UNKNOWN = _Known(-1, 0)


class OldestReady:
    """Knows the age of the oldest ready message of each group. Event loop only."""

    def __init__(self, journal: LeaseJournal, queues: GroupQueues, limit: PositionLimit) -> None:
        self._table = journal.table
        self._store = journal.store
        self._queues = queues
        self._limit = limit
        self._times: dict[str, int] = {}  # by group
        self._known: dict[str, dict[QueueId, _Known]] = {}  # by group, of queues with messages
        self._next = 0  # the group with which the next run begins

    def stored_at_ms(self, group: str) -> int | None:
        """When the oldest message that was ready at the last run was stored; None if there was
        none, or the time is unknown yet.
        """
        return self._times.get(group)

    async def run_once(self, groups: Sequence[tuple[str, GroupRules]]) -> int:
        """Examine these groups, or as many as one run may, after those of the previous run. The
        number of messages read. Raises StoreClosed, UnavailableError.
        """
        names = {group for group, _ in groups}
        for known in (self._times, self._known):
            for group in known.keys() - names:
                del known[group]
        turns, reads = Turns(), 0
        begin = self._next if self._next < len(groups) else 0
        self._next = 0
        for number in range(len(groups)):
            at = (begin + number) % len(groups)
            if turns.work >= _MOST_WORK or reads >= _MOST_READS:
                self._next = at
                break
            reads += await self._look_at(*groups[at], turns)
        return reads

    async def _look_at(self, group: str, rules: GroupRules, turns: Turns) -> int:
        """Examine a group; the number of messages read."""
        leases = self._table.group(group)
        known = self._known.get(group, {})
        offsets: dict[QueueId, int] = {}
        for queue in (leases.retry_queue, *await self._limit.subscribed(rules)):
            offset = await self._first_ready(leases, queue, turns)
            if offset is not None:
                offsets[queue] = offset
        # Of each queue a message at or before its oldest one: stored at the same time or earlier.
        known = {
            queue: found if found is not None and found.offset <= offset else _UNKNOWN
            for queue, offset in offsets.items()
            for found in [known.get(queue)]
        }
        order = [(one.stored_at_ms, queue) for queue, one in known.items()]
        heapify(order)
        reads = 0
        while order and known[queue := order[0][1]].offset != offsets[queue]:
            await turns.take(_READ_WORK)
            stored_at_ms = await self._read(queue, offsets[queue])
            reads += 1
            if stored_at_ms is None:
                heappop(order)
                del known[queue]
            else:
                heapreplace(order, (stored_at_ms, queue))
                known[queue] = _Known(offsets[queue], stored_at_ms)
        if order:
            self._known[group], self._times[group] = known, order[0][0]
        else:
            self._known.pop(group, None)
            self._times.pop(group, None)
        return reads

    async def _first_ready(self, leases: GroupLeases, queue: QueueId, turns: Turns) -> int | None:
        known = leases.find(queue)
        await turns.take(1 if known is None else 1 + work_of(known))
        try:
            bounds = self._store.bounds(queue)
            begin = (
                await self._queues.start_of(leases, queue)
                if known is None
                else first_ready_of(known)
            )
        except (UnknownTopic, UnknownQueue):
            return None  # it was deleted
        begin = max(begin, bounds.first)
        return begin if begin < bounds.end else None

    async def _read(self, queue: QueueId, offset: int) -> int | None:
        try:
            (message,) = await self._store.read(queue, offset, max_messages=1, max_bytes=1)
        except (UnknownTopic, UnknownQueue, OffsetOutOfRange, CorruptRecord):
            return None
        return message.stored_at_ms
