"""The topics of a broker: `config/topics.json`. Pure.

    {"topicConfigTable":{"orders":{"topicName":"orders","readQueueNums":4,"writeQueueNums":4,
     "perm":6,"order":false,"topicFilterType":"SINGLE_TAG","topicSysFlag":0,"attributes":{}}, ...},
     "dataVersion":{...}}

Source: RocketMQ TopicConfigManager, TopicConfigSerializeWrapper, TopicConfig, PermName,
TopicAttributes.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from storage.formats import config_json, names
from storage.formats.config_json import ConfigFile, ConfigObject, Int

FILE = "topics.json"
PERM_WRITE = 2
PERM_READ = 4
MESSAGE_TYPE = "message.type"
MIXED = "MIXED"  # the value of MESSAGE_TYPE by which a proxy accepts all types

_REPLY_SUFFIX = "_REPLY_TOPIC"
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class TopicConfig(ConfigObject, frozen=True, kw_only=True):
    """The settings of one topic; the defaults are a broker's."""

    topic_name: str
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] | None = msgspec.field(default_factory=dict)

    @property
    def queues(self) -> int:
        """Queues that have, or can get, messages."""
        return max(self.read_queue_nums, self.write_queue_nums, 0)


class TopicConfigs(ConfigFile, frozen=True, kw_only=True):
    """Content of the file."""

    topic_config_table: dict[str, TopicConfig]


class TopicKind(StrEnum):
    """Uses of the topics of a broker, by their names."""

    OF_CLIENTS = "of clients"  # and by a name that EscrowMQ's clients can use
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    REVIVE = "revive"  # acknowledgements of messages that were received by POP
    REPLY = "reply"
    LITE = "lite"  # LMQ: queues without messages of their own
    OF_THE_BROKER = "of the broker"
    UNUSABLE = "unusable"  # no client of EscrowMQ can name it


def decode(raw: bytes) -> TopicConfigs:
    """Raises ValueError."""
    return config_json.decode(raw, TopicConfigs)


def encode(configs: TopicConfigs) -> bytes:
    return config_json.encode(configs)


def broker_names(table: Mapping[str, object]) -> frozenset[str]:
    """The names of the broker and its cluster, which are topics of every broker."""
    return frozenset(
        name.removeprefix(prefix)
        for name in table
        for prefix in (_REVIVE_PREFIX, _MEMBER_PREFIX)
        if name.startswith(prefix)
    )


def kind_of(topic: str, of_the_broker: frozenset[str]) -> TopicKind:
    """`of_the_broker`: the result of `broker_names`."""
    if topic.startswith(names.RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(names.DEAD_LETTER_PREFIX):
        return TopicKind.DEAD_LETTER
    if topic.startswith(names.LIGHT_QUEUE_PREFIX):
        return TopicKind.LITE
    if topic.startswith(_REVIVE_PREFIX):
        return TopicKind.REVIVE
    if topic.endswith(_REPLY_SUFFIX) and topic.removesuffix(_REPLY_SUFFIX) in {
        names.CLUSTER,
        *of_the_broker,
    }:
        return TopicKind.REPLY
    if topic in of_the_broker or names.is_reserved_name(topic):
        return TopicKind.OF_THE_BROKER
    return TopicKind.OF_CLIENTS if names.is_valid_name(topic) else TopicKind.UNUSABLE


def pop_retry_topics(group: str, topics: Iterable[str]) -> list[str]:
    """The names under which a broker would keep retries of messages of these topics that the group
    received by POP.
    """
    begin = names.retry_topic(group)
    return [f"{begin}{separator}{topic}" for topic in topics for separator in "_+"]
