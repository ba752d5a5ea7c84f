"""The timer files that a broker gets: it delivers exactly what waits, once, at its time by now."""

import asyncio
from itertools import count, islice
from random import Random

import numpy as np
import pytest

from scheduler.hand_over import HandedOver
from scheduler.schedule import ScheduleState
from scheduler.scheduled_message import TIMER_QUEUE, timer_slot_ms
from storage.files import durable
from storage.formats import delay_progress, properties, timer_log
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.timer_log import Waits
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import TimerWait, WaitingTimers
from tests.support import broker_wheel
from tests.support.broker_wheel import Delivery, Record
from tests.support.schedules import EVERYTHING, House, in_house, with_house
from tests.support.simulation import ROOT

LEVEL_1 = QueueId(SCHEDULE_TOPIC, 0)
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 20,
    prepare_ahead_bytes=65_536,
    index_slots=64,
    index_file_entries=2_000,
    timer_log_file_bytes=4_096,
)
DAY_MS = 86_400_000
CHECK = ROOT / "config" / "timercheck"
WHEEL = ROOT / "timerwheel"
LOG = ROOT / "timerlog"


def record_bytes(house: House, log_offset: int) -> int:
    base, at = log_offset >> 20 << 20, log_offset % (1 << 20)
    file = house.world.disk.open(ROOT / "commitlog" / f"{base:020}")
    return int.from_bytes(file.read(at, 4), "big")


async def records_of(house: House, queue: QueueId = TIMER_QUEUE) -> list[Record]:
    found = await house.store.read(queue, 0, **EVERYTHING)
    return [
        Record(
            message.body.decode(),
            message.log_offset,
            record_bytes(house, message.log_offset),
            int(message.system.get(properties.TIMER_OUT_MS, 0)),
        )
        for message in found
    ]


async def give_to_broker(house: House, now_ms: int | None = None) -> list[Delivery]:
    """What a broker will deliver from its wheel that opens the store now."""
    handed_over = await house.service.hand_over()
    queue = await records_of(house)
    await house.store.aclose()
    deliveries = started(house, queue, now_ms)
    assert len(deliveries) <= handed_over.waiting
    return deliveries


def started(house: House, queue: list[Record], now_ms: int | None = None) -> list[Delivery]:
    disk = house.world.disk
    files = {
        int(name): durable.read_whole(disk, LOG / name)
        for name in (disk.list_directory(LOG) if disk.exists(LOG) else [])
    }
    return broker_wheel.start(
        durable.read_whole(disk, CHECK),
        files,
        durable.read_whole(disk, WHEEL),
        queue,
        now_ms=now_ms or house.now_ms,
    )


def level_offsets(house: House) -> dict[int, int]:
    raw = durable.read_whole(house.world.disk, ROOT / "config" / "delayOffset.json")
    return delay_progress.decode_levels(raw).offsets


def slot(due_ms: int) -> int:
    return timer_slot_ms(due_ms)


# --------------------------------------------------------------------------------------------------
# the log's bytes


def test_a_unit_has_a_brokers_layout():
    rows = [(8_000, 0x1122, 333, 1), (9_000, 0x3344, 444, 5), (8_000, 0x5566, 555, 1)]
    (data,) = timer_log.encode(Waits(*np.array(rows).T), enqueued_ms=5_000, file_bytes=4_096)

    assert data.hex(" ", 4) == (
        "00000034 ffffffff ffffffff 00000001 00000000 00001388 00000bb8 00000000 00001122 0000014d "
        "00000000 00000000 00000000 "
        "00000034 ffffffff ffffffff 00000005 00000000 00001388 00000fa0 00000000 00003344 000001bc "
        "00000000 00000000 00000000 "
        "00000034 00000000 00000000 00000001 00000000 00001388 00000bb8 00000000 00005566 0000022b "
        "00000000 00000000 00000000"
    )


def test_a_full_file_ends_in_a_blank_and_the_next_one_goes_on():
    waits = Waits(*np.array([(1_000 * number, number, 100, 1) for number in range(100)]).T)

    first, second = timer_log.encode(waits, enqueued_ms=0, file_bytes=4_096)

    assert timer_log.units_in_file(4_096) == 78
    assert len(first) == 78 * 52 + 16
    assert (
        first[-16:].hex(" ", 4) == "00000028 00000000 00000000 " + f"{0xBBCCDDEE ^ 1880681594:08x}"
    )
    assert len(second) == 22 * 52


