"""The topics that a broker leaves, as EscrowMQ keeps them. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from app.hand_over.found import Note
from app.registry.topics import ALL_TYPES, MessageType, TopicSettings
from storage.formats.topic_configs import (
    MESSAGE_TYPE,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigs,
    TopicKind,
    broker_names,
    kind_of,
)

MOST_QUEUES = 1_024
TYPES: dict[str, MessageType] = {
    "NORMAL": "normal",
    "FIFO": "fifo",
    "DELAY": "delayed",
    "TRANSACTION": "transactional",
}
_KEPT_KINDS = {
    TopicKind.LITE: "a lite topic (LMQ): its messages are in other topics",
    TopicKind.UNUSABLE: "a name that no client of EscrowMQ can use; its messages stay in the store",
}


class TakenTopics(NamedTuple):
    """Topics of clients, by name."""

    topics: dict[str, TopicSettings]
    notes: list[Note]


def taken_topics(configs: TopicConfigs, *, retention_ms: int) -> TakenTopics:
    """`retention_ms`: of topics, which a broker keeps for all together."""
    of_the_broker = broker_names(configs.topic_config_table)
    topics: dict[str, TopicSettings] = {}
    notes: list[Note] = []
    for name, config in sorted(configs.topic_config_table.items()):
        kind = kind_of(name, of_the_broker)
        if kind is TopicKind.OF_CLIENTS:
            topics[name] = TopicSettings(
                topic=name,
                queues=max(1, min(config.queues, MOST_QUEUES)),
                message_types=types_of(config),
                retention_ms=retention_ms,
            )
            notes += [Note("topic", name, what) for what in _not_kept(config)]
        elif kind in _KEPT_KINDS:
            notes.append(Note("topic", name, _KEPT_KINDS[kind]))
    return TakenTopics(topics, notes)


def types_of(config: TopicConfig) -> tuple[MessageType, ...]:
    """The types of messages that the topic accepts: all where it does not name one."""
    known = TYPES.get((config.attributes or {}).get(MESSAGE_TYPE, ""))
    return ALL_TYPES if known is None else (known,)


def _not_kept(config: TopicConfig) -> Iterator[str]:
    if not config.perm & PERM_WRITE:
        yield "no permission to write: clients of EscrowMQ can send to it"
    if not config.perm & PERM_READ:
        yield "no permission to read: clients of EscrowMQ can read it"
    if config.read_queue_nums != config.write_queue_nums:
        yield (
            f"{config.read_queue_nums} queues to read and {config.write_queue_nums} to write: all "
            f"{max(1, min(config.queues, MOST_QUEUES))} are read and written"
        )
    if config.queues > MOST_QUEUES:
        yield f"{config.queues} queues: {MOST_QUEUES} are kept, and those that have messages"
    if config.order:
        yield "an ordered topic: messages of EscrowMQ are ordered by their ordering key"
    for attribute, value in sorted((config.attributes or {}).items()):
        if attribute != MESSAGE_TYPE:
            yield f"the attribute {attribute}={value}"
