"""Which member of a consumer group owns which queue: pure functions of the members and the queues.

    strategy      the queues of a topic go to the members that read it
    average       in runs of neighbouring queues, as RocketMQ does by default
    circle        one by one in turn
    sticky        evenly over all topics with the same readers, moving as few queues as possible
    manual        to the first member that names them
    machine_room  by average to the members in the room of the queue; to all members where the queue
                  has no room, or no member is in it

Members come in the order in which they joined, which matters for `manual` alone. Elsewhere they are
ranked by their client ids, so that a member that comes back under its client id gets what it had.
Source of `average`, `circle` and `machine_room`: RocketMQ AllocateMessageQueueAveragely,
AllocateMessageQueueAveragelyByCircle, AllocateMachineRoomNearby (facts 11.6).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from storage.message import QueueId

Assignment = dict[str, list[QueueId]]
"""The queues of each member by its id, sorted."""


class Strategy(StrEnum):
    AVERAGE = "average"
    CIRCLE = "circle"
    STICKY = "sticky"
    MANUAL = "manual"
    MACHINE_ROOM = "machine_room"


class Candidate(NamedTuple):
    """A member of a group that takes part in an assignment."""

    member_id: str
    client_id: str
    topics: Collection[str]  # that it reads
    owned: Collection[QueueId] = ()  # until now
    named: Collection[QueueId] = ()  # for `manual`
    room: str | None = None


def assign(
    strategy: Strategy,
    members: Sequence[Candidate],
    queues: Iterable[QueueId],
    rooms: Mapping[QueueId, str] | None = None,
) -> Assignment:
    """The queues of each member. A queue that no member reads, or names, has no owner.

    `rooms`: of queues, for `machine_room`.
    """
    owned: Assignment = {member.member_id: [] for member in members}
    for readers, topics in _topics_by_readers(members, queues):
        match strategy:
            case Strategy.AVERAGE:
                pairs = chain(*[_average(_ranked(readers), topic) for topic in topics])
            case Strategy.CIRCLE:
                pairs = chain(*[_circle(_ranked(readers), topic) for topic in topics])
            case Strategy.STICKY:
                pairs = chain(_sticky(_ranked(readers), list(chain(*topics))))
            case Strategy.MANUAL:
                pairs = chain(_as_named(readers, chain(*topics)))
            case Strategy.MACHINE_ROOM:
                pairs = chain(*[_by_room(_ranked(readers), topic, rooms or {}) for topic in topics])
        for member, queue in pairs:
            owned[member.member_id].append(queue)
    return {member_id: sorted(its_queues) for member_id, its_queues in owned.items()}


_Pairs = Iterator[tuple[Candidate, QueueId]]


def _topics_by_readers(
    members: Sequence[Candidate], queues: Iterable[QueueId]
) -> Iterator[tuple[list[Candidate], list[list[QueueId]]]]:
    """(members, the queues of each topic that exactly these read), all of them in order."""
    readers: dict[str, list[int]] = defaultdict(list)
    for number, member in enumerate(members):
        for topic in set(member.topics):
            readers[topic].append(number)
    found: dict[tuple[int, ...], list[list[QueueId]]] = defaultdict(list)
    for topic, of_topic in groupby(sorted(queues), attrgetter("topic")):
        if topic in readers:
            found[tuple(readers[topic])].append(list(of_topic))
    for numbers, topics in found.items():
        yield [members[number] for number in numbers], topics


def _ranked(members: Iterable[Candidate]) -> list[Candidate]:
    return sorted(members, key=attrgetter("client_id", "member_id"))


def _average(members: Sequence[Candidate], queues: Sequence[QueueId]) -> _Pairs:
    each, more = divmod(len(queues), len(members))
    begin = 0
    for rank, member in enumerate(members):
        end = begin + each + (rank < more)
        for queue in queues[begin:end]:
            yield member, queue
        begin = end


def _circle(members: Sequence[Candidate], queues: Sequence[QueueId]) -> _Pairs:
    for number, queue in enumerate(queues):
        yield members[number % len(members)], queue


def _sticky(members: Sequence[Candidate], queues: Sequence[QueueId]) -> _Pairs:
    """Each member keeps the queues that it owns, up to its share; the rest goes to members with
    fewer.

    The larger shares go first to members that own as many, so that the fewest queues move.
    """
    free = dict.fromkeys(queues)  # as an ordered set
    owned: list[list[QueueId]] = []
    for member in members:
        owned.append([queue for queue in sorted(set(member.owned)) if queue in free])
        for queue in owned[-1]:
            del free[queue]
    each, more = divmod(len(queues), len(members))
    has_more = sorted(range(len(members)), key=lambda rank: len(owned[rank]) <= each)[:more]
    shares = [each] * len(members)
    for rank in has_more:
        shares[rank] += 1
    for share, its_queues in zip(shares, owned, strict=True):
        free.update(dict.fromkeys(its_queues[share:]))
    left = iter(sorted(free))
    for member, share, its_queues in zip(members, shares, owned, strict=True):
        kept = its_queues[:share]
        for queue in (*kept, *(next(left) for _ in range(share - len(kept)))):
            yield member, queue


def _as_named(members: Sequence[Candidate], queues: Iterable[QueueId]) -> _Pairs:
    owners: dict[QueueId, Candidate] = {}
    for member in members:
        for queue in member.named:
            owners.setdefault(queue, member)
    for queue in queues:
        if queue in owners:
            yield owners[queue], queue


def _by_room(
    members: Sequence[Candidate], queues: Sequence[QueueId], rooms: Mapping[QueueId, str]
) -> _Pairs:
    neighbours: dict[str | None, list[Candidate]] = defaultdict(list)
    for member in members:
        neighbours[member.room].append(member)
    neighbours[None] = list(members)
    in_room: dict[str | None, list[QueueId]] = defaultdict(list)
    for queue in queues:
        room = rooms.get(queue)
        in_room[room if room in neighbours else None].append(queue)
    for room, its_queues in in_room.items():
        yield from _average(neighbours[room], its_queues)
