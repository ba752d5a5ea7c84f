"""Delayed messages and cron schedules as components."""

from collections.abc import Iterator

import structlog

from app.components.component import Component, Gauge, events_left_out
from app.components.loop_kinds import parked_items, patient_loop, saving_loop
from scheduler.cron_service import CronService
from scheduler.loops import Loop, ParkedItems
from scheduler.options import ScheduleOptions
from scheduler.schedule_service import ScheduleService
from storage.clock import Clock
from storage.errors import MessagingError

log = structlog.get_logger()


class SchedulesComponent(Component):
    """Messages that are delivered after a delay."""

    def __init__(self, schedules: ScheduleService, clock: Clock, options: ScheduleOptions) -> None:
        self._schedules = schedules
        self._clock = clock
        self._options = options

    async def start(self) -> None:
        replayed = await self._schedules.start()
        log.info("schedules_open", scheduled=self._schedules.counts.waiting, replayed=replayed)

    async def stop(self) -> None:
        await self._schedules.drain()
        try:
            await self._schedules.hand_over()
        except MessagingError as error:
            log.warning("schedules_not_handed_over", reason=str(error))
        await self._schedules.save_snapshot()

    def loops(self) -> Iterator[Loop]:
        yield patient_loop(
            "schedules",
            lambda: self._schedules.run_once(self._clock.wall_ms()),
            interval_ms=self._options.sweep_interval_ms,
            check="scheduler",
            parked=lambda: ParkedItems(self._schedules.counts.never),
        )
        yield saving_loop(
            "schedule_snapshots",
            self._schedules.save_snapshot,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="scheduler",
        )

    def gauges(self) -> Iterator[Gauge]:
        counts, now_ms = self._schedules.counts, self._clock.wall_ms()
        late_ms = now_ms - (self._schedules.next_due_ms() or now_ms)
        yield Gauge("escrowmq_schedules_scheduled", "Delayed messages that wait", counts.waiting)
        yield Gauge(
            "escrowmq_schedules_set_aside",
            "Delayed messages that could not be delivered",
            counts.never,
        )
        yield Gauge(
            "escrowmq_schedules_overdue_seconds",
            "How late the one is that was due first",
            max(0, late_ms) / 1000,
        )
        yield Gauge(
            "escrowmq_schedules_backlog",
            "Long overdue ones, delivered at a bounded rate",
            self._schedules.backlog_count,
        )
        yield events_left_out(self._schedules.count_left_out())


class CronComponent(Component):
    """Messages that are sent whenever a cron schedule says so."""

    def __init__(self, cron: CronService, clock: Clock, options: ScheduleOptions) -> None:
        self._cron = cron
        self._clock = clock
        self._options = options

    async def start(self) -> None:
        await self._cron.start()
        log.info("cron_open", schedules=self._cron.table.open_count)

    async def stop(self) -> None:
        await self._cron.save_snapshot()

    def loops(self) -> Iterator[Loop]:
        yield patient_loop(
            "cron",
            lambda: self._cron.run_once(self._clock.wall_ms()),
            interval_ms=self._options.sweep_interval_ms,
            check="scheduler",
            parked=lambda: parked_items(self._cron.parked()),
        )
        yield saving_loop(
            "cron_snapshots",
            self._cron.save_snapshot,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="scheduler",
        )

    def gauges(self) -> Iterator[Gauge]:
        table = self._cron.table
        yield Gauge(
            "escrowmq_cron_schedules", "Cron schedules that are not cancelled", table.open_count
        )
        yield Gauge(
            "escrowmq_cron_set_aside",
            "Cron schedules whose times cannot be worked out",
            table.parked_count,
        )
        yield events_left_out(self._cron.count_left_out())
