"""The consumer groups that a broker leaves, as EscrowMQ keeps them. Pure."""

from collections.abc import Container, Iterator
from typing import NamedTuple

from app.hand_over.found import Found, Note
from delivery.filters.filters import FilterKind, compile_filter
from delivery.groups import MOST_ATTEMPTS, GroupRules, Subscription
from storage.errors import InvalidFilter
from storage.formats import names
from storage.formats.consumer_filters import SQL92
from storage.formats.group_configs import GroupConfig, RetryPolicy
from storage.message import QueueId

_NO_OFFSET = "no offset in the store, as of a group that broadcasts or has not consumed yet: "
_NOT_KNOWN = "its offset is not known: "
_NO_TOPIC = (
    "it reads no topic until PUT /v1/groups/{group} names one, and then begins at the first "
    "message unless `start` is `latest`"
)
_FROM_THE_FIRST = "it begins at the first message of each topic that it has a filter of"


class TakenGroup(NamedTuple):
    """`rules`: where the group is new here. `offsets`: by the broker, of topics and retries."""

    name: str
    rules: GroupRules
    offsets: dict[QueueId, int]


def taken_groups(found: Found, topics: Container[str]) -> tuple[list[TakenGroup], list[Note]]:
    """The groups by name. `topics`: those of clients that exist."""
    configs = {} if found.groups is None else found.groups.subscription_group_table
    offsets = _offsets_by_group(found)
    notes = list(_not_kept(found))
    taken = []
    for name in sorted({*configs, *offsets}):
        if names.is_reserved_name(name):
            continue
        if not names.is_valid_name(name):
            notes.append(Note("group", name, "a name that no client of EscrowMQ can use"))
            continue
        config = configs.get(name, GroupConfig(group_name=name))
        subscriptions, refused = _subscriptions(found, config, offsets.get(name, {}), topics)
        notes += refused
        rules = retry_rules(config, GroupRules(subscriptions=subscriptions))
        taken.append(TakenGroup(name, rules, offsets.get(name, {})))
        if name not in offsets and (found.offsets is not None or found.lacks_offsets):
            consequence = _FROM_THE_FIRST if subscriptions else _NO_TOPIC
            why = _NOT_KNOWN if found.offsets is None else _NO_OFFSET
            notes.append(Note("group", name, why + consequence))
    return taken, notes


def retry_rules(config: GroupConfig, rules: GroupRules) -> GroupRules:
    """The rules with the retries of the broker's group.

    A broker counts retries, EscrowMQ deliveries. Without retry queues a broker drops a message that
    its consumer rejects.
    """
    fields = {name: getattr(rules, name) for name in rules.__struct_fields__}
    policy = config.group_retry_policy or RetryPolicy()
    retries = max(0, min(config.retry_max_times, MOST_ATTEMPTS - 1))
    has_retries = config.retry_queue_nums > 0
    fields |= {
        "max_attempts": retries + 1 if has_retries else 1,
        "backoff_ms": policy.backoff_ms(retries),
        "dead_letter": has_retries,
        "ordered": config.consume_message_orderly,
    }
    return GroupRules(**fields)


def _offsets_by_group(found: Found) -> dict[str, dict[QueueId, int]]:
    offsets: dict[str, dict[QueueId, int]] = {}
    table = {} if found.offsets is None else found.offsets.by_queue()
    for (group, topic, number), offset in table.items():
        offsets.setdefault(group, {})[QueueId(topic, number)] = offset
    return offsets


def _subscriptions(
    found: Found,
    config: GroupConfig,
    offsets: dict[QueueId, int],
    topics: Container[str],
) -> tuple[tuple[Subscription, ...], list[Note]]:
    wanted: dict[str, tuple[FilterKind, str]] = dict.fromkeys(
        sorted({queue.topic for queue in offsets}), ("tag", "*")
    )
    for one in config.subscription_data_set or ():
        wanted[one.topic] = ("sql92" if one.expression_type == SQL92 else "tag", one.expression)
    by_topic = {} if found.filters is None else found.filters.filter_data_by_topic
    for topic, filters in by_topic.items():
        data = filters.group_filter_data.get(config.group_name)
        if data is not None and data.expression_type == SQL92:
            wanted[topic] = ("sql92", data.expression)
    kept, notes = [], []
    for topic, (kind, expression) in wanted.items():
        if topic not in topics:
            continue
        try:
            compile_filter(kind, expression)
        except InvalidFilter as error:
            what = f"its filter of {topic} ({expression[:200]}): {error}; it does not read {topic}"
            notes.append(Note("group", config.group_name, what))
        else:
            kept.append(Subscription(topic, kind, expression))
    return tuple(kept), notes


def _not_kept(found: Found) -> Iterator[Note]:
    if found.groups is None:
        return
    for name, config in sorted(found.groups.subscription_group_table.items()):
        if names.is_reserved_name(name):
            continue
        if not config.consume_enable:
            yield Note("group", name, "disabled: its consumers can receive from EscrowMQ")
        if config.retry_max_times >= MOST_ATTEMPTS:
            yield Note(
                "group", name, f"{config.retry_max_times} retries: {MOST_ATTEMPTS - 1} are kept"
            )
        for attribute, value in sorted((config.attributes or {}).items()):
            yield Note("group", name, f"the attribute {attribute}={value}")
    for group, topics in sorted((found.groups.forbidden_table or {}).items()):
        for topic, bits in sorted(topics.items()):
            if bits > 0:
                yield Note("group", group, f"forbidden to read {topic}: it is not")
