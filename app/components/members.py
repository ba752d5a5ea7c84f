"""Members of consumer groups as a component."""

from collections.abc import Iterator

import structlog

from app.components.component import Component, Gauge
from app.components.loop_kinds import patient_loop, saving_loop
from delivery.members.service import Members
from delivery.options import MemberOptions
from scheduler.loops import Loop
from storage.clock import Clock

log = structlog.get_logger()


class MembersComponent(Component):
    """The members of consumer groups, and the queues that they own."""

    def __init__(self, members: Members, clock: Clock, options: MemberOptions) -> None:
        self._members = members
        self._clock = clock
        self._options = options

    async def start(self) -> None:
        replayed = await self._members.start()
        log.info("members_open", members=self._members.count_members(), replayed=replayed)

    def begin_stop(self) -> None:
        self._members.stop()

    async def stop(self) -> None:
        await self._members.drain()
        await self._members.save_snapshot()

    def loops(self) -> Iterator[Loop]:
        yield patient_loop(
            "members",
            self._members.run_once,
            interval_ms=self._options.sweep_interval_ms,
            check="members",
        )
        yield saving_loop(
            "member_snapshots",
            self._members.save_snapshot,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="members",
        )

    def gauges(self) -> Iterator[Gauge]:
        yield Gauge(
            "escrowmq_group_members",
            "Members that share queues of consumer groups",
            self._members.count_members(),
        )
        yield Gauge(
            "escrowmq_queue_locks",
            "Queues that members of consumer groups have locked",
            self._members.count_locks(),
        )
