"""Any sequence of sends, moves, cancels, sweeps, kills, power cuts and starts delivers what a model
says, once and never early.

Memory is to hold next to nothing, so most of what waits is read from the timer files, which are
written all the time.
"""

import asyncio
from typing import NamedTuple

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from scheduler import scheduled_message as scheduled
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import Wanted
from scheduler.schedule_service import ScheduleService
from storage.errors import MessagingError, UnknownSchedule
from storage.files import durable
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import decode_levels
from storage.local.options import FlushPolicy
from storage.message import QueueId
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import ROOT, End

ORDERS = QueueId("orders", 0)
DAY_MS = 86_400_000
delays = st.sampled_from([1, 20, 150, 1_000, 5_000, 7_777, 2 * DAY_MS, 400 * DAY_MS]) | st.integers(
    1, 3_000
)
names = st.integers(0, 30).map(lambda number: f"m{number:02}")


class Waiting(NamedTuple):
    due_ms: int
    state: ScheduleState = ScheduleState.SCHEDULED


class ScheduleMachine(ModelMachine):
    """Drives the service over the embedded engine beside a dict of what is due when."""

    @initialize(flush=st.sampled_from(FlushPolicy))
    def begin(self, flush: FlushPolicy) -> None:
        self.model: dict[str, Waiting] = {}
        self.begin_lives(flush)

    async def start(self) -> None:
        await self.store.create_topic("orders", queue_count=1)
        # Nothing counts as a backlog: another test is about when that is delivered.
        options = ScheduleOptions(catch_up_after_ms=1 << 50, near_ms=200, near_kept=3)
        self.service = ScheduleService(self.store, self.world.clock, options)
        await self.service.start()

    @rule(count=st.integers(1, 4), delay_ms=delays, absolute=st.booleans())
    def send(self, count: int, delay_ms: int, absolute: bool) -> None:
        now_ms = self.now_ms
        delay = {"due_ms": now_ms + delay_ms} if absolute else {"delay_ms": delay_ms}
        given = []
        for _ in range(count):
            name = f"m{len(self.model) + len(given):02}"
            one = message(name.encode(), queue=ORDERS, message_id=name)
            given.append(scheduled.delay(scheduled.with_delay(one, **delay), now_ms))
        places = self.call(self.store.append(given))
        for one, place in zip(given, places, strict=True):
            self.model[one.message_id] = Waiting(scheduled.due_ms_at(one, place.stored_at_ms))

    @rule(name=names, delay_ms=delays)
    def move(self, name: str, delay_ms: int) -> None:
        due_ms = self.now_ms + delay_ms
        known = self.model.get(name)
        answer = self.answer(self.service.move(f"sch_{name}", due_ms))
        if known is None or known.state is not ScheduleState.SCHEDULED:
            assert isinstance(answer, MessagingError)
        else:
            assert answer.due_ms == due_ms
            self.model[name] = Waiting(due_ms)

    @rule(name=names)
    def cancel(self, name: str) -> None:
        known = self.model.get(name)
        answer = self.answer(self.service.cancel(f"sch_{name}"))
        if known is None or known.state is ScheduleState.DELIVERED:
            assert isinstance(answer, MessagingError)
        else:
            assert answer.state is ScheduleState.CANCELLED
            self.model[name] = known._replace(state=ScheduleState.CANCELLED)

    @rule(ms=st.integers(1, 2_000))
    def pass_time(self, ms: int) -> None:
        self.sleep(ms)

    @rule()
    def sweep(self) -> None:
        now_ms = self.now_ms
        self.call(self.service.run_once(now_ms))
        for name, known in self.model.items():
            if known.state is ScheduleState.SCHEDULED and known.due_ms <= now_ms:
                self.model[name] = known._replace(state=ScheduleState.DELIVERED)

    @rule(days=st.sampled_from([1, 2, 399]))
    def pass_days(self, days: int) -> None:
        """The service is down meanwhile; the simulation would run each of its timers."""
        self.restart(down_ms=days * DAY_MS)

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def close_and_restart(self) -> None:
        self.restart(End.CLOSE)
        told = self._told_a_broker()
        for queue, waiting in self._by_level().items():
            is_over = [self.model[name].state.is_finished for name in waiting]
            assert told.get(queue.number + 1, 0) == [*is_over, False].index(False)

    @rule(after_ms=st.integers(0, 12))
    def kill_in_the_middle_of_a_sweep(self, after_ms: int) -> None:
        """What was due is delivered then, or a moment after the start: all of it, and once."""
        self.call_for(after_ms, self.service.run_once(self.now_ms))
        self.restart()
        self.sweep()

    @rule(operations=st.integers(0, 60), ms=st.integers(1, 60), is_sweeping=st.booleans())
    def cut_the_power(self, operations: int, ms: int, is_sweeping: bool) -> None:
        """At any operation of the disk, most of which are the timer files' and the queues'."""
        assume(self.options.flush is FlushPolicy.BEFORE_ACK)  # else what was answered may be gone
        now_ms = self.now_ms
        disk = self.world.disk
        disk.cut_after = disk.operations + operations

        async def begin() -> None:
            sweep = asyncio.ensure_future(self.service.run_once(now_ms if is_sweeping else 0))
            await asyncio.sleep(ms / 1000)
            await sweep

        self.world.run(begin())
        self.restart(End.CUT)
        if is_sweeping:
            self.sweep()

    @invariant()
    def the_topic_holds_what_was_due_and_each_of_it_once(self) -> None:
        found = self.call(self.store.read(ORDERS, 0, max_messages=1_000, max_bytes=1 << 30))
        due = [name for name, known in self.model.items() if known.state is ScheduleState.DELIVERED]
        assert sorted(one.message_id for one in found) == sorted(due)
        for one in found:
            assert one.stored_at_ms >= self.model[one.message_id].due_ms
        page = self.call(self.service.page(Wanted(ScheduleState), after=None, max_items=1_000))
        assert {one.message_id: Waiting(one.due_ms, one.state) for one in page.items} == self.model
        assert [one.due_ms for one in page.items] == sorted(
            known.due_ms for known in self.model.values()
        )
        waiting = sum(known.state is ScheduleState.SCHEDULED for known in self.model.values())
        assert self.service.counts == (waiting, 0)

    @invariant()
    def a_broker_that_is_given_the_files_is_never_told_of_more_than_is_over(self) -> None:
        by_level = self._by_level()
        for level, offset in self._told_a_broker().items():
            told = by_level[QueueId(SCHEDULE_TOPIC, level - 1)][:offset]
            assert len(told) == offset
            assert [name for name in told if not self.model[name].state.is_finished] == []

    def _told_a_broker(self) -> dict[int, int]:
        raw = durable.read_whole(self.world.disk, ROOT / "config" / "delayOffset.json")
        return {} if raw is None else dict(decode_levels(raw).offsets)

    def _by_level(self) -> dict[QueueId, list[str]]:
        """What ever waited in each queue."""
        return {
            queue: [
                one.message_id
                for one in self.call(
                    self.store.read(queue, 0, max_messages=1_000, max_bytes=1 << 30)
                )
            ]
            for queue in self.call(self.store.queues(SCHEDULE_TOPIC))
        }

    @rule(name=names)
    def look_at(self, name: str) -> None:
        known = self.model.get(name)
        answer = self.answer(self.service.get(f"sch_{name}"))
        if known is None:
            assert isinstance(answer, UnknownSchedule)
        else:
            assert Waiting(answer.due_ms, answer.state) == known


TestScheduleModel = model_test(ScheduleMachine, examples=sized(ci=25, full=60))
