"""Tells the store what waits when EscrowMQ closes it, for a broker that opens it next: it delivers
exactly these messages, each at the time at which it is due by now.

A broker knows one offset for each delay level, and delivers every message behind it after the
delay of the level. So messages of a level that were moved, and those in front of one that was
delivered or cancelled, are first written again, into the timer queue. Of that queue each message
can be named, with any time (`storage/local/broker/broker_timers.py`).

A broker keeps a message in its wheel for two days at most. Then it writes the message into the
timer queue again, so that the log with the first copy can expire; the second copy is due at the
time in its properties. A moved message that waits longer has its first time there, so it is written
again by a stop, with its new time.
"""

from collections import defaultdict
from typing import NamedTuple

import structlog

from scheduler import scheduled_message
from scheduler.due_window import before
from scheduler.put_back import PutBackService
from scheduler.schedule_log import ScheduleLog
from scheduler.scheduled_message import (
    FIRST_REVISION,
    OFFSET_BITS,
    TIMER_QUEUE,
    place_of,
    timer_slot_ms,
)
from storage.clock import Clock
from storage.formats import properties
from storage.message import NEVER_MS, DueEntry, QueueId, StoredMessage
from storage.store import LAST_MS, MessageStore, TimerWait, WaitingTimers

log = structlog.get_logger()

_READ_TOGETHER = 50_000  # entries of the index
_MESSAGES_TOGETHER = 1_000
_STORED_TOGETHER = 1_000  # messages of the timer queue that are taken to be as old as the first
MOST_WRITTEN = 10_000  # messages that a stop writes again: 2,000 to 5,000 in a second
_MOST_OF_A_LEVEL = 10_000  # unchanged ones
_READ_BYTES = 8 << 20
_TIMERS_END = place_of(TIMER_QUEUE, 1 << OFFSET_BITS)
assert place_of(TIMER_QUEUE, 0) == 0
ROLL_WINDOW_MS = 2 * 86_400_000  # RocketMQ MessageStoreConfig.timerRollWindowSlot


class HandedOver(NamedTuple):
    """Counts of delayed messages."""

    waiting: int = 0  # a broker delivers them
    written_again: int = 0  # of these
    parked: int = 0  # a broker does not deliver them
    delivered_again: int = 0  # over, and a broker delivers them all the same
    not_written: int = 0  # moved or parked: there were too many, and a broker has their first times


