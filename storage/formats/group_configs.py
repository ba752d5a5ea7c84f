"""The consumer groups of a broker: `config/subscriptionGroup.json`. Pure.

    {"subscriptionGroupTable":{"billing":{"groupName":"billing","retryMaxTimes":16, ...}, ...},
     "forbiddenTable":{}, "dataVersion":{...}}

Source: RocketMQ SubscriptionGroupManager, SubscriptionGroupConfig, GroupRetryPolicy,
CustomizedRetryPolicy, ExponentialRetryPolicy.
"""

import msgspec

from storage.formats import config_json
from storage.formats.config_json import ConfigFile, ConfigObject, Int, Long
from storage.formats.delay_levels import DELAYS_MS

FILE = "subscriptionGroup.json"
CUSTOMIZED = "CUSTOMIZED"
EXPONENTIAL = "EXPONENTIAL"

# The nth retry waits as long as level n + 2.
_LEVELS_BEFORE = 2
_MOST_DOUBLINGS = 32


class CustomizedRetry(ConfigObject, frozen=True, kw_only=True):
    """A timetable, `next`, in milliseconds: the first retry takes the third."""

    next: tuple[Long, ...] = DELAYS_MS


class ExponentialRetry(ConfigObject, frozen=True, kw_only=True):
    """An exponential policy, in milliseconds."""

    initial: Long = 5_000
    max: Long = 7_200_000
    multiplier: Long = 2


class RetryPolicy(ConfigObject, frozen=True, kw_only=True, omit_defaults=True):
    """The waits of the retries of a group; a policy that is not set is the timetable of levels."""

    type: str = CUSTOMIZED
    customized_retry_policy: CustomizedRetry | None = None
    exponential_retry_policy: ExponentialRetry | None = None

    def backoff_ms(self, retries: int) -> tuple[int, ...]:
        """The waits of the first, second, ... retry; later ones wait as long as the last."""
        if self.type == EXPONENTIAL and self.exponential_retry_policy is not None:
            one = self.exponential_retry_policy
            count = max(1, min(retries, _MOST_DOUBLINGS + 1))
            return tuple(
                max(0, min(one.max, one.initial * one.multiplier**number))
                for number in range(count)
            )
        if self.type == CUSTOMIZED and self.customized_retry_policy is not None:
            waits = self.customized_retry_policy.next
            return tuple(max(0, wait) for wait in waits[_LEVELS_BEFORE:] or waits[-1:] or (0,))
        return DELAYS_MS[_LEVELS_BEFORE:]

    @classmethod
    def of_backoff(cls, backoff_ms: tuple[int, ...]) -> "RetryPolicy":
        """The policy by which a broker makes retries wait as long."""
        if backoff_ms == DELAYS_MS[_LEVELS_BEFORE:]:
            return cls()
        waits = (*(backoff_ms[:1] * _LEVELS_BEFORE), *backoff_ms)
        return cls(customized_retry_policy=CustomizedRetry(next=waits))


class Subscribed(ConfigObject, frozen=True, kw_only=True):
    """A topic that the group reads, where a broker keeps that."""

    topic: str
    expression_type: str = "TAG"
    expression: str = "*"
    version: Long = 0


class GroupConfig(ConfigObject, frozen=True, kw_only=True):
    """The settings of one group; the defaults are a broker's.

    `retry_max_times` counts retries, without the first delivery.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: RetryPolicy | None = RetryPolicy()
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: tuple[Subscribed, ...] | msgspec.UnsetType | None = msgspec.UNSET
    attributes: dict[str, str] | None = msgspec.field(default_factory=dict)


class GroupConfigs(ConfigFile, frozen=True, kw_only=True):
    """Content of the file.

    `forbidden_table`: bits by group and topic, by which a broker refuses to read.
    """

    subscription_group_table: dict[str, GroupConfig]
    forbidden_table: dict[str, dict[str, Int]] | None = msgspec.field(default_factory=dict)


def decode(raw: bytes) -> GroupConfigs:
    """Raises ValueError."""
    return config_json.decode(raw, GroupConfigs)


def encode(configs: GroupConfigs) -> bytes:
    return config_json.encode(configs)
