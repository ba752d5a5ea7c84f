"""Rules of a consumer group: its subscriptions, the length of a lease, retries. Pure."""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from delivery.filters.filters import EVERYTHING, Filter, FilterKind, compile_filter
from storage.formats.delay_levels import DELAYS_MS

MOST_ATTEMPTS = 1_000
# RocketMQ's timetable: the first retry waits as long as level 3, each later one a level more.
# Source: facts 9.3.
BACKOFF_MS = DELAYS_MS[2:]
ATTEMPTS = len(BACKOFF_MS) + 1


class Start(StrEnum):
    """The position of a group in a queue in which it has no offset.

    `rocketmq`: as for new groups of RocketMQ: the earliest message of a young queue, otherwise the
    latest. Source: facts 11.2.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    ROCKETMQ = "rocketmq"


class Subscription(NamedTuple):
    """A topic that the group reads, with a filter of its messages; without an expression all of
    them.
    """

    topic: str
    kind: FilterKind = "tag"
    expression: str = "*"


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """`max_attempts` counts hand-outs; the nth retry waits the nth of `backoff_ms`, later ones the
    last. `start_at_ms`: of a group that starts at a time, on the wall clock.

    `session_timeout_ms`: of members that ask for none. `queue_rooms`: the machine room of a queue,
    by "topic/number".

    `skip_lag_over`: messages of a queue that are further from its end than this, and
    `skip_older_than_ms`: that were stored longer ago, are passed over where the group was never
    given them.
    """

    subscriptions: tuple[Subscription, ...] = ()
    start: Start = Start.EARLIEST
    start_at_ms: int | None = None
    lease_ms: int = 30_000
    max_attempts: int = ATTEMPTS
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    dead_letter: bool = True
    ordered: bool = False
    skip_lag_over: int | None = None
    skip_older_than_ms: int | None = None
    session_timeout_ms: int = 120_000
    queue_rooms: dict[str, str] = {}

    @property
    def may_skip(self) -> bool:
        return self.skip_lag_over is not None or self.skip_older_than_ms is not None


@lru_cache(maxsize=4_096)
def filter_of(subscriptions: tuple[Subscription, ...], topic: str) -> Filter:
    """The filter of the group for the topic; all messages of its retry topic match."""
    for one in subscriptions:
        if one.topic == topic:
            return compile_filter(one.kind, one.expression)
    return EVERYTHING
