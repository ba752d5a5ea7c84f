"""The tables of a broker's files, from the topics, groups and positions of EscrowMQ and from the
tables that the files had before. Pure.

Settings that only a broker has (permissions, attributes, system topics and groups) stay as they
are.
"""

from collections.abc import Container, Iterable, Mapping

from msgspec.structs import replace

from app.hand_over.taken_groups import retry_rules
from app.hand_over.taken_topics import TYPES, types_of
from app.registry.topics import TopicSettings
from delivery.groups import GroupRules
from storage.formats import names
from storage.formats.consumer_filters import SQL92, FilterData, TopicFilters
from storage.formats.consumer_offsets import GroupQueue
from storage.formats.group_configs import GroupConfig, RetryPolicy
from storage.formats.topic_configs import (
    MESSAGE_TYPE,
    MIXED,
    TopicConfig,
    TopicKind,
    broker_names,
    kind_of,
)
from storage.message import OffsetRange, QueueId

_NAMES_OF_TYPES = {kind: name for name, kind in TYPES.items()}


def written_topics(
    before: Mapping[str, TopicConfig], topics: Mapping[str, TopicSettings], groups: Iterable[str]
) -> dict[str, TopicConfig]:
    """`groups`: names, whose retry and dead-letter topics a broker needs."""
    of_the_broker = broker_names(before)
    kept = {
        name: config
        for name, config in before.items()
        if kind_of(name, of_the_broker) is not TopicKind.OF_CLIENTS
    }
    for group in groups:
        for name in (names.retry_topic(group), names.dead_letter_topic(group)):
            kept.setdefault(
                name, TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
            )
    return kept | {name: _topic(before.get(name), one) for name, one in topics.items()}


def _topic(before: TopicConfig | None, settings: TopicSettings) -> TopicConfig:
    queues, types = settings.queues, settings.message_types
    config = before or TopicConfig(topic_name=settings.topic, read_queue_nums=0, write_queue_nums=0)
    if config.queues < queues:
        config = replace(config, read_queue_nums=queues, write_queue_nums=queues)
    if before is None or types_of(before) != types:
        name = _NAMES_OF_TYPES[types[0]] if len(types) == 1 else MIXED
        config = replace(config, attributes={**(config.attributes or {}), MESSAGE_TYPE: name})
    return config


def written_groups(
    before: Mapping[str, GroupConfig], groups: Mapping[str, GroupRules]
) -> dict[str, GroupConfig]:
    kept = {
        name: config
        for name, config in before.items()
        if names.is_reserved_name(name) or not names.is_valid_name(name)
    }
    return kept | {
        name: _group(before.get(name, GroupConfig(group_name=name)), rules)
        for name, rules in groups.items()
    }


def _group(before: GroupConfig, rules: GroupRules) -> GroupConfig:
    if retry_rules(before, rules) == rules:
        return before
    has_retries = rules.dead_letter or rules.max_attempts > 1
    return replace(
        before,
        retry_queue_nums=max(1, before.retry_queue_nums) if has_retries else 0,
        retry_max_times=rules.max_attempts - 1,
        group_retry_policy=RetryPolicy.of_backoff(rules.backoff_ms),
        consume_message_orderly=rules.ordered,
    )


def kept_offsets(
    before: Mapping[GroupQueue, int],
    own: Mapping[str, Container[str]],
    bounds: Mapping[QueueId, OffsetRange],
) -> dict[GroupQueue, int]:
    """Offsets of the broker's own: of system groups, and in topics that are not of clients.

    `own`: the topics in which EscrowMQ writes the offsets of each group. `bounds`: of queues
    in which an offset outside would make a broker skip or stop.
    """
    return {
        place: offset
        for place, offset in before.items()
        if _is_kept(place, own)
        and ((known := bounds.get(QueueId(place.topic, place.queue_id))) is None
             or 0 <= offset <= known.end)
    }  # fmt: skip


def with_progress(offsets: dict[GroupQueue, int], asking_from: int | None) -> None:
    """Let a broker continue at this half, unless it has come further."""
    if asking_from is not None:
        place = GroupQueue(names.ASKING_GROUP, names.HALF_TOPIC, 0)
        offsets[place] = max(asking_from, offsets.get(place, 0))


def _is_kept(place: GroupQueue, own: Mapping[str, Container[str]]) -> bool:
    if names.is_reserved_name(place.group) or not names.is_valid_name(place.group):
        return True
    is_of_clients = names.is_valid_name(place.topic) and not names.is_reserved_name(place.topic)
    return (
        place.group in own
        and not is_of_clients
        and place.topic not in own[place.group]
        and place.topic != names.retry_topic(place.group)
    )


def written_filters(
    before: Mapping[str, TopicFilters], groups: Mapping[str, GroupRules]
) -> dict[str, TopicFilters]:
    """The filters that are still true. New ones are left out: a broker would ignore the file, and
    gets them from the consumers.
    """
    kept: dict[str, TopicFilters] = {}
    for topic, filters in before.items():
        data = {
            group: one
            for group, one in filters.group_filter_data.items()
            if _is_true(one, topic, groups.get(group))
        }
        if data:
            kept[topic] = replace(filters, group_filter_data=data)
    return kept


def _is_true(data: FilterData, topic: str, rules: GroupRules | None) -> bool:
    kind = "sql92" if data.expression_type == SQL92 else "tag"
    return rules is not None and any(
        (one.topic, one.kind, one.expression) == (topic, kind, data.expression)
        for one in rules.subscriptions
    )
