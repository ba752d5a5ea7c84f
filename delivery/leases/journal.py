"""The table of leases and the log that it is derived from: what is appended is applied, and
counted.

What a snapshot of the table says to reflect of the lease topic is counted message by message: it
never claims what the table lacks.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from delivery.leases import replay
from delivery.leases.clock_reading import ClockReading
from delivery.leases.events import LEASE_QUEUE, AnyLeaseEvent, event_message, event_row, read_event
from delivery.leases.group import GroupLeases, LeaseTable
from delivery.leases.group_calls import GroupCalls
from delivery.leases.snapshot import TableDump, dump_table, load_table
from storage.callbacks import answer
from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import MessagingError, UnknownGroup
from storage.keyed_locks import ShieldedTasks
from storage.message import Appended, Durability, Message, Placed
from storage.store import MessageStore

SNAPSHOT = "leases"

_dump_decoder = msgspec.msgpack.Decoder(TableDump)


class LeaseJournal:
    """Records the changes of the table of leases that must survive a restart. Event loop only."""

    def __init__(
        self, store: MessageStore, clock: Clock, *, has_group: Callable[[str], bool]
    ) -> None:
        """`has_group`: whether the group exists; not from the begin of its deletion on."""
        self._has_group = has_group
        self.store = store
        self.clock = clock
        self.table = LeaseTable()
        self._log = DerivedTable(store, SNAPSHOT, {LEASE_QUEUE: OnDamage.REFUSE})
        self.changes = ShieldedTasks()
        self.calls = GroupCalls()

    def now(self) -> ClockReading:
        return ClockReading(self.clock.wall_ms(), self.clock.monotonic_ms())

    def check_exists(self, group: str) -> None:
        """Raise UnknownGroup if the group was deleted, or is being deleted.

        Before a change of a group that has waited, in the turn of the loop in which it is appended
        or with the group's turn to claim: the end of a group is behind it in the log then, and
        leaves nothing of it.
        """
        if not self._has_group(group):
            raise UnknownGroup(f"group {group} does not exist")

    def check_current(self, leases: GroupLeases) -> None:
        """As `check_exists`, also if another group of the name was made since."""
        self.check_exists(leases.group)
        if self.table.find(leases.group) is not leases:
            raise UnknownGroup(f"group {leases.group} was deleted meanwhile")

    async def append(
        self,
        messages: Sequence[Message],
        events: Sequence[AnyLeaseEvent],
        durability: Durability,
        *,
        applies: bool = True,
    ) -> list[Appended]:
        """Append messages and events as one unit, and apply the events; not where they were applied
        before (`applies`; `replay.py` has the reasons). Where the messages went.

        Events alone are appended from the reserve: a full disk keeps no consumer from settling its
        messages. On disk on return where `durability` says so. Raises what `MessageStore.append`
        raises; nothing is applied then.
        """
        now_ms = self.clock.wall_ms()
        notes = [event_message(event, now_ms=now_ms) for event in events]
        appended = await self._log.append(
            [*messages, *notes], durability=durability, from_reserve=not messages
        )
        now = self.now()
        for event in events if applies else ():
            replay.apply(self.table, event, now)
            self.calls.notify(event.group)
        self._log.count(appended[len(messages) :])
        return appended[: len(messages)]

    def write(
        self,
        events: Sequence[AnyLeaseEvent],
        durability: Durability,
        *,
        done: Callable[[], None],
        failed: Callable[[Exception], None],
        applies: bool = True,
    ) -> None:
        """As `append` of events, at least one, without a coroutine: `done` or `failed` is called
        later. Where `done` raises, `failed` gets what it raised.

        Raises at once what `MessageStore.append_rows` raises at once.
        """
        now_ms = self.clock.wall_ms()
        rows = [event_row(event, now_ms=now_ms) for event in events]

        def written(placed: Placed) -> None:
            if durability is Durability.SYNCED and not placed.durable:
                self.changes.start(wait(placed))
            else:
                apply(placed)

        async def wait(placed: Placed) -> None:
            try:
                await self.store.wait_durable(placed.log_offsets[-1])
            except MessagingError as error:
                refuse(error)
            else:
                answer(apply, refuse, placed)

        def apply(placed: Placed) -> None:
            now = self.now()
            for event in events if applies else ():
                replay.apply(self.table, event, now)
                self.calls.notify(event.group)
            self._log.count_offsets(LEASE_QUEUE, placed.queue_offsets)
            done()
            self.changes.end_many(1)  # last: what raises before comes to `refuse`

        def refuse(error: Exception) -> None:
            self.changes.end_many(1)
            failed(error)

        self.store.append_rows(
            rows, durability=durability, done=written, failed=refuse, from_reserve=True
        )
        self.changes.begin_many(1)

    # ----------------------------------------------------------------------------------------------
    # snapshots, replay

    async def start(self) -> int:
        """Give the table back from the last snapshot and the log; the number of events replayed."""
        await self.store.create_topic(LEASE_QUEUE.topic, queue_count=1)
        data = await self._log.load()
        if data is not None:
            load_table(self.table, _dump_decoder.decode(data), self.now())
        count = 0
        async for event in self._log.replay(LEASE_QUEUE, read_event):
            replay.apply(self.table, event, self.now())
            count += 1
        return count

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events.

        The number of bytes; 0 if nothing has changed.
        """

        def encode() -> Iterator[bytes]:
            # In one piece, so that the table is of one time: a million unsettled messages are 20 MB
            # of arrays to copy.
            yield msgspec.msgpack.encode(dump_table(self.table, self.now()))

        return await self._log.save_snapshot(encode)
