"""Where groups of a running service continue, by the offsets of a broker that has the same queues.
Pure.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from storage.formats import names
from storage.formats.consumer_offsets import GroupQueue
from storage.message import OffsetRange, QueueId


class Outcome(StrEnum):
    """The result for one offset of the broker."""

    ADVANCED = "advanced"
    UNCHANGED = "unchanged"  # the group is there, or further
    EXPIRED = "expired"  # the queue begins behind it: the group continues at the begin
    BEYOND_END = "beyond_end"  # the queue ends before it: the group continues at the end
    OTHER_MESSAGES = "other_messages"  # the group continues at the first that is not the same
    NOT_COMPARED = "not_compared"  # both sides have no message that shows whether they are the same
    TOPIC_NOT_FOUND = "topic_not_found"
    QUEUE_NOT_FOUND = "queue_not_found"
    GROUP_NOT_FOUND = "group_not_found"  # a group that was asked for has no offset
    NAME_NOT_ALLOWED = "name_not_allowed"
    RETRIES = "retries"  # offsets of retry topics cannot be set


# An offset that is not what the broker has, or that is not set.
NOT_KEPT = frozenset(
    {
        Outcome.BEYOND_END,
        Outcome.OTHER_MESSAGES,
        Outcome.NOT_COMPARED,
        Outcome.TOPIC_NOT_FOUND,
        Outcome.QUEUE_NOT_FOUND,
        Outcome.GROUP_NOT_FOUND,
        Outcome.NAME_NOT_ALLOWED,
    }
)
_SET = (Outcome.ADVANCED, Outcome.EXPIRED, Outcome.BEYOND_END, Outcome.OTHER_MESSAGES)

SameEnds = Mapping[QueueId, int | None]
"""The offset up to which a queue has the same messages at both sides; None where that cannot be
known.
"""


class NotComparable(Exception):
    """One of the sides does not have the message, or not as a whole."""


class OffsetMove(msgspec.Struct, frozen=True, kw_only=True):
    """One offset. `to_offset`: where the group continues; None where nothing is set.

    `differs_from`: with OTHER_MESSAGES, the first offset at which the queues differ.
    """

    group: str
    topic: str
    queue_id: int
    broker_offset: int
    from_offset: int | None
    to_offset: int | None
    outcome: Outcome
    differs_from: int | None = None


class OnlyAtBroker(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a group that the service does not have: `retries` that are not consumed yet, or
    `dead_letters`.
    """

    group: str
    kind: Literal["retries", "dead_letters"]
    count: int


def of_clients(offsets: Mapping[GroupQueue, int], wanted: Iterable[str]) -> dict[GroupQueue, int]:
    """The offsets of these groups, or of all that belong to clients of the broker."""
    groups = set(wanted)
    return {
        place: offset
        for place, offset in sorted(offsets.items())
        if (place.group in groups if groups else not names.is_reserved_name(place.group))
    }


def plan_moves(
    offsets: Mapping[GroupQueue, int],
    bounds: Mapping[QueueId, OffsetRange],
    current: Mapping[GroupQueue, int],
    wanted: Iterable[str] = (),
    same_ends: SameEnds | None = None,
) -> list[OffsetMove]:
    """`bounds`: of the queues of the service; `current`: where its groups are. A group only
    advances: what it has settled stays settled.

    `same_ends`: of the queues that `to_compare` names; None if nothing was compared.
    """
    topics = {queue.topic for queue in bounds}
    moves = [
        _move(place, offset, bounds, topics, current.get(place), same_ends)
        for place, offset in offsets.items()
    ]
    with_offsets = {place.group for place in offsets}
    missing = [group for group in sorted(set(wanted)) if group not in with_offsets]
    return moves + [
        _not_set(GroupQueue(group, "", 0), 0, None, Outcome.GROUP_NOT_FOUND) for group in missing
    ]


def to_compare(
    offsets: Mapping[GroupQueue, int], bounds: Mapping[QueueId, OffsetRange]
) -> dict[QueueId, int]:
    """The highest offset of each queue that has a message of the service in front of it."""
    found: dict[QueueId, int] = {}
    for place, offset in offsets.items():
        queue = QueueId(place.topic, place.queue_id)
        if queue in bounds and min(offset, bounds[queue].end) > bounds[queue].first:
            found[queue] = max(offset, found.get(queue, 0))
    return found


