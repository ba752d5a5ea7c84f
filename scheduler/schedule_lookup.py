"""Finds and lists schedules, from the log, the key index and the index of times: no table in memory
has them.

The id leads to the message in its delay topic, and to the last mark about it. Marks of deliveries,
which name hundreds of messages each, are not searched: a message that is no longer in the index of
times, and was not cancelled, has been delivered.
"""

import heapq
from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

import msgspec

from scheduler import due_window, marks, scheduled_message
from scheduler.marks import MARK_QUEUE, Change, Parked, shown_due_ms
from scheduler.schedule import Schedule, ScheduleState
from scheduler.schedule_log import Finished, ScheduleLog
from scheduler.scheduled_message import TIMER_QUEUE
from storage.errors import CorruptRecord, RejectedError, UnknownSchedule, reason_of
from storage.formats import names
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.message import NEVER_MS, DueEntry, StoredMessage
from storage.store import ANY_LABEL, LAST_MS, KeyQuery, MessageStore

_DELAY_TOPICS = (SCHEDULE_TOPIC, TIMER_QUEUE.topic)
_LARGEST = (1 << 31) - 1
_READ_BYTES = 8 << 20
_FOUND_AT_ONCE = 4
_COUNTED_TOGETHER = 500
_LOOKED_AT = 8  # pages of the index that one list reads; the engine says how long one is


class ListPosition(NamedTuple):
    """The schedule after which a list continues."""

    due_ms: int
    place: int


class SchedulePage(NamedTuple):
    items: list[Schedule]
    end: ListPosition | None  # None: that is all


class Wanted(NamedTuple):
    """A selection of schedules: in these states, of this topic, due before this time."""

    states: Collection[ScheduleState]
    topic: str | None = None
    due_before_ms: int = LAST_MS