# --------------------------------------------------------------------------------------------------
# in a store


@with_house(options=OPTIONS)
async def test_a_broker_delivers_what_waits_once_at_its_time_by_now_and_nothing_else(house):
    now_ms = house.now_ms
    await house.put_off("delivered", due_ms=now_ms + 1_500)
    await house.put_off("waits", due_ms=now_ms + 60_000)
    await house.put_off("moved", due_ms=now_ms + 70_000)
    await house.put_off("cancelled", due_ms=now_ms + 80_000)
    await house.put_off("far", due_ms=now_ms + 30 * DAY_MS)
    await house.put_off("moved-far", due_ms=now_ms + 90_000)
    await house.put_off("overdue", due_ms=now_ms + 5_000)
    await house.put_off("early", due_ms=now_ms + 1_600)
    assert await house.deliver(2_000) == ["delivered", "early"]
    await house.service.move("sch_moved", now_ms + 3_600_500)
    await house.service.move("sch_moved-far", now_ms + 10 * DAY_MS)
    await house.service.cancel("sch_cancelled")
    house.world.clock.jump(10_000)

    deliveries = await give_to_broker(house)

    now_second = house.now_ms // 1000 * 1000
    assert deliveries == [
        Delivery(now_second, "overdue"),
        Delivery(slot(now_ms + 60_000), "waits"),
        Delivery(slot(now_ms + 3_600_500), "moved"),
        Delivery(slot(now_ms + 10 * DAY_MS), "moved-far"),
        Delivery(slot(now_ms + 30 * DAY_MS), "far"),
    ]


@with_house(options=OPTIONS)
async def test_what_waits_longer_than_a_broker_keeps_the_log_is_put_into_its_queue_in_time(house):
    """Its log is kept for three days, and its wheel holds a message for two."""
    now_ms = house.now_ms
    await house.put_off("old", due_ms=now_ms + 3 * DAY_MS)
    await house.put_off("short", due_ms=now_ms + int(1.9 * DAY_MS))
    await house.put_off("moved", due_ms=now_ms + DAY_MS)
    house.world.clock.jump(int(1.5 * DAY_MS))
    await house.service.move("sch_moved", now_ms + int(2.5 * DAY_MS))

    handed_over = await house.service.hand_over()
    queue = await records_of(house)
    await house.store.aclose()

    assert handed_over == HandedOver(waiting=3, written_again=1)
    assert started(house, queue) == [
        Delivery(slot(now_ms + int(1.9 * DAY_MS)), "short"),
        Delivery(slot(now_ms + int(2.5 * DAY_MS)), "moved"),
        Delivery(slot(now_ms + 3 * DAY_MS), "old"),
    ]
    raw = durable.read_whole(house.world.disk, LOG / f"{0:020}")
    units = np.frombuffer(raw[: 4 * 52], timer_log.UNIT)
    assert (units["enqueued_ms"] + units["delay_ms"])[0] == slot(now_ms + 2 * DAY_MS)
    assert units["magic"].tolist() == [1 | 2, 1, 1 | 2, 1 | 4]


@with_house(options=OPTIONS)
async def test_a_level_hands_over_one_offset_and_writes_again_what_that_cannot_say(house):
    first_ms, later_ms = house.now_ms + 1_000, house.now_ms + 60_000
    await house.put_off("a", "b", "c", "d", delay_ms=1_000)
    await house.service.cancel("sch_b")
    await house.service.move("sch_c", later_ms)

    deliveries = await give_to_broker(house)

    assert level_offsets(house) == {1: 3}  # d
    assert deliveries == [Delivery(slot(first_ms), "a"), Delivery(slot(later_ms), "c")]


@with_house(options=OPTIONS)
async def test_a_level_in_its_order_is_not_written_again(house):
    await house.put_off("a", "b", delay_ms=1_000)
    await house.put_off("c", delay_ms=5_000)
    await house.deliver(1_000)

    handed_over = await house.service.hand_over()
    await house.store.aclose()

    assert handed_over == HandedOver(waiting=1)
    assert level_offsets(house) == {1: 2, 2: 0}
    assert not house.world.disk.exists(CHECK)


