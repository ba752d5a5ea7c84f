"""Cron schedules in the log: the marks of their occurrences, and the table that is derived from
them.

A firing is one append of the message and a mark, so after a crash there are both or neither.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from scheduler import cron_schedule
from scheduler.cron_schedule import CRON_QUEUE, AnyCronMark, CountRestarted
from scheduler.cron_table import CronItem, CronTable, Settled
from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import CorruptRecord
from storage.message import Durability, Message
from storage.store import KeyQuery, MessageStore

SNAPSHOT = "cron"


class Firing(NamedTuple):
    """An outcome of a schedule, as stored in the log."""

    mark: AnyCronMark
    at_ms: int


class Step(NamedTuple):
    """A mark, and the message appended with it."""

    item: CronItem
    mark: AnyCronMark
    messages: Sequence[Message]  # one, or none


class CronLog:
    """The cron schedules in the log. Event loop only; `restore`, then `replay` come first."""

    def __init__(
        self, store: MessageStore, clock: Clock, *, on_settled: Callable[[str, int], None]
    ) -> None:
        """`on_settled` gets the outcome and the delay of each occurrence."""
        self._store = store
        self._clock = clock
        self._on_settled = on_settled
        self.table = CronTable()
        self._log = DerivedTable(store, SNAPSHOT, {CRON_QUEUE: OnDamage.LEAVE_OUT})

    @property
    def left_out(self) -> int:
        """Number of damaged marks that the replay left out."""
        return self._log.left_out

    async def restore(self) -> int:
        """Load the last snapshot. Marks that were stored before the returned time are lost."""
        data = await self._log.load()
        if data is not None:
            for schedule_id, settled in msgspec.msgpack.decode(
                data, type=dict[str, int | Settled]
            ).items():
                self.table.settle_as(
                    schedule_id, Settled(settled) if isinstance(settled, int) else settled
                )
        first = (await self._store.offsets(CRON_QUEUE)).first
        if first <= self._log.positions()[CRON_QUEUE]:
            return 0
        try:
            oldest = await self._store.read(CRON_QUEUE, first, max_messages=1, max_bytes=1)
        except CorruptRecord:
            return self._clock.wall_ms()
        return oldest[0].stored_at_ms if oldest else self._clock.wall_ms()

    async def replay(self) -> tuple[int, bool]:
        """Read the marks to the end; their number, and whether one of them cannot be read."""
        count = 0
        async for mark in self._log.replay(CRON_QUEUE, cron_schedule.read_mark):
            self._settle(mark)
            count += 1
        return count + self.left_out, self.left_out > 0

    async def save_snapshot(self) -> int:
        """Save how far schedules are settled. The number of bytes; 0 if nothing has changed."""

        def encode() -> Iterator[bytes]:
            yield msgspec.msgpack.encode(self.table.settled())

        return await self._log.save_snapshot(encode)

    async def recent(self, schedule_id: str, *, count: int) -> list[Firing]:
        """The last outcomes of a schedule, newest first."""
        found = await self._store.find_messages(
            KeyQuery(schedule_id, topics=[CRON_QUEUE.topic], max_messages=count)
        )
        return [Firing(cron_schedule.read_mark(message), message.stored_at_ms) for message in found]

    async def append(self, steps: Sequence[Step]) -> None:
        """Append these steps together, in this order. Raises what `MessageStore.append` raises."""
        now_ms = self._clock.wall_ms()
        messages = [
            message
            for step in steps
            for message in (*step.messages, cron_schedule.mark_message(step.mark, now_ms=now_ms))
        ]  # fmt: skip
        has_sent = any(step.messages for step in steps)
        durability = None if has_sent else Durability.SYNCED
        appended = await self._store.append(messages, durability=durability)
        self._log.count(appended)
        # The log has it: the next reader finds it settled, even if this is not on disk yet.
        for step in steps:
            self._settle(step.mark)
            self._on_settled(_event(step.mark), now_ms - step.mark.settled_ms)
        if not has_sent and not appended[-1].durable:
            await self._store.wait_durable(appended[-1].log_offset)

    def _settle(self, mark: AnyCronMark) -> None:
        if isinstance(mark, CountRestarted):
            self.table.settle_as(
                mark.schedule_id, Settled(mark.settled_ms, frozenset(mark.fired_ahead))
            )
        else:
            self.table.settle(mark.schedule_id, mark.settled_ms)


def _event(mark: AnyCronMark) -> str:
    return str(mark.__struct_config__.tag)
