"""Delayed messages as one object: get, list, move, cancel, and deliver those that are due.

`schedule_log.py` follows the log, `due_delivery.py` delivers due messages, `schedule_lookup.py`
finds schedules, `put_back.py` writes expiring messages again. A change is one append of a mark;
while a change or a delivery of a message is in progress no other change of it begins.
"""

from collections.abc import Callable, Mapping, Sequence

from scheduler.due_delivery import DueDelivery
from scheduler.hand_over import MOST_WRITTEN, HandedOver, HandOverService
from scheduler.marks import Cancelled, Change, Moved
from scheduler.options import ScheduleOptions
from scheduler.put_back import PutBackService
from scheduler.schedule import Schedule, ScheduleState
from scheduler.schedule_log import ScheduleLog
from scheduler.schedule_lookup import ListPosition, ScheduleLookup, SchedulePage, Wanted
from scheduler.take_over import TakeOver
from scheduler.under_way import UnderWay
from storage.clock import Clock
from storage.errors import AlreadyCancelled, AlreadyDelivered
from storage.message import Durability, QueueId
from storage.store import DueCounts, MessageStore


class ScheduleService:
    """Delivers delayed messages. Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        options: ScheduleOptions,
        *,
        on_delivered: Callable[[Sequence[int]], None] = lambda late_ms: None,
    ) -> None:
        """`on_delivered` gets the delay of each delivered message. Raises NotSupportedByEngine."""
        self._log = ScheduleLog(store, clock, options)
        self._lookup = ScheduleLookup(store, self._log)
        self._under_way = UnderWay()
        self._put_back = PutBackService(store, self._log, self._lookup, self._under_way)
        self._take_over = TakeOver(store, clock, self._log, self._lookup)
        self._hand_over = HandOverService(store, clock, self._log, self._put_back)
        self._delivery = DueDelivery(
            store, clock, options, self._log, self._under_way, on_delivered=on_delivered
        )

    async def start(self) -> int:
        """Read the log from the positions of the index on; the number of messages read."""
        count = await self._log.start()
        if self._log.is_from_a_broker:
            await self._take_over.run()
            self._log.end_take_over()
        return count

    async def run_once(self, now_ms: int) -> int:
        """Deliver due messages; their number."""
        return await self._delivery.run_once(now_ms)

    async def follow(self) -> int:
        """Read the newly visible part of the log."""
        return await self._log.follow()

    def count_left_out(self) -> int:
        """Number of damaged marks that the start skipped, of the progress that is kept for a
        broker.
        """
        return self._log.left_out

    async def save_snapshot(self) -> int:
        """Save the progress of the delay queues, so that a start need not read every mark; the
        number of bytes.
        """
        return await self._log.save_snapshot()

    async def hand_over(self, *, most: int = MOST_WRITTEN) -> HandedOver:
        """Tell the store all waiting messages before it is closed, so that a broker delivers
        exactly these.

        `most`: maximum number of messages that are written again for it; a stop has little time.
        Raises what `append` raises: a broker may then deliver more messages, but misses none.
        """
        return await self._hand_over.run(most=most)

    async def drain(self) -> None:
        """Return when every change that was begun has ended."""
        await self._under_way.drain()

    @property
    def counts(self) -> DueCounts:
        """Numbers of waiting and of parked schedules."""
        return self._log.counts

    async def count_of_clients(self) -> int:
        """Number of waiting or parked messages, without those that a broker had stored for itself;
        includes retries. Reads each message that is not for a topic of clients.
        """
        for_the_broker = await self._lookup.count_for_the_broker()
        return self.counts.waiting + self.counts.never - for_the_broker

    @property
    def backlog_count(self) -> int:
        """Approximate number of overdue messages."""
        return self._delivery.backlog_count

    def next_due_ms(self) -> int | None:
        """When the next message is due, as far as memory knows; a past time if one is late."""
        window = self._log.window
        return window.overdue_after.due_ms if self.backlog_count else window.next_due_ms()

    async def get(self, schedule_id: str) -> Schedule:
        """The schedule with this id. Raises UnknownSchedule."""
        return await self._lookup.get(schedule_id)

    async def find_waiting(self, message_id: str) -> Schedule | None:
        """The schedule of a message that waits for its topic, or is parked; None if there is
        none.
        """
        return await self._lookup.find_waiting(message_id)

    async def page(
        self, wanted: Wanted, *, after: ListPosition | None, max_items: int
    ) -> SchedulePage:
        """Schedules in the order of their times; of finished ones the newest `finished_kept`."""
        return await self._lookup.page(wanted, after=after, max_items=max_items)

    async def cancel(
        self, schedule_id: str, *, check: Callable[[Schedule], None] = lambda schedule: None
    ) -> Schedule:
        """Cancel a delayed message; a second time it changes nothing. `check` may refuse by
        raising. Durable on return.

        Raises UnknownSchedule, AlreadyDelivered.
        """

        def mark_of(schedule: Schedule) -> Change | None:
            check(schedule)
            return (
                None
                if schedule.state is ScheduleState.CANCELLED
                else Cancelled(schedule.schedule_id, schedule.entry)
            )

        return await self._under_way.shielded(self._change(schedule_id, mark_of))

    async def move(
        self,
        schedule_id: str,
        due_ms: int,
        *,
        check: Callable[[Schedule], None] = lambda schedule: None,
    ) -> Schedule:
        """Set another time; a parked schedule is tried again then. Raises as `cancel`, and
        AlreadyCancelled.
        """

        def mark_of(schedule: Schedule) -> Change | None:
            check(schedule)
            if schedule.state is ScheduleState.CANCELLED:
                raise AlreadyCancelled(f"schedule {schedule_id} was cancelled")
            if schedule.state is ScheduleState.SCHEDULED and schedule.due_ms == due_ms:
                return None
            return Moved(schedule.schedule_id, schedule.entry, due_ms)

        return await self._under_way.shielded(self._change(schedule_id, mark_of))

    async def put_back(self, first_kept: Mapping[QueueId, int]) -> int:
        """Write waiting messages again that are before these offsets, which retention drops next;
        their number. Durable on return. Raises what `append` raises.
        """
        return await self._put_back.run(first_kept)

    async def _change(
        self, schedule_id: str, mark_of: Callable[[Schedule], Change | None]
    ) -> Schedule:
        while True:
            put_backs = self._log.put_backs
            made = await self._lookup.find(schedule_id)
            place = made.entry.place
            await self._under_way.wait(place)
            self._under_way.begin([place])
            try:
                schedule = await self._lookup.look_at(made)
                if schedule.state is not ScheduleState.DELIVERED:
                    mark = mark_of(schedule)
                    if mark is None:
                        return schedule
                    await self._log.append([], mark, Durability.SYNCED)
                    return schedule.after(mark)
            finally:
                self._under_way.end(place)
                self._log.window.requeue_at(place)
            if put_backs == self._log.put_backs:
                raise AlreadyDelivered(f"schedule {schedule_id} was delivered")
            # Retention has written schedules again meanwhile: it may be elsewhere by now.
