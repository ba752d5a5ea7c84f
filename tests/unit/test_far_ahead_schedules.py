"""Messages that wait for long: on disk and not in memory, yet found, listed, moved, cancelled and
delivered as any other.
"""

import asyncio

import pytest

from scheduler import scheduled_message as scheduled
from scheduler.schedule import ScheduleState
from storage.errors import AlreadyDelivered
from storage.files.simulated import SimulatedDisk
from storage.formats import timer_file
from storage.message import QueueId
from tests.support.builders import message
from tests.support.schedules import ORDERS, House, in_house, with_house
from tests.support.simulation import ROOT

DAY_MS = 86_400_000
TIMERS = ROOT / "timers"


async def put_off_many(
    house: House, count: int, *, first_ms: int = DAY_MS, step_ms: int = 1_000
) -> None:
    """Named by their place in the order of their times; sent in another order."""
    for number in sorted(range(count), key=lambda number: number * 7 % 13):
        await house.put_off(f"{number:04}", due_ms=house.now_ms + first_ms + number * step_ms)


async def until_kept(house: House) -> None:
    """What is derived is on disk."""
    await house.service.follow()
    await house.store.append([message(b"other", queue=QueueId("orders", 0), message_id="other")])
    await asyncio.sleep(30)


def test_what_is_far_ahead_is_on_disk_and_not_in_memory_and_comes_at_its_time():
    async def sends(house):
        await put_off_many(house, 400)
        await until_kept(house)
        assert len(house.service._log.window) == 0
        assert house.service.counts.waiting == 400
        assert house.store._due_index.is_large is False
        assert len(house.store._due_index._changes) == 0

    async def a_day_later(house):
        assert len(house.service._log.window) == 0
        found = await house.deliver()
        for _ in range(9):
            found = await house.deliver(40_000)
            assert len(house.service._log.window) <= 40
        _, *delivered = found
        assert delivered == [f"{number:04}" for number in range(len(delivered))]
        assert 250 < len(delivered) < 400

    in_house(
        sends,
        a_day_later,
        down_ms=DAY_MS - 60_000,
        near_ms=30_000,
        near_kept=40,
        catch_up_after_ms=1 << 50,
    )


def test_what_is_far_ahead_is_listed_looked_at_moved_and_cancelled():
    async def sends(house):
        await put_off_many(house, 50)
        await until_kept(house)

    async def later(house):
        await house.service.cancel("sch_0010")
        await house.service.move("sch_0011", house.now_ms + 500)
        await house.service.move("sch_0012", house.now_ms + 5 * DAY_MS)
        assert await house.deliver(1_000) == ["other", "0011"]

    async def after_another_kill(house):
        names = [f"{number:04}" for number in range(50) if number not in (10, 11, 12)]
        waits = await house.listed(ScheduleState.SCHEDULED, page_size=7)
        assert [one.message_id for one in waits] == [*names, "0012"]
        assert [await house.state(f"sch_{name}") for name in ("0010", "0011", "0012")] == [
            ScheduleState.CANCELLED,
            ScheduleState.DELIVERED,
            ScheduleState.SCHEDULED,
        ]
        assert [one.message_id for one in await house.listed(ScheduleState.CANCELLED)] == ["0010"]
        assert [one.message_id for one in await house.listed(ScheduleState.DELIVERED)] == ["0011"]

    in_house(sends, later, after_another_kill)


def test_one_that_is_over_is_known_as_long_as_the_log_has_it_however_many_came_after_it():
    async def sends(house):
        await put_off_many(house, 30, first_ms=100, step_ms=1)
        await house.service.cancel("sch_0000")
        await house.deliver(200)

    async def later(house):
        assert len(await house.listed(ScheduleState.DELIVERED, ScheduleState.CANCELLED)) == 3
        assert await house.state("sch_0000") is ScheduleState.CANCELLED
        assert await house.state("sch_0001") is ScheduleState.DELIVERED
        with pytest.raises(AlreadyDelivered):
            await house.service.cancel("sch_0001")

    in_house(sends, later, finished_kept=3)


def test_when_something_is_due_next_is_known_however_far_ahead_it_is():
    async def life(house):
        assert house.service.next_due_ms() is None
        due_ms = await house.put_off("far", delay_ms=300 * DAY_MS)
        await house.service.run_once(house.now_ms)

        assert house.service.next_due_ms() == due_ms
        near_ms = await house.put_off("near", delay_ms=70_000)
        await house.service.run_once(house.now_ms)
        assert house.service.next_due_ms() == near_ms

    async def after_a_kill(house):
        await house.service.run_once(house.now_ms)

        assert 0 < house.service.next_due_ms() - house.now_ms <= 70_000

    in_house(life, after_a_kill)


@with_house()
async def test_messages_that_wait_under_one_id_are_told_apart_by_their_places(house):
    """A retry is a copy with the id of its message; several groups may each have one of it."""
    given = message(b"x", queue=ORDERS, message_id="msg_a")
    retry = scheduled.with_delay(
        message(b"x", queue=QueueId("%RETRY%shop", 0), message_id="msg_a"), delay_ms=77, again=True
    )
    await house.store.create_topic("%RETRY%shop", queue_count=1)
    await house.store.append(
        [scheduled.delay(scheduled.with_delay(given, delay_ms=77), house.now_ms)]
    )
    for _ in range(9):
        await house.store.append([scheduled.delay(retry, house.now_ms)])

    assert (await house.service.get("sch_a")).topic == "orders"
    assert (await house.service.get("sch_T0-3")).topic == "%RETRY%shop"
    assert [one.schedule_id for one in await house.listed(ScheduleState.SCHEDULED)] == ["sch_a"]
    await house.service.cancel("sch_T0-3")
    await house.deliver(200)
    assert len(await house.bodies(QueueId("%RETRY%shop", 0))) == 8
    assert await house.state("sch_a") is ScheduleState.DELIVERED


@pytest.mark.parametrize("spoil", ["a byte", "a file", "the list"])
def test_timer_files_that_are_damaged_or_gone_are_made_anew_from_the_log(spoil):
    def spoiled(disk: SimulatedDisk) -> None:
        name = disk.list_directory(TIMERS)[-1]
        if spoil == "the list":
            disk.remove(ROOT / "snapshots" / "timers")
        elif spoil == "a file":
            disk.remove(TIMERS / name)
        else:
            file = disk.open(TIMERS / name)
            file.write(timer_file.BLOCK_BYTES + 100, b"?")

    async def sends(house):
        await put_off_many(house, 400)
        await house.service.cancel("sch_0399")
        await until_kept(house)
        spoiled(house.world.disk)

    async def later(house):
        waits = await house.listed(ScheduleState.SCHEDULED)

        assert [one.message_id for one in waits] == [f"{number:04}" for number in range(399)]
        assert house.service.counts.waiting == 399
        await until_kept(house)

    async def after_another_kill(house):
        assert len(await house.listed(ScheduleState.SCHEDULED)) == 399
        await house.deliver(DAY_MS)
        for _ in range(5):
            found = await house.deliver(100_000)
        assert sorted(name for name in found if name != "other") == [
            f"{number:04}" for number in range(399)
        ]

    in_house(sends, later, after_another_kill)


def test_a_start_reads_what_is_near_and_what_came_last_and_nothing_else():
    async def sends(house):
        await put_off_many(house, 300)
        await until_kept(house)
        await house.put_off("last", delay_ms=DAY_MS)

    async def starts(house):
        assert house.replayed <= 2
        assert house.service.counts.waiting == 301

    in_house(sends, starts)
