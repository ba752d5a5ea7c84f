"""C10: a day of the service's timers on a virtual clock that people set, in seconds of real time.

Delays, schedules, cron, checks, leases, idempotency windows and their tickers run as in production;
the wall clock jumps by a second to thirty days, forward and back, and for half of the seeds passes
the end of 32-bit seconds in 2038. The process is killed and loses power in between. Nothing comes
early, nothing is lost, nothing comes twice, every undecided transaction is asked about or held, and
no loop spins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from scheduler import cron_schedule, scheduled_message
from scheduler.cron_schedule import (
    CRON_QUEUE,
    AnyCronMark,
    CatchUp,
    CountRestarted,
    CronSchedule,
    Fired,
    Skipped,
)
from scheduler.cron_service import CronService
from scheduler.options import ScheduleOptions
from scheduler.schedule_service import ScheduleService
from scheduler.ticker import Ticker
from storage.errors import AlreadyCancelled, AlreadyDelivered, TransactionConflict
from storage.files.simulated import SimulatedDisk
from storage.formats import properties
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId, StoredMessage
from tests.support.check_pass import everything
from tests.support.simulation import World
from txn.check_sender import CheckSender
from txn.checkback_plan import CheckbackPolicy, OnExhausted
from txn.coordinator import Begin, TransactionCoordinator
from txn.open_checks import LeasedCheck
from txn.options import TransactionOptions
from txn.producer import Answered, Failed, Failure, Route
from txn.states import TxnEvent, TxnState
from txn.transaction import Transaction

ORDERS, REPORTS = QueueId("orders", 0), QueueId("reports", 0)
DAY_SECONDS = 86_400
HOUR_MS = 3_600_000
SWEEP_MS = 10_000
SNAPSHOT_MS = 1_800_000
WINDOW_MS = 6 * HOUR_MS
JUMPS_MS = [
    sign * ms
    for ms in (1_000, 60_000, HOUR_MS, 24 * HOUR_MS, 30 * 24 * HOUR_MS)
    for sign in (1, -1)
]
END_OF_32_BITS_MS = 2_147_483_647_000
CRON_MS = 360_000  # every six minutes
_LONGEST_DELAY_MS = 40 * 24 * HOUR_MS
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 20,
    prepare_ahead_bytes=1 << 18,
    index_slots=200,
    index_file_entries=4_000,
    queue_flush_interval_ms=20_000,
    snapshot_interval_ms=600_000,
)
POLICIES = [
    CheckbackPolicy(),
    CheckbackPolicy(first_after_ms=60_000, interval_ms=600_000, max_answers=3),
    CheckbackPolicy(
        first_after_ms=5_000, interval_ms=60_000, max_answers=2, on_exhausted=OnExhausted.ROLLBACK
    ),
    CheckbackPolicy(first_after_ms=1_000, interval_ms=30_000, unreachable_limit_ms=2 * HOUR_MS),
]


@dataclass
class Delayed:
    due_ms: int  # not before
    is_cancelled: bool = False


class Registry:
    """What was said about cron schedules: as a database would keep it, it outlives every crash."""

    def __init__(self) -> None:
        self.kept: dict[str, CronSchedule] = {}

    async def load(self) -> list[CronSchedule]:
        return list(self.kept.values())

    async def add(self, schedule: CronSchedule) -> None:
        self.kept[schedule.schedule_id] = schedule

    change = add

    async def forget(self, schedule_ids: Sequence[str]) -> None:
        for schedule_id in schedule_ids:
            del self.kept[schedule_id]


class Day:
    """What the outside world knows of it; outlives the lives of the process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.randomness = Random(seed)
        self.wall_ms = END_OF_32_BITS_MS - 12 * HOUR_MS if seed % 2 else 1_800_000_000_000
        self.jumps_allowed = seed % 5 != 0
        self.registry = Registry()
        self.delayed: dict[str, Delayed] = {}
        self.begun: dict[str, Begin] = {}
        self.delays_ms: dict[str, int] = {}  # of messages of transactions, from the commit on
        self.decided: dict[str, TxnState] = {}
        self.keys: dict[str, str] = {}  # idempotency key -> transaction id
        self.producers_say = "unreachable"
        self.most_late_ms = self.delivered = self.jumps = self.lives = self.turns = 0
        self.furthest_ms = self.wall_ms

    def run(self) -> None:
        disk = SimulatedDisk()
        ends = sorted(self.randomness.sample(range(1, DAY_SECONDS), 3 if self.jumps_allowed else 0))
        for begin, end in zip([0, *ends], [*ends, DAY_SECONDS], strict=True):
            world = self._world(disk)
            self._run(world, self._live(world, end - begin))
            disk = self._end(world)
        if not self.jumps_allowed:
            assert self.most_late_ms <= SWEEP_MS + 1_000, (
                f"nothing was in its way, and it came {self.most_late_ms} ms late"
            )
        world = self._world(disk)
        # Whatever was put off so far, from the furthest moment that the clock has shown, is due by
        # then.
        world.clock.jump(
            max(self.furthest_ms, self.wall_ms) + _LONGEST_DELAY_MS + HOUR_MS - self.wall_ms
        )
        self._run(world, self._settle(world))
        world.end()

    def _run(self, world: World, main: Coroutine[Any, Any, None]) -> None:
        try:
            world.run(main)
        except BaseException:
            world.end()
            raise

    def _world(self, disk: SimulatedDisk) -> World:
        self.lives += 1
        return World(disk, self.seed * 100 + self.lives, wall_ms=self.wall_ms)

    def _end(self, world: World) -> SimulatedDisk:
        self.wall_ms = world.clock.wall_ms()
        self.turns += world.loop.turns
        is_cut = self.randomness.random() < 0.5
        world.end()
        return world.disk.after_power_cut(self.randomness) if is_cut else world.disk.after_kill()

    async def _live(self, world: World, seconds: float) -> None:
        """People do this and that; nothing of theirs is under way when it ends, of the service's
        what happens to be.
        """
        service = await Service.started(world, self)
        for catch_up in CatchUp:
            await service.make_cron(catch_up)
        doings: list[tuple[float, Callable[[Service], Awaitable[None]]]] = [
            (300, self._delay),
            (900, self._move_or_cancel),
            (240, self._begin),
            (600, self._begin_again),
            (400, self._decide),
            (120, self._poll),
            (3_000, self._producers_change),
            (1_800, self._observe),
        ]
        if self.jumps_allowed:
            doings.append((12_000, self._jump))
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def act(mean: float, doing: Callable[[Service], Awaitable[None]]) -> None:
            while True:
                wait = world.randomness.expovariate(1 / mean)
                if loop.time() + wait > until - 60:
                    return
                await asyncio.sleep(wait)
                await doing(service)

        await asyncio.gather(*[act(*doing) for doing in doings])
        await self._verify(service)
        await asyncio.sleep(max(0, until - loop.time()))

    async def _settle(self, world: World) -> None:
        """Everything is long due: all of it comes, once."""
        self.producers_say = "unreachable"  # what is committed only now is put off from now on
        service = await Service.started(world, self)
        await self._verify(service)
        due = {name for name, one in self.delayed.items() if not one.is_cancelled}
        await asyncio.sleep(3 * SWEEP_MS / 1000)
        found = await self._verify(service)
        assert due <= found, f"never came: {sorted(due - found)[:5]}"

    # ----------------------------------------------------------------------------------------------
    # what people do

    async def _delay(self, service: "Service") -> None:
        names = [
            f"d{len(self.delayed) + number}"
            for number in range(service.randomness.choice([1, 1, 4]))
        ]
        delay_ms = self._a_delay(service)
        now_ms = service.clock.wall_ms()
        how = (
            {"delay_ms": delay_ms}
            if service.randomness.random() < 0.6
            else {"due_ms": now_ms + delay_ms}
        )
        given = [
            scheduled_message.delay(scheduled_message.with_delay(_message(name), **how), now_ms)
            for name in names
        ]
        await service.store.append(given)
        # By the clock of when it was asked for: the log's own times stay ahead of a clock that was
        # set back.
        self.delayed |= {one.message_id: Delayed(now_ms + delay_ms) for one in given}

    def _a_delay(self, service: "Service") -> int:
        return service.randomness.choice(
            [1, 1_000, 30_000, 600_000, 4 * HOUR_MS, _LONGEST_DELAY_MS]
        )

    async def _move_or_cancel(self, service: "Service") -> None:
        if not self.delayed:
            return
        name = service.randomness.choice(list(self.delayed))
        try:
            if service.randomness.random() < 0.5:
                await service.schedules.cancel(f"sch_{name}")
                self.delayed[name].is_cancelled = True
            else:
                due_ms = service.clock.wall_ms() + self._a_delay(service)
                await service.schedules.move(f"sch_{name}", due_ms)
                self.delayed[name].due_ms = due_ms
        except (AlreadyDelivered, AlreadyCancelled):
            pass

    async def _begin(self, service: "Service") -> None:
        number = len(self.begun)
        delay_ms = self._a_delay(service) if number % 3 == 0 else None
        name = f"t{number}"
        given = (
            _message(name)
            if delay_ms is None
            else scheduled_message.with_delay(_message(name), delay_ms=delay_ms)
        )
        self.delays_ms[name] = delay_ms or 0
        key = f"key-{number}" if number % 2 else None
        group = service.randomness.choice(["polled", "asked"])
        begin = Begin(
            [given], group, service.randomness.choice(POLICIES), f"txn-{number}", None, key, key
        )
        self.begun[f"txn-{number}"] = begin
        assert not (await service.coordinator.begin(begin)).replayed
        if key is not None:
            self.keys[key] = f"txn-{number}"

    async def _begin_again(self, service: "Service") -> None:
        """An idempotency key counts for its window and no longer, on the wall clock."""
        if not self.keys:
            return
        key, transaction_id = service.randomness.choice(list(self.keys.items()))
        prepared_at_ms = (await service.coordinator.get(transaction_id)).prepared_at_ms
        number = len(self.begun)
        # Names of its own: another begin may be under way.
        begin = Begin(
            [_message(f"again-{number}")],
            "polled",
            POLICIES[0],
            f"txn-again-{number}",
            None,
            key,
            key,
        )
        counts = service.clock.wall_ms() - prepared_at_ms <= WINDOW_MS
        outcome = await service.coordinator.begin(begin)
        assert outcome.replayed == counts
        if counts:
            # With a clock that was set back, an older one of this key may count again, too.
            is_set_back = service.clock.wall_ms() < self.furthest_ms
            assert outcome.transaction.transaction_id == transaction_id or is_set_back
        else:
            self.begun[f"txn-again-{number}"] = begin
            self.keys[key] = f"txn-again-{number}"

    async def _decide(self, service: "Service") -> None:
        if not self.begun:
            return
        transaction_id = service.randomness.choice(list(self.begun))
        decide = service.randomness.choice(
            [service.coordinator.commit, service.coordinator.rollback]
        )
        try:
            outcome = await decide(transaction_id)
            state = outcome.transaction.state
        except TransactionConflict as conflict:
            state = TxnState(conflict.state)
        assert self.decided.setdefault(transaction_id, state) is state

    async def _poll(self, service: "Service") -> None:
        checks = await service.coordinator.receive_checks(
            "polled", max_checks=5, lease_ms=30_000, wait_ms=0
        )
        for check in checks:
            word = service.randomness.choice([*TxnEvent][:3] + [TxnEvent.UNKNOWN] * 3 + [None])
            if word is not None:
                await service.coordinator.answer_check("polled", check.check_id, word)

    async def _producers_change(self, service: "Service") -> None:
        self.producers_say = service.randomness.choice(
            ["unreachable", "unknown", "commit", "rollback"]
        )

    async def _jump(self, service: "Service") -> None:
        before_ms = service.clock.wall_ms()
        service.clock.jump(service.randomness.choice(JUMPS_MS))
        self.jumps += 1
        self.furthest_ms = max(self.furthest_ms, before_ms, service.clock.wall_ms())
        await asyncio.sleep(4 * SWEEP_MS / 1000)
        await self._observe(service)

    # ----------------------------------------------------------------------------------------------
    # is it all true?

    async def _observe(self, service: "Service") -> None:
        """Whoever is undecided has been asked, is to be asked later, or waits for a person."""
        # where the clock has just been set, a sweep comes first
        await asyncio.sleep(2 * SWEEP_MS / 1000)
        self.furthest_ms = max(self.furthest_ms, service.clock.wall_ms())
        before_ms = service.clock.wall_ms() - 2 * SWEEP_MS
        for transaction in service.coordinator.table:
            if transaction.state is TxnState.PREPARED:
                policy, asked_at_ms = transaction.policy, transaction.asked_at_ms
                assert transaction.answers < policy.max_answers
                assert asked_at_ms is not None or transaction.next_check_at_ms > before_ms, (
                    f"{transaction} is not asked"
                )
                if asked_at_ms is not None:
                    give_up_ms = asked_at_ms + policy.unreachable_limit_ms
                    # the service was down: that is not the producer's silence
                    if asked_at_ms < service.started_ms:
                        give_up_ms = max(give_up_ms, service.started_ms + policy.interval_ms)
                    assert give_up_ms > before_ms, f"{transaction} is forgotten"

    async def _verify(self, service: "Service") -> set[str]:
        """What lies in the topics is what was due and decided, each once; the ids of it."""
        found: set[str] = set()
        # The service goes on meanwhile: what was committed before must be there, what is there be
        # committed afterwards.
        before = {key: (await service.coordinator.get(key)).state for key in self.begun}
        async for message in everything(service.store, ORDERS):
            name = message.message_id
            assert name not in found, f"{name} came twice"
            found.add(name)
            delayed = self.delayed.get(name)
            if delayed is not None:
                assert not delayed.is_cancelled, f"{name} was cancelled, and came"
                assert message.stored_at_ms >= delayed.due_ms, (
                    f"{name} came {delayed.due_ms - message.stored_at_ms} ms early"
                )
        for transaction_id, begin in self.begun.items():
            transaction = await service.coordinator.get(transaction_id)
            self._expect_outcome(
                transaction,
                begin,
                found,
                was_committed=before[transaction_id] is TxnState.COMMITTED,
            )
        await self._verify_cron(service)
        return found

    def _expect_outcome(
        self, transaction: Transaction, begin: Begin, found: set[str], *, was_committed: bool
    ) -> None:
        known = self.decided.get(transaction.transaction_id)
        assert known is None or transaction.state is known, f"{transaction} was {known}"
        if transaction.state.is_decided:
            self.decided[transaction.transaction_id] = transaction.state
        (message,) = begin.messages
        if transaction.state is not TxnState.COMMITTED:
            assert message.message_id not in found, (
                f"{transaction} is not committed, and its message came"
            )
        elif properties.SCHEDULE_ID not in message.system:
            assert message.message_id in found or not was_committed, (
                f"{transaction} is committed, and its message is not there"
            )
        elif was_committed:
            # The delay counts from the commit, by the clock.
            assert transaction.resolved_at_ms is not None
            delay_ms = self.delays_ms[message.message_id]
            self.delayed.setdefault(
                message.message_id, Delayed(transaction.resolved_at_ms + delay_ms)
            )

    async def _verify_cron(self, service: "Service") -> None:
        marks = [
            cron_schedule.read_mark(message)
            async for message in everything(service.store, CRON_QUEUE)
        ]
        fired = [
            f"{mark.schedule_id}@{mark.settled_ms}" for mark in marks if isinstance(mark, Fired)
        ]
        messages: list[StoredMessage] = [
            message async for message in everything(service.store, REPORTS)
        ]
        assert [message.message_id for message in messages] == fired
        assert len(set(fired)) == len(fired), "an occurrence fired twice"
        for message in messages:
            assert message.stored_at_ms >= int(message.message_id.split("@")[1]), (
                f"{message.message_id} came early"
            )
        for schedule_id in self.registry.kept:
            own = [mark for mark in marks if mark.schedule_id == schedule_id]
            # A clock that was far ahead and is right again makes it count anew: between two such
            # moments nothing is missing.
            begins = [at for at, mark in enumerate(own) if isinstance(mark, CountRestarted)]
            for begin, end in pairwise([0, *begins, len(own)]):
                _expect_each_moment(schedule_id, own[begin:end])

    # ----------------------------------------------------------------------------------------------
    # what it is asked

    def route(self, group: str) -> Route | None:
        return Route("shop.example", 4) if group == "asked" else None

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        await asyncio.sleep(0.2)
        if self.producers_say == "unreachable":
            return Failed(Failure.UNREACHABLE, "refused", blames_host=True)
        return Answered(TxnEvent(self.producers_say))

    async def disable(self, group: str, host: str) -> None:
        raise AssertionError("nobody asked for it")

    def note_delivered(self, late_ms: object) -> None:
        for ms in late_ms:  # type: ignore[attr-defined]
            assert ms >= 0, f"delivered {-ms} ms early"
            self.most_late_ms = max(self.most_late_ms, ms)
            self.delivered += 1


