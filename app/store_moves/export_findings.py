"""The findings of an export: parts of a store that a broker does not keep, or delivers again."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from app.registry.topics import ALL_TYPES, TopicSettings
from app.services import Services
from app.store_moves.report import Finding, finding
from delivery.groups import ATTEMPTS, BACKOFF_MS, GroupRules
from delivery.leases.message_states import State
from delivery.requests.table import RequestState
from scheduler.cron_schedule import CronState
from scheduler.hand_over import HandedOver
from storage.formats import names
from storage.message import QueueId
from txn.states import TxnState
from txn.transaction import Transaction

# Source: RocketMQ TopicValidator, Validators.
_BROKERS_HOURS = 72
_HOUR_MS = 3_600_000
_BROKERS_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


async def not_kept(services: Services, schedules: HandedOver) -> list[Finding]:
    """Everything that a broker has no place for, or no means. `schedules`: as a stop hands them
    over.
    """
    return [
        *_of_transactions(services),
        *of_topics(topic.settings for topic in services.topics.all()),
        *of_groups({group.name: group.rules for group in services.consumer_groups.all()}),
        finding(
            "cron_schedules",
            "cron schedules: a broker sends nothing by itself",
            [
                item.schedule_id
                for item in services.cron.table
                if item.state is not CronState.CANCELLED
            ],
        ),
        finding(
            "schedules_parked",
            "delayed messages that are parked: a broker does not deliver them",
            [],
            count=schedules.parked,
        ),
        finding(
            "requests",
            "requests that wait for their reply: no reply reaches the requester",
            [
                request.request_id
                for request in services.requests.table
                if request.state is RequestState.PENDING
            ],
        ),
        finding(
            "idempotency_keys",
            "idempotency keys of sends: a request that is repeated at the broker is stored again",
            [],
            count=_count(services, names.IDEMPOTENCY_TOPIC),
        ),
    ]


async def twice(services: Services, schedules: HandedOver) -> list[Finding]:
    """List what a broker delivers though it was delivered, or ended, here."""
    leased, settled = [], []
    leases_count = settled_count = 0
    async for group, leases, beyond in _of_groups(services):
        leases_count += leases
        settled_count += beyond
        if leases:
            leased.append(f"{group}: {leases}")
        if beyond:
            settled.append(f"{group}: {beyond}")
    ended = {
        group.name: _count(services, names.dead_letter_topic(group.name))
        - services.delivery.dead_letters.count_kept(group.name)
        for group in services.consumer_groups.all()
    }
    return [
        finding(
            "settled_beyond_the_offset",
            "messages that a group has settled behind its offset, which a broker keeps alone: they "
            "are delivered again",
            settled,
            count=settled_count,
        ),
        finding(
            "leases",
            "messages that are leased to consumers: they are delivered again",
            leased,
            count=leases_count,
        ),
        finding(
            "schedules_that_ended",
            "delayed messages that were delivered or cancelled, of a level in which more than "
            "10,000 wait in front of them: they are delivered again",
            [],
            count=schedules.delivered_again,
        ),
        finding(
            "dead_letters_that_ended",
            "dead letters that were deleted or sent again: they are in their %DLQ% topics",
            [f"{group}: {count}" for group, count in ended.items() if count > 0],
            count=sum(count for count in ended.values() if count > 0),
        ),
    ]


def undecided(services: Services) -> Iterator[Transaction]:
    """The transactions that the broker will check."""
    return services.transactions.table.behind(-1, only_open=True)


def _of_transactions(services: Services) -> Iterator[Finding]:
    several, delayed, held, webhook = [], [], [], []
    for transaction in undecided(services):
        messages = transaction.messages
        if len(messages) > 1:
            several.append(transaction.transaction_id)
        if any(message.schedule_id is not None for message in messages):
            delayed.append(transaction.transaction_id)
        if transaction.state is TxnState.HELD:
            held.append(transaction.transaction_id)
        if services.producer_groups.webhook_of(transaction.producer_group) is not None:
            webhook.append(transaction.producer_group)
    yield finding(
        "transactions_of_several_messages",
        "undecided transactions with several messages: a broker checks and decides each message "
        "alone",
        several,
    )
    yield finding(
        "transactions_with_a_delay",
        "undecided transactions with a delayed message: a commit at the broker publishes it at "
        "once",
        delayed,
    )
    yield finding(
        "transactions_held",
        "transactions that are held for an operator: the broker checks them again, and discards "
        "them after transactionCheckMax checks",
        held,
    )
    yield finding(
        "transactions_checked_by_webhook",
        "undecided transactions of producer groups that are checked by webhook: a broker asks a "
        "producer that is connected to it",
        set(webhook),
        count=len(webhook),
    )


def of_topics(topics: Iterable[TopicSettings]) -> Iterator[Finding]:
    """Settings of topics that `topics.json` cannot say."""
    topics = list(topics)
    hours = reserved_hours(max((topic.retention_ms for topic in topics), default=0))
    yield finding(
        "topic_names",
        "topics whose names RocketMQ's tools and clients refuse",
        [topic.topic for topic in topics if not _BROKERS_NAME.fullmatch(topic.topic)],
    )
    yield finding(
        "payload_schemas",
        "schemas of topics: a broker does not check messages",
        [topic.topic for topic in topics if topic.schema is not None],
    )
    yield finding(
        "retention",
        f"topics with a shorter retention than fileReservedTime ({hours} hours), which a broker "
        "has for all topics together",
        [topic.topic for topic in topics if topic.retention_ms < hours * _HOUR_MS],
    )
    yield finding(
        "message_types",
        "topics that accept several types of messages, but not all: a broker does not refuse the "
        "others",
        [topic.topic for topic in topics if 1 < len(topic.message_types) < len(ALL_TYPES)],
    )


def reserved_hours(longest_retention_ms: int) -> int:
    """The value of the broker's `fileReservedTime`."""
    return max(_BROKERS_HOURS, -(-longest_retention_ms // _HOUR_MS))


def of_groups(groups: Mapping[str, GroupRules]) -> Iterator[Finding]:
    """Settings of consumer groups that `subscriptionGroup.json` cannot say, or that RocketMQ's
    clients do not read there.
    """
    yield finding(
        "group_names",
        "consumer groups whose names RocketMQ's clients refuse",
        [name for name in groups if not _BROKERS_NAME.fullmatch(name)],
    )
    yield finding(
        "groups_without_dead_letters",
        "consumer groups that retry and have no dead letters: a broker stores a message in %DLQ% "
        "after its last attempt",
        [
            name
            for name, rules in groups.items()
            if not rules.dead_letter and rules.max_attempts > 1
        ],
    )
    yield finding(
        "group_retries",
        "consumer groups with attempts or waits that are not the defaults: a DefaultMQPushConsumer "
        "has a maxReconsumeTimes of its own (16), and waits by the broker's delay levels",
        [
            name
            for name, rules in groups.items()
            if rules.max_attempts != ATTEMPTS or rules.backoff_ms != BACKOFF_MS
        ],
    )
    yield finding(
        "group_filters",
        "consumer groups with filters: consumers of a broker send theirs, and SQL92 needs "
        "enablePropertyFilter=true",
        [
            name
            for name, rules in groups.items()
            if any(one.expression not in ("*", "") for one in rules.subscriptions)
        ],
    )
    yield finding(
        "ordered_groups",
        "ordered consumer groups: a broker orders by queue, for a MessageListenerOrderly alone, "
        "and a producer of RocketMQ may send an ordering key to another queue",
        [name for name, rules in groups.items() if rules.ordered],
    )
    yield finding(
        "skip_rules",
        "consumer groups that skip messages by lag or age: at a broker they receive them",
        [name for name, rules in groups.items() if rules.may_skip],
    )


async def _of_groups(services: Services) -> AsyncIterator[tuple[str, int, int]]:
    """(group, its leases, the messages that it has settled behind its offsets)"""
    for group in services.consumer_groups.all():
        leases = services.delivery.table.find(group.name)
        positions = {}
        for queue in services.delivery.positions_of(group.name):
            position = await services.delivery.position(group.name, queue)
            if position is not None:
                positions[queue] = position
        moves = await services.delivery.plan_reset(group.name, positions)
        leased = 0 if leases is None else leases.count(State.LEASED)
        yield group.name, leased, sum(move.settled for move in moves)


def _count(services: Services, topic: str) -> int:
    first, end = services.store.bounds(QueueId(topic, 0))
    return end - first
