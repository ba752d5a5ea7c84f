"""Delayed delivery over a store: never early, once, in one append with its mark, whatever is killed
when.
"""

import asyncio
import dataclasses

import pytest

from scheduler import marks
from scheduler import scheduled_message as scheduled
from scheduler.marks import MARK_QUEUE
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_service import ScheduleService
from storage.errors import AlreadyCancelled, AlreadyDelivered, StorageFull, UnknownSchedule
from storage.formats import queue_entry
from storage.local.options import FlushPolicy
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.schedules import EVERYTHING, OPTIONS, ORDERS, in_house, with_house
from tests.support.simulation import World  # noqa

TIMER = QueueId("rmq_sys_wheel_timer", 0)


# --------------------------------------------------------------------------------------------------
# delivery


@pytest.mark.parametrize("delay_ms", [1_000, 1_234, 5_000, 60_000])
@with_house()
async def test_a_message_is_not_in_its_topic_before_it_is_due_and_is_there_after(house, delay_ms):
    due_ms = await house.put_off("a", delay_ms=delay_ms)
    assert await house.deliver(due_ms - house.now_ms - 1) == []

    assert await house.deliver(1) == ["a"]

    (delivered,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    assert (delivered.message_id, delivered.stored_at_ms >= due_ms) == ("a", True)
    assert await house.deliver(100_000) == ["a"]
    assert await house.state("sch_a") is ScheduleState.DELIVERED


@pytest.mark.parametrize("restart", ["none", "killed"])
def test_a_clock_that_was_once_a_year_ahead_puts_off_no_delay_that_is_asked_for_when_it_is_right(
    restart,
):
    year_ms = 365 * 86_400_000
    due: list[int] = []

    async def poisoned(house):
        house.world.clock.jump(year_ms)
        await house.store.append(
            [message(b"far ahead", queue=QueueId("orders", 0), message_id="far")]
        )
        house.world.clock.jump(-year_ms)
        for name, delay_ms in (("level", 5_000), ("timer", 6_000)):
            begun_ms = house.now_ms
            due.append(await house.put_off(name, delay_ms=delay_ms))
            assert begun_ms + delay_ms <= due[-1] <= house.now_ms + delay_ms
        if restart == "none":
            await delivered(house)

    async def delivered(house):
        assert [one.due_ms for one in await house.listed(ScheduleState.SCHEDULED)] == due
        assert await house.deliver(due[0] - house.now_ms - 1) == ["far ahead"]
        assert await house.deliver(1) == ["far ahead", "level"]
        assert await house.deliver(1_010) == ["far ahead", "level", "timer"]

    in_house(poisoned, *([delivered] if restart == "killed" else []))


@with_house()
async def test_messages_come_in_the_order_of_their_times_not_of_their_sends(house):
    for name, delay_ms in (("c", 300), ("a", 100), ("b", 200)):
        await house.put_off(name, delay_ms=delay_ms)

    assert await house.deliver(1_000) == ["a", "b", "c"]


@with_house()
async def test_a_delivery_and_its_mark_are_one_append(house):
    await house.put_off("a", "b", delay_ms=10)
    await house.deliver(20)

    *delivered, mark = [
        *await house.store.read(ORDERS, 0, **EVERYTHING),
        *await house.store.read(MARK_QUEUE, 0, **EVERYTHING),
    ]
    assert [one.place & 0xFFFF for one in marks.decode(mark).entries] == [0, 1]
    assert len({one.stored_at_ms for one in (*delivered, mark)}) == 1
    assert delivered[0].log_offset < delivered[1].log_offset < mark.log_offset


@with_house()
async def test_the_lateness_of_every_delivery_is_told(house):
    due_ms = await house.put_off("a", delay_ms=10)
    await house.deliver(250)

    (late_ms,) = house.late_ms
    assert 200 <= late_ms <= house.now_ms - due_ms


@with_house()
async def test_more_messages_than_one_append_takes_are_all_delivered_once(house):
    names = [f"m{number:04}" for number in range(2_500)]
    for at in range(0, 2_500, 500):
        await house.put_off(*names[at : at + 500], delay_ms=3)

    assert await house.deliver(50) == names


@with_house()
async def test_large_messages_are_delivered_in_appends_that_fit(house):
    for number in range(6):
        given = message(b"x" * 400_000, queue=ORDERS, message_id=f"m{number}")
        await house.store.append(
            [scheduled.delay(scheduled.with_delay(given, delay_ms=3), house.now_ms)]
        )

    assert len(await house.deliver(50)) == 6


def test_a_backlog_is_delivered_at_its_rate_and_what_is_due_now_at_once():
    async def sends(house):
        await house.put_off(*[f"old{number}" for number in range(100)], delay_ms=10)

    async def comes_back(house):
        assert await house.deliver() == []  # nothing is allowed yet
        await house.put_off("new", delay_ms=50)

        found = await house.deliver(200)

        assert found[0] == "new"
        assert 5 <= len(found) <= 12
        assert house.service.backlog_count == 100 - (len(found) - 1)
        assert house.now_ms - house.service.next_due_ms() > 60_000
        for _ in range(12):
            found = await house.deliver(1_000)
        assert sorted(found) == sorted(["new", *[f"old{number}" for number in range(100)]])

    in_house(sends, comes_back, down_ms=60_000, catch_up_per_second=50)


def test_one_of_the_backlog_can_still_be_moved_and_cancelled():
    async def sends(house):
        await house.put_off("a", "b", "c", delay_ms=10)

    async def comes_back(house):
        assert await house.deliver() == []
        await house.service.cancel("sch_a")
        await house.service.move("sch_b", house.now_ms + 500)

        assert await house.deliver(400) == ["c"]
        assert await house.deliver(400) == ["c", "b"]

    in_house(sends, comes_back, down_ms=60_000)


@with_house()
async def test_a_clock_that_is_set_back_makes_nothing_early_and_nothing_twice(house):
    due_ms = await house.put_off("a", delay_ms=100)
    await asyncio.sleep(0.2)

    assert await house.service.run_once(due_ms - 1) == 0
    assert await house.service.run_once(due_ms) == 1
    assert await house.service.run_once(due_ms - 50) == 0
    assert await house.bodies() == ["a"]


@with_house()
async def test_what_is_put_off_after_the_clock_was_set_back_waits_for_its_own_time(house):
    """It is due before what had been looked at by the other clock, and is no backlog for
    all that.
    """
    await house.deliver(86_400_000)
    house.world.clock.jump(-86_400_000)
    due_ms = house.now_ms + 3_600_000
    await house.put_off("b", due_ms=due_ms)

    assert await house.deliver(1_000) == []
    assert await house.deliver(1_000) == []
    assert await house.deliver(due_ms - house.now_ms - 1) == []
    assert await house.deliver(1) == ["b"]


def test_a_poisoned_message_is_set_aside_with_its_reason_and_the_others_are_delivered():
    async def life(house):
        await house.put_off("a", delay_ms=10)
        await house.put_off("lost", delay_ms=10, queue=QueueId("nowhere", 0))
        await house.put_off("b", delay_ms=10)
        await house.store.append(
            [message(b"?", queue=TIMER, message_id="aimless", system={"TIMER_OUT_MS": "1000"})]
        )

        assert await house.deliver(100) == ["a", "b"]
        await house.deliver(1_000)  # what is as old as that last one belongs to the backlog

        assert "nowhere" in (await house.service.get("sch_lost")).reason
        assert (await house.service.get("sch_T0-3")).state is ScheduleState.PARKED
        assert house.service.counts.never == 2

    async def later(house):
        await house.store.create_topic("nowhere", queue_count=1)
        await house.service.move("sch_lost", house.now_ms)
        await house.deliver()

        assert await house.bodies(QueueId("nowhere", 0)) == ["lost"]
        assert house.service.counts.never == 1

    in_house(life, later)


@with_house()
async def test_a_store_that_takes_nothing_delays_what_is_due_and_loses_nothing_of_it(house):
    class Refusing:
        """The store, with appends that are refused while `is_full`."""

        def __init__(self, store):
            self._store = store
            self.is_full = True

        def __getattr__(self, name):
            return getattr(self._store, name)

        async def append(self, messages, **how):
            if self.is_full:
                raise StorageFull
            return await self._store.append(messages, **how)

    await house.put_off("a", "b", delay_ms=10)
    store = Refusing(house.store)
    service = ScheduleService(store, house.world.clock, ScheduleOptions(catch_up_per_second=100))
    await service.start()
    for _ in range(80):  # until both belong to the backlog
        await asyncio.sleep(0.1)
        try:
            await service.run_once(house.now_ms)
        except StorageFull:
            continue
    assert await house.bodies() == []

    store.is_full = False
    for _ in range(3):
        await asyncio.sleep(0.1)
        await service.run_once(house.now_ms)

    assert await house.bodies() == ["a", "b"]


# --------------------------------------------------------------------------------------------------
# restarts


@pytest.mark.parametrize("flush", FlushPolicy)
@pytest.mark.parametrize("rest_ms", [0, 30_000])
def test_a_killed_service_delivers_what_was_waiting_once_and_what_was_delivered_not_again(
    flush, rest_ms
):
    async def first(house):
        await house.put_off("soon", delay_ms=50)
        await house.put_off("late", delay_ms=1_000)
        await house.put_off("never", delay_ms=1_000)
        await house.put_off("moved", delay_ms=100_000)
        assert await house.deliver(100) == ["soon"]
        await house.service.cancel("sch_never")
        await house.service.move("sch_moved", house.now_ms + 2_000)
        await asyncio.sleep(rest_ms / 1000)

    async def second(house):
        assert await house.state("sch_soon") is ScheduleState.DELIVERED
        assert await house.state("sch_never") is ScheduleState.CANCELLED
        assert (await house.service.get("sch_moved")).revision >= 2

        await house.deliver(3_000)
        await house.deliver(3_000)

        assert sorted(await house.bodies()) == ["late", "moved", "soon"]

    in_house(first, second, second, options=dataclasses.replace(OPTIONS, flush=flush))


@pytest.mark.parametrize("cut_after_ms", range(12))
def test_a_kill_at_any_moment_of_a_delivery_neither_loses_nor_doubles_it(cut_after_ms):
    async def first(house):
        await house.put_off("a", "b", "c", delay_ms=50)
        await asyncio.sleep(0.1)
        sweep = asyncio.ensure_future(house.service.run_once(house.now_ms))
        await asyncio.wait({sweep}, timeout=cut_after_ms / 1000)

    async def second(house):
        await house.deliver()
        assert await house.deliver(100) == ["a", "b", "c"]
        assert await house.deliver(10_000) == ["a", "b", "c"]

    in_house(first, second)


@with_house()
async def test_a_delivery_whose_sweep_was_cancelled_is_still_one_delivery(house):
    await house.put_off("a", delay_ms=10)
    await asyncio.sleep(0.05)
    sweep = asyncio.ensure_future(house.service.run_once(house.now_ms))
    await asyncio.sleep(0.001)
    sweep.cancel()
    await house.service.drain()

    assert await house.deliver(100) == ["a"]
    assert await house.deliver(100) == ["a"]


@with_house()
async def test_a_message_that_is_not_yet_durable_is_not_delivered_before_it_is(house):
    given = scheduled.delay(
        scheduled.with_delay(message(b"a", queue=ORDERS, message_id="a"), delay_ms=1), house.now_ms
    )
    await house.store.append([given], durability=Durability.BUFFERED)

    assert await house.deliver(500) == ["a"]


# --------------------------------------------------------------------------------------------------
# move, cancel


@with_house()
async def test_a_delivered_message_that_waits_for_a_retry_is_still_delivered_and_cannot_be_cancelled(
    house,
):
    await house.put_off("a", delay_ms=1_000)
    await house.deliver(1_001)

    again = scheduled.with_delay(
        message(b"a", queue=ORDERS, message_id="a"), delay_ms=1_000, again=True
    )
    (place,) = await house.store.append([scheduled.delay(again, house.now_ms)])

    assert await house.state("sch_a") is ScheduleState.DELIVERED
    with pytest.raises(AlreadyDelivered):
        await house.service.cancel("sch_a")
    assert (
        await house.state(scheduled.schedule_id_at(place.queue, place.queue_offset))
        is ScheduleState.SCHEDULED
    )
    assert await house.deliver(1_001) == ["a", "a"]


@with_house()
async def test_a_cancelled_message_is_never_seen_and_cancelling_again_changes_nothing(house):
    await house.put_off("a", delay_ms=100)

    once = await house.service.cancel("sch_a")
    again = await house.service.cancel("sch_a")

    assert (once.state, once.revision, again) == (ScheduleState.CANCELLED, 2, once)
    assert await house.deliver(1_000) == []
    with pytest.raises(AlreadyCancelled):
        await house.service.move("sch_a", house.now_ms)


@with_house()
async def test_a_moved_message_comes_at_its_new_time_earlier_or_later(house):
    await house.put_off("earlier", "later", delay_ms=10_000)
    await house.service.move("sch_earlier", house.now_ms + 100)
    await house.service.move("sch_later", house.now_ms + 20_000)

    assert await house.deliver(200) == ["earlier"]
    assert await house.deliver(15_000) == ["earlier"]
    assert await house.deliver(5_000) == ["earlier", "later"]


@with_house()
async def test_what_was_delivered_can_neither_be_moved_nor_cancelled(house):
    await house.put_off("a", delay_ms=10)
    await house.deliver(100)

    with pytest.raises(AlreadyDelivered):
        await house.service.move("sch_a", house.now_ms + 1_000)
    with pytest.raises(AlreadyDelivered):
        await house.service.cancel("sch_a")
    with pytest.raises(UnknownSchedule):
        await house.service.cancel("sch_nobody")


@pytest.mark.parametrize("head_start_ms", range(9))
@with_house()
async def test_a_cancel_that_races_a_delivery_either_cancels_or_is_told_that_it_is_too_late(
    house, head_start_ms
):
    await house.put_off("a", delay_ms=20)
    await asyncio.sleep(0.05)
    sweep = asyncio.ensure_future(house.service.run_once(house.now_ms))
    await asyncio.sleep(head_start_ms / 1000)
    try:
        await house.service.cancel("sch_a")
        cancelled = True
    except AlreadyDelivered:
        cancelled = False
    await sweep

    assert await house.deliver(1_000) == ([] if cancelled else ["a"])
    assert await house.state("sch_a") is (
        ScheduleState.CANCELLED if cancelled else ScheduleState.DELIVERED
    )


@with_house()
async def test_a_cancel_that_comes_first_wins_over_a_sweep_that_begins_meanwhile(house):
    await house.put_off("a", delay_ms=20)
    await asyncio.sleep(0.05)
    await house.service.follow()
    cancel = asyncio.ensure_future(house.service.cancel("sch_a"))
    await asyncio.sleep(0.006)  # it has found its message, and not yet marked it
    assert (await house.store.offsets(MARK_QUEUE)).end == 0
    await house.service.run_once(house.now_ms)

    assert (await cancel).state is ScheduleState.CANCELLED
    assert await house.deliver(1_000) == []


@with_house()
async def test_a_list_is_in_the_order_of_times_page_by_page_in_every_state(house):
    for number in range(40):
        await house.put_off(
            f"{number:02}", delay_ms=60_000 - 1_000 * number, queue=QueueId("orders", 0)
        )
    for number in range(0, 40, 4):
        await house.service.cancel(f"sch_{number:02}")

    for page_size in (1, 3, 7, 100):
        waits = await house.listed(ScheduleState.SCHEDULED, page_size=page_size)
        both = await house.listed(
            ScheduleState.SCHEDULED, ScheduleState.CANCELLED, page_size=page_size
        )
        assert [one.message_id for one in waits] == [
            f"{number:02}" for number in range(39, -1, -1) if number % 4
        ]
        assert [one.message_id for one in both] == [f"{number:02}" for number in range(39, -1, -1)]
        assert {one.state for one in both[:4]} == {ScheduleState.SCHEDULED, ScheduleState.CANCELLED}


@with_house()
async def test_a_list_shows_those_of_a_topic_before_a_time(house):
    await house.store.create_topic("emails", queue_count=1)
    await house.put_off("a", "b", delay_ms=10_000)
    await house.put_off("c", delay_ms=20_000, queue=QueueId("emails", 0))
    due_ms = await house.put_off("d", delay_ms=30_000, queue=QueueId("emails", 0))
    await house.put_off("retry", delay_ms=5, queue=QueueId("%RETRY%shop", 0))

    emails = await house.listed(ScheduleState.SCHEDULED, topic="emails")
    early = await house.listed(ScheduleState.SCHEDULED, due_before_ms=due_ms)

    assert [one.message_id for one in emails] == ["c", "d"]
    assert [one.message_id for one in early] == ["a", "b", "c"]


# --------------------------------------------------------------------------------------------------
# brokers' stores


def test_what_a_broker_has_delivered_is_not_delivered_again_and_the_rest_is():
    """Its own progress is in files that it may not have left; what lies in the real topic, it has
    delivered.
    """

    async def broker(house):
        for name, level in (("done", 1), ("waits", 1)):
            system = {"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "0"}
            queue = QueueId("SCHEDULE_TOPIC_XXXX", level - 1)
            await house.store.append(
                [message(name.encode(), queue=queue, message_id=name, system=system)]
            )
        await house.store.append([message(b"done", queue=ORDERS, message_id="done")])

    async def ours(house):
        await house.deliver()
        assert await house.deliver(1_000) == ["done", "waits"]
        assert [one.state for one in await house.listed(*ScheduleState)] == [
            ScheduleState.DELIVERED
        ] * 2

    in_house(broker, ours, ours, down_ms=60_000)


def test_a_level_of_ours_has_its_time_in_the_consume_queue_as_a_broker_wants_it_before_and_after_a_replay():
    found = []

    async def sends(house):
        await house.put_off("a", delay_ms=10_000)
        (waiting,) = await house.store.read(
            QueueId("SCHEDULE_TOPIC_XXXX", 2), 0, max_messages=1, max_bytes=1
        )
        found.append(waiting.stored_at_ms + 10_000)
        entry = house.store._queues[QueueId("SCHEDULE_TOPIC_XXXX", 2)].recent(0, 1)
        assert queue_entry.decode(entry).tag_hash == found[0]

    async def replays(house):
        entry = house.store._queues[QueueId("SCHEDULE_TOPIC_XXXX", 2)].recent(0, 1)
        assert queue_entry.decode(entry).tag_hash == found[0]

    in_house(sends, replays)