def _expect_each_moment(schedule_id: str, marks: list[AnyCronMark]) -> None:
    """From the first to the last that fired, each has fired, now or ahead of its time, or was left
    out by a mark.
    """
    fired = {mark.settled_ms for mark in marks if isinstance(mark, Fired)}
    skipped = [mark for mark in marks if isinstance(mark, Skipped)]
    ahead = {
        moment_ms
        for mark in marks
        if isinstance(mark, CountRestarted)
        for moment_ms in mark.fired_ahead
    }
    for moment_ms in range(min(fired, default=0), max(fired, default=0), CRON_MS):
        is_left_out = moment_ms in ahead or any(
            mark.since_ms <= moment_ms <= mark.settled_ms for mark in skipped
        )
        assert (moment_ms in fired) != is_left_out, f"{schedule_id} at {moment_ms}: {is_left_out=}"


class Service:
    """One life of it: the real parts and their tickers, as the service has them."""

    def __init__(self, world: World, day: Day) -> None:
        self.randomness = world.randomness
        self.clock = world.clock
        self._day = day

    @classmethod
    async def started(cls, world: World, day: Day) -> "Service":
        self = cls(world, day)
        self.store = store = await world.open_store(OPTIONS)
        for queue in (ORDERS, REPORTS):
            await store.create_topic(queue.topic, queue_count=1)
        clock, options = world.clock, ScheduleOptions()
        self.schedules = ScheduleService(store, clock, options, on_delivered=day.note_delivered)
        self.coordinator = TransactionCoordinator(
            store,
            clock,
            world.identifiers,
            TransactionOptions(decided_kept=20, dedup_window_ms=WINDOW_MS),
            delay=scheduled_message.delay,
        )
        self.cron = CronService(
            store,
            day.registry,
            clock,
            options,
            build=_occurrence,
        )
        sender = CheckSender(self.coordinator, day, clock, random=world.randomness.random)
        await self.schedules.start()
        await self.coordinator.start()
        self.started_ms = clock.wall_ms()
        await self.cron.start()

        async def deliver() -> None:
            await self.schedules.run_once(clock.wall_ms())

        async def sweep() -> None:
            await self.coordinator.run_once(clock.wall_ms())

        async def fire() -> None:
            await self.cron.run_once(clock.wall_ms())

        loops: dict[str, tuple[Callable[[], Awaitable[object]], int]] = {
            "schedules": (deliver, SWEEP_MS),
            "checkback": (sweep, SWEEP_MS),
            "cron": (fire, SWEEP_MS),
            "webhooks": (sender.run_once, SWEEP_MS),
            "cron_snapshots": (self.cron.save_snapshot, SNAPSHOT_MS),
            "snapshots": (self.coordinator.save_snapshot, SNAPSHOT_MS),
        }
        chance = Random(0).random
        self.tickers = [
            Ticker(name, run_once, interval_ms=interval_ms, clock=clock, random=chance)
            for name, (run_once, interval_ms) in loops.items()
        ]
        for ticker in self.tickers:
            ticker.start()
        return self

    async def make_cron(self, catch_up: CatchUp) -> None:
        now_ms = self.clock.wall_ms()
        schedule = CronSchedule(
            schedule_id=f"cron-{catch_up}",
            cron="*/6 * * * *",
            time_zone="UTC",
            topic="reports",
            message=b"{}",
            catch_up=catch_up,
            created_at_ms=now_ms,
            counts_from_ms=now_ms,
        )
        if schedule.schedule_id not in self._day.registry.kept:
            await self.cron.create(schedule, key_window_ms=WINDOW_MS)


async def _occurrence(schedule: CronSchedule, moment_ms: int) -> Message:
    return _message(f"{schedule.schedule_id}@{moment_ms}", REPORTS)


def _message(name: str, queue: QueueId = ORDERS) -> Message:
    return Message(queue=queue, message_id=name, body=name.encode(), born_at_ms=0)
