"""The table of members and the log that it is derived from."""

from collections.abc import Iterator, Sequence

import msgspec

from delivery.members.events import MEMBER_QUEUE, AnyMemberEvent, Ended, event_messages, read_event
from delivery.members.table import GroupMembers
from storage.derived_table import DerivedTable, OnDamage
from storage.message import Durability
from storage.store import MessageStore

SNAPSHOT = "members"

_dump_decoder = msgspec.msgpack.Decoder(list[GroupMembers])


class MemberJournal:
    """Records what the members of groups own. Event loop only."""

    def __init__(self, store: MessageStore) -> None:
        self.groups: dict[str, GroupMembers] = {}
        self._store = store
        self._log = DerivedTable(store, SNAPSHOT, {MEMBER_QUEUE: OnDamage.REFUSE})

    async def start(self) -> int:
        """Restore the table from the last snapshot and the log; the number of events replayed."""
        await self._store.create_topic(MEMBER_QUEUE.topic, queue_count=1)
        data = await self._log.load()
        if data is not None:
            self.groups = {members.group: members for members in _dump_decoder.decode(data)}
            for members in self.groups.values():
                members.restore()
        count = 0
        async for event in self._log.replay(MEMBER_QUEUE, read_event):
            self._apply(event)
            count += 1
        return count

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events.

        The number of bytes; 0 if nothing has changed.
        """

        def encode() -> Iterator[bytes]:
            yield msgspec.msgpack.encode([members.to_store() for members in self.groups.values()])

        return await self._log.save_snapshot(encode)

    async def record(self, events: Sequence[AnyMemberEvent]) -> None:
        """Append and apply the events; durable on return. From the reserve: a full disk keeps no
        queue from an owner that works on it.
        """
        appended = await self._log.append(
            event_messages(events), durability=Durability.SYNCED, from_reserve=True
        )
        for event in events:
            self._apply(event)
        self._log.count(appended)

    def group(self, group: str) -> GroupMembers:
        """The group, for reading; empty if it never had members."""
        return self.groups.get(group) or GroupMembers(group)

    def _apply(self, event: AnyMemberEvent) -> None:
        if isinstance(event, Ended):
            self.groups.pop(event.group, None)
        else:
            self.groups.setdefault(event.group, GroupMembers(event.group)).apply(event)
