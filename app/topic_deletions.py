"""Deletes topics: says what uses one, ends that, and removes the topic from the store and from the
registry.

The registry notes the deletion first; from then on the topic is unknown. The store's deletion is
one message in the log. What names the topic is ended after that, so nothing that was appended
before is missed; the row of the registry goes last. A deletion that a crash, a full disk or the
database of the registry has interrupted is finished without another request: every step may be
repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from app.registry.consumer_groups import ConsumerGroups
from app.registry.database import NOT_NOW
from app.registry.topics import Topic, Topics
from delivery.members.service import Members
from delivery.service import Delivery
from scheduler.cron_service import CronService
from scheduler.cron_table import CronItem
from scheduler.schedule import Schedule, ScheduleState
from scheduler.schedule_lookup import ListPosition, Wanted
from scheduler.schedule_service import ScheduleService
from storage.errors import (
    AlreadyDelivered,
    TopicInUse,
    TransactionConflict,
    UnknownSchedule,
    UnknownTransaction,
)
from storage.keyed_locks import ShieldedTasks
from storage.store import MessageStore
from txn.coordinator import TransactionCoordinator
from txn.states import Resolver, TxnState
from txn.transaction import Transaction

log = structlog.get_logger()

_TOGETHER = 100  # changes that wait for the disk at once
_OPEN = frozenset(state for state in TxnState if not state.is_decided)
_WAITING = (ScheduleState.SCHEDULED, ScheduleState.PARKED)


class TopicUse(NamedTuple):
    """Numbers of what a topic has, and of what names it."""

    topic: str
    queues: int
    messages: int
    groups: int
    open_transactions: int
    schedules: int

    @property
    def is_any(self) -> bool:
        return bool(self.groups or self.open_transactions or self.schedules)


@dataclass(kw_only=True)
class TopicDeletions:
    """Deletes topics, after their uses have ended. Event loop only."""

    topics: Topics
    store: MessageStore
    transactions: TransactionCoordinator
    schedules: ScheduleService
    cron: CronService
    consumer_groups: ConsumerGroups
    delivery: Delivery
    members: Members
    _changes: ShieldedTasks = field(default_factory=ShieldedTasks)
    _deleting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _not_yet: set[str] = field(default_factory=set)  # it is logged that they are not deleted yet

    async def use_of(self, topic: Topic) -> TopicUse:
        name = topic.name
        bounds = [await self.store.offsets(queue) for queue in await self.store.queues(name)]
        return TopicUse(
            topic=name,
            queues=len(bounds),
            messages=sum(one.end - one.first for one in bounds),
            groups=len(self.consumer_groups.subscribed_to(name)),
            open_transactions=len(await self._transactions_of(name)),
            schedules=len(self._cron_of(name))
            + sum([len(page) async for page in self._schedules_of(name)]),
        )

    async def delete(self, name: str, *, force: bool, check: Callable[[Topic], None]) -> None:
        """Durable on return.

        `check` may refuse by raising. Raises UnknownTopic, TopicInUse, what `append`
        raises.

        Once it was begun, it goes on when the client leaves; a deletion that failed is finished by
        the next one of the name, or by `finish_all`.
        """
        await self._changes.shielded(self._delete(name, force=force, check=check))

    async def finish_all(self) -> None:
        """Finish what was begun, by an earlier run of the service or a request that was refused;
        where the store or the registry takes nothing now, a later call does.
        """
        for name in self.topics.being_deleted():
            if self._deleting.locked():
                return  # by a request, which may take long
            try:
                async with self._deleting:
                    if name in self.topics.being_deleted():
                        await self._finish(name)
            except NOT_NOW as error:
                if name not in self._not_yet:
                    reason = str(error).partition("\n")[0]
                    log.warning("topic_not_deleted_yet", topic=name, reason=reason)
                    self._not_yet.add(name)

    async def drain(self) -> None:
        """Return once every deletion that was begun has ended."""
        await self._changes.drain()

    async def _delete(self, name: str, *, force: bool, check: Callable[[Topic], None]) -> None:
        async with self._deleting:
            if name not in self.topics.being_deleted():
                use = TopicUse(name, 0, 0, 0, 0, 0)

                async def look_at_use(topic: Topic) -> None:
                    nonlocal use
                    check(topic)
                    use = await self.use_of(topic)
                    if use.is_any and not force:
                        raise TopicInUse(
                            f"topic {name} is in use: end its uses, or use force=true",
                            uses={field: str(value) for field, value in use._asdict().items()},
                        )

                # Twice: a deletion that is refused anyway does not hold up the clients that use the
                # topic.
                await look_at_use(self.topics.get(name))
                await self.topics.begin_deletion(name, look_at_use)
                log.info("topic_deletion_begun", **use._asdict())
            await self._finish(name)

    async def _finish(self, name: str) -> None:
        await self.store.delete_topic(name)
        transactions = await self._transactions_of(name)
        for at in range(0, len(transactions), _TOGETHER):
            await asyncio.gather(
                *[self._roll_back(one, name) for one in transactions[at : at + _TOGETHER]]
            )
        async for schedules in self._schedules_of(name):
            await asyncio.gather(*map(self._cancel, schedules))
        for item in self._cron_of(name):
            await self.cron.cancel(item.schedule_id, check=lambda _: None)
        await self.consumer_groups.unsubscribe(name)
        await self.delivery.end_topic(name)
        await self.members.end_topic(name)
        await self.topics.end_deletion(name)
        self._not_yet.discard(name)
        log.info("topic_deleted", topic=name)

    async def _transactions_of(self, name: str) -> list[Transaction]:
        def names_it(transaction: Transaction) -> bool:
            return any(message.queue.topic == name for message in transaction.messages)

        return await self.transactions.search(
            after=-1, states=_OPEN, wanted=names_it, most=self.transactions.table.open_count + 1
        )

    async def _roll_back(self, transaction: Transaction, topic: str) -> None:
        with suppress(TransactionConflict, UnknownTransaction):  # it was decided meanwhile
            await self.transactions.rollback(
                transaction.transaction_id, by=Resolver.OPERATOR,
                reason=f"topic {topic} was deleted"
            )  # fmt: skip

    async def _schedules_of(self, name: str) -> AsyncIterator[list[Schedule]]:
        """The schedules of a topic, in pieces: there may be millions."""
        after: ListPosition | None = None
        while True:
            page = await self.schedules.page(
                Wanted(_WAITING, name), after=after, max_items=_TOGETHER
            )
            yield page.items
            after = page.end
            if after is None:
                return

    async def _cancel(self, schedule: Schedule) -> None:
        with suppress(AlreadyDelivered, UnknownSchedule):
            await self.schedules.cancel(schedule.schedule_id)

    def _cron_of(self, name: str) -> list[CronItem]:
        return [
            item
            for item in self.cron.table
            if item.schedule.topic == name and item.schedule.cancelled_at_ms is None
        ]
