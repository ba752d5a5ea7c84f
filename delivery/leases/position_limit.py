"""How many queues groups may have positions in: of one group, since each receive looks at all of
them, and of all together, since each is kept in memory.
"""

from collections.abc import Callable, Iterable

from delivery.groups import GroupRules
from delivery.leases.group import LeaseTable
from delivery.leases.retry_message import retry_queue
from delivery.options import DeliveryOptions
from storage.errors import LimitReached, UnknownTopic
from storage.message import QueueId
from storage.store import MessageStore


class PositionLimit:
    """Refuses positions beyond the limits. What exists already stays. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        table: LeaseTable,
        *,
        rules_of: Callable[[str], GroupRules | None],
        options: DeliveryOptions,
    ) -> None:
        self._store = store
        self._table = table
        self._rules_of = rules_of
        self._options = options

    async def check_group(
        self, group: str, queues: Iterable[QueueId], *, pointer: str, replaces: bool = False
    ) -> None:
        """Raise LimitReached if the group would read, or have positions in, too many queues with
        these. `replaces`: the group reads only these then.
        """
        rules, wanted, positions = self._rules_of(group), set(queues), self.positions_of(group)
        read = set() if rules is None else await self.subscribed(rules)
        count = len(positions | wanted if replaces else positions | wanted | read)
        if count > self._options.max_group_queues and wanted - positions - read:
            raise LimitReached(
                f"a group has at most {self._options.max_group_queues} queues", pointer=pointer
            )

    def check_total(self, group: str, queues: Iterable[QueueId], *, pointer: str) -> None:
        """Raise LimitReached if all groups together would have too many positions with these."""
        added = set(queues) - self.positions_of(group)
        if added and self.total + len(added) > self._options.max_positions:
            raise LimitReached(
                f"at most {self._options.max_positions} positions of groups are kept",
                pointer=pointer,
            )

    @property
    def total(self) -> int:
        """Number of positions of all groups."""
        return self._store.committed_count() + sum(len(leases.queues) for leases in self._table)

    def positions_of(self, group: str) -> set[QueueId]:
        """The queues in which the group has a position, without its retry queue."""
        leases = self._table.find(group)
        received = () if leases is None else (one.queue for one in leases.queues)
        return {*self._store.committed_queues(group), *received} - {retry_queue(group)}

    async def subscribed(self, rules: GroupRules) -> set[QueueId]:
        """The queues of the topics that the rules name, of those that exist."""
        found: set[QueueId] = set()
        for one in rules.subscriptions:
            try:
                found.update(await self._store.queues(one.topic))
            except UnknownTopic:
                continue
        return found