class ScheduleLookup:
    """Finds delayed messages by id and lists them. Event loop only."""

    def __init__(self, store: MessageStore, schedule_log: ScheduleLog) -> None:
        self._store = store
        self._log = schedule_log

    async def get(self, schedule_id: str) -> Schedule:
        """The schedule with this id. Raises UnknownSchedule."""
        while True:
            put_backs = self._log.put_backs
            found = await self.look_at(await self.find(schedule_id))
            if found.state is not ScheduleState.DELIVERED or put_backs == self._log.put_backs:
                return found  # else it may be elsewhere by now

    async def find(self, schedule_id: str) -> Schedule:
        """The schedule as it was created. Raises UnknownSchedule."""
        by_place = scheduled_message.place_by_id(schedule_id)
        if by_place is not None:
            (found,) = await self._store.read_each([by_place], max_bytes=_READ_BYTES)
            if (
                isinstance(found, StoredMessage)
                and scheduled_message.schedule_id_of(found) == schedule_id
            ):
                return as_made(found)
            last = (
                await self._last_change(schedule_id) if isinstance(found, CorruptRecord) else None
            )
            if last is not None:
                return Schedule(schedule_id, "", "", last.entry)
            entry = scheduled_message.parked_entry(scheduled_message.place_of(*by_place))
            if isinstance(found, CorruptRecord) and await self._log.is_due(entry):
                return Schedule(schedule_id, "", "", entry, ScheduleState.PARKED, reason_of(found))
        for message_id in (
            scheduled_message.message_ids_by(schedule_id) if _is_readable(schedule_id) else ()
        ):
            async for message in self._waiting_messages(message_id):
                if scheduled_message.schedule_id_of(message) == schedule_id:
                    return as_made(message)
        raise UnknownSchedule(f"schedule {schedule_id[:200]} does not exist")

    async def look_at(self, made: Schedule) -> Schedule:
        """The schedule in its present state."""
        last = await self._last_change_of(made)
        while True:
            # What was read is followed here, so that the index knows at least as much as the mark
            # that was found.
            await self._log.follow()
            schedule = made if last is None else made.after(last)
            if schedule.state is ScheduleState.CANCELLED or await self._log.is_due(schedule.entry):
                return schedule
            before, last = last, await self._last_change_of(made)
            if last == before:
                return msgspec.structs.replace(schedule, state=ScheduleState.DELIVERED)

    async def find_waiting(self, message_id: str) -> Schedule | None:
        """The schedule of a message that waits for its topic, or is parked; None if there is none.
        Retries are left out.
        """
        while True:
            put_backs = self._log.put_backs
            async for message in self._waiting_messages(message_id):
                if not names.is_reserved_name(scheduled_message.real_topic(message)):
                    found = await self.look_at(as_made(message))
                    if not found.state.is_finished:
                        return found
            if put_backs == self._log.put_backs:
                return None  # else it may be elsewhere by now

    async def count_for_the_broker(self) -> int:
        """Number of messages that wait, or are parked, and are for topics that RocketMQ keeps for
        itself. Reads each that is not for a topic of clients.
        """
        await self._log.follow()
        count = 0
        after: DueEntry | None = due_window.before(0)
        while after is not None:
            page = await self._log.read_due(
                after, until_ms=LAST_MS, max_entries=_COUNTED_TOGETHER, labels=range(1)
            )
            found = await self._messages_of(page.entries)
            stored = [message for message in found if isinstance(message, StoredMessage)]
            count += sum(map(scheduled_message.is_for_the_broker, stored))
            after = page.end
        return count

    async def page(
        self, wanted: Wanted, *, after: ListPosition | None, max_items: int
    ) -> SchedulePage:
        """Schedules in the order of their times. May return fewer than requested although more
        follow, if many were skipped.
        """
        await self._log.follow()
        found, end = await self._entries(wanted, after or ListPosition(-1, 0), max_items)
        items = await self._schedules(found)
        return SchedulePage([one for one in items if wanted.topic in (None, one.topic)], end)

    async def _last_change_of(self, made: Schedule) -> Change | None:
        """The last change of the message that counts; a copy that was written again states earlier
        changes itself.
        """
        last = await self._last_change(made.schedule_id)
        return last if last is not None and last.entry.place == made.entry.place else None

    async def _waiting_messages(self, message_id: str) -> AsyncIterator[StoredMessage]:
        """All messages that were ever delayed under this id, newest first: the message itself, and
        its retries.
        """
        older_than: int | None = None
        while found := await self._store.find_messages(
            KeyQuery(
                message_id,
                topics=_DELAY_TOPICS,
                by_id=True,
                older_than=older_than,
                max_messages=_FOUND_AT_ONCE,
            )
        ):
            for message in found:
                yield message
            older_than = found[-1].log_offset

    async def _last_change(self, schedule_id: str) -> Change | None:
        for message in await self._store.find_messages(
            KeyQuery(schedule_id, topics=[MARK_QUEUE.topic], max_messages=1)
        ):
            mark = marks.decode(message)
            assert isinstance(mark, Change)
            return mark
        return None

    # ----------------------------------------------------------------------------------------------
    # lists

    async def _entries(
        self, wanted: Wanted, after: ListPosition, max_items: int
    ) -> tuple[list[Finished], ListPosition | None]:
        """The first entries of each state after this position, merged."""
        labels = range(1, 1 << 32)
        if wanted.topic is not None:
            label = scheduled_message.label_of(wanted.topic)
            labels = range(label, label + 1)
        sources: list[list[Finished]] = []
        ends: list[ListPosition] = []
        for state in wanted.states:
            entries, end = await self._of_state(state, wanted, labels, after, max_items)
            sources.append([Finished(entry, state) for entry in entries])
            if end is not None:
                ends.append(end)
        found = list(heapq.merge(*sources, key=lambda one: _position(one.entry)))
        if ends:
            found = [one for one in found if _position(one.entry) <= min(ends)]
        if len(found) > max_items or ends:
            found = found[:max_items]
            return found, _position(found[-1].entry) if len(found) == max_items else min(ends)
        return found, None

    async def _of_state(
        self,
        state: ScheduleState,
        wanted: Wanted,
        labels: range,
        after: ListPosition,
        max_items: int,
    ) -> tuple[list[DueEntry], ListPosition | None]:
        """Entries of a state in the order of their times, and the position up to which all were
        examined: None at the end.
        """
        if state.is_finished:
            known = [one.entry for one in self._log.finished if one.state is state]
            return sorted(
                entry
                for entry in known
                if entry.label in labels
                and after < _position(entry)
                and entry.due_ms < wanted.due_before_ms
            ), None
        shift = 0
        until_ms = min(wanted.due_before_ms, NEVER_MS)
        if state is ScheduleState.PARKED:
            # Retries wait in the same place and are the service's own; one that is set aside is an
            # operator's matter.
            shift = NEVER_MS
            until_ms = min(wanted.due_before_ms + NEVER_MS, LAST_MS)
            labels = ANY_LABEL if wanted.topic is None else labels
        at = DueEntry(after.due_ms + shift, after.place, _LARGEST)
        found: list[DueEntry] = []
        for _ in range(_LOOKED_AT):
            page = await self._log.read_due(
                at, until_ms=until_ms, max_entries=max_items + 1 - len(found), labels=labels
            )
            found += page.entries
            if page.end is None:
                return found, None
            at = page.end
            if len(found) > max_items:
                break
        return found, _position(at)

    async def _schedules(self, found: Sequence[Finished]) -> list[Schedule]:
        """Read schedules; finished ones whose messages retention has removed are left out."""
        messages = await self._messages_of([one.entry for one in found])
        schedules = []
        for (entry, state), message in zip(found, messages, strict=True):
            if isinstance(message, StoredMessage):
                schedule = msgspec.structs.replace(as_made(message), entry=entry, state=state)
            elif state.is_finished:
                continue
            else:
                reason = reason_of(message) if isinstance(message, CorruptRecord) else None
                schedule_id = scheduled_message.schedule_id_at(
                    *scheduled_message.message_at(entry.place)
                )
                schedule = Schedule(schedule_id, "", "", entry, state, reason)
            if state is ScheduleState.PARKED:
                last = await self._last_change_of(schedule)
                if isinstance(last, Parked):
                    schedule = msgspec.structs.replace(schedule, reason=last.reason)
            schedules.append(schedule)
        return schedules

    async def _messages_of(
        self, entries: Sequence[DueEntry]
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """For each entry its message, or the reason why it cannot be read."""
        places = [scheduled_message.message_at(entry.place) for entry in entries]
        messages: list[StoredMessage | RejectedError | CorruptRecord] = []
        while len(messages) < len(places):
            messages += await self._store.read_each(places[len(messages) :], max_bytes=_READ_BYTES)
        return messages


def as_made(message: StoredMessage) -> Schedule:
    schedule_id, topic = (
        scheduled_message.schedule_id_of(message),
        scheduled_message.real_topic(message),
    )
    entry, reason = (
        scheduled_message.entry_of(message),
        scheduled_message.so_far_of(message).parked,
    )
    state = ScheduleState.SCHEDULED if reason is None else ScheduleState.PARKED
    return Schedule(schedule_id, message.message_id, topic, entry, state, reason)


def _position(entry: DueEntry) -> ListPosition:
    return ListPosition(shown_due_ms(entry), entry.place)


def _is_readable(schedule_id: str) -> bool:
    """Whether the text can be an id."""
    return schedule_id.isprintable() and 0 < len(schedule_id) <= 255
