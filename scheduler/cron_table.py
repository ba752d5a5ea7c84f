"""The table of cron schedules: their definitions, how far each is settled, and which is due next.

Pure.

The progress is derived: a replay of the marks restores it. A mark that is applied twice changes
nothing.
"""

import heapq
from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec

from scheduler.cron_line import CronLine
from scheduler.cron_schedule import CronSchedule, CronState
from storage.errors import InvalidRequest


class Settled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Settled occurrences: all up to `until_ms`, and later times that have `fired_ahead`."""

    until_ms: int = 0
    fired_ahead: frozenset[int] = frozenset()

    def and_until(self, settled_ms: int) -> "Settled":
        until_ms = max(settled_ms, self.until_ms)
        return Settled(
            until_ms, frozenset(one_ms for one_ms in self.fired_ahead if one_ms > until_ms)
        )


class CronItem:
    """One schedule. `next_ms` is None if no occurrence follows: it is paused, cancelled, parked, or
    at its end.
    """

    def __init__(self, schedule: CronSchedule, settled: Settled) -> None:
        self.schedule = schedule
        self.settled = settled
        self.next_ms: int | None = None
        self.line: CronLine | None = None
        self.reason: str | None = None  # why it is parked: what it says cannot be worked out

    @property
    def schedule_id(self) -> str:
        return self.schedule.schedule_id

    @property
    def state(self) -> CronState:
        if self.schedule.cancelled_at_ms is not None:
            return CronState.CANCELLED
        if self.schedule.paused:
            return CronState.PAUSED
        return CronState.SCHEDULED if self.reason is None else CronState.PARKED


class CronTable:
    def __init__(self) -> None:
        self._items: dict[str, CronItem] = {}
        self._settled: dict[str, Settled] = {}  # of schedules that are not here (yet)
        # with stale ones in between: those that are not next any more
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[CronItem]:
        return iter(self._items.values())

    @property
    def open_count(self) -> int:
        return sum(item.state is not CronState.CANCELLED for item in self)

    @property
    def parked_count(self) -> int:
        return sum(item.state is CronState.PARKED for item in self)

    def get(self, schedule_id: str) -> CronItem | None:
        return self._items.get(schedule_id)

    def search(
        self, *, after: str, count: int, wanted: Callable[[CronItem], bool]
    ) -> list[CronItem]:
        """Up to so many items after this id, in the order of ids, which is that of their
        creation.
        """
        found = [item for item in self if item.schedule_id > after and wanted(item)]
        return heapq.nsmallest(count, found, key=attrgetter("schedule_id"))

    def settled(self) -> dict[str, Settled]:
        """How far each schedule is settled."""
        return self._settled | {item.schedule_id: item.settled for item in self}

    def next_due_ms(self) -> int | None:
        while self._due and not self._is_next(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int) -> list[CronItem]:
        """The schedules that are due, earliest first; they stay due until they are settled."""
        found: dict[str, CronItem] = {}
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            _, schedule_id = heapq.heappop(self._due)
            found[schedule_id] = self._items[schedule_id]
        for item in found.values():
            self._push(item)
        return list(found.values())

    # ----------------------------------------------------------------------------------------------
    # changes

    def put(self, schedule: CronSchedule) -> CronItem:
        """Add or replace a schedule.

        A schedule that cannot be computed is parked with the reason.
        """
        known = self._items.get(schedule.schedule_id)
        settled = (
            known.settled
            if known is not None
            else self._settled.pop(schedule.schedule_id, Settled())
        )
        item = self._items[schedule.schedule_id] = CronItem(schedule, settled)
        if schedule.cancelled_at_ms is None:
            try:
                item.line = CronLine(schedule.cron, schedule.time_zone)
            except InvalidRequest as error:
                item.reason = error.detail
        self._find_next(item)
        return item

    def forget(self, schedule_id: str) -> None:
        self._items.pop(schedule_id, None)

    def settle(self, schedule_id: str, settled_ms: int) -> None:
        """Apply a mark: everything that was due up to its time is settled."""
        before = self._settled_of(schedule_id)
        if settled_ms > before.until_ms:
            self.settle_as(schedule_id, before.and_until(settled_ms))

    def settle_as(self, schedule_id: str, settled: Settled) -> None:
        """Set the time up to which the schedule is settled, even if it was a later one."""
        item = self._items.get(schedule_id)
        if item is None:
            self._settled[schedule_id] = settled
        else:
            item.settled = settled
            self._find_next(item)

    def _settled_of(self, schedule_id: str) -> Settled:
        item = self._items.get(schedule_id)
        return self._settled.get(schedule_id, Settled()) if item is None else item.settled

    def park(self, item: CronItem, reason: str) -> None:
        """Park a schedule: it is not due until it is put again."""
        item.reason, item.next_ms = reason, None

    def drop_unknown(self) -> None:
        """Forget the progress of schedules that are not registered: they were cancelled
        long ago.
        """
        self._settled.clear()

    def _find_next(self, item: CronItem) -> None:
        is_open = item.line is not None and not item.schedule.paused
        item.next_ms = (
            item.line.after(max(item.settled.until_ms, item.schedule.counts_from_ms))
            if is_open and item.line
            else None
        )
        self._push(item)

    def _push(self, item: CronItem) -> None:
        if item.next_ms is not None:
            heapq.heappush(self._due, (item.next_ms, item.schedule_id))
        if len(self._due) > 2 * len(self._items) + 64:
            self._due = [(one.next_ms, one.schedule_id) for one in self if one.next_ms is not None]
            heapq.heapify(self._due)

    def _is_next(self, due_ms: int, schedule_id: str) -> bool:
        item = self._items.get(schedule_id)
        return item is not None and item.next_ms == due_ms
