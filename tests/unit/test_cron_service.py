"""Cron schedules over a store: every occurrence once, whatever is killed when; what cannot be sent
keeps nobody else.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from scheduler import cron_schedule
from scheduler.cron_schedule import (
    CRON_QUEUE,
    CatchUp,
    CountRestarted,
    CronParked,
    CronSchedule,
    CronState,
    Fired,
    Skipped,
)
from scheduler.cron_service import CronService
from scheduler.options import ScheduleOptions
from storage.errors import (
    AlreadyCancelled,
    Backpressure,
    IdempotencyKeyReused,
    InvalidMessage,
    LimitReached,
    RegistryUnavailable,
    StorageFull,
    UnknownSchedule,
)
from storage.files.simulated import SimulatedDisk
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId
from storage.store import MessageStore, Snapshot
from tests.support.lives import one_life, run_lives
from tests.support.simulation import World

ORDERS = QueueId("orders", 0)
EVERYTHING = {"max_messages": 5_000, "max_bytes": 1 << 30}
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 20, prepare_ahead_bytes=65_536, index_slots=64, index_file_entries=2_000
)
MINUTE = 60_000
BEGIN_MS = 1_800_000_000_000
assert BEGIN_MS % MINUTE == 0


class Registry:
    """A registry in memory; it outlives the process, as the real one does."""

    def __init__(self) -> None:
        self.kept: dict[str, CronSchedule] = {}
        self.is_away = False
        self.hangs_s = 0  # until it says so

    async def load(self) -> list[CronSchedule]:
        return list(self.kept.values())

    async def add(self, schedule: CronSchedule) -> None:
        self.kept[schedule.schedule_id] = schedule

    async def change(self, schedule: CronSchedule) -> None:
        if self.is_away:
            await asyncio.sleep(self.hangs_s)
            raise RegistryUnavailable
        self.kept[schedule.schedule_id] = schedule

    async def forget(self, schedule_ids: Sequence[str]) -> None:
        for schedule_id in schedule_ids:
            del self.kept[schedule_id]


class House:
    """A store with a cron service, in a simulated world."""

    def __init__(
        self, world: World, store: MessageStore, registry: Registry, **options: int
    ) -> None:
        self.world = world
        self.store = store
        self.registry = registry
        self.events: list[tuple[str, int]] = []
        self.is_busy = False  # what checks the messages for one of the topics
        self.service = CronService(
            store,
            registry,
            world.clock,
            ScheduleOptions(**options),
            build=self.build,
            on_settled=lambda event, late_ms: self.events.append((event, late_ms)),
        )

    @property
    def now_ms(self) -> int:
        return self.world.clock.wall_ms()

    async def build(self, schedule: CronSchedule, moment_ms: int) -> Message:
        if schedule.topic == "refused":
            raise InvalidMessage("too large by now")
        if schedule.topic == "busy" and self.is_busy:
            raise Backpressure("many documents wait to be checked")
        if schedule.topic == "broken":
            raise ZeroDivisionError("a mistake of ours")
        body = f"{schedule.schedule_id} {(moment_ms - BEGIN_MS) // 1_000}".encode()
        return Message(
            queue=QueueId(schedule.topic, 0),
            message_id=self.world.identifiers.new("msg"),
            body=body,
            born_at_ms=0,
        )

    async def make(self, name: str, cron: str = "* * * * *", **said: object) -> str:
        given = {
            "time_zone": "UTC",
            "topic": "orders",
            "message": b"{}",
            "catch_up": CatchUp.SKIP,
            **said,
        }
        schedule = CronSchedule(
            schedule_id=name, cron=cron, created_at_ms=self.now_ms, counts_from_ms=self.now_ms,
            **given
        )  # fmt: skip
        item, _ = await self.service.create(schedule, key_window_ms=MINUTE)
        return item.schedule_id

    async def run(self, wait_ms: int = 0) -> list[str]:
        """What is in the topic after a sweep, so much later."""
        await asyncio.sleep(wait_ms / 1000)
        await self.service.run_once(self.now_ms)
        return await self.bodies()

    async def bodies(self) -> list[str]:
        return [found.body.decode() for found in await self.store.read(ORDERS, 0, **EVERYTHING)]

    async def marks(self) -> list[cron_schedule.AnyCronMark]:
        return [
            cron_schedule.read_mark(found)
            for found in await self.store.read(CRON_QUEUE, 0, **EVERYTHING)
        ]


def in_house(
    *lives,
    down_ms: int = 1,
    disk: SimulatedDisk | None = None,
    registry: Registry | None = None,
    **options: int,
):
    """Each life on the disk that the one before it left when it was killed, and with the same
    registry.
    """
    registry = registry or Registry()

    async def enter(world: World) -> House:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        house = House(world, store, registry, **options)
        await house.service.start()
        return house

    run_lives(lives, enter, disk=disk, begin_ms=BEGIN_MS, down_ms=down_ms)


with_house = one_life(in_house)


# --------------------------------------------------------------------------------------------------
# firing


@with_house()
async def test_a_schedule_fires_at_each_of_its_times_and_not_before(house):
    await house.make("a")
    assert await house.run(59_990) == []

    assert await house.run(10) == ["a 60"]
    assert await house.run(1_000) == ["a 60"]
    assert await house.run(60_000) == ["a 60", "a 120"]


@with_house()
async def test_a_firing_and_its_mark_are_one_append(house):
    await house.make("a")
    await house.run(MINUTE)

    (sent,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    (mark,) = await house.store.read(CRON_QUEUE, 0, **EVERYTHING)
    fired = Fired(schedule_id="a", settled_ms=BEGIN_MS + MINUTE, message_id=sent.message_id)
    assert cron_schedule.read_mark(mark) == fired
    assert (sent.stored_at_ms, sent.log_offset < mark.log_offset) == (mark.stored_at_ms, True)
    ((found, at_ms),) = await house.service.recent("a", count=10)
    assert (found, at_ms) == (fired, mark.stored_at_ms)
    ((event, late_ms),) = house.events
    assert event == "fired"
    assert 0 <= late_ms <= house.now_ms - BEGIN_MS - MINUTE


@with_house()
async def test_many_that_are_due_together_are_appended_together_and_each_fires_once(house):
    for number in range(450):
        await house.make(f"{number:03}")

    assert sorted(await house.run(MINUTE)) == [f"{number:03} 60" for number in range(450)]
    stored = {one.stored_at_ms for one in await house.store.read(CRON_QUEUE, 0, **EVERYTHING)}
    assert len(stored) <= 3


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (CatchUp.SKIP, ["a 600"]),
        (CatchUp.ONCE, ["a 600"]),
        (CatchUp.ALL, [f"a {minute * 60}" for minute in range(1, 11)]),
    ],
)
def test_what_was_missed_while_nobody_ran_is_made_up_for_as_said(catch_up, expected):
    async def before(house):
        await house.make("a", catch_up=catch_up)

    async def after(house):
        assert await house.run() == expected

    in_house(before, after, down_ms=10 * MINUTE + 1_000)


def test_what_is_left_out_is_noted_and_not_asked_for_again():
    async def before(house):
        await house.make("a", "0 */3 * * *", catch_up=CatchUp.SKIP)

    async def after(house):
        assert await house.run() == []
        (skipped,) = await house.marks()
        assert isinstance(skipped, Skipped)
        assert skipped.since_ms < skipped.settled_ms < house.now_ms
        assert (house.service.get("a").next_ms or 0) > house.now_ms

    async def once_more(house):
        assert await house.run() == []
        assert len(await house.marks()) == 1

    in_house(before, after, once_more, down_ms=100 * MINUTE)


@with_house()
async def test_a_clock_that_is_turned_back_fires_nothing_twice(house):
    await house.make("a")
    await house.run(MINUTE)
    house.world.clock._wall_ms -= 30_000

    assert await house.run() == ["a 60"]
    assert await house.run(60_000) == ["a 60"]
    assert await house.run(30_000) == ["a 60", "a 120"]


HOUR, DAY = 60 * MINUTE, 1_440 * MINUTE


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_clock_that_was_a_year_ahead_for_a_moment_silences_no_schedule_and_nothing_fires_twice(
    catch_up,
):
    async def life(house):
        await house.make("a", catch_up=catch_up)
        await house.run(MINUTE)
        house.world.clock.jump(365 * DAY)
        ahead = await house.run()
        house.world.clock.jump(-365 * DAY)

        assert await house.run() == ahead
        assert await house.run(MINUTE) == [*ahead, "a 120"]
        assert isinstance((await house.service.recent("a", count=2))[1].mark, CountRestarted)

    async def after(house):
        before = await house.run()
        found = await house.run(MINUTE)
        assert len(found) == len(before) + 1
        assert found[-1] == "a 180"
        house.world.clock.jump(365 * DAY - 10 * MINUTE)
        for _ in range(20):
            found = await house.run(MINUTE)
        assert len(found) == len(set(found))

    in_house(life, after)


@pytest.mark.parametrize("keeps_snapshot", [False, True])
def test_what_was_fired_ahead_of_a_clock_that_was_then_set_back_is_known_after_a_restart(
    keeps_snapshot,
):
    async def life(house):
        await house.make("a", "0 * * * *")
        for _ in range(3):
            await house.run(HOUR)
        house.world.clock.jump(-30 * HOUR)
        await house.run()
        if keeps_snapshot:
            assert await house.service.save_snapshot()
            await house.store.aclose()

    async def after(house):
        begun = len(await house.bodies())
        for _ in range(32):
            found = await house.run(HOUR)
        assert len(found) == len(set(found)) == begun + 29, "three of the 32 had been fired"

    in_house(life, after)


def test_one_that_was_made_by_a_clock_far_ahead_counts_from_when_that_was_set_right():
    async def life(house):
        house.world.clock.jump(365 * DAY)
        await house.make("a")
        await house.run()
        house.world.clock.jump(-365 * DAY)
        await house.run()

    async def after(house):
        assert await house.run(MINUTE) == ["a 60"]

    in_house(life, after)


@with_house()
async def test_one_that_cannot_be_set_right_without_the_registry_holds_up_no_other(house):
    await house.make("b")
    house.world.clock.jump(365 * DAY)
    await house.make("a")
    house.world.clock.jump(-365 * DAY)
    house.registry.is_away = True

    assert await house.run(MINUTE) == ["b 60"]
    assert await house.run(MINUTE) == ["b 60", "b 120"]
    house.registry.is_away = False
    assert await house.run(MINUTE) == ["b 60", "b 120", "b 180"]

    assert sorted((await house.run(MINUTE))[3:]) == ["a 240", "b 240"]


@with_house()
async def test_a_registry_that_hangs_delays_no_schedule_for_one_that_is_to_be_set_right(house):
    for name in ("b", "c"):
        await house.make(name, "* * * * * *")
    house.world.clock.jump(365 * DAY)
    await house.make("a")
    house.world.clock.jump(-365 * DAY)
    house.registry.is_away, house.registry.hangs_s = True, 5

    sweep = asyncio.create_task(house.run(1_000))
    await asyncio.sleep(2)
    assert sorted(await house.bodies()) == ["b 1", "c 1"]
    await sweep
    await house.run(1_000)
    begun_ms = house.now_ms
    await house.run(1_000)

    assert house.now_ms - begun_ms < 2_000, "it is not asked again at each sweep"


def test_a_clock_that_was_some_hours_ahead_is_waited_for_unless_the_times_are_given_anew():
    def paused(is_paused: bool):
        return lambda old: msgspec.structs.replace(old, paused=is_paused)

    async def life(house):
        await house.make("left")
        await house.make("changed")
        await house.make("paused")
        house.world.clock.jump(5 * HOUR)
        await house.run(MINUTE)
        house.world.clock.jump(-5 * HOUR)
        fired = await house.run()
        await house.service.change(
            "changed", lambda old: msgspec.structs.replace(old, cron="*/2 * * * *")
        )
        await house.service.change("paused", paused(True))
        await house.service.change("paused", paused(False))

        assert await house.run(MINUTE) == [*fired, "changed 120", "paused 120"]

    async def after(house):
        fired = await house.bodies()
        found = await house.run(2 * MINUTE)
        assert sorted(found[len(fired) :]) == ["changed 240", "paused 240"]
        for _ in range(310):
            found = await house.run(MINUTE)
        assert len(found) == len(set(found))
        assert f"left {(house.now_ms - BEGIN_MS) // MINUTE * 60}" in found

    in_house(life, after)


# --------------------------------------------------------------------------------------------------
# kills and cuts


@pytest.mark.parametrize("keeps_snapshots", [False, True])
def test_killed_at_any_time_each_occurrence_fires_once(keeps_snapshots):
    async def first(house):
        await house.make("a", "*/5 * * * * *", catch_up=CatchUp.ALL)
        await house.make("b", "*/7 * * * * *", catch_up=CatchUp.ALL)

    async def live(house):
        await house.run(6_500)
        if keeps_snapshots:
            await house.service.save_snapshot()
        sweep = asyncio.ensure_future(house.run(5_500))
        # and killed in the middle of it
        await asyncio.wait({sweep}, timeout=5.5 + len(await house.bodies()) % 7 * 0.0007)

    async def last(house):
        found = await house.run(5_000)
        seconds = (house.now_ms - BEGIN_MS) // 1_000
        expected = [f"a {at}" for at in range(5, seconds + 1, 5)]
        # "b" begins anew with every minute.
        expected += [f"b {at}" for at in range(1, seconds + 1) if at % 60 % 7 == 0]
        assert sorted(found) == sorted(expected)

    in_house(first, *[live] * 12, last, down_ms=3_000)


def test_a_power_cut_at_any_operation_leaves_the_message_and_its_mark_or_neither():
    """Then the start after it fires what is due: once in all."""

    async def life(world: World, registry: Registry, *, begins: bool) -> list[str]:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        house = House(world, store, registry)
        await house.service.start()
        if begins:
            await house.make("a")
            await asyncio.sleep(MINUTE / 1_000)
        await house.run()
        await house.service.save_snapshot()
        return await house.run()

    registry = Registry()
    with World(SimulatedDisk(), 0, wall_ms=BEGIN_MS) as world:
        assert world.call(life(world, registry, begins=True)) == ["a 60"]
        operations = world.disk.operations
    for cut_after in range(1, operations, 2):
        disk, registry = SimulatedDisk(), Registry()
        disk.cut_after = cut_after
        with World(disk, cut_after, wall_ms=BEGIN_MS) as world:
            world.run(life(world, registry, begins=True))
        with World(
            world.disk.after_power_cut(world.randomness),
            cut_after,
            wall_ms=BEGIN_MS + MINUTE + 5_000,
        ) as world:
            found = world.call(life(world, registry, begins=False))
        assert found == (["a 60"] if registry.kept else []), cut_after


def test_where_marks_were_dropped_a_schedule_goes_on_from_now_rather_than_fire_twice():
    async def life(house):
        await house.make("a", catch_up=CatchUp.ALL)
        await house.run(MINUTE)

    class Dropped:
        """The store, after retention took the marks that there were."""

        def __init__(self, store: MessageStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def offsets(self, queue: QueueId):
            found = await self._store.offsets(queue)
            return found._replace(first=found.end)

        async def load_snapshot(self, name: str) -> Snapshot | None:
            return None

    async def after(house):
        service = CronService(
            Dropped(house.store), house.registry, house.world.clock, ScheduleOptions(),
            build=house.build
        )  # fmt: skip
        await service.start()
        await service.run_once(house.now_ms)
        assert await house.bodies() == ["a 60"]
        assert service.get("a").next_ms == BEGIN_MS + 6 * MINUTE

    in_house(life, after, down_ms=4 * MINUTE)


def test_after_a_mark_that_nobody_can_read_a_schedule_goes_on_from_now_rather_than_fire_twice():
    async def before(house):
        await house.make("a", catch_up=CatchUp.ALL)
        await house.run(MINUTE)
        await house.store.append(
            [Message(queue=CRON_QUEUE, message_id="", body=b"{", born_at_ms=0, key="a")]
        )

    async def after(house):
        assert await house.run() == ["a 60"]
        assert house.service.get("a").next_ms == BEGIN_MS + 6 * MINUTE

    in_house(before, after, down_ms=4 * MINUTE)


# --------------------------------------------------------------------------------------------------
# what cannot be sent


@with_house()
async def test_an_occurrence_that_is_refused_is_set_aside_and_the_others_fire(house):
    await house.make("gone", topic="nobody-made-it")
    await house.make("good")
    await house.make("bad", topic="refused")

    assert await house.run(MINUTE) == ["good 60"]

    aside = {
        mark.schedule_id: mark.reason
        for mark in await house.marks()
        if isinstance(mark, CronParked)
    }
    assert aside["gone"] == "topic nobody-made-it does not exist"
    assert aside["bad"] == "too large by now"
    await house.store.create_topic("nobody-made-it", queue_count=1)
    assert await house.run(MINUTE) == ["good 60", "good 120"]
    (sent,) = await house.store.read(QueueId("nobody-made-it", 0), 0, **EVERYTHING)
    assert sent.body == b"gone 120"


@with_house()
async def test_an_occurrence_that_cannot_be_built_for_now_is_sent_later(house):
    await house.store.create_topic("busy", queue_count=1)
    await house.make("good")
    await house.make("late", topic="busy")
    house.is_busy = True
    assert await house.run(MINUTE) == ["good 60"]
    assert house.service.get("late").reason == "many documents wait to be checked"

    house.is_busy = False
    await house.run()

    (sent,) = await house.store.read(QueueId("busy", 0), 0, **EVERYTHING)
    assert sent.body == b"late 60"
    assert not [mark for mark in await house.marks() if isinstance(mark, CronParked)]


@with_house()
async def test_one_that_is_a_riddle_is_set_aside_with_the_reason_and_tried_again_after_a_while(
    house,
):
    await house.make("good")
    await house.make("riddle", topic="broken")

    assert await house.run(MINUTE) == ["good 60"]

    riddle = house.service.get("riddle")
    assert (riddle.state, riddle.reason) == (
        CronState.PARKED,
        "ZeroDivisionError: a mistake of ours",
    )
    assert house.service.table.parked_count == 1

    async def build(schedule: CronSchedule, _: int) -> Message:
        body = f"{schedule.schedule_id} again".encode()
        return Message(queue=ORDERS, message_id="", body=body, born_at_ms=0)

    house.service._build = build
    assert (await house.run(MINUTE))[1:] == ["good again", "riddle again"]


def test_one_whose_time_zone_is_gone_is_set_aside_at_the_start_and_the_others_fire():
    registry = Registry()

    async def before(house):
        await house.make("good")
        await house.make("lost")
        registry.kept["lost"] = msgspec.structs.replace(
            registry.kept["lost"], time_zone="Atlantis/City"
        )

    async def after(house):
        lost = house.service.get("lost")
        assert (lost.state, "Atlantis/City" in lost.reason) == (CronState.PARKED, True)
        assert await house.run(MINUTE) == ["good 60"]

        await house.service.change(
            "lost", lambda old: msgspec.structs.replace(old, time_zone="UTC")
        )
        assert "lost 120" in await house.run(MINUTE)

    in_house(before, after, registry=registry)


def test_while_the_store_takes_nothing_what_is_due_waits():
    async def life(house):
        await house.make("a", catch_up=CatchUp.ALL)
        append, house.store.append = house.store.append, _full

        with pytest.raises(StorageFull):
            await house.run(MINUTE)
        house.store.append = append

        assert await house.run(5_000) == ["a 60"]

    async def _full(*_, **__):
        raise StorageFull

    in_house(life)


# --------------------------------------------------------------------------------------------------
# changes


@with_house()
async def test_paused_it_fires_nothing_and_what_was_due_meanwhile_was_not_missed(house):
    await house.make("a", catch_up=CatchUp.ALL)
    paused = await house.service.change("a", lambda old: msgspec.structs.replace(old, paused=True))
    assert (paused.state, paused.next_ms) == (CronState.PAUSED, None)
    assert await house.run(5 * MINUTE) == []

    await house.service.change("a", lambda old: msgspec.structs.replace(old, paused=False))

    assert await house.run(MINUTE) == ["a 360"]


@with_house()
async def test_new_times_count_from_when_they_were_given(house):
    await house.make("a", "0 0 * * *", catch_up=CatchUp.ALL)
    await asyncio.sleep(600)
    changed = await house.service.change(
        "a", lambda old: msgspec.structs.replace(old, cron="*/2 * * * *")
    )

    assert (changed.schedule.revision, changed.next_ms) == (2, BEGIN_MS + 12 * MINUTE)
    assert await house.run(2 * MINUTE) == ["a 720"]


def test_cancelled_it_fires_no_more_and_cannot_be_changed_even_after_a_restart():
    async def before(house):
        await house.make("a")
        cancelled = await house.service.cancel("a", check=lambda schedule: None)
        assert cancelled.state is CronState.CANCELLED

    async def after(house):
        assert await house.run(5 * MINUTE) == []
        again = await house.service.cancel("a", check=lambda schedule: None)
        assert (again.state, again.schedule.revision) == (CronState.CANCELLED, 2)
        with pytest.raises(AlreadyCancelled):
            await house.service.change("a", lambda old: msgspec.structs.replace(old, paused=True))
        with pytest.raises(UnknownSchedule):
            house.service.get("nobody")

    in_house(before, after)


@with_house()
async def test_of_those_that_were_cancelled_the_last_thousand_are_kept(house):
    for number in range(1_003):
        await house.make(f"{number:04}")
        await house.service.cancel(f"{number:04}", check=lambda schedule: None)
        await asyncio.sleep(0.001)

    assert len(house.service.table) == len(house.registry.kept) == 1_000
    assert "0002" not in house.registry.kept
    assert "0003" in house.registry.kept


def test_made_again_with_its_idempotency_key_it_is_the_same_one_within_the_window():
    async def before(house):
        assert await house.make("a", idempotency_key="k", fingerprint="f") == "a"
        assert await house.make("b", idempotency_key="k", fingerprint="f") == "a"

    async def after(house):
        assert await house.make("c", idempotency_key="k", fingerprint="f") == "a"
        with pytest.raises(IdempotencyKeyReused):
            await house.make("d", idempotency_key="k", fingerprint="another")
        await asyncio.sleep(61)
        assert await house.make("e", idempotency_key="k", fingerprint="another") == "e"
        assert sorted(house.registry.kept) == ["a", "e"]

    in_house(before, after)


@with_house(max_cron=2)
async def test_too_many_are_refused_and_a_cancelled_one_makes_room(house):
    await house.make("a")
    await house.make("b")
    with pytest.raises(LimitReached):
        await house.make("c")

    await house.service.cancel("a", check=lambda schedule: None)

    await house.make("c")