@with_house(options=OPTIONS)
async def test_what_waits_is_handed_over_by_a_close_during_a_round_of_writing(house):
    due_ms = await house.put_off("a", "b", "c", due_ms=house.now_ms + 60_000)
    queue = await records_of(house)
    deriver = house.store._deriver
    while deriver.thorough_begun == deriver.thorough_ended:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.001)

    waiting = [TimerWait(queue_offset, slot(due_ms), is_rolled=False) for queue_offset in (0, 2)]
    house.store.keep_waiting_timers(WaitingTimers(waiting, 3))
    await house.store.aclose()

    assert [one.name for one in started(house, queue)] == ["a", "c"]


@with_house(options=OPTIONS)
async def test_with_nothing_that_waits_there_is_no_log_and_nothing_comes(house):
    await house.put_off("a", due_ms=house.now_ms + 1_500)
    await house.deliver(2_000)

    assert await give_to_broker(house) == []
    assert not house.world.disk.exists(LOG)


def test_we_go_on_with_what_was_handed_over_and_the_next_files_say_it():
    async def life(house):
        await house.put_off("a", "b", "c", due_ms=house.now_ms + 60_000)
        await house.service.cancel("sch_a")
        assert [one.name for one in await give_to_broker(house)] == ["b", "c"]

    async def next_life(house):
        assert await house.deliver(60_000) == ["b", "c"]
        await house.put_off("d", due_ms=house.now_ms + 60_000)
        assert [one.name for one in await give_to_broker(house)] == ["d"]

    in_house(life, next_life, options=OPTIONS)


@pytest.mark.parametrize("seconds", [5, 30])
def test_after_a_kill_none_that_waits_is_hidden_by_older_files(seconds):
    async def life(house):
        await house.put_off("a", "b", "c", due_ms=house.now_ms + 3_600_000)
        await give_to_broker(house)

    async def killed(house):
        await house.put_off("d", due_ms=house.now_ms + 3_600_000)
        await house.service.cancel("sch_b")
        await house.deliver(seconds * 1_000)

        names = [one.name for one in started(house, await records_of(house))]

        assert {"a", "c", "d"} <= set(names)
        assert len(names) == 4  # the cancelled one comes again, each of the others once

    in_house(life, killed, options=OPTIONS)


@with_house(options=OPTIONS)
async def test_without_the_log_a_broker_finds_all_that_waits_in_the_queue(house):
    await house.put_off("a", "b", "c", due_ms=house.now_ms + 60_000)
    await house.service.cancel("sch_b")
    await house.service.hand_over()
    queue = await records_of(house)
    await house.store.aclose()
    for name in house.world.disk.list_directory(LOG):
        house.world.disk.remove(LOG / name)

    assert [one.name for one in started(house, queue)] == ["a", "b", "c"]


def test_the_files_of_a_brokers_log_keep_their_length_and_its_wheel_goes():
    def by_broker(disk):
        for path, data in [(WHEEL, bytes(4_096)), (LOG / f"{8_192:020}", bytes(8_192))]:
            if not disk.exists(path.parent):
                disk.make_directory(path.parent)
            durable.replace(disk, path, data, scratch=ROOT / "making")

    async def life(house):
        await house.put_off("a", due_ms=house.now_ms + 60_000)

    async def next_life(house):
        assert [one.name for one in await give_to_broker(house)] == ["a"]
        disk = house.world.disk
        assert disk.list_directory(LOG) == [f"{0:020}"]
        assert len(durable.read_whole(disk, LOG / f"{0:020}")) == 8_192
        assert not disk.exists(WHEEL)

    in_house(life, next_life, options=OPTIONS, between=by_broker)


@with_house(options=OPTIONS)
async def test_a_parked_message_is_not_handed_over_and_stays_ours(house):
    await house.put_off("a", queue=QueueId("nowhere", 0), due_ms=house.now_ms + 1_500)
    await house.put_off("b", queue=QueueId("nowhere", 0), delay_ms=1_000)
    await house.put_off("c", due_ms=house.now_ms + 60_000)
    await house.deliver(2_000)

    assert await house.service.hand_over() == HandedOver(waiting=1, written_again=1, parked=2)
    assert await give_to_broker(house) == [Delivery(slot(house.now_ms + 58_000), "c")]
    assert level_offsets(house) == {1: 1}