def same_end(
    broker: OffsetRange, service: OffsetRange, offset: int, is_same: Callable[[int], bool]
) -> int | None:
    """Find where the common begin of a queue at both sides ends, as far as `offset` needs it.

    Queues are only appended to: where the messages at an offset are the same, all before are.
    `is_same` compares the messages at an offset, and raises NotComparable.
    """
    first, end = max(broker.first, service.first), min(broker.end, service.end)
    if first >= end:
        return None
    last = min(max(offset - 1, first), end - 1)
    try:
        if is_same(last):
            return last + 1
        differs_from = bisect_left(range(last), True, first, key=lambda at: not is_same(at))
    except NotComparable:
        return None
    # What the service has in front of the broker's first message cannot be compared.
    return None if differs_from == first > service.first else differs_from


def only_at_broker(
    group: str, *, retries: int, dead_letters: int, known_dead_letters: int
) -> list[OnlyAtBroker]:
    """`known_dead_letters`: the number that the service has of the group."""
    counts: tuple[tuple[Literal["retries", "dead_letters"], int], ...] = (
        ("retries", retries),
        ("dead_letters", dead_letters - known_dead_letters),
    )
    return [OnlyAtBroker(group=group, kind=kind, count=one) for kind, one in counts if one > 0]


def to_set(moves: Iterable[OffsetMove]) -> dict[str, list[OffsetMove]]:
    """The moves that are requested of the service, by group."""
    found: dict[str, list[OffsetMove]] = {}
    for move in moves:
        if move.outcome in _SET and move.to_offset != move.from_offset:
            found.setdefault(move.group, []).append(move)
    return found


def to_subscribe(moves: Iterable[OffsetMove], reading: Container[str]) -> dict[str, list[str]]:
    """The topics that each group is subscribed to: those in which it continues.

    `reading`: groups that have subscriptions, which stay as they are.
    """
    found: dict[str, set[str]] = {}
    for move in moves:
        if move.to_offset is not None and move.group not in reading:
            found.setdefault(move.group, set()).add(move.topic)
    return {group: sorted(topics) for group, topics in found.items()}


def _move(
    place: GroupQueue,
    offset: int,
    bounds: Mapping[QueueId, OffsetRange],
    topics: set[str],
    current: int | None,
    same_ends: SameEnds | None,
) -> OffsetMove:
    if (reason := _why_not_set(place, bounds, topics)) is not None:
        return _not_set(place, offset, current, reason)
    queue = QueueId(place.topic, place.queue_id)
    found, differs_from = bounds[queue], None
    reached = min(offset, found.end)
    if same_ends is not None and reached > max(found.first, current or 0):
        differs_from = same_ends[queue]
        if differs_from is None:
            return _not_set(place, offset, current, Outcome.NOT_COMPARED)
    to_offset, outcome = _target(offset, found, current, differs_from)
    return msgspec.structs.replace(
        _not_set(place, offset, current, outcome),
        to_offset=max(to_offset, current or 0),
        differs_from=differs_from if outcome is Outcome.OTHER_MESSAGES else None,
    )


def _why_not_set(
    place: GroupQueue, bounds: Mapping[QueueId, OffsetRange], topics: set[str]
) -> Outcome | None:
    """The reason why the service has no such position, or takes none; None if it does."""
    if place.topic.startswith(names.RETRY_PREFIX):
        return Outcome.RETRIES
    if not names.is_valid_name(place.group):
        return Outcome.NAME_NOT_ALLOWED
    if place.topic not in topics:
        return Outcome.TOPIC_NOT_FOUND
    if QueueId(place.topic, place.queue_id) not in bounds:
        return Outcome.QUEUE_NOT_FOUND
    return None


def _target(
    offset: int, found: OffsetRange, current: int | None, differs_from: int | None
) -> tuple[int, Outcome]:
    """The offset at which the group would continue, and why there.

    `differs_from`: the first offset at which the queues differ, as far as they were compared.
    """
    if differs_from is not None and min(offset, found.end) > differs_from:
        return differs_from, Outcome.OTHER_MESSAGES
    if offset > found.end:
        return found.end, Outcome.BEYOND_END
    if current is not None and offset <= current:
        return current, Outcome.UNCHANGED
    if offset < found.first:
        return found.first, Outcome.EXPIRED
    return offset, Outcome.ADVANCED


def _not_set(place: GroupQueue, offset: int, current: int | None, outcome: Outcome) -> OffsetMove:
    return OffsetMove(
        group=place.group,
        topic=place.topic,
        queue_id=place.queue_id,
        broker_offset=offset,
        from_offset=current,
        to_offset=None,
        outcome=outcome,
    )
