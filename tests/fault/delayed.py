"""Delayed messages in the chain of lives: sent, moved, cancelled, swept; and after each end the
question what became of them.

Never early, never twice (the chain itself asks that), never lost, and a cancelled one never.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler import scheduled_message as scheduled
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import Wanted
from scheduler.schedule_service import ScheduleService
from storage.errors import AlreadyCancelled, AlreadyDelivered, UnknownSchedule
from storage.local.local_store import LocalMessageStore
from storage.message import Appended, Durability, Message, StoredMessage
from tests.support.simulation import World

DAY_MS = 86_400_000
# Next to nothing in memory, so that most is read from the timer files.
OPTIONS = ScheduleOptions(near_ms=20, near_kept=3, finished_kept=10)


@dataclass
class Delayed:
    """One delayed message: what was asked for, and what was answered."""

    message: Message  # as consumers see it
    dues_ms: set[int] = field(default_factory=set)  # one of these
    place: Appended | None = None  # None: never answered
    tried_cancel: bool = False
    cancelled: bool = False  # as answered, or as seen after a start
    is_gone: bool = False  # its loss was allowed

    @property
    def schedule_id(self) -> str:
        return f"sch_{self.message.message_id.removeprefix('msg_')}"


async def open_schedules(world: World, store: LocalMessageStore) -> ScheduleService:
    service = ScheduleService(store, world.clock, OPTIONS)
    await service.start()
    return service


async def put_off(
    world: World,
    store: LocalMessageStore,
    message: Message,
    delayed: list[Delayed],
    note: Callable[[], None],
) -> None:
    """`note` is told before anything is asked for."""
    randomness, now_ms = world.randomness, world.clock.wall_ms()
    delay_ms = randomness.choice([1, 5, 30, 1_000, 40 * DAY_MS])
    given = scheduled.delay(scheduled.with_delay(message, due_ms=now_ms + delay_ms), now_ms)
    one = Delayed(message, {scheduled.due_ms_at(given, now_ms)})
    delayed.append(one)
    note()
    durability = randomness.choice([None, None, Durability.SYNCED, Durability.BUFFERED])
    (one.place,) = await store.append([given], durability=durability)


async def change(
    world: World, service: ScheduleService, delayed: list[Delayed], note: Callable[[], None]
) -> None:
    """Move or cancel one, whatever became of it. `note` is told before."""
    if not delayed:
        return
    one = world.randomness.choice(delayed)
    try:
        if world.randomness.random() < 0.5:
            one.tried_cancel = True
            note()
            await service.cancel(one.schedule_id)
            one.cancelled = True
        else:
            due_ms = world.clock.wall_ms() + world.randomness.choice([-5, 3, 40, 40 * DAY_MS])
            one.dues_ms.add(due_ms)
            note()
            one.dues_ms = {(await service.move(one.schedule_id, due_ms)).due_ms}
    except (AlreadyDelivered, AlreadyCancelled, UnknownSchedule):
        return


async def sweep(world: World, service: ScheduleService) -> None:
    await service.run_once(world.clock.wall_ms())


async def expect_delayed(
    service: ScheduleService,
    delayed: list[Delayed],
    found: dict[str, StoredMessage],
    *,
    survives: bool,
) -> list[str]:
    """What is not as it was promised. `found`: all that lies in the topics, each once."""
    problems: list[str] = []
    page = await service.page(Wanted([ScheduleState.SCHEDULED]), after=None, max_items=10_000)
    waits = {one.message_id: one for one in page.items}
    for one in delayed:
        name, message_id = one.schedule_id, one.message.message_id
        state = await _state(service, name)
        in_topic = found.get(message_id)
        if in_topic is not None and in_topic.stored_at_ms < min(one.dues_ms):
            problems.append(
                f"{name} was delivered at {in_topic.stored_at_ms}, it is due at {one.dues_ms}"
            )
        if (state is ScheduleState.DELIVERED) != (in_topic is not None):
            problems.append(f"{name} is {state}, in its topic: {in_topic is not None}")
        if (state is ScheduleState.SCHEDULED) != (message_id in waits):
            problems.append(
                f"{name} is {state}, listed among those that wait: {message_id in waits}"
            )
        if one.cancelled and state is not ScheduleState.CANCELLED:
            problems.append(f"{name} was cancelled, it is {state}")
        if state is ScheduleState.CANCELLED and not one.tried_cancel:
            problems.append(f"{name} is cancelled, nobody asked for that")
        if state is None:
            may_be_lost = one.is_gone or one.place is None or not (survives or one.place.durable)
            if not may_be_lost:
                problems.append(f"{name} was acknowledged and is lost")
            one.is_gone = True
        elif one.is_gone:
            problems.append(f"{name} was gone, and is back")
        if message_id in waits:
            if waits[message_id].due_ms not in one.dues_ms:
                problems.append(
                    f"{name} is due at {waits[message_id].due_ms}, not at one of {one.dues_ms}"
                )
            one.dues_ms = {waits[message_id].due_ms}
        one.cancelled = state is ScheduleState.CANCELLED
    if {one.message_id for one in page.items} - {one.message.message_id for one in delayed}:
        problems.append("something waits that nobody sent")
    if service.counts != (len(waits), 0):
        problems.append(f"{len(waits)} wait, counted are {service.counts}")
    return problems


async def _state(service: ScheduleService, schedule_id: str) -> ScheduleState | None:
    try:
        return (await service.get(schedule_id)).state
    except UnknownSchedule:
        return None
