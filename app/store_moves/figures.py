"""Numbers of what an opened store has, for the report of a hand-over."""

from app.services import Services
from app.store_moves.report import Carried
from delivery.groups import GroupRules
from storage.formats import names
from storage.message import QueueId


async def carried(services: Services) -> Carried:
    """Count what carries over."""
    store, delivery = services.store, services.delivery
    topics = services.topics.all()
    stored = await store.topics()
    groups = services.consumer_groups.all()
    table = services.transactions.table
    return Carried(
        topics=len(topics),
        queues=sum(len(topic.queues) for topic in topics),
        messages=sum(_count(services, topic.name, len(topic.queues)) for topic in topics),
        groups=len(groups),
        group_offsets=sum(len(delivery.positions_of(group.name)) for group in groups),
        transactions_undecided=table.open_count,
        transactions_decided=table.decided_count,
        delayed_waiting=await services.schedules.count_of_clients(),
        retries_waiting=sum(
            [await _waiting_retries(services, group.name, group.rules) for group in groups]
        ),
        dead_letters=sum(
            _count(services, topic, count)
            for topic, count in stored.items()
            if topic.startswith(names.DEAD_LETTER_PREFIX)
        ),
    )


async def _waiting_retries(services: Services, group: str, rules: GroupRules) -> int:
    (retries, *_), _ = await services.delivery.lag(group, rules)
    return retries.ready + retries.leased + retries.waiting


def _count(services: Services, topic: str, queues: int) -> int:
    found = 0
    for number in range(queues):
        first, end = services.store.bounds(QueueId(topic, number))
        found += end - first
    return found
