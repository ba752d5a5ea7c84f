"""The members of consumer groups, what each owns, and who holds a queue's lock. Pure, derived:
replaying their events gives it back.

Sessions and leases are not part of it: they run on the clock of the process (`sessions.py`).
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from delivery.members.assignment import Assignment, Candidate, Strategy, assign
from delivery.members.events import AnyMemberEvent, Ended, Joined, Left, Locked, Shared, Unlocked
from storage.message import QueueId


class GroupMembers(msgspec.Struct, array_like=True):
    """`members`: by id, in the order in which they joined.

    `owned`: the queues of each member, sorted. `locks`: the member that holds each, which may have
    lost the queue, or left, meanwhile. `generation`: rises with each assignment.
    """

    group: str
    generation: int = 0
    members: dict[str, Joined] = {}
    owned: Assignment = {}
    locks: dict[QueueId, str] = {}
    shared: Shared | None = None  # the last assignment

    @property
    def first(self) -> Joined | None:
        """Its strategy and its way of delivery hold while there are members."""
        return next(iter(self.members.values()), None)

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.locks

    def owns(self, member_id: str, queue: QueueId) -> bool:
        return queue in self.owned.get(member_id, ())

    def share(self, queue_counts: Mapping[str, int], rooms: Mapping[str, str]) -> Assignment:
        """The owner of each queue from now on, given how many queues the topics have."""
        queues = [
            QueueId(topic, number)
            for topic, count in queue_counts.items()
            for number in range(count)
        ]
        first = self.first
        if first is not None and first.is_broadcast:
            return {
                member.member_id: [queue for queue in queues if queue.topic in member.topics]
                for member in self.members.values()
            }
        return assign(
            Strategy.AVERAGE if first is None else first.strategy,
            [self._candidate(member) for member in self.members.values()],
            queues,
            {queue: rooms[str(queue)] for queue in queues if str(queue) in rooms},
        )

    def apply(self, event: AnyMemberEvent) -> None:
        match event:
            case Joined():
                self.members[event.member_id] = event
                self.owned[event.member_id] = []
            case Left():
                for member_id in event.member_ids:
                    self.members.pop(member_id, None)
                    self.owned.pop(member_id, None)
                if not event.keeps_locks:
                    self._unlock(
                        q for q, holder in self.locks.items() if holder in event.member_ids
                    )
            case Shared():
                self.owned = self.share(event.queue_counts, event.rooms)
                self.generation = event.generation
                self.shared = event
            case Locked():
                self.locks |= dict.fromkeys(event.queues, event.member_id)
            case Unlocked():
                self._unlock(event.queues)
            case Ended():
                self.members, self.owned, self.locks, self.shared = {}, {}, {}, None

    def _unlock(self, queues: "Collection[QueueId] | Iterator[QueueId]") -> None:
        for queue in list(queues):
            self.locks.pop(queue, None)

    def _candidate(self, member: Joined) -> Candidate:
        return Candidate(
            member.member_id,
            member.client_id,
            member.topics,
            self.owned[member.member_id],
            member.named,
            member.room,
        )
