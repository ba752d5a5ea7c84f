"""Marks the delayed messages that a broker delivered, wrote again or recalled while it had the
store.

A broker writes no marks, but all that it did can be read from the log, without its wheel:

- A delivered message has a copy in its real topic, stored after the message that waited.
- A message that waited too long for the wheel is in the timer queue twice; the later copy counts.
- A recall is itself a message of the timer queue, with the id of the message that it recalls; it is
  never delivered.

All of them are marked before the service delivers anything.
"""

from collections.abc import AsyncIterator, Sequence

import structlog

from scheduler import scheduled_message
from scheduler.due_window import before
from scheduler.marks import Cancelled, Delivered, PutBack
from scheduler.schedule import Schedule
from scheduler.schedule_log import BrokersChange, ScheduleLog
from scheduler.schedule_lookup import ScheduleLookup, as_made
from scheduler.scheduled_message import FIRST_REVISION, TIMER_QUEUE
from storage.clock import Clock
from storage.errors import CorruptRecord
from storage.message import DueEntry, Durability, StoredMessage
from storage.store import LAST_MS, KeyQuery, MessageStore

log = structlog.get_logger()

_TOGETHER = 500
_READ_BYTES = 8 << 20
_FOUND_AT_ONCE = 16
_CLOCKS_DIFFER_MS = 60_000  # a broker may have been so far ahead


class TakeOver:
    """Marks the changes of a broker. Event loop only; once, before anything is delivered."""

    def __init__(
        self, store: MessageStore, clock: Clock, schedule_log: ScheduleLog, lookup: ScheduleLookup
    ) -> None:
        self._store = store
        self._clock = clock
        self._log = schedule_log
        self._lookup = lookup

    async def run(self) -> None:
        replaced = recalled = 0
        for change in self._log.take_brokers_changes():
            if not await self._log.is_due(change.entry):
                continue  # a broker had the store before, and it was marked then
            try:
                waiting = [one async for one in self._waiting_before(change)]
            except CorruptRecord as damage:
                log.error("not_looked_up", log_offset=damage.physical_offset, reason=str(damage))
                waiting = []
            if change.is_recall:
                for one in waiting:
                    mark = Cancelled(one.schedule_id, one.entry)
                    await self._log.append([], mark, Durability.SYNCED)
                ended = [change.entry]
                recalled += len(waiting)
            else:
                ended = [one.entry for one in waiting]
                replaced += len(waiting)
            if ended:
                await self._log.append([], PutBack(tuple(ended)), Durability.SYNCED)
        delivered = await self._mark_delivered()
        log.info("schedules_taken_over", delivered=delivered, replaced=replaced, recalled=recalled)

    async def _waiting_before(self, change: BrokersChange) -> AsyncIterator[Schedule]:
        """Messages of this id and topic in the timer queue that still wait."""
        older_than: int | None = change.log_offset
        while found := await self._store.find_messages(
            KeyQuery(
                change.message_id,
                topics=[TIMER_QUEUE.topic],
                by_id=True,
                older_than=older_than,
                max_messages=_FOUND_AT_ONCE,
            )
        ):
            for message in found:
                is_recall = scheduled_message.recalled_id(message) is not None
                if scheduled_message.real_topic(message) == change.topic and not is_recall:
                    schedule = await self._lookup.look_at(as_made(message))
                    if not schedule.state.is_finished:
                        yield schedule
            older_than = found[-1].log_offset

    async def _mark_delivered(self) -> int:
        """Mark deliveries among all messages that are due by now, or were moved without the
        broker's knowledge: no others can have been delivered.
        """
        until_ms = self._clock.wall_ms() + _CLOCKS_DIFFER_MS
        count = 0
        after: DueEntry | None = before(0)
        while after is not None:
            page = await self._log.read_due(after, until_ms=LAST_MS, max_entries=_TOGETHER)
            possible = [
                entry
                for entry in page.entries
                if entry.due_ms <= until_ms or entry.revision != FIRST_REVISION
            ]
            delivered = [entry async for entry in self._delivered(possible)]
            if delivered:
                await self._log.append([], Delivered(tuple(delivered)), Durability.SYNCED)
            count += len(delivered)
            after = page.end
        return count

    async def _delivered(self, entries: Sequence[DueEntry]) -> AsyncIterator[DueEntry]:
        places = [scheduled_message.message_at(entry.place) for entry in entries]
        at = 0
        while at < len(entries):
            found = await self._store.read_each(places[at:], max_bytes=_READ_BYTES)
            for entry, message in zip(entries[at:], found, strict=False):
                at += 1
                if isinstance(message, StoredMessage) and await self._is_over(entry, message):
                    yield entry

    async def _is_over(self, entry: DueEntry, message: StoredMessage) -> bool:
        try:
            return await self._log.is_over(entry.place, message)
        except CorruptRecord as damage:
            log.error("not_looked_up", log_offset=damage.physical_offset, reason=str(damage))
            return False
