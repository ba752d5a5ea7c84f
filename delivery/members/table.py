"""The members of consumer groups, what each owns, and who holds a queue's lock. Pure, derived:
replaying their events gives it back.

Sessions and leases are not part of it: they run on the clock of the process (`deadlines.py`).
"""

from collections.abc import Iterable, Mapping

import msgspec

from delivery.members.assignment import Assignment, Candidate, Strategy, assign
from delivery.members.events import (
    AnyMemberEvent,
    Committed,
    Joined,
    Left,
    Locked,
    Shared,
    TopicEnded,
    Unlocked,
)
from storage.errors import Fenced, UnknownMember
from storage.message import QueueId

_CLIENTS_KEPT = 100
_SHOWN = 200  # characters of an id that a client has sent


class GroupMembers(msgspec.Struct, array_like=True):
    """`members`: by id, in the order in which they joined.

    `owned`: the queues of each member, sorted. `since`: the generation in which each got its owner.
    `locks`: the member that holds each, which may have lost the queue, or left, meanwhile.
    `generation`: rises with each assignment, for as long as the group exists.

    `offsets`: of a broadcast group, by client id, the one that committed last at the end; of
    clients that are no members, 100 are kept.
    """

    group: str
    generation: int = 0
    members: dict[str, Joined] = {}
    owned: Assignment = {}
    locks: dict[QueueId, str] = {}
    shared: Shared | None = None  # the last assignment
    since: dict[QueueId, int] = {}
    offsets: dict[str, dict[QueueId, int]] = {}

    @property
    def first(self) -> Joined | None:
        """The first member: its strategy and its kind of delivery apply while there are members."""
        return next(iter(self.members.values()), None)

    @property
    def is_broadcast(self) -> bool:
        return self.first is not None and self.first.is_broadcast

    @property
    def is_in_use(self) -> bool:
        """Whether there are members, or members whose session timed out and that may still be at
        work.
        """
        return bool(self.members or self.locks)

    def get(self, member_id: str) -> Joined:
        """The member with this id. Raises UnknownMember."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.group} has no member {member_id[:_SHOWN]}")
        return member

    def check_owner(
        self, member_id: str, queues: Iterable[QueueId], generation: int | None
    ) -> None:
        """Raise Fenced if the member does not own the queue, or does not exist."""
        lost = self.lost(member_id, queues, generation)
        if lost:
            raise Fenced(f"member {member_id[:_SHOWN]} no longer owns queue {lost[0]}")

    def lost(
        self, member_id: str, queues: Iterable[QueueId], generation: int | None
    ) -> list[QueueId]:
        """The queues that the member does not own, or did not own in that generation and got back
        since: another member has worked on them.
        """
        owned = set(self.owned.get(member_id, ()))
        return [
            queue
            for queue in queues
            if queue not in owned
            or (generation is not None and generation < self.since.get(queue, 0))
        ]

    def share(self, queue_counts: Mapping[str, int], rooms: Mapping[str, str]) -> Assignment:
        """The owner of each queue from now on, given how many queues the topics have."""
        queues = [
            QueueId(topic, number)
            for topic, count in queue_counts.items()
            for number in range(count)
        ]
        first = self.first
        if first is not None and first.is_broadcast:
            # one list for all members that read the same topics: each of a thousand owns them all
            by_topics = {
                topics: [queue for queue in queues if queue.topic in topics]
                for topics in {member.topics for member in self.members.values()}
            }
            return {member.member_id: by_topics[member.topics] for member in self.members.values()}
        return assign(
            Strategy.AVERAGE if first is None else first.strategy,
            [self._candidate(member) for member in self.members.values()],
            queues,
            {queue: rooms[str(queue)] for queue in queues if str(queue) in rooms},
        )

    def to_store(self) -> "GroupMembers":
        """The state for a snapshot, without what `restore` computes."""
        return msgspec.structs.replace(self, owned={}) if self.is_broadcast else self

    def restore(self) -> None:
        """Compute what a snapshot does not have."""
        if self.is_broadcast and self.shared is not None:
            self.owned = self.share(self.shared.queue_counts, self.shared.rooms)

    def apply(self, event: AnyMemberEvent) -> None:
        """Change the table by an event, except by the end of the group."""
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
                self._forget_clients()
            case Shared():
                owned = self.share(event.queue_counts, event.rooms)
                self.since = {} if self.is_broadcast else self._since(owned, event.generation)
                self.owned, self.generation, self.shared = owned, event.generation, event
            case Locked():
                self.locks |= dict.fromkeys(event.queues, event.member_id)
            case Unlocked():
                self._unlock(event.queues)
            case Committed():
                offsets = self.offsets.pop(event.client_id, {})
                self.offsets[event.client_id] = offsets | dict(event.offsets)
            case TopicEnded():
                self._unlock(queue for queue in self.locks if queue.topic == event.topic)
                for client_id, offsets in self.offsets.items():
                    self.offsets[client_id] = {
                        queue: offset
                        for queue, offset in offsets.items()
                        if queue.topic != event.topic
                    }

    def _unlock(self, queues: Iterable[QueueId]) -> None:
        for queue in list(queues):
            self.locks.pop(queue, None)

    def _since(self, owned: Assignment, generation: int) -> dict[QueueId, int]:
        """The generation in which each queue got its owner, if this assignment is the next."""
        since = dict(self.since)
        for member_id, queues in owned.items():
            before = self.owned.get(member_id, [])
            if queues != before:
                gained = set(queues).difference(before)
                since |= dict.fromkeys(gained, generation)
        if len(since) > sum(map(len, owned.values())):  # some queues have no owner any more
            since = {queue: since[queue] for queues in owned.values() for queue in queues}
        return since

    def _forget_clients(self) -> None:
        present = {member.client_id for member in self.members.values()}
        gone = [client_id for client_id in self.offsets if client_id not in present]
        for client_id in gone[:-_CLIENTS_KEPT]:
            del self.offsets[client_id]

    def _candidate(self, member: Joined) -> Candidate:
        return Candidate(
            member.member_id,
            member.client_id,
            member.topics,
            self.owned[member.member_id],
            member.named,
            member.room,
        )
