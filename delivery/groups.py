"""A consumer group's rules: what it reads, how long it may work on a message, how often it is given one. Pure."""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from storage.formats.delay_levels import DELAYS_MS
from storage.message import Message

MOST_ATTEMPTS = 1_000
# RocketMQ's timetable: the first retry waits as long as level 3, each later one a level more. Source: facts 9.3.
BACKOFF_MS = DELAYS_MS[2:]
ATTEMPTS = len(BACKOFF_MS) + 1

Matches = Callable[[Message], bool]


class Start(StrEnum):
    """Where a group begins in a queue in which it has no offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Subscription(NamedTuple):
    """A topic that the group reads, and which of its messages; without an expression all of them."""

    topic: str
    kind: str = "tag"
    expression: str = "*"


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """`max_attempts` counts hand-outs; the nth retry waits the nth of `backoff_ms`, later ones the last."""

    subscriptions: tuple[Subscription, ...] = ()
    start: Start = Start.EARLIEST
    lease_ms: int = 30_000
    max_attempts: int = ATTEMPTS
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    dead_letter: bool = True
    ordered: bool = False


@lru_cache(maxsize=4_096)
def matcher(subscriptions: tuple[Subscription, ...], topic: str) -> Matches | None:
    """Which messages of the topic the group wants; None for all of them."""
    for one in subscriptions:
        if one.topic == topic:
            tags = frozenset(part.strip() for part in one.expression.split("||"))
            return None if "*" in tags or tags == {""} else partial(_has_tag, tags)
    return None


def _has_tag(tags: frozenset[str], message: Message) -> bool:
    return message.tag in tags