@with_house(options=OPTIONS)
async def test_a_schedule_that_is_written_again_keeps_its_revision(house):
    """Else a client that changes it with the one it knows would be refused after each restart."""
    await house.put_off("a", "b", "c", delay_ms=1_000)
    await house.service.cancel("sch_c")
    await house.service.move("sch_b", house.now_ms + 60_000)
    before = [(await house.service.get(f"sch_{name}")).revision for name in "abc"]

    assert (await house.service.hand_over()).written_again == 2

    after = [(await house.service.get(f"sch_{name}")).revision for name in "abc"]
    assert after == before == [1, 2, 2]


@with_house(options=OPTIONS)
async def test_a_stop_writes_a_limited_number_of_messages_again_and_counts_the_others(house):
    """Else a stop with many moved messages takes minutes, and ends in a kill."""
    names = [f"{number}" for number in range(4)]
    await house.put_off(*names, delay_ms=60_000)
    await house.put_off("p", queue=QueueId("nowhere", 0), delay_ms=1_000)
    await house.put_off("a", "b", delay_ms=5_000)
    await house.service.cancel("sch_b")
    await house.deliver(2_000)
    for name in names:
        await house.service.move(f"sch_{name}", house.now_ms + 3_600_000)

    first, second = [await house.service.hand_over(most=3) for _ in range(2)]

    assert first == HandedOver(
        waiting=5, written_again=3, parked=1, delivered_again=1, not_written=2
    )
    assert second == HandedOver(waiting=5, written_again=3, parked=1)
    assert [one.name for one in await give_to_broker(house)] == ["a", *names]


def test_a_parked_message_that_is_written_again_keeps_its_reason_until_it_is_moved():
    async def parked(house):
        await house.put_off("a", queue=QueueId("nowhere", 0), delay_ms=1_000)
        await house.deliver(2_000)
        before = await house.service.get("sch_a")
        assert (await house.service.hand_over()).written_again == 1
        after = await house.service.get("sch_a")
        assert (after.state, after.reason) == (ScheduleState.PARKED, before.reason)

    async def moved(house):
        await house.store.create_topic("nowhere", queue_count=1)
        await house.service.move("sch_a", house.now_ms + 3 * DAY_MS)
        assert (await house.service.hand_over()).written_again == 1
        after = await house.service.get("sch_a")
        assert (after.state, after.reason) == (ScheduleState.SCHEDULED, None)

    async def last_life(house):
        assert await house.state("sch_a") is ScheduleState.SCHEDULED

    in_house(parked, moved, last_life, options=OPTIONS)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_schedules_exactly_what_waits_is_handed_over(seed):
    randomness = Random(seed)
    expected: dict[str, int] = {}
    numbers = count()

    async def life(house):

        for number in islice(numbers, randomness.randrange(200)):
            name = f"{seed}-{number}"
            delay_ms = randomness.choice([1_000, 5_000, 10_000, 1_500, 777, 90_000, 3 * DAY_MS])
            if randomness.random() < 0.5:
                expected[name] = await house.put_off(name, delay_ms=delay_ms)
            else:
                expected[name] = await house.put_off(name, due_ms=house.now_ms + delay_ms)
            if randomness.random() < 0.1:
                await house.deliver(randomness.randrange(3_000))
        arrived = set(await house.bodies())
        for name in [one for one in expected if one not in arrived and randomness.random() < 0.3]:
            if randomness.random() < 0.5:
                await house.service.cancel(f"sch_{name}")
                del expected[name]
            else:
                expected[name] = house.now_ms + randomness.randrange(1, 4 * DAY_MS)
                await house.service.move(f"sch_{name}", expected[name])
        arrived = set(await house.bodies())
        house.world.clock.jump(randomness.randrange(6_000))
        await house.service.hand_over()
        timers = await records_of(house)
        levels = {
            queue.number + 1: await records_of(house, queue)
            for queue in await house.store.queues(SCHEDULE_TOPIC)
        }
        await house.store.aclose()
        now_second = house.now_ms // 1000 * 1000
        by_wheel = started(house, timers)
        by_level = [
            record.name
            for level, offset in level_offsets(house).items()
            for record in levels[level][offset:]
        ]

        waiting = {name: due_ms for name, due_ms in expected.items() if name not in arrived}
        assert sorted([one.name for one in by_wheel] + by_level) == sorted(waiting)
        for at_ms, name in by_wheel:
            assert at_ms == max(slot(waiting[name]), now_second)

    in_house(life, life, options=OPTIONS)
