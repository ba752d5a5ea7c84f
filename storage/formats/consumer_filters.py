"""The filters of consumer groups that are not by tag: `config/consumerFilter.json`. Pure.

    {"filterDataByTopic":{"orders":{"topic":"orders","groupFilterData":{"billing":{
     "consumerGroup":"billing","topic":"orders","expression":"a > 5","expressionType":"SQL92", ...

A broker that finds one entry without the places of its Bloom filter (`bloomFilterData`), or of a
filter of another size, ignores the whole file. Filters by tag are in no file: consumers send them
when they start, and then those of the other kinds too.

Source: RocketMQ ConsumerFilterManager, ConsumerFilterData, BloomFilterData.
"""

import msgspec

from storage.formats import config_json
from storage.formats.config_json import ConfigFile, ConfigObject, Int, Long

FILE = "consumerFilter.json"
SQL92 = "SQL92"


class BloomFilterData(ConfigObject, frozen=True, kw_only=True):
    """Places of a group in the Bloom filter of the broker."""

    bit_num: Int = 0
    bit_pos: tuple[Int, ...] | None = None


class FilterData(ConfigObject, frozen=True, kw_only=True):
    """The filter of one group for one topic. `dead_time`: since when the group has no consumer."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: Long = 0
    dead_time: Long = 0
    client_version: Long = 0
    bloom_filter_data: BloomFilterData | None = None


class TopicFilters(ConfigObject, frozen=True, kw_only=True):
    """The filters of one topic, by group."""

    topic: str
    group_filter_data: dict[str, FilterData] = msgspec.field(default_factory=dict)


class ConsumerFilters(ConfigFile, frozen=True, kw_only=True):
    """Content of the file."""

    filter_data_by_topic: dict[str, TopicFilters] = msgspec.field(default_factory=dict)


def decode(raw: bytes) -> ConsumerFilters:
    """Raises ValueError."""
    return config_json.decode(raw, ConsumerFilters)


def encode(filters: ConsumerFilters) -> bytes:
    return config_json.encode(filters)
