"""Positions of groups that a broker and EscrowMQ take over from each other.

A broker knows one offset for each queue of a group. What either has settled stays settled: from a
broker, a group advances to its offset and keeps what it has settled beyond; for a broker, the
offset is that of the first message that is not settled.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from delivery.groups import GroupRules
from delivery.leases import retry_message
from delivery.leases.commits import commit_together
from delivery.leases.events import Acked, Leased, Position, Reset, Run
from delivery.leases.group import GroupLeases
from delivery.leases.handles import Held, runs_of
from delivery.leases.journal import LeaseJournal
from delivery.leases.position_limit import PositionLimit
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_reader import QueueReader
from delivery.receive.group_queues import GroupQueues
from delivery.receive.receive import Receiver
from delivery.turns import Turns
from storage.errors import UnknownQueue, UnknownTopic
from storage.formats import names, properties
from storage.message import Durability, Message, QueueId, StoredMessage

_COPIES = 200  # of one append


class Advanced(NamedTuple):
    """The effect of a broker's offset in one queue.

    `before`: the offset of the group here; `offset`: the broker's, inside the queue.
    """

    queue: QueueId
    before: int
    offset: int

    @property
    def is_behind(self) -> bool:
        """Whether the group had settled messages that the broker's offset leaves open."""
        return self.offset < self.before


class BrokerPositions:
    """Merges positions of a broker, and exports those of EscrowMQ. Event loop only."""

    def __init__(
        self,
        journal: LeaseJournal,
        queues: GroupQueues,
        receiver: Receiver,
        limit: PositionLimit,
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._queues = queues
        self._receiver = receiver
        self._limit = limit
        self._reader = QueueReader(journal.store)

    async def advance(self, group: str, offsets: Mapping[QueueId, int]) -> list[Advanced]:
        """Settle all messages below these offsets; messages settled beyond them stay so. Durable on
        return. Idempotent.
        """
        async with self._receiver.claim_lock(group):
            leases = self._journal.table.group(group)
            found, restarts, settled = list[Advanced](), list[Position](), list[Run]()
            committed: list[tuple[QueueId, int]] = []
            arrived: dict[str, int] = {}
            for queue, offset in offsets.items():
                known = leases.find(queue)
                before = (
                    known.slots.prefix
                    if known is not None
                    else await self._queues.start_of(leases, queue)
                )
                found.append(Advanced(queue, before, offset))
                if offset <= before:
                    continue
                if queue == leases.retry_queue and any(leases.retries.waiting.values()):
                    arrived = await self._arrived(leases, known, before, offset)
                is_retry = queue.topic.startswith(names.RETRY_PREFIX)
                if known is None and not leases.is_recreated and not is_retry:
                    committed.append((queue, offset))
                elif known is None or offset >= known.slots.cursor:
                    restarts.append(Position(*queue, offset))
                else:
                    settled += _unsettled_below(known, offset)
            await commit_together(self._store, group, committed)
            events: list[Acked | Leased | Reset] = []
            if restarts:
                generation = leases.retries.generation
                events.append(Reset(group=group, positions=restarts, generation=generation))
            if settled:
                events.append(Acked(group=group, runs=settled))
            if arrived:
                events.append(
                    Leased(group=group, lease=0, until_ms=0, lease_ms=0, runs=[], arrived=arrived)
                )
            if events:
                await self._journal.append([], events, Durability.SYNCED)
        return found

    async def move_retries(self, group: str, queue: QueueId, topic: str) -> int:
        """Copy messages of another retry queue of a broker to the retry queue of the group, from
        the group's position in that queue; the number of copies.

        `topic`: of their first delivery, for those that do not name it. Durable on return. After a
        crash it continues where it was.
        """
        bounds = await self._store.offsets(queue)
        leases, moved = self._journal.table.group(group), 0
        async with self._receiver.claim_lock(group):
            known = leases.find(queue)
            at = max(bounds.first, 0 if known is None else known.slots.prefix)
            while at < bounds.end:
                end = min(bounds.end, at + _COPIES)
                copies: list[Message] = []
                async for _, message in self._reader.read_each(queue, range(at, end)):
                    if isinstance(message, StoredMessage):
                        copies.append(self._copy(leases, message, topic))
                event = Reset(
                    group=group,
                    positions=[Position(*queue, end)],
                    generation=leases.retries.generation,
                )
                await self._journal.append(copies, [event], Durability.SYNCED)
                moved += len(copies)
                at = end
        return moved

    async def offsets(self, group: str, rules: GroupRules) -> dict[QueueId, int]:
        """The offset at which a broker lets the group continue, in each queue that the group reads
        or has a position in.
        """
        leases = self._journal.table.group(group)
        queues = {
            leases.retry_queue,
            *self._limit.positions_of(group),
            *await self._limit.subscribed(rules),
        }
        offsets: dict[QueueId, int] = {}
        turns = Turns()
        for queue in queues:
            await turns.take(1)
            known = leases.find(queue)
            if known is None:
                try:
                    offsets[queue] = await self._queues.start_of(leases, queue)
                except (UnknownTopic, UnknownQueue):
                    continue  # its topic is deleted
            else:
                offsets[queue] = known.slots.prefix
        return offsets

    def _copy(self, leases: GroupLeases, message: StoredMessage, topic: str) -> Message:
        if properties.RETRY_TOPIC not in message.system:
            system = {**message.system, properties.RETRY_TOPIC: topic}
            message = msgspec.structs.replace(message, system=system)
        return retry_message.retry_copy(
            message,
            leases.group,
            attempts=retry_message.attempts_of(message),
            generation=leases.retries.generation,
        )

    async def _arrived(
        self, leases: GroupLeases, known: QueueLeases | None, before: int, offset: int
    ) -> dict[str, int]:
        """Retries of EscrowMQ that came to the retry topic and were settled by the broker, by
        queue.
        """
        begin = before if known is None else known.slots.cursor
        arrived: dict[str, int] = {}
        async for _, message in self._reader.read_each(
            leases.retry_queue, range(begin, max(begin, offset))
        ):
            if isinstance(message, StoredMessage):
                origin = str(retry_message.origin_of(message).queue)
                arrived[origin] = arrived.get(origin, 0) + 1
        return arrived


def _unsettled_below(queue: QueueLeases, offset: int) -> list[Run]:
    return runs_of(
        [Held(queue, slot.offset, slot.lease) for slot in queue.slots if slot.offset < offset]
    )