class _Waiting(NamedTuple):
    timers: list[DueEntry]  # of the timer queue, where the place is the queue offset
    stored_at: dict[int, int]  # when the first waiting one of each piece of that queue was stored
    levels: dict[QueueId, list[DueEntry]]  # each by its offset
    parked: list[DueEntry]

    def is_long(self, entry: DueEntry) -> bool:
        """Whether the log may expire before this message of the timer queue is due."""
        stored_at_ms = self.stored_at[entry.place // _STORED_TOGETHER]
        return entry.due_ms > stored_at_ms + ROLL_WINDOW_MS


class HandOverService:
    """Prepares the store for a broker. Event loop only."""

    def __init__(
        self, store: MessageStore, clock: Clock, schedule_log: ScheduleLog, put_back: PutBackService
    ) -> None:
        self._store = store
        self._clock = clock
        self._log = schedule_log
        self._put_back = put_back

    async def run(self, *, most: int) -> HandedOver:
        """Give the store all waiting messages; they are on disk when it is closed, if nothing is
        changed before.

        `most`: maximum number of messages that are written again. Raises what `append` raises: the
        broker then knows no new state.
        """
        await self._log.follow()
        waiting = await self._read()
        changed = [*self._changed_of_levels(waiting), *await self._of_timers(waiting)]
        again = self._with_unchanged(waiting, changed[:most], most)
        written_again = 0
        if again:
            written_again = await self._put_back.again(again)
            waiting = await self._read()
        return await self._keep(waiting, written_again, not_written=max(0, len(changed) - most))

    async def _keep(self, waiting: _Waiting, written_again: int, *, not_written: int) -> HandedOver:
        ends = {queue: end for queue, end in self._log.delay_ends.items() if end}
        done_before = dict(ends)
        delivered_again = 0
        for queue, entries in waiting.levels.items():
            first = done_before[queue] = _offset(entries[0])
            delivered_again += ends[queue] - first - len(entries)
        now_ms = self._clock.wall_ms()
        timers = [_timer_wait(entry, waiting, now_ms) for entry in waiting.timers]
        if ends.get(TIMER_QUEUE):
            done_before[TIMER_QUEUE] = min(
                (wait.queue_offset for wait in timers), default=ends[TIMER_QUEUE]
            )
            self._store.keep_waiting_timers(WaitingTimers(timers, ends[TIMER_QUEUE]))
        if done_before:
            self._store.keep_delay_progress(done_before)
        count = len(waiting.timers) + sum(map(len, waiting.levels.values()))
        handed_over = HandedOver(
            count, written_again, len(waiting.parked), delivered_again, not_written
        )
        if any(handed_over):
            log.info("schedules_handed_over", **handed_over._asdict())
        return handed_over

    async def _read(self) -> _Waiting:
        waiting = _Waiting([], {}, defaultdict(list), [])
        after: DueEntry | None = before(0)
        while after is not None:
            page = await self._log.read_due(after, until_ms=LAST_MS, max_entries=_READ_TOGETHER)
            for entry in page.entries:
                if entry.due_ms >= NEVER_MS:
                    waiting.parked.append(entry)
                    continue
                if entry.place < _TIMERS_END:
                    waiting.timers.append(entry)
                else:
                    waiting.levels[_queue(entry)].append(entry)
            after = page.end
        await self._read_times(waiting)
        for entries in waiting.levels.values():
            entries.sort(key=_offset)
        return waiting

    async def _read_times(self, waiting: _Waiting) -> None:
        firsts: dict[int, int] = {}
        for entry in waiting.timers:
            piece, place = entry.place // _STORED_TOGETHER, entry.place
            firsts[piece] = min(place, firsts.get(piece, place))
        now_ms = self._clock.wall_ms()
        for piece, place in firsts.items():
            (found,) = await self._store.read_each([(TIMER_QUEUE, place)], max_bytes=_READ_BYTES)
            stored_at_ms = found.stored_at_ms if isinstance(found, StoredMessage) else 0
            waiting.stored_at[piece] = min(stored_at_ms, now_ms)  # the clock may have been set back

    # ----------------------------------------------------------------------------------------------
    # what is written again

    def _changed_of_levels(self, waiting: _Waiting) -> list[DueEntry]:
        """Messages that a broker would deliver at another time, or not at all."""
        again: list[DueEntry] = []
        for queue, entries in waiting.levels.items():
            if queue.topic == TIMER_QUEUE.topic:
                again += entries  # a broker reads no other queue than the first
            else:
                again += [entry for entry in entries if entry.revision != FIRST_REVISION]
        return again + [entry for entry in waiting.parked if _queue(entry) != TIMER_QUEUE]

    def _with_unchanged(
        self, waiting: _Waiting, changed: list[DueEntry], most: int
    ) -> list[DueEntry]:
        """These messages, and those of a level that a broker would deliver only together with
        finished ones.
        """
        again = list(changed)
        for queue, entries in waiting.levels.items():
            if queue.topic == TIMER_QUEUE.topic:
                continue
            stays = [entry for entry in entries if entry.revision == FIRST_REVISION]
            end = self._log.delay_ends[queue]
            while stays and _offset(stays[-1]) == end - 1:
                stays.pop()
                end -= 1
            if len(stays) <= min(_MOST_OF_A_LEVEL, most - len(again)):
                again += stays
        return again

    async def _of_timers(self, waiting: _Waiting) -> list[DueEntry]:
        """Messages that were moved, for which a broker would use the old time."""
        moved = [
            entry
            for entry in waiting.timers
            if entry.revision != FIRST_REVISION and waiting.is_long(entry)
        ]
        again: list[DueEntry] = []
        at = 0
        while at < len(moved):
            some = moved[at : at + _MESSAGES_TOGETHER]
            found = await self._store.read_each(
                [(TIMER_QUEUE, entry.place) for entry in some], max_bytes=_READ_BYTES
            )
            again += [
                entry
                for entry, message in zip(some, found, strict=False)
                if isinstance(message, StoredMessage)
                and message.system.get(properties.TIMER_OUT_MS) != str(timer_slot_ms(entry.due_ms))
            ]
            at += len(found)
        return again


def _timer_wait(entry: DueEntry, waiting: _Waiting, now_ms: int) -> TimerWait:
    if not waiting.is_long(entry):
        return TimerWait(entry.place, timer_slot_ms(entry.due_ms), is_rolled=False)
    # As long as a broker would leave it, but not longer than the log has to be kept for it.
    latest_ms = waiting.stored_at[entry.place // _STORED_TOGETHER] + ROLL_WINDOW_MS
    slot_ms = timer_slot_ms(max(min(latest_ms, entry.due_ms), now_ms))
    return TimerWait(entry.place, slot_ms, is_rolled=True)


def _queue(entry: DueEntry) -> QueueId:
    return scheduled_message.message_at(entry.place)[0]


def _offset(entry: DueEntry) -> int:
    return scheduled_message.message_at(entry.place)[1]
