"""Figures of consumer groups for monitoring: their lag, and the messages that they gave up.

They are read from memory alone, so a slow disk does not delay them, and in turns of bounded length,
so many groups do not block the event loop.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from delivery.groups import GroupRules
from delivery.leases.backlog import (
    Backlog,
    backlog_of,
    count_attempted,
    count_reopened,
    count_retries_elsewhere,
    work_of,
)
from delivery.leases.given_up import Cause
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.position_limit import PositionLimit
from delivery.receive.group_queues import GroupQueues
from delivery.settle.dead_letters import DeadLetters
from delivery.turns import Turns
from storage.errors import UnknownQueue, UnknownTopic
from storage.message import QueueId

_MOST_WORK = 65_536  # queues of one reading


class GroupFigures(NamedTuple):
    """`ready`, `leased`, `waiting`: as the lag of the group has them; `held_keys`: ordering keys
    that are leased or wait for a retry; `dead_letters`: that are kept now.

    Since the start of the process: `dead_lettered`, `discarded`; `rejected`: negative
    acknowledgements that count an attempt; `leases_expired`: leases that ended without a
    settlement.
    """

    group: str
    ready: int
    leased: int
    waiting: int
    held_keys: int
    dead_letters: int
    dead_lettered: Mapping[Cause, int]
    discarded: int
    rejected: int
    leases_expired: int


class FigureReader:
    """Reads the figures of groups. Event loop only."""

    def __init__(
        self,
        journal: LeaseJournal,
        queues: GroupQueues,
        limit: PositionLimit,
        dead_letters: DeadLetters,
    ) -> None:
        self._table = journal.table
        self._store = journal.store
        self._queues = queues
        self._limit = limit
        self._dead_letters = dead_letters

    async def read(self, groups: Iterable[tuple[str, GroupRules]]) -> list[GroupFigures]:
        """The figures of these groups, in their order: of all, or of as many as have the number of
        queues that one reading may examine.
        """
        found: list[GroupFigures] = []
        turns = Turns()
        for group, rules in groups:
            if turns.work >= _MOST_WORK:
                break
            found.append(await self._figures(group, rules, turns))
        return found

    async def count_retries(self, group: str) -> int:
        """Number of messages that wait for a retry, or whose delay is over."""
        leases = self._table.group(group)
        retries = await self._backlog(leases, leases.retry_queue, Turns())
        return sum(retries) + _retries_elsewhere(leases, retries)

    async def _figures(self, group: str, rules: GroupRules, turns: Turns) -> GroupFigures:
        leases = self._table.group(group)
        retries = await self._backlog(leases, leases.retry_queue, turns)
        elsewhere = _retries_elsewhere(leases, retries)
        ready, leased, waiting = retries
        held_keys = _held_keys(leases, leases.retry_queue)
        for queue in await self._limit.subscribed(rules):
            backlog = await self._backlog(leases, queue, turns)
            ready, leased = ready + backlog.ready, leased + backlog.leased
            waiting += backlog.waiting
            held_keys += _held_keys(leases, queue)
        return GroupFigures(
            group,
            ready,
            leased,
            waiting + elsewhere,
            held_keys,
            self._dead_letters.count_kept(group),
            leases.dead_lettered,
            leases.discarded,
            leases.rejected,
            leases.leases_expired,
        )

    async def _backlog(self, leases: GroupLeases, queue: QueueId, turns: Turns) -> Backlog:
        known = leases.find(queue)
        await turns.take(1 if known is None else 1 + work_of(known))
        try:
            bounds = self._store.bounds(queue)
            if known is not None:
                return backlog_of(known, bounds, reopened=count_reopened(known))
            begin = await self._queues.start_of(leases, queue)
        except (UnknownTopic, UnknownQueue):
            return Backlog(0, 0, 0)  # it was deleted meanwhile
        return Backlog(bounds.end - max(begin, bounds.first), 0, 0)


def _retries_elsewhere(leases: GroupLeases, retries: Backlog) -> int:
    known = leases.find(leases.retry_queue)
    reopened, attempted = (
        (0, 0) if known is None else (count_reopened(known), count_attempted(known))
    )
    return count_retries_elsewhere(leases, retries.ready, reopened=reopened, attempted=attempted)


def _held_keys(leases: GroupLeases, queue: QueueId) -> int:
    known = leases.find(queue)
    return 0 if known is None or known.order is None else known.order.held_count
