"""What a broker did with delayed messages is not done again by us, and what it left is."""

import errno

import pytest

from scheduler import scheduled_message
from scheduler.schedule import ScheduleState
from scheduler.scheduled_message import TIMER_QUEUE
from storage.files import durable
from storage.files.faulty import FaultyVfs
from storage.formats import delay_progress, properties
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import LevelOffsets
from storage.message import Message, QueueId, StoredMessage, resend
from tests.support.builders import message
from tests.support.lives import run_lives
from tests.support.schedules import EVERYTHING, ORDERS, House, a_house, in_house
from tests.support.simulation import ROOT
from tests.unit.test_broker_timers import OPTIONS

LEVELS = ROOT / "config" / "delayOffset.json"
CHECK = ROOT / "config" / "timercheck"
MARK = ROOT / "abort"


def timed(name: str, due_ms: int, **system: str) -> Message:
    """As a broker puts it off."""
    own = {
        properties.TIMER_DELIVER_MS: str(due_ms),
        properties.TIMER_OUT_MS: str(scheduled_message.timer_slot_ms(due_ms)),
        properties.REAL_TOPIC: ORDERS.topic,
        properties.REAL_QUEUE: "0",
    }
    return message(name.encode(), queue=TIMER_QUEUE, message_id=name, system={**own, **system})


def recall(name: str, due_ms: int) -> Message:
    """The message that a broker writes when `name` is recalled."""
    found = timed(name, due_ms, TIMER_DEL_UNIQKEY=f"{ORDERS.topic}+{name}")
    return resend_body(found, b"0")


def resend_body(found: Message, body: bytes) -> Message:
    return message(body, queue=found.queue, message_id=found.message_id, system=found.system)


async def waiting(house: House, name: str) -> StoredMessage:
    found = await house.store.read(TIMER_QUEUE, 0, **EVERYTHING)
    return next(one for one in reversed(found) if one.body == name.encode())


async def rolled(house: House, name: str) -> Message:
    """The message once more, as a broker puts it into the timer queue again."""
    found = await waiting(house, name)
    return resend(found, TIMER_QUEUE, {**found.system, "TIMER_ROLL_TIMES": "1"})


async def by_broker(house: House, *names: str) -> None:
    """A broker delivers them, and marks nothing."""
    for name in names:
        found = await waiting(house, name)
        await house.store.append([resend(found, ORDERS, dict(found.system))])


def give_back(house: House) -> None:
    """The store as a broker leaves it."""
    raw = delay_progress.encode_levels(LevelOffsets({1: 0}, 99, is_ours=False), now_ms=house.now_ms)
    durable.replace(house.world.disk, LEVELS, raw, scratch=ROOT / "making")


def killed(house: House) -> None:
    """As a broker leaves it that was killed before it wrote its other files."""
    raw = delay_progress.encode_timercheck(0, counter=1, now_ms=1, read_ms=house.now_ms)
    durable.replace(house.world.disk, CHECK, raw[:56] + bytes(4_040), scratch=ROOT / "making")


def killed_at_once(house: House) -> None:
    """As a broker leaves it that was killed before it wrote any of its files."""
    durable.replace(house.world.disk, MARK, b"4711", scratch=ROOT / "making")


@pytest.mark.parametrize("end", [give_back, killed, killed_at_once])
def test_what_a_broker_delivered_of_ours_is_not_delivered_again(end):
    async def life(house):
        await house.put_off("a", "b", "c", due_ms=house.now_ms + 1_500)
        await house.put_off("later", due_ms=house.now_ms + 90_000)
        await by_broker(house, "a", "c")
        await house.store.aclose()
        end(house)

    async def next_life(house):
        assert await house.deliver(3_000) == ["a", "c", "b"]
        assert await house.state("sch_a") is ScheduleState.DELIVERED
        assert await house.deliver(90_000) == ["a", "c", "b", "later"]

    async def last_life(house):
        assert await house.deliver(100_000) == ["a", "c", "b", "later"]

    in_house(life, next_life, last_life, options=OPTIONS)


@pytest.mark.parametrize("is_full", [False, True])
def test_what_a_broker_delivered_is_known_though_a_start_between_ended_before_it_was_marked(
    is_full,
):
    def plan(call, path):
        if is_full and call == "write" and "delayOffset" in path.name:
            raise OSError(errno.ENOSPC, "simulated")

    async def life(world):
        house = await a_house(world, options=OPTIONS)
        await house.put_off("a", "b", due_ms=house.now_ms + 1_500)
        await by_broker(house, "a")
        await house.store.aclose()
        killed_at_once(house)

    async def start_between(world):
        world.vfs = FaultyVfs(world.disk, plan)
        store = await world.open_store(OPTIONS)
        await store.aclose()

    async def last_life(world):
        house = await a_house(world, options=OPTIONS)
        await house.deliver(10_000)
        assert await house.deliver(1_000) == ["a", "b"]

    async def enter(world):
        return world

    run_lives((life, start_between, last_life), enter)


def test_after_a_kill_of_our_own_nothing_is_taken_over():
    async def life(house):
        await house.put_off("a", due_ms=house.now_ms + 90_000)

    async def next_life(house):
        assert house.store.delay_progress_by_others() is None
        assert await house.deliver(91_000) == ["a"]

    in_house(life, next_life, next_life, options=OPTIONS)


