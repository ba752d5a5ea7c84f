"""The table of scheduled messages: the waiting ones in the order in which they are due, and the last finished ones. Pure.

Derived: replaying the delay topics, then the marks, gives it back. Applying something twice changes nothing, so a replay may
begin anywhere before the point that a snapshot reflects.
"""

import heapq
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from scheduler.scheduled_message import AnyMark, Cancelled, Delivered, Moved
from storage.message import QueueId


class ScheduleState(StrEnum):
    SCHEDULED = "scheduled"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    SET_ASIDE = "set_aside"

    @property
    def is_finished(self) -> bool:
        return self in (ScheduleState.DELIVERED, ScheduleState.CANCELLED)


class ScheduledItem(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """What the service knows about one scheduled message; a change makes a new one.

    There are hundreds of thousands of them: nothing in one is for the collector to walk, and the heap holds the items
    themselves, which compare by their first fields.
    """

    due_ms: int
    schedule_id: str
    revision: int
    queue_offset: int  # where the message waits, in its delay topic
    queue: QueueId
    message_id: str
    topic: str  # where it is to go
    state: ScheduleState = ScheduleState.SCHEDULED
    reason: str | None = None  # why it was set aside


class DueTable:
    def __init__(self, *, finished_kept: int) -> None:
        self._finished_kept = finished_kept
        self._all: dict[str, ScheduledItem] = {}
        self._due: list[ScheduledItem] = []  # with stale ones in between: those that are not in `_all` as they are
        self._ids: list[str] = []  # in order, with gone ones in between
        self._finished: OrderedDict[str, None] = OrderedDict()
        self.set_aside_count = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ScheduledItem]:
        return iter(self._all.values())

    @property
    def scheduled_count(self) -> int:
        return len(self._all) - len(self._finished) - self.set_aside_count

    def get(self, schedule_id: str) -> ScheduledItem | None:
        return self._all.get(schedule_id)

    def is_waiting(self, item: ScheduledItem) -> bool:
        """Is it to be delivered, at the time that it says?"""
        return self._all.get(item.schedule_id) is item and item.state is ScheduleState.SCHEDULED

    def next_due_ms(self) -> int | None:
        while self._due and not self.is_waiting(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0].due_ms if self._due else None

    def slice(self, *, after: str, count: int) -> list[ScheduledItem]:
        """So many items behind this id, in the order of ids: fewer only at the end."""
        found: list[ScheduledItem] = []
        at = bisect_right(self._ids, after)
        while at < len(self._ids) and len(found) < count:
            item = self._all.get(self._ids[at])
            at += 1
            if item is not None:
                found.append(item)
        return found

    # ------------------------------------------------------------------------------------------------------- changes

    def add(self, item: ScheduledItem) -> None:
        """A message was put off."""
        if item.schedule_id in self._all:
            return
        self._all[item.schedule_id] = item
        if self._ids and item.schedule_id < self._ids[-1]:
            insort(self._ids, item.schedule_id)
        else:
            self._ids.append(item.schedule_id)
        if item.state.is_finished:
            self._keep_finished(item.schedule_id)
        elif item.state is ScheduleState.SET_ASIDE:
            self.set_aside_count += 1
        else:
            self.put_back(item)

    def take_due(self, now_ms: int, *, max_items: int) -> list[ScheduledItem]:
        """What is due, the earliest first. Each comes once; `put_back` what could not be delivered."""
        taken: list[ScheduledItem] = []
        while len(taken) < max_items and (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            taken.append(heapq.heappop(self._due))
        return taken

    def put_back(self, item: ScheduledItem) -> None:
        """It waits again. One that has changed meanwhile does not."""
        if not self.is_waiting(item):
            return
        heapq.heappush(self._due, item)
        if len(self._due) > 2 * self.scheduled_count + 64:
            self._due = list({one.schedule_id: one for one in self._due if self.is_waiting(one)}.values())
            heapq.heapify(self._due)

    def apply(self, mark: AnyMark) -> None:
        if isinstance(mark, Delivered):
            for schedule_id in mark.schedule_ids:
                item = self._all.get(schedule_id)
                if item is not None and not item.state.is_finished:
                    self._replace(item, item.revision + 1, ScheduleState.DELIVERED)
            return
        item = self._all.get(mark.schedule_id)
        if item is None or item.state.is_finished or mark.revision <= item.revision:
            return
        if isinstance(mark, Cancelled):
            self._replace(item, mark.revision, ScheduleState.CANCELLED)
        elif isinstance(mark, Moved):
            self._replace(item, mark.revision, ScheduleState.SCHEDULED, due_ms=mark.due_ms)
        else:
            self._replace(item, mark.revision, ScheduleState.SET_ASIDE, reason=mark.reason)

    def _replace(
        self, item: ScheduledItem, revision: int, state: ScheduleState, *, due_ms: int | None = None, reason: str | None = None
    ) -> None:
        changed = msgspec.structs.replace(
            item, revision=revision, state=state, due_ms=item.due_ms if due_ms is None else due_ms, reason=reason
        )
        self._all[item.schedule_id] = changed
        self.set_aside_count += (state is ScheduleState.SET_ASIDE) - (item.state is ScheduleState.SET_ASIDE)
        if state.is_finished:
            self._keep_finished(item.schedule_id)
        else:
            self.put_back(changed)

    def _keep_finished(self, schedule_id: str) -> None:
        self._finished[schedule_id] = None
        while len(self._finished) > self._finished_kept:
            oldest, _ = self._finished.popitem(last=False)
            del self._all[oldest]
        if len(self._ids) > 2 * len(self._all) + 64:
            self._ids = [known for known in self._ids if known in self._all]
