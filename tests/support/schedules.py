"""A store with a schedule service, in a simulated world: lives of one disk, each ended by a
kill.
"""

import asyncio

from scheduler import scheduled_message as scheduled
from scheduler.options import ScheduleOptions
from scheduler.schedule import Schedule, ScheduleState
from scheduler.schedule_lookup import ListPosition, Wanted
from scheduler.schedule_service import ScheduleService
from storage.files.simulated import SimulatedDisk
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import MessageStore
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import World

ORDERS = QueueId("orders", 0)
EVERYTHING = {"max_messages": 5_000, "max_bytes": 1 << 30}
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 20, prepare_ahead_bytes=65_536, index_slots=64, index_file_entries=2_000
)


class House:
    """A store with a schedule service, in a simulated world."""

    def __init__(
        self, world: World, store: MessageStore, service: ScheduleService, late_ms: list[int]
    ) -> None:
        self.world = world
        self.store = store
        self.service = service
        self.late_ms = late_ms
        self.replayed = 0  # messages that the start had to read

    @property
    def now_ms(self) -> int:
        return self.world.clock.wall_ms()

    async def put_off(self, *names: str, queue: QueueId = ORDERS, **delay: int) -> int:
        """When they are due. A schedule has the name of its message, behind `sch_`."""
        given = [
            scheduled.delay(
                scheduled.with_delay(message(name.encode(), queue=queue, message_id=name), **delay),
                self.now_ms,
            )
            for name in names
        ]
        places = await self.store.append(given)
        return scheduled.due_ms_at(given[0], places[0].stored_at_ms)

    async def deliver(self, wait_ms: int = 0) -> list[str]:
        """What is in the topic after a sweep, so much later."""
        await asyncio.sleep(wait_ms / 1000)
        await self.service.run_once(self.now_ms)
        return await self.bodies()

    async def bodies(self, queue: QueueId = ORDERS) -> list[str]:
        return [found.body.decode() for found in await self.store.read(queue, 0, **EVERYTHING)]

    async def state(self, schedule_id: str) -> ScheduleState:
        return (await self.service.get(schedule_id)).state

    async def listed(
        self, *states: ScheduleState, page_size: int = 100, **wanted
    ) -> list[Schedule]:
        """All pages."""
        found: list[Schedule] = []
        after: ListPosition | None = None
        while True:
            page = await self.service.page(
                Wanted(states, **wanted), after=after, max_items=page_size
            )
            assert len(page.items) <= page_size
            found += page.items
            if page.end is None:
                return found
            after = page.end


async def a_house(world: World, *, options: LocalStoreOptions = OPTIONS, **given: int) -> House:
    store = await world.open_store(options)
    await store.create_topic("orders", queue_count=1)
    late_ms: list[int] = []
    service = ScheduleService(
        store, world.clock, ScheduleOptions(**given), on_delivered=late_ms.extend
    )
    house = House(world, store, service, late_ms)
    house.replayed = await service.start()
    return house


def in_house(*lives, down_ms: int = 1, between=lambda disk: None, **given) -> SimulatedDisk:
    """Each life on the disk that the one before it left when it was killed.

    `between`: done to the disk then.
    """

    def leave(world: World) -> SimulatedDisk:
        disk = world.disk.after_kill()
        between(disk)
        return disk

    disk, _ = run_lives(lives, lambda world: a_house(world, **given), down_ms=down_ms, leave=leave)
    return disk


with_house = one_life(in_house)
