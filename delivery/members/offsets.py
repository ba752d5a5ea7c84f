"""Offsets that members of a group commit: none in a queue that another member has got.

Of a broadcast group each client has its own, in the log of the members; those of any other group
are the group's.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from delivery.members.events import Committed
from delivery.members.journal import MemberJournal
from delivery.options import MemberOptions
from storage.clock import Clock
from storage.errors import GroupActive, LimitReached
from storage.keyed_locks import KeyedLocks
from storage.message import QueueId

T = TypeVar("T")


class GroupPositions(Protocol):
    """Positions of groups, which those that lease messages have as well."""

    async def check_no_leases(self, group: str) -> None:
        """Raises GroupActive where messages of the group are leased; UnknownGroup."""

    async def check_no_retries(self, group: str) -> None:
        """Raises GroupActive where messages of the group are to be delivered again."""

    async def set_positions(self, group: str, positions: Mapping[QueueId, int]) -> None:
        """Durable on return. Raises LimitReached."""


class MemberOffsets:
    """Commits offsets. Event loop only."""

    def __init__(
        self,
        journal: MemberJournal,
        locks: KeyedLocks,
        positions: GroupPositions,
        clock: Clock,
        options: MemberOptions,
    ) -> None:
        """`locks`: by group; no queue changes its owner while one is held."""
        self._journal = journal
        self._locks = locks
        self._positions = positions
        self._clock = clock
        self._options = options

    async def commit(
        self, group: str, member_id: str, generation: int | None, offsets: Mapping[QueueId, int]
    ) -> None:
        """Commit offsets of queues that the member owns, and has owned since that generation.

        Durable on return. Raises Fenced, LimitReached: then nothing was committed.
        """
        await self._locks.shielded(self._commit(group, member_id, generation, offsets))

    async def commit_owned(
        self, group: str, member_id: str, generation: int, offsets: Mapping[QueueId, int]
    ) -> list[QueueId]:
        """As `commit`, but for queues that the member lost, which are returned.

        Raises UnknownMember, LimitReached.
        """
        return await self._locks.shielded(self._commit_owned(group, member_id, generation, offsets))

    async def unowned(self, group: str, change: Callable[[], Awaitable[T]]) -> T:
        """Change the positions of a group; no member joins meanwhile.

        Raises GroupActive where it has members, and what `change` raises.
        """
        return await self._locks.shielded(self._unowned(group, change))

    def get(self, group: str, client_id: str, queue: QueueId) -> int | None:
        """As a client of a broadcast group has committed it."""
        return self._journal.group(group).offsets.get(client_id, {}).get(queue)

    def queues_of(self, group: str, client_id: str) -> set[QueueId]:
        """The queues in which a client of a broadcast group has an offset."""
        return set(self._journal.group(group).offsets.get(client_id, ()))

    async def _commit(
        self, group: str, member_id: str, generation: int | None, offsets: Mapping[QueueId, int]
    ) -> None:
        async with self._locks.lock(group):
            self._journal.group(group).check_owner(member_id, offsets, generation)
            await self._set_offsets(group, member_id, offsets)

    async def _commit_owned(
        self, group: str, member_id: str, generation: int, offsets: Mapping[QueueId, int]
    ) -> list[QueueId]:
        async with self._locks.lock(group):
            members = self._journal.group(group)
            members.get(member_id)
            lost = members.lost(member_id, offsets, generation)
            owned = {queue: offsets[queue] for queue in offsets.keys() - set(lost)}
            if owned:
                await self._set_offsets(group, member_id, owned)
            return lost

    async def _unowned(self, group: str, change: Callable[[], Awaitable[T]]) -> T:
        async with self._locks.lock(group):
            if self._journal.group(group).is_in_use:
                raise GroupActive(
                    f"members share the queues of group {group}: only they commit offsets"
                )
            return await change()

    async def _set_offsets(
        self, group: str, member_id: str, offsets: Mapping[QueueId, int]
    ) -> None:
        members = self._journal.group(group)
        if not members.is_broadcast:
            await self._positions.set_positions(group, offsets)
            return
        client_id = members.members[member_id].client_id
        self._check_offsets(len(offsets.keys() - members.offsets.get(client_id, {}).keys()))
        event = Committed(
            group=group,
            at_ms=self._clock.wall_ms(),
            client_id=client_id,
            offsets=tuple(offsets.items()),
        )
        await self._journal.record([event])

    def _check_offsets(self, new_count: int) -> None:
        total = new_count + sum(
            len(offsets)
            for members in self._journal.groups.values()
            for offsets in members.offsets.values()
        )
        if total > self._options.max_broadcast_offsets:
            raise LimitReached(
                f"clients of broadcast groups would have {total} offsets, more than the limit"
            )
