"""Delayed messages outlive the retention of the segments they wait in: delivered once, at their
time, across kills.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scheduler import scheduled_message as scheduled
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_service import ScheduleService
from storage.errors import AlreadyDelivered, InvalidMessage, MessageTooLarge
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import ROOT, SlowSync, World

ORDERS, FILLING = QueueId("orders", 0), QueueId("filling", 0)
EVERYTHING = {"max_messages": 10_000, "max_bytes": 1 << 30}
MINUTE_MS = 60_000
LEVEL_MS = 10 * MINUTE_MS  # one of the 18
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    prepare_ahead_bytes=8_192,
    queue_file_entries=10,
    index_slots=16,
    index_file_entries=40,
    queue_flush_interval_ms=100,
    snapshot_interval_ms=200,
    retention_ms=60_000,
    delete_hours=";".join(map(str, range(24))),
)


class House:
    def __init__(self, world: World, store: LocalMessageStore, service: ScheduleService) -> None:
        self.world = world
        self.store = store
        self.service = service

    async def put_off(self, name: str, delay_ms: int, queue: QueueId = ORDERS) -> int:
        """When it is due."""
        given = message(
            name.encode(), queue=queue, message_id=name, key="key", tag="tag", properties={"a": "b"}
        )
        delayed = scheduled.delay(
            scheduled.with_delay(given, delay_ms=delay_ms), self.world.clock.wall_ms()
        )
        (place,) = await self.store.append([delayed])
        return scheduled.due_ms_at(delayed, place.stored_at_ms)

    async def expire_all(self) -> None:
        """Everything that waits now."""
        ends = {queue: (await self.store.offsets(queue)).end for queue in await self.delay_queues()}
        for _ in range(2):
            await asyncio.sleep(61)
            for _ in range(20):
                await self.store.append([message(b"x" * 1_000, queue=FILLING)])
            await asyncio.sleep(1)

        async def put_back(first_kept: object) -> None:
            await self.service.put_back(first_kept)  # type: ignore[arg-type]

        while await self.store.expire(self.world.clock.wall_ms(), put_back):
            pass
        for queue, end in ends.items():
            assert (await self.store.offsets(queue)).first >= end, (
                "the messages themselves are gone"
            )

    async def delay_queues(self) -> list[QueueId]:
        return [
            *await self.store.queues("SCHEDULE_TOPIC_XXXX"),
            *await self.store.queues("rmq_sys_wheel_timer"),
        ]

    async def delivered(self, at_ms: int) -> list[str]:
        """What is in the topic once it is that time."""
        await asyncio.sleep(max(0, at_ms - self.world.clock.wall_ms()) / 1000)
        await self.service.run_once(self.world.clock.wall_ms())
        first = (await self.store.offsets(ORDERS)).first
        return [found.body.decode() for found in await self.store.read(ORDERS, first, **EVERYTHING)]


Life = Callable[[House], Awaitable[None]]


def in_lives(
    *lives: Life, disk: SimulatedDisk | None = None, begin_ms: int = 1_800_000_000_000
) -> tuple[SimulatedDisk, int]:
    async def enter(world: World) -> House:
        store = await world.open_store(OPTIONS)
        for queue in (ORDERS, FILLING):
            await store.create_topic(queue.topic, queue_count=1)
        service = ScheduleService(store, world.clock, ScheduleOptions())
        await service.start()
        return House(world, store, service)

    return run_lives(lives, enter, disk=disk, begin_ms=begin_ms)


with_house = one_life(in_lives)


def without_derived(disk: SimulatedDisk) -> SimulatedDisk:
    for folder in ("snapshots", "index", "timers"):
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)
    return disk


@pytest.mark.parametrize("restart", ["none", "killed", "killed, tables lost"])
def test_a_delayed_message_outlives_its_segment_and_comes_once_at_its_time(restart):
    due: dict[str, int] = {}

    async def put_off(house):
        due["timer"] = await house.put_off("timer", 15 * MINUTE_MS)
        due["level"] = await house.put_off("level", LEVEL_MS)
        due["sooner"] = house.world.clock.wall_ms() + 8 * MINUTE_MS
        for name in ("sooner", "cancelled", "gone before"):
            await house.put_off(name, 20 * MINUTE_MS if name != "gone before" else 5)
        await house.put_off("nowhere", 5, QueueId("unknown", 0))
        await house.service.move("sch_sooner", due["sooner"])
        await house.service.cancel("sch_cancelled")
        await asyncio.sleep(0.1)
        assert await house.delivered(0) == ["gone before"]
        await house.expire_all()
        await house.expire_all()
        if restart == "none":
            await deliver(house)

    async def deliver(house):
        nowhere = await house.service.get("sch_nowhere")
        assert nowhere.state is ScheduleState.PARKED
        assert "unknown" in nowhere.reason
        assert house.service.counts == (3, 1)
        for name in sorted(due, key=due.__getitem__):
            assert (await house.service.get(f"sch_{name}")).due_ms == due[name]
            assert name not in await house.delivered(due[name] - 1)
            assert (await house.delivered(due[name]))[-1] == name
        assert (await house.delivered(due["timer"] + MINUTE_MS))[-3:] == [
            "sooner",
            "level",
            "timer",
        ]

    disk, wall_ms = in_lives(put_off)
    if restart != "none":
        in_lives(
            deliver, disk=disk if restart == "killed" else without_derived(disk), begin_ms=wall_ms
        )


@with_house()
async def test_what_was_put_back_is_delivered_as_it_was_given(house):
    await house.put_off("plain", 10)
    await asyncio.sleep(0.1)
    await house.service.run_once(house.world.clock.wall_ms())
    (plain,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    due_ms = await house.put_off("late", 7 * MINUTE_MS)
    await house.expire_all()
    await house.delivered(due_ms)
    (late,) = await house.store.read(ORDERS, 1, **EVERYTHING)

    assert (late.key, late.tag, late.properties) == (plain.key, plain.tag, plain.properties)
    assert late.system.keys() == plain.system.keys()


def test_a_schedule_that_is_changed_while_it_is_put_back_is_changed():
    async def life(house):
        due_ms = await house.put_off("kept", 7 * MINUTE_MS)
        for name in ("moved", "cancelled"):
            await house.put_off(name, 7 * MINUTE_MS)
        border = {
            queue: (await house.store.offsets(queue)).end for queue in await house.delay_queues()
        }

        changes = [
            house.service.move("sch_moved", due_ms - MINUTE_MS),
            house.service.put_back(border),
        ]
        await asyncio.gather(*changes, house.service.cancel("sch_cancelled"))

    async def after(house):
        assert (await house.service.get("sch_cancelled")).state is ScheduleState.CANCELLED
        first, last = (
            (await house.service.get("sch_moved")).due_ms,
            (await house.service.get("sch_kept")).due_ms,
        )
        assert last - first >= MINUTE_MS - 10
        assert await house.delivered(first) == ["moved"]
        assert await house.delivered(last) == ["moved", "kept"]

    disk, wall_ms = in_lives(life)
    in_lives(after, disk=without_derived(disk), begin_ms=wall_ms)


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidMessage("the properties take 32,800 bytes"),
        MessageTooLarge("it takes more than a segment", limit_bytes=1 << 20),
    ],
)
def test_a_message_that_has_no_room_for_more_holds_up_no_drop(refusal):
    """A broker's properties may have all but a few of the 32,767 bytes, a message may take nearly
    all of a small segment.
    """

    async def put_off(house):
        await house.put_off("first", 20 * MINUTE_MS)
        due = await house.put_off("second", 20 * MINUTE_MS)
        append = house.store.append

        async def with_little_room(messages, **more):
            if any(scheduled.SO_FAR in one.system and one.body == b"first" for one in messages):
                raise refusal
            return await append(messages, **more)

        house.store.append = with_little_room
        await house.expire_all()

        assert await house.delivered(due) == ["second"]

    in_lives(put_off)


@with_house()
async def test_a_change_of_a_delivered_schedule_ends_while_another_one_is_put_back(house):
    disk = SlowSync(house.world)
    await house.put_off("B", LEVEL_MS)
    await house.put_off("A", 5_500)
    await house.service.run_once(house.world.clock.wall_ms())
    levels = await house.store.queues("SCHEDULE_TOPIC_XXXX")
    (level,) = [queue for queue in levels if (await house.store.offsets(queue)).end]
    await asyncio.sleep(6)
    disk.is_stuck = True
    delivering = asyncio.ensure_future(house.service.run_once(house.world.clock.wall_ms()))
    await asyncio.sleep(0.1)
    cancelling = asyncio.ensure_future(house.service.cancel("sch_A"))
    putting_back = asyncio.ensure_future(house.service.put_back({level: 1}))
    await asyncio.sleep(0.4)
    disk.release()
    await delivering
    assert await putting_back == 1
    async with asyncio.timeout(60):
        with pytest.raises(AlreadyDelivered):
            await cancelling
        await house.service.drain()
