"""Members of consumer groups, over a `MessageStore`, as one object: they join, say that they are
there, and own queues meanwhile.

    assignment.py  who owns which queue
    table.py       members, owners and locks, in memory
    journal.py     the table and its log, and snapshots
    events.py      the records of that log
    offsets.py     what members commit
    deadlines.py   when a session or a lock ends

A change of a group is one append: members that joined or left, and the new assignment. It is on
disk before a member gets it, so a restart forgets no owner. No queue changes its owner while an
offset of it is committed, so a former owner overwrites nothing of its successor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from delivery.members.assignment import Strategy
from delivery.members.deadlines import Deadlines
from delivery.members.events import (
    AnyMemberEvent,
    Ended,
    Joined,
    Left,
    Locked,
    Shared,
    TopicEnded,
    Unlocked,
)
from delivery.members.journal import MemberJournal
from delivery.members.offsets import GroupPositions, MemberOffsets
from delivery.members.table import GroupMembers
from delivery.options import MemberOptions
from storage.clock import Clock
from storage.errors import GroupActive, LimitReached
from storage.identifiers import Identifiers
from storage.keyed_conditions import KeyedConditions
from storage.keyed_locks import KeyedLocks
from storage.message import QueueId
from storage.store import MessageStore

_LONGEST_HEARTBEAT_MS = 30_000


class JoinRequest(NamedTuple):
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    strategy: Strategy = Strategy.AVERAGE
    is_broadcast: bool = False
    named: tuple[QueueId, ...] = ()
    room: str | None = None


class Membership(NamedTuple):
    """A member and its assignment.

    `revoked`: queues of the assignment that it got before which it does not own any more.
    `expires_ms`: on the monotonic clock, unless it is heard of before.
    """

    member_id: str
    generation: int
    owned: list[QueueId]
    revoked: list[QueueId]
    expires_ms: int


class Locks(NamedTuple):
    """`refused`: queues that another member holds, by its id."""

    locked: list[QueueId]
    refused: dict[QueueId, str]
    expires_ms: int


def heartbeat_interval_ms(session_timeout_ms: int) -> int:
    """How often a member is to be heard of."""
    return min(session_timeout_ms // 3, _LONGEST_HEARTBEAT_MS)


class Members:
    """Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        identifiers: Identifiers,
        options: MemberOptions,
        *,
        positions: GroupPositions,
        queue_count: Callable[[str, str], int],
        rooms_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`queue_count`: of a group and a topic; 0 where the topic does not exist, or the group
        does not read it.

        `rooms_of`: a group's rooms of queues, by "topic/number".
        """
        self._positions = positions
        self._clock = clock
        self._identifiers = identifiers
        self._options = options
        self._queue_count = queue_count
        self._rooms_of = rooms_of
        self._journal = MemberJournal(store)
        self._locks = KeyedLocks()  # by group
        self.offsets = MemberOffsets(self._journal, self._locks, positions, clock, options)
        self._changes = KeyedConditions()  # by group: a new generation
        self._sessions: Deadlines[tuple[str, str]] = Deadlines()  # by group and member
        self._leases: Deadlines[tuple[str, QueueId]] = Deadlines()  # by group and queue
        self._heard_ms: dict[str, int] = {}  # by member, wall time
        self._assigned: dict[str, list[QueueId]] = {}  # by member: what its last answer said
        self._joining: set[str] = set()  # groups whose first member joins
        self._shared_ms = clock.monotonic_ms()
        self._is_stopping = False

    # ----------------------------------------------------------------------------------------------
    # life cycle

    async def start(self) -> int:
        """Give the table back; the number of events replayed.

        Every session and every lock gets its full time: no member could be heard of meanwhile.
        """
        count = await self._journal.start()
        now_ms = self._clock.monotonic_ms()
        for members in self._journal.groups.values():
            for member in members.members.values():
                self._hear(member)
            self._assigned |= members.owned
            for queue in members.locks:
                self._leases.set((members.group, queue), now_ms + self._options.lock_ms)
        return count

    async def save_snapshot(self) -> int:
        """Save the table; the number of bytes, 0 if nothing has changed."""
        return await self._journal.save_snapshot()

    def stop(self) -> None:
        """End all waits for a change."""
        self._is_stopping = True
        for group in self._journal.groups:
            self._changes.notify(group)

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        await self._locks.drain()

    def next_due_ms(self) -> int | None:
        """When the next session or lock may end, on the monotonic clock."""
        due = [self._sessions.next_ms(), self._leases.next_ms()]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    async def run_once(self) -> int:
        """End expired sessions and locks, and assign queues again if their number changed; the
        number of groups that changed.
        """
        now_ms = self._clock.monotonic_ms()
        groups = dict.fromkeys(group for group, _ in self._sessions.due(now_ms))
        groups |= dict.fromkeys(group for group, _ in self._leases.due(now_ms))
        if now_ms - self._shared_ms >= self._options.share_interval_ms:
            self._shared_ms = now_ms
            groups |= dict.fromkeys(
                group
                for group, members in self._journal.groups.items()
                if self._is_outdated(members)
            )
        changed = 0
        for group in groups:
            changed += await self._locks.shielded(self._look_at(group))
        return changed

    # ----------------------------------------------------------------------------------------------
    # members

    def of_group(self, group: str) -> GroupMembers:
        """The members of the group, for reading."""
        return self._journal.group(group)

    def is_in_use(self, group: str) -> bool:
        """Whether members share the queues of the group, so that no message of it is leased."""
        return group in self._joining or self.of_group(group).is_in_use

    def heard_at_ms(self, member_id: str) -> int:
        """Wall time of its last heartbeat, or of the start of the service."""
        return self._heard_ms[member_id]

    def count_members(self) -> int:
        return sum(len(one.members) for one in self._journal.groups.values())

    def count_locks(self) -> int:
        return sum(len(one.locks) for one in self._journal.groups.values())

    def expires_ms(self, group: str, member_id: str) -> int:
        """When the member's session ends, on the monotonic clock."""
        expires_ms = self._sessions.get((group, member_id))
        assert expires_ms is not None, "a member has a session"
        return expires_ms

    def check_unused(self, group: str) -> None:
        """Raise GroupActive if members share the queues of the group."""
        if self.is_in_use(group):
            raise GroupActive(f"members share the queues of group {group}")

    def check_join(self, group: str, request: JoinRequest) -> None:
        """Raise the errors of `join`, except for leases and for groups that do not exist."""
        members = self.of_group(group)
        if members.first is not None:
            _check_alike(members.first, request)
        self._check_limits(members, len(request.named))

    async def check_not_leased(self, group: str) -> None:
        """Raise GroupActive if messages of the group are leased or wait for a retry, which no
        member would get; UnknownGroup if there is no such group.
        """
        await self._positions.check_no_leases(group)
        if not self.of_group(group).is_in_use:
            await self._positions.check_no_retries(group)

    async def join(self, group: str, request: JoinRequest) -> Membership:
        """Add a member, and assign the queues again. Raises GroupActive, LimitReached,
        UnknownGroup.
        """
        return await self._locks.shielded(self._join(group, request))

    def keep_session(self, group: str, member_id: str) -> int:
        """Keep the member's session, and return the generation of its group.

        Raises UnknownMember.
        """
        members = self.of_group(group)
        self._hear(members.get(member_id))
        return members.generation

    async def heartbeat(
        self, group: str, member_id: str, generation: int, *, wait_ms: int
    ) -> Membership:
        """Keep the member's session; wait for an assignment that is newer than `generation`.

        Raises UnknownMember.
        """
        member = self.of_group(group).get(member_id)
        self._hear(member)
        if generation == self.of_group(group).generation and wait_ms and not self._is_stopping:
            # Well within its session, which goes on while it waits.
            wait_ms = min(wait_ms, heartbeat_interval_ms(member.session_timeout_ms))
            await self._changes.wait(group, timeout_ms=wait_ms)
            self._hear(self.of_group(group).get(member_id))
        return self._assignment_of(group, member_id)

    async def leave(self, group: str, member_id: str) -> None:
        """Remove a member; its queues and their locks are free. Durable on return. Raises
        UnknownMember.
        """
        await self._locks.shielded(self._leave(group, member_id))

    async def end(self, group: str) -> None:
        """Remove all members of a deleted group. Durable on return."""
        await self._locks.shielded(self._end(group))

    async def end_topic(self, topic: str) -> None:
        """Take the queues of a deleted topic from all members. Durable on return."""
        for group in list(self._journal.groups):
            await self._locks.shielded(self._end_topic(group, topic))

    def share_soon(self) -> None:
        """Check the numbers of queues at the next run, even before it is time."""
        self._shared_ms = self._clock.monotonic_ms() - self._options.share_interval_ms

    # ----------------------------------------------------------------------------------------------
    # locks

    async def lock(
        self, group: str, member_id: str, queues: Sequence[QueueId], generation: int | None = None
    ) -> Locks:
        """Lock queues that the member owns, or renew their locks.

        Raises UnknownMember, Fenced: then nothing was locked.
        """
        return await self._locks.shielded(self._lock(group, member_id, queues, generation))

    async def unlock(self, group: str, member_id: str, queues: Iterable[QueueId]) -> list[QueueId]:
        """Release locks that the member holds; the queues released. Raises UnknownMember."""
        return await self._locks.shielded(self._unlock(group, member_id, queues))

    # ----------------------------------------------------------------------------------------------
    # changes, under the lock of the group

    async def _join(self, group: str, request: JoinRequest) -> Membership:
        async with self._locks.lock(group):
            self.check_join(group, request)
            # From now on nothing is leased.
            self._joining.add(group)
            try:
                await self.check_not_leased(group)
                return await self._let_join(group, request)
            finally:
                self._joining.discard(group)

    async def _let_join(self, group: str, request: JoinRequest) -> Membership:
        joined = Joined(
            group=group,
            at_ms=self._clock.wall_ms(),
            member_id=self._identifiers.new("mem"),
            **request._asdict(),
        )
        await self._record(group, [joined])
        self._hear(joined)
        return self._assignment_of(group, joined.member_id)

    async def _leave(self, group: str, member_id: str) -> None:
        async with self._locks.lock(group):
            self.of_group(group).get(member_id)
            await self._record(
                group,
                [Left(group=group, at_ms=self._clock.wall_ms(), member_ids=(member_id,))],
            )

    async def _end(self, group: str) -> None:
        async with self._locks.lock(group):
            if group in self._journal.groups:
                gone = self._journal.groups[group]
                await self._journal.record([Ended(group=group, at_ms=self._clock.wall_ms())])
                self._forget(group, gone.members, gone.locks)
                self._changes.notify(group)

    async def _end_topic(self, group: str, topic: str) -> None:
        async with self._locks.lock(group):
            members = self.of_group(group)
            if (
                any(topic in member.topics for member in members.members.values())
                or any(queue.topic == topic for queue in members.locks)
                or any(
                    queue.topic == topic for of_one in members.offsets.values() for queue in of_one
                )
            ):
                event = TopicEnded(group=group, at_ms=self._clock.wall_ms(), topic=topic)
                await self._record(group, [event])

    async def _look_at(self, group: str) -> bool:
        async with self._locks.lock(group):
            now_ms, at_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
            members = self.of_group(group)
            silent = tuple(
                member_id
                for member_id in members.members
                if (self._sessions.get((group, member_id)) or 0) <= now_ms
            )
            loose = tuple(
                queue
                for queue in members.locks
                if (self._leases.get((group, queue)) or 0) <= now_ms
            )
            events: list[AnyMemberEvent] = []
            if silent:
                events.append(Left(group=group, at_ms=at_ms, member_ids=silent, keeps_locks=True))
            if loose:
                events.append(Unlocked(group=group, at_ms=at_ms, queues=loose))
            if events or self._is_outdated(members):
                await self._record(group, events)
                return True
            return False

    async def _lock(
        self, group: str, member_id: str, queues: Sequence[QueueId], generation: int | None
    ) -> Locks:
        async with self._locks.lock(group):
            self._hear(self.of_group(group).get(member_id))
            self.of_group(group).check_owner(member_id, queues, generation)
            members, now_ms = self.of_group(group), self._clock.monotonic_ms()
            refused = {
                queue: holder
                for queue in queues
                if (holder := members.locks.get(queue, member_id)) != member_id
                and (self._leases.get((group, queue)) or 0) > now_ms
            }
            locked = [queue for queue in dict.fromkeys(queues) if queue not in refused]
            new = tuple(queue for queue in locked if members.locks.get(queue) != member_id)
            if new:
                event = Locked(
                    group=group, at_ms=self._clock.wall_ms(), member_id=member_id, queues=new
                )
                await self._journal.record([event])
            expires_ms = self._clock.monotonic_ms() + self._options.lock_ms
            for queue in locked:
                self._leases.set((group, queue), expires_ms)
            return Locks(locked, refused, expires_ms)

    async def _unlock(self, group: str, member_id: str, queues: Iterable[QueueId]) -> list[QueueId]:
        async with self._locks.lock(group):
            self.of_group(group).get(member_id)
            held = self.of_group(group).locks
            given_back = [q for q in dict.fromkeys(queues) if held.get(q) == member_id]
            if given_back:
                event = Unlocked(group=group, at_ms=self._clock.wall_ms(), queues=tuple(given_back))
                await self._journal.record([event])
                for queue in given_back:
                    self._leases.drop((group, queue))
            return given_back

    async def _record(self, group: str, events: Sequence[AnyMemberEvent]) -> None:
        """Record a change and the assignment that follows from it, and wake waiting calls."""
        before = self.of_group(group)
        known, locked = set(before.members), set(before.locks)
        generation = before.generation + 1
        topics = {topic for member in before.members.values() for topic in member.topics}
        topics |= {topic for event in events if isinstance(event, Joined) for topic in event.topics}
        shared = Shared(
            group=group,
            at_ms=self._clock.wall_ms(),
            generation=generation,
            queue_counts=self._queue_counts(group, topics),
            rooms=dict(self._rooms_of(group)),
        )
        await self._journal.record([*events, shared])
        after = self.of_group(group)
        self._forget(group, known - set(after.members), locked - set(after.locks))
        self._changes.notify(group)

    def _forget(self, group: str, members: Iterable[str], locks: Iterable[QueueId]) -> None:
        """Forget the deadlines of members and locks that no longer exist."""
        for member_id in members:
            self._sessions.drop((group, member_id))
            self._heard_ms.pop(member_id, None)
            self._assigned.pop(member_id, None)
        for queue in locks:
            self._leases.drop((group, queue))

    # ----------------------------------------------------------------------------------------------

    def _hear(self, member: Joined) -> None:
        self._heard_ms[member.member_id] = self._clock.wall_ms()
        self._sessions.set(
            (member.group, member.member_id),
            self._clock.monotonic_ms() + member.session_timeout_ms,
        )

    def _assignment_of(self, group: str, member_id: str) -> Membership:
        members = self.of_group(group)
        owned = members.owned[member_id]
        now_owned = set(owned)
        revoked = [queue for queue in self._assigned.get(member_id, ()) if queue not in now_owned]
        self._assigned[member_id] = owned
        expires_ms = self.expires_ms(group, member_id)
        return Membership(member_id, members.generation, owned, revoked, expires_ms)

    def _queue_counts(self, group: str, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self._queue_count(group, topic) for topic in sorted(topics)}

    def _is_outdated(self, members: GroupMembers) -> bool:
        """Whether queues or rooms have changed since the last assignment."""
        shared = members.shared
        return (
            shared is not None
            and bool(members.members)
            and (
                shared.queue_counts != self._queue_counts(members.group, shared.queue_counts)
                or shared.rooms != self._rooms_of(members.group)
            )
        )

    def _check_limits(self, members: GroupMembers, named_count: int) -> None:
        if len(members.members) >= self._options.max_group_members:
            raise LimitReached(f"the group has {len(members.members)} members, which is the limit")
        total = self.count_members()
        if total >= self._options.max_members:
            raise LimitReached(f"all groups together have {total} members, which is the limit")
        if named_count:
            named_count += sum(
                len(member.named)
                for one in self._journal.groups.values()
                for member in one.members.values()
            )
        if named_count > self._options.max_named_queues:
            raise LimitReached(f"members would name {named_count} queues, more than the limit")


def _check_alike(first: Joined, request: JoinRequest) -> None:
    """Raise GroupActive where the group's members share it in another way."""
    if first.is_broadcast != request.is_broadcast:
        kind = "broadcast" if first.is_broadcast else "shared"
        raise GroupActive(f"group {first.group} has {kind} members")
    if first.strategy is not request.strategy:
        raise GroupActive(
            f"the members of group {first.group} share its queues by {first.strategy.value}"
        )
