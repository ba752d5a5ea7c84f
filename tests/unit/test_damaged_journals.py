"""A damaged event in each journal: the start is refused with the place, or the event is logged,
counted and left out.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from app.idempotency.keys import IdempotencyKeys
from delivery.leases.events import LEASE_QUEUE
from delivery.options import RequestOptions
from delivery.requests.events import REQUEST_QUEUE
from delivery.requests.service import Requests
from delivery.service import Delivery
from scheduler.cron_schedule import CRON_QUEUE
from scheduler.cron_service import CronService
from scheduler.marks import MARK_QUEUE
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_service import ScheduleService
from scheduler.scheduled_message import TIMER_QUEUE
from storage.errors import CorruptRecord, StorageError, UnknownFormat
from storage.files.simulated import SimulatedDisk
from storage.formats.names import IDEMPOTENCY_TOPIC, OFFSET_TOPIC
from storage.local.repair.repair import Repair
from storage.message import Durability, QueueId, StoredMessage
from storage.store import MessageStore, find_message
from tests.support.builders import message
from tests.support.delivery import OPTIONS, spoil
from tests.support.schedules import House as Schedules
from tests.support.schedules import in_house as in_schedules
from tests.support.simulation import ROOT, World
from txn.coordinator import TransactionCoordinator
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE
from txn.options import TransactionOptions

Start = Callable[[World, MessageStore], Awaitable[int]]  # how many events were left out


class NoSchedules:
    async def load(self) -> list[Any]:
        return []


async def start_leases(world: World, store: MessageStore) -> int:
    clock, randomness = world.clock, world.randomness
    delivery = Delivery(
        store, clock, randomness, new_task_id=lambda: "", rules_of=lambda group: None
    )
    await delivery.start()
    return 0


async def start_requests(world: World, store: MessageStore) -> int:
    requests = Requests(store, world.clock, world.identifiers, RequestOptions(), ack_beside=None)  # type: ignore[arg-type]
    await requests.start()
    return 0


async def start_idempotency_keys(world: World, store: MessageStore) -> int:
    await IdempotencyKeys(store, world.clock).start()
    return 0


async def start_transactions(world: World, store: MessageStore) -> int:
    coordinator = TransactionCoordinator(
        store, world.clock, world.identifiers, TransactionOptions()
    )
    await coordinator.start()
    return coordinator.count_left_out()


async def start_cron(world: World, store: MessageStore) -> int:
    cron = CronService(
        store,
        NoSchedules(),
        world.clock,
        ScheduleOptions(),
        build=lambda schedule, at_ms: message(),
    )  # type: ignore[arg-type]
    await cron.start()
    return cron.count_left_out()


async def start_schedules(world: World, store: MessageStore) -> int:
    await ScheduleService(store, world.clock, ScheduleOptions()).start()
    return 0


async def start_store_alone(world: World, store: MessageStore) -> int:
    return 0


class Journal(NamedTuple):
    queue: QueueId
    start: Start
    refuses: bool


JOURNALS = {
    "leases": Journal(LEASE_QUEUE, start_leases, True),
    "requests": Journal(REQUEST_QUEUE, start_requests, True),
    "sent keys": Journal(QueueId(IDEMPOTENCY_TOPIC, 0), start_idempotency_keys, True),
    "half messages": Journal(HALF_QUEUE, start_transactions, True),
    "decisions": Journal(OP_QUEUE, start_transactions, True),
    "checks": Journal(CHECK_QUEUE, start_transactions, False),
    "held": Journal(HELD_QUEUE, start_transactions, False),
    "cron": Journal(CRON_QUEUE, start_cron, False),
    "schedules": Journal(MARK_QUEUE, start_schedules, True),
    "committed offsets": Journal(QueueId(OFFSET_TOPIC, 0), start_store_alone, True),
}


def without_tables(disk: SimulatedDisk) -> None:
    """Take away the tables that journals give back.

    Without those of the queues a start is refused before, by its walk.
    """
    for name in {
        "leases",
        "requests",
        "sent_keys",
        "transactions",
        "cron",
        "schedule_progress",
        "group_offsets",
        "timers",
    }:
        if disk.exists(path := ROOT / "snapshots" / name):
            disk.remove(path)


def in_two_lives(journal: Journal, body: bytes, *, damages: bool, repairs: bool = False) -> Any:
    """The error of a start, or how many events it left out; the journal's only event has
    this body.
    """
    disk = SimulatedDisk()
    with World(disk, 1) as world:

        async def write() -> StoredMessage:
            store = await world.open_store(OPTIONS)
            await store.create_topic(journal.queue.topic, queue_count=1)
            await store.create_topic("orders", queue_count=1)
            for queue, content in ((journal.queue, body), (QueueId("orders", 0), b"behind it")):
                await store.append([message(content, queue=queue)], durability=Durability.SYNCED)
            (stored,) = await store.read(journal.queue, 0, max_messages=1, max_bytes=1)
            await store.aclose()
            return stored

        stored = world.call(write())
    disk = world.disk.after_kill()
    without_tables(disk)
    assert stored.log_offset is not None
    if damages:
        spoil(disk, stored.log_offset)
    if repairs:
        repair = Repair(
            disk,
            ROOT,
            folder="repair-1",
            now_ms=1_800_000_000_500,
            segment_bytes=OPTIONS.segment_bytes,
        )
        repair.blank_unit(stored.log_offset)
        repair.close()
    with World(disk, 2, wall_ms=1_800_000_100_000) as world:

        async def start() -> Any:
            try:
                store = await world.open_store(OPTIONS)
            except StorageError as error:
                return error
            try:
                return await journal.start(world, store)
            except StorageError as error:
                return error
            finally:
                await store.aclose()

        return world.call(start()), stored.log_offset


@pytest.mark.parametrize("name", JOURNALS)
def test_a_damaged_event_is_refused_with_its_place_or_left_out_and_counted(name):
    journal = JOURNALS[name]

    outcome, log_offset = in_two_lives(journal, b"damaged", damages=True)

    if not journal.refuses:
        assert outcome == 1
        return
    assert isinstance(outcome, CorruptRecord)
    assert outcome.physical_offset == log_offset
    assert f"event 0 of {journal.queue}" in str(outcome)
    assert "escrowmq store repair" in str(outcome)


@pytest.mark.parametrize(
    "name", [name for name in JOURNALS if name not in ("half messages", "held", "decisions")]
)
def test_an_event_that_this_version_cannot_read_is_refused_or_left_out_as_a_damaged_one(name):
    journal = JOURNALS[name]

    outcome, log_offset = in_two_lives(journal, b"no event", damages=False)

    if journal.refuses:
        assert isinstance(outcome, UnknownFormat)
        assert f"log offset {log_offset}" in str(outcome)
    else:
        assert outcome == 1


@pytest.mark.parametrize("name", JOURNALS)
def test_what_a_repair_has_taken_out_of_the_log_refuses_no_start(name):
    outcome, _ = in_two_lives(JOURNALS[name], b"damaged event " * 6, damages=True, repairs=True)

    assert isinstance(outcome, int), outcome


def test_a_damaged_delayed_message_that_was_never_indexed_is_parked_and_can_be_cancelled():
    disk = SimulatedDisk()
    schedule_id = "sch_T0-0"
    with World(disk, 1) as world:

        async def write() -> int | None:
            store = await world.open_store(OPTIONS)
            await store.create_topic(TIMER_QUEUE.topic, queue_count=1)
            await store.append(
                [message(b"delayed", queue=TIMER_QUEUE)], durability=Durability.SYNCED
            )
            (stored,) = await store.read(TIMER_QUEUE, 0, max_messages=1, max_bytes=1)
            await store.aclose()
            return stored.log_offset

        log_offset = world.call(write())
    disk = world.disk.after_kill()
    assert log_offset is not None
    spoil(disk, log_offset)
    with World(disk, 2) as world:

        async def look() -> None:
            store = await world.open_store(OPTIONS)
            schedules = ScheduleService(store, world.clock, ScheduleOptions())
            await schedules.start()
            assert (schedules.counts.waiting, schedules.counts.never) == (0, 1)
            found = await schedules.get(schedule_id)
            assert found.state == "set_aside"
            assert found.reason == f"{0:020} at log offset 0: the CRC of the body differs"
            await schedules.cancel(schedule_id, check=lambda schedule: None)
            assert schedules.counts.never == 0
            await store.aclose()

        world.call(look())


def test_timers_that_are_made_again_park_a_damaged_message_unless_it_was_delivered():
    log_offsets: list[int] = []

    async def send_and_deliver_one(house: Schedules) -> None:
        await house.put_off("delivered", delay_ms=1_500)
        await house.put_off("waiting", delay_ms=1_000_007)
        assert await house.deliver(1_600) == ["delivered"]
        stored = await house.store.read(TIMER_QUEUE, 0, max_messages=9, max_bytes=1 << 20)
        log_offsets.extend(one.log_offset or 0 for one in stored)
        assert len(log_offsets) == 2
        await house.store.aclose()

    def spoil_both(disk: SimulatedDisk) -> None:
        for log_offset in log_offsets:
            spoil(disk, log_offset)
        without_tables(disk)

    async def look(house: Schedules) -> None:
        (parked,) = await house.listed(ScheduleState.PARKED)
        assert (parked.schedule_id, house.service.counts.waiting) == ("sch_T0-1", 0)
        assert await house.deliver() == ["delivered"]

    in_schedules(send_and_deliver_one, look, between=spoil_both)


def test_a_message_is_found_behind_a_damaged_one_and_damage_is_said_where_it_may_be_the_one():
    disk, orders = SimulatedDisk(), QueueId("orders", 0)
    with World(disk, 1) as world:

        async def write() -> int | None:
            store = await world.open_store(OPTIONS)
            await store.create_topic("orders", queue_count=1)
            places = [
                (
                    await store.append(
                        [message(b"body", queue=orders, message_id=name)],
                        durability=Durability.SYNCED,
                    )
                )[0]
                for name in ("damaged", "whole")
            ]
            await store.aclose()
            return places[0].log_offset

        log_offset = world.call(write())
    disk = world.disk.after_kill()
    assert log_offset is not None
    spoil(disk, log_offset)
    with World(disk, 2) as world:

        async def look() -> None:
            store = await world.open_store(OPTIONS)
            found = await find_message(store, orders, 0, "whole")
            assert found is not None
            assert found.queue_offset == 1
            with pytest.raises(CorruptRecord):
                await find_message(store, orders, 0, "damaged")
            assert await find_message(store, orders, 1, "damaged") is None

        world.call(look())
