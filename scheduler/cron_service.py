"""Sends the messages of cron schedules, over a `MessageStore`.

The registry has the definitions, the log has the outcomes (`cron_log.py`): a firing is one append
of the message and a mark, and the marks determine how far each schedule is settled. So each
occurrence is sent once, even if the process is killed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from scheduler.cron_log import CronLog, Firing, Step
from scheduler.cron_schedule import (
    CRON_QUEUE,
    CountRestarted,
    CronParked,
    CronSchedule,
    CronState,
    Fired,
    Skipped,
    plan,
)
from scheduler.cron_table import CronItem
from scheduler.options import ScheduleOptions
from storage.clock import Clock
from storage.errors import (
    AlreadyCancelled,
    CorruptRecord,
    LimitReached,
    RejectedError,
    StorageFull,
    UnavailableError,
    UnknownSchedule,
    reason_of,
)
from storage.idempotency import check_fingerprint
from storage.message import Message
from storage.store import MessageStore

log = structlog.get_logger()

_APPEND_MESSAGES = 400
_APPEND_BYTES = 1 << 20
_SLICE = 50  # schedules worked out in one turn of the loop
_CANCELLED_KEPT = 1_000  # so that they can be looked at
_RETRY_MS = 60_000  # a parked schedule is tried again
# one that is settled so far ahead was settled by a clock that was wrong
_WRONG_CLOCK_MS = 86_400_000
_MOST_AHEAD = 1_000  # firings of one schedule ahead of the clock that are known not to fire again


class CronRegistry(Protocol):
    """Stores the definitions of schedules; durable on return."""

    async def load(self) -> list[CronSchedule]: ...

    async def add(self, schedule: CronSchedule) -> None: ...

    async def change(self, schedule: CronSchedule) -> None: ...

    async def forget(self, schedule_ids: Sequence[str]) -> None: ...


class CronService:
    """Sends the messages of cron schedules. Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        registry: CronRegistry,
        clock: Clock,
        options: ScheduleOptions,
        *,
        build: Callable[[CronSchedule, int], Awaitable[Message]],
        on_settled: Callable[[str, int], None] = lambda event, late_ms: None,
    ) -> None:
        """`build`: makes the message of an occurrence; raises RejectedError. `on_settled` gets each
        outcome and its delay.
        """
        self._store = store
        self._registry = registry
        self._clock = clock
        self._options = options
        self._build = build
        self._log = CronLog(store, clock, on_settled=on_settled)
        self.table = self._log.table
        self._by_key: dict[str, str] = {}  # idempotency key to schedule id
        self._turn = asyncio.Lock()  # a sweep and a change wait for one another
        self._retried_ms = clock.monotonic_ms()
        self._delayed: set[str] = set()  # schedules whose message could not be checked for now
        self._swept_ms: int | None = None  # by the wall clock
        self._look_again_ms = clock.monotonic_ms()
        self._is_wrong_noted = False  # that a schedule of a wrong clock cannot be set right yet

    # ----------------------------------------------------------------------------------------------
    # life cycle

    async def start(self) -> int:
        """Restore the table from the registry, the last snapshot and the log; the number of marks
        replayed.
        """
        await self._store.create_topic(CRON_QUEUE.topic, queue_count=1)
        lost_before_ms = await self._log.restore()
        replayed, is_damaged = await self._log.replay()
        settled = self.table.settled()
        for number, schedule in enumerate(await self._registry.load()):
            is_lost = (
                schedule.schedule_id not in settled and schedule.counts_from_ms < lost_before_ms
            )
            if is_damaged or is_lost:
                # A mark of it may be lost to damage: it continues from now, rather than fire twice.
                log.warning("cron_goes_on_from_now", schedule_id=schedule.schedule_id)
                self.table.settle(schedule.schedule_id, self._clock.wall_ms())
            self._put(schedule)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self.table.drop_unknown()
        return replayed

    async def reload(self) -> None:
        """Read the definitions again: what a change of them has made, whose end is not known."""
        async with self._turn:
            found = {schedule.schedule_id: schedule for schedule in await self._registry.load()}
            known = {item.schedule_id: item.schedule for item in self.table}
            for schedule_id in known.keys() - found.keys():
                self.table.forget(schedule_id)
            for schedule_id, schedule in found.items():
                if known.get(schedule_id) != schedule:
                    self._put(schedule)

    async def save_snapshot(self) -> int:
        """Save how far schedules are settled. The number of bytes; 0 if nothing has changed."""
        return await self._log.save_snapshot()

    # ----------------------------------------------------------------------------------------------
    # reading

    def get(self, schedule_id: str) -> CronItem:
        """The schedule with this id. Raises UnknownSchedule."""
        item = self.table.get(schedule_id)
        if item is None:
            raise UnknownSchedule(f"schedule {schedule_id[:200]} does not exist")
        return item

    def parked(self) -> dict[str, str]:
        """The schedules whose times cannot be computed, with the error."""
        return {
            item.schedule_id: item.reason or ""
            for item in self.table
            if item.state is CronState.PARKED
        }

    def made_before(self, key: str, fingerprint: str, *, since_ms: int) -> CronItem | None:
        """The schedule that was created with this idempotency key, now or later. Raises
        IdempotencyKeyReused.
        """
        before = self.table.get(self._by_key.get(key, ""))
        if before is None or before.schedule.created_at_ms < since_ms:
            return None
        check_fingerprint(before.schedule, fingerprint, key=key)
        return before

    def count_left_out(self) -> int:
        """Number of damaged marks that the start skipped: their schedules continued from the
        start.
        """
        return self._log.left_out

    async def recent(self, schedule_id: str, *, count: int) -> list[Firing]:
        """The last outcomes of the schedule, newest first; none if the engine cannot find messages
        by key.
        """
        return await self._log.recent(schedule_id, count=count)

    # ----------------------------------------------------------------------------------------------
    # changes

    async def create(self, schedule: CronSchedule, *, key_window_ms: int) -> tuple[CronItem, bool]:
        """Create a schedule: (the schedule, whether its idempotency key was used before). Durable
        on return.

        Raises IdempotencyKeyReused, and LimitReached if there are too many schedules.
        """
        async with self._turn:
            if schedule.idempotency_key is not None:
                before = self.made_before(
                    schedule.idempotency_key,
                    schedule.fingerprint or "",
                    since_ms=schedule.created_at_ms - key_window_ms,
                )
                if before is not None:
                    return before, True
            self._check_limits(schedule.topic)
            await self._registry.add(schedule)
            return self._put(schedule), False

    def _check_limits(self, topic: str) -> None:
        options = self._options
        if self.table.open_count >= options.max_cron:
            raise LimitReached(
                f"at most {options.max_cron} cron schedules may exist", pointer="/cron"
            )
        of_topic = [
            item
            for item in self.table
            if item.schedule.topic == topic and item.schedule.cancelled_at_ms is None
        ]
        if len(of_topic) >= options.max_cron_per_topic:
            raise LimitReached(
                f"at most {options.max_cron_per_topic} cron schedules of a topic may exist",
                pointer="/topic",
            )

    async def change(
        self, schedule_id: str, edit: Callable[[CronSchedule], CronSchedule]
    ) -> CronItem:
        """Change a schedule; `edit` may refuse by raising. Durable on return.

        Raises UnknownSchedule, AlreadyCancelled.
        """
        async with self._turn:
            old = self.get(schedule_id).schedule
            new = edit(old)
            if old.cancelled_at_ms is not None:
                raise AlreadyCancelled(f"schedule {schedule_id} was cancelled")
            return await self._save(old, new)

    async def cancel(self, schedule_id: str, *, check: Callable[[CronSchedule], None]) -> CronItem:
        """Cancel a schedule; a second time it changes nothing. `check` may refuse by raising.
        Durable on return. Raises UnknownSchedule.
        """
        async with self._turn:
            item = self.get(schedule_id)
            old = item.schedule
            check(old)
            if old.cancelled_at_ms is not None:
                return item
            item = await self._save(
                old, msgspec.structs.replace(old, cancelled_at_ms=self._clock.wall_ms())
            )
            await self._forget_cancelled()
            return item

    async def _save(self, old: CronSchedule, new: CronSchedule) -> CronItem:
        if new == old:
            return self.table.put(old)  # tried again if it was parked
        times = (new.cron, new.time_zone, new.paused)
        now_ms, has_new_times = (
            self._clock.wall_ms(),
            times != (old.cron, old.time_zone, old.paused),
        )
        if has_new_times:
            new = msgspec.structs.replace(new, counts_from_ms=now_ms)
        new = msgspec.structs.replace(new, revision=old.revision + 1)
        await self._registry.change(new)
        item = self._put(new)
        if has_new_times and item.settled.until_ms > now_ms:
            await self._restart_count(item, now_ms)
        return item

    def _put(self, schedule: CronSchedule) -> CronItem:
        if schedule.idempotency_key is not None:
            self._by_key[schedule.idempotency_key] = schedule.schedule_id
        return self.table.put(schedule)

    async def _forget_cancelled(self) -> None:
        """Forget cancelled schedules, except the last ones."""
        cancelled = [item.schedule for item in self.table if item.state is CronState.CANCELLED]
        cancelled.sort(key=lambda schedule: schedule.cancelled_at_ms or 0)
        gone = [schedule.schedule_id for schedule in cancelled[:-_CANCELLED_KEPT]]
        if gone:
            await self._registry.forget(gone)
            for schedule_id in gone:
                self.table.forget(schedule_id)
            self._by_key = {
                key: schedule_id
                for key, schedule_id in self._by_key.items()
                if schedule_id not in gone
            }

    # ----------------------------------------------------------------------------------------------
    # firing

    async def run_once(self, now_ms: int) -> int:
        """Fire the schedules that are due; the number of messages. Raises what `append` raises: the
        rest stays due.
        """
        fired = 0
        async with self._turn:
            self._retry_parked()
            self._retry_delayed()
            while due := self.table.due(now_ms):
                steps: list[Step] = []
                for number, item in enumerate(due, 1):
                    added = await self._steps(item, now_ms)
                    steps += added
                    # to make up for what was missed takes its time
                    if number % _SLICE == 0 or len(added) > 1:
                        await asyncio.sleep(0)
                fired += await self._take(steps)
            await self._look_for_wrong_clock(now_ms)
        return fired

    async def _look_for_wrong_clock(self, now_ms: int) -> None:
        """Find schedules that a clock far ahead has settled beyond the present time; they continue
        from now. Where the registry or the store does not take that, a sweep after a while does it:
        such a schedule fires nothing meanwhile, and the others go on.
        """
        if self._clock.monotonic_ms() < self._look_again_ms:
            return
        if self._swept_ms is None or now_ms < self._swept_ms:
            limit_ms = now_ms + _WRONG_CLOCK_MS
            for item in list(self.table):
                from_ms = max(item.settled.until_ms, item.schedule.counts_from_ms)
                if from_ms > limit_ms and item.schedule.cancelled_at_ms is None:
                    try:
                        await self._restart_count(item, now_ms)
                    except (UnavailableError, StorageFull) as error:
                        # a registry that hangs takes seconds for each attempt
                        self._look_again_ms = self._clock.monotonic_ms() + _RETRY_MS
                        self._note_wrong(str(error))
                        return
        self._swept_ms, self._is_wrong_noted = now_ms, False

    def _note_wrong(self, reason: str) -> None:
        """Log the reason once: it may last."""
        if not self._is_wrong_noted:
            self._is_wrong_noted = True
            log.warning("cron_not_set_right_yet", reason=reason)

    async def _restart_count(self, item: CronItem, now_ms: int) -> None:
        """Continue the schedule from now, whatever its marks state; occurrences that fired ahead of
        the clock do not fire again. Durable on return.
        """
        settled_ms = item.settled.until_ms
        if item.schedule.counts_from_ms > now_ms:
            schedule = msgspec.structs.replace(item.schedule, counts_from_ms=now_ms)
            await self._registry.change(schedule)
            item = self._put(schedule)
        ahead = set(item.settled.fired_ahead)
        try:
            recent = await self._log.recent(item.schedule_id, count=_MOST_AHEAD)
        except (CorruptRecord, msgspec.DecodeError) as damage:
            log.error("cron_mark_damaged", schedule_id=item.schedule_id, reason=str(damage))
        else:
            ahead |= {one.mark.settled_ms for one in recent if isinstance(one.mark, Fired)}
        fired_ahead = sorted(moment_ms for moment_ms in ahead if moment_ms > now_ms)
        mark = CountRestarted(
            schedule_id=item.schedule_id, settled_ms=now_ms, fired_ahead=fired_ahead[:_MOST_AHEAD]
        )
        await self._log.append([Step(item, mark, ())])
        log.warning("cron_counts_anew", schedule_id=item.schedule_id, settled_ms=settled_ms)

    def _retry_parked(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._retried_ms < _RETRY_MS:
            return
        self._retried_ms = now_ms
        for item in [item for item in self.table if item.state is CronState.PARKED]:
            self.table.put(item.schedule)

    def _retry_delayed(self) -> None:
        """Make schedules due again whose message could not be checked in the last sweep."""
        for schedule_id in list(self._delayed):
            item = self.table.get(schedule_id)
            if item is not None and item.state is CronState.PARKED:
                self.table.put(item.schedule)
            else:
                self._delayed.discard(schedule_id)

    async def _steps(self, item: CronItem, now_ms: int) -> list[Step]:
        schedule, line, first_ms = item.schedule, item.line, item.next_ms
        assert line is not None
        assert first_ms is not None
        try:
            planned = plan(
                line, schedule.catch_up, first_ms=first_ms, now_ms=now_ms,
                grace_ms=self._options.cron_grace_ms
            )  # fmt: skip
            steps = [await self._firing(item, moment_ms) for moment_ms in planned.fire]
        except UnavailableError as error:  # of what checks the message, and of this schedule alone
            if item.schedule_id not in self._delayed:
                log.warning("cron_delayed", schedule_id=item.schedule_id, reason=str(error))
            self._delayed.add(item.schedule_id)
            self.table.park(item, reason_of(error))
            return []
        except Exception as error:  # any other defect of one schedule must not stop the others
            log.exception("cron_set_aside", schedule_id=item.schedule_id)
            self.table.park(item, reason_of(error))
            return []
        self._delayed.discard(item.schedule_id)
        if planned.skip is not None:
            since_ms, until_ms = planned.skip
            skipped = Skipped(schedule_id=item.schedule_id, settled_ms=until_ms, since_ms=since_ms)
            steps.insert(0, Step(item, skipped, ()))
        return steps

    async def _firing(self, item: CronItem, moment_ms: int) -> Step:
        if moment_ms in item.settled.fired_ahead:
            return Step(
                item,
                Skipped(schedule_id=item.schedule_id, settled_ms=moment_ms, since_ms=moment_ms),
                (),
            )
        try:
            message = await self._build(item.schedule, moment_ms)
        except RejectedError as refused:
            return Step(item, self._parked(item, moment_ms, refused), ())
        fired = Fired(
            schedule_id=item.schedule_id, settled_ms=moment_ms, message_id=message.message_id
        )
        return Step(item, fired, [message])

    def _parked(self, item: CronItem, moment_ms: int, refused: RejectedError) -> CronParked:
        reason = reason_of(refused)
        log.warning(
            "cron_occurrence_set_aside",
            schedule_id=item.schedule_id,
            topic=item.schedule.topic,
            reason=reason,
        )
        return CronParked(schedule_id=item.schedule_id, settled_ms=moment_ms, reason=reason)

    async def _take(self, steps: Sequence[Step]) -> int:
        """Append the steps in pieces, in their order; the number of messages."""
        fired = at = 0
        while at < len(steps):
            size = count = 0
            for step in steps[at : at + _APPEND_MESSAGES // 2]:
                size += sum(len(message.body) for message in step.messages)
                if count and size > _APPEND_BYTES:
                    break
                count += 1
            fired += await self._take_together(steps[at : at + count])
            at += count
        return fired

    async def _take_together(self, steps: Sequence[Step]) -> int:
        """Append all steps together; if that is refused, each by itself, and occurrences that are
        refused are parked.
        """
        try:
            await self._log.append(steps)
        except RejectedError as refused:
            if len(steps) > 1:
                return sum([await self._take_together([step]) for step in steps])
            (step,) = steps
            if not step.messages:
                raise
            await self._log.append(
                [Step(step.item, self._parked(step.item, step.mark.settled_ms, refused), ())]
            )
            return 0
        return sum(len(step.messages) for step in steps)
