"""The queues that a group reads, where it begins in one that it has never received from, and what
is open in the others.
"""

from array import array

from delivery.groups import GroupRules, Start
from delivery.leases.events import Position, Reset
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.position_limit import PositionLimit
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_reader import QueueReader
from delivery.offset_by_time import find_offset_by_time
from storage.errors import CorruptRecord, OffsetExpired, UnknownTopic
from storage.message import Durability, OffsetRange, QueueId, StoredMessage

_NO_KEY = "\0"  # begins no ordering key of a client


class GroupQueues:
    """The queues that a group receives from. Event loop only."""

    def __init__(self, journal: LeaseJournal, limit: PositionLimit, *, cached_bytes: int) -> None:
        """`cached_bytes`: the newest of the log that count as in memory."""
        self._cached_bytes = cached_bytes
        self._journal = journal
        self._limit = limit
        self._store = journal.store
        self._reader = QueueReader(journal.store)

    async def of(self, leases: GroupLeases, rules: GroupRules) -> list[QueueLeases]:
        """The queues that the group reads, its retry queue the first. Raises LimitReached."""
        found = [leases.open(leases.retry_queue, leases.retries.start)]
        for topic in dict.fromkeys([one.topic for one in rules.subscriptions]):
            try:
                queues = await self._store.queues(topic)
            except UnknownTopic:
                continue  # it was deleted: the group reads what is left
            unknown = [one for one in queues if leases.find(one) is None]
            if unknown:
                self._limit.check_total(leases.group, unknown, pointer="/group")
            found += [
                leases.find(one) or leases.open(one, await self.start_of(leases, one))
                for one in queues
            ]
        return found

    async def start_of(self, leases: GroupLeases, queue: QueueId) -> int:
        """Where a group begins in a queue that it has never received from: one that starts at the
        end has its position.
        """
        if queue == leases.retry_queue:
            return leases.retries.start
        committed = await self.committed(leases, queue)
        return (await self._store.offsets(queue)).first if committed is None else committed

    async def learn(self, queue: QueueLeases, rules: GroupRules) -> None:
        """Know what is open there, and of which keys. Who calls holds the group's turn to take."""
        if queue.is_learned and (queue.order is not None) == rules.ordered:
            return
        if not rules.ordered:
            queue.learn(None)
            return
        offsets = array("q", (slot.offset for slot in queue.slots))
        found, keys = array("q"), list[str]()  # there may be a million of them, of few keys
        names: dict[str, str] = {}
        async for offset, message in self._reader.read_each(queue.queue, offsets):
            # Where it cannot be read its key is not known: it waits for none and holds none up
            # until it is settled.
            key = (
                (message.ordering_key or "")
                if isinstance(message, StoredMessage)
                else f"{_NO_KEY}{offset}"
            )
            found.append(offset)
            keys.append(names.setdefault(key, key))
        queue.learn(zip(found, keys, strict=True))

    async def begin(self, leases: GroupLeases, rules: GroupRules) -> None:
        """Let a group that does not start at the first message begin where its rules say, in those
        of its queues in which it has no position yet.

        Before the first receive by these rules, which begins at the first message. The caller
        holds the group's turn to claim. Raises LimitReached where the rules name topics of too many
        queues.
        """
        await self._limit.check_group(
            leases.group, await self._limit.subscribed(rules), pointer="/topics", replaces=True
        )
        if rules.start is Start.EARLIEST:
            return
        positions = [
            Position(*queue, await self._beginning(queue, rules))
            for topic in dict.fromkeys(one.topic for one in rules.subscriptions)
            for queue in await self._store.queues(topic)
            if leases.find(queue) is None and await self.committed(leases, queue) is None
        ]
        if positions:
            self._limit.check_total(
                leases.group, [one.queue_id for one in positions], pointer="/topics"
            )
            event = Reset(
                group=leases.group, positions=positions, generation=leases.retries.generation
            )
            await self._journal.append([], [event], Durability.SYNCED)

    async def _beginning(self, queue: QueueId, rules: GroupRules) -> int:
        """Where a group that does not start at the first message begins."""
        bounds = await self._store.offsets(queue)
        if rules.start is Start.TIME:
            try:
                return (await find_offset_by_time(self._store, queue, rules.start_at_ms or 0))[0]
            except CorruptRecord:
                return bounds.first  # rather too many than too few
        if rules.start is Start.ROCKETMQ and await self._is_young(queue, bounds):
            return bounds.first
        return bounds.end

    async def _is_young(self, queue: QueueId, bounds: OffsetRange) -> bool:
        """Is the first message of the queue that there ever was still in the page cache, by the
        share of memory that RocketMQ counts on for it?
        """
        if bounds.first > 0 or bounds.end == 0:
            return bounds.first == 0
        try:
            (first,) = await self._store.read(queue, 0, max_messages=1, max_bytes=1)
        except (CorruptRecord, OffsetExpired):
            return False
        return self._store.stored_offset() - (first.log_offset or 0) <= self._cached_bytes

    async def committed(self, leases: GroupLeases, queue: QueueId) -> int | None:
        """The offset of a queue that the group never received from; None where it has committed
        none, or was deleted since.
        """
        return (
            None if leases.is_recreated else await self._store.committed_offset(leases.group, queue)
        )