def test_a_moved_message_that_a_broker_delivered_at_its_first_time_is_not_delivered_again():
    async def life(house):
        await house.put_off("a", "b", due_ms=house.now_ms + 1_500)
        await house.service.move("sch_a", house.now_ms + 90_000)
        await house.service.move("sch_b", house.now_ms + 90_000)
        await by_broker(house, "a")
        await house.store.aclose()
        killed(house)

    async def next_life(house):
        assert await house.deliver(3_000) == ["a"]
        assert await house.state("sch_a") is ScheduleState.DELIVERED
        assert await house.deliver(100_000) == ["a", "b"]

    in_house(life, next_life, options=OPTIONS)


@pytest.mark.parametrize("end", [give_back, killed, killed_at_once])
def test_what_a_broker_delivered_is_known_though_we_are_killed_before_it_is_due_again(end):
    async def life(house):
        await house.put_off("a", "b", due_ms=house.now_ms + 1_500)
        await by_broker(house, "a")
        await house.store.aclose()
        end(house)

    async def next_life(house):
        pass

    async def last_life(house):
        await house.deliver(10_000)  # what is so long overdue comes with the next sweep
        assert await house.deliver(1_000) == ["a", "b"]

    in_house(life, next_life, last_life, options=OPTIONS)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_message_that_a_broker_put_into_its_queue_again_is_delivered_once(is_ours):
    async def life(house):
        due_ms = house.now_ms + 100_000
        if is_ours:
            await house.put_off("far", due_ms=due_ms)
        else:
            await house.store.append([timed("far", due_ms)])
        await house.store.append([await rolled(house, "far")])
        await house.store.append([await rolled(house, "far")])
        await house.store.aclose()
        give_back(house)

    async def next_life(house):
        assert house.service.counts.waiting == 1
        assert await house.deliver(101_000) == ["far"]

    async def last_life(house):
        assert await house.deliver(200_000) == ["far"]

    in_house(life, next_life, last_life, options=OPTIONS)


def test_one_that_was_put_into_the_queue_again_can_be_cancelled():
    async def life(house):
        await house.put_off("far", due_ms=house.now_ms + 100_000)
        await house.store.append([await rolled(house, "far")])
        await house.store.aclose()
        give_back(house)

    async def next_life(house):
        await house.service.cancel("sch_far")
        assert await house.deliver(101_000) == []

    in_house(life, next_life, options=OPTIONS)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_message_that_was_recalled_from_a_broker_is_cancelled(is_ours):
    async def life(house):
        due_ms = house.now_ms + 100_000
        if is_ours:
            await house.put_off("gone", due_ms=due_ms)
        else:
            await house.store.append([timed("gone", due_ms)])
        await house.store.append([recall("gone", due_ms), timed("stays", due_ms)])
        await house.store.aclose()
        give_back(house)

    async def next_life(house):
        assert house.service.counts.waiting == 1
        assert await house.deliver(101_000) == ["stays"]
        if is_ours:
            assert await house.state("sch_gone") is ScheduleState.CANCELLED

    async def last_life(house):
        assert await house.deliver(200_000) == ["stays"]

    in_house(life, next_life, last_life, options=OPTIONS)


def test_a_recall_that_came_too_late_changes_nothing_and_is_not_delivered():
    async def life(house):
        await house.store.append([timed("a", house.now_ms + 1_500)])
        await by_broker(house, "a")
        await house.store.append([recall("a", house.now_ms + 1_500)])
        await house.store.aclose()
        give_back(house)

    async def next_life(house):
        assert await house.deliver(10_000) == ["a"]

    in_house(life, next_life, options=OPTIONS)


def test_an_older_copy_in_the_real_topic_is_no_delivery():
    """A message that failed waits to be delivered again under its own id."""

    async def life(house):
        failed = message(b"again", queue=ORDERS, message_id="again")
        again = scheduled_message.with_delay(failed, due_ms=house.now_ms + 1_500, again=True)
        await house.store.append([failed, scheduled_message.delay(again, house.now_ms)])
        await house.store.aclose()
        give_back(house)

    async def next_life(house):
        assert await house.deliver(2_000) == ["again", "again"]

    in_house(life, next_life, options=OPTIONS)


def test_a_store_goes_to_a_broker_and_back_and_each_message_comes_once():
    """A level, a time, one moved, one cancelled; a broker delivers a part."""
    level_1 = QueueId(SCHEDULE_TOPIC, 0)

    async def life(house):
        await house.put_off("l1", "l2", "l3", delay_ms=1_000)
        await house.put_off("t1", "t2", "t3", due_ms=house.now_ms + 2_000)
        await house.service.cancel("sch_l2")
        await house.service.cancel("sch_t2")
        await house.service.move("sch_t3", house.now_ms + 50_000)
        await house.service.hand_over()
        levels = await house.store.read(level_1, 0, **EVERYTHING)
        await by_broker(house, "l1", "t1")  # l1 was written again, in front of l2
        await house.store.append([resend(levels[2], ORDERS, dict(levels[2].system))])
        await house.store.aclose()
        raw = delay_progress.encode_levels(LevelOffsets({1: 3}, 99, is_ours=False), now_ms=1)
        durable.replace(house.world.disk, LEVELS, raw, scratch=ROOT / "making")

    async def next_life(house):
        await house.deliver(60_000)
        assert await house.deliver(1_000) == ["l1", "t1", "l3", "t3"]

    in_house(life, next_life, options=OPTIONS)
