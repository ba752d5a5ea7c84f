"""A store with groups that receive from it, and the schedules that bring retries back, in a
simulated world.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from delivery.groups import GroupRules, Subscription
from delivery.receive.receive import LeasedMessage, Request
from delivery.service import Delivery
from delivery.settle.reject import Rejection
from scheduler.options import ScheduleOptions
from scheduler.schedule_service import ScheduleService
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import ORDERING_KEY, Durability, Message, QueueId, StoredMessage
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import ROOT, End, World

ORDERS = QueueId("orders", 0)
GROUP = "billing"
EVERYTHING = {"max_messages": 5_000, "max_bytes": 1 << 30}
_BODY_AT = 88  # in a record
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 20, prepare_ahead_bytes=65_536, index_slots=64, index_file_entries=2_000
)


def rules(**fields: Any) -> GroupRules:
    return GroupRules(**{"subscriptions": (Subscription("orders"),), "lease_ms": 1_000, **fields})


class WithdrawnNames(set[str]):
    """Messages that are not handed out any more, by name."""

    def is_cancelled_request(self, message: Message) -> bool:
        return message.message_id in self

    def has_cancelled_request(self, topic: str) -> bool:
        return bool(self)


class House:
    """One life of it.

    `rules` are those of the group `billing`; a test may put others in their place.
    """

    def __init__(self, world: World, store: LocalMessageStore, given: GroupRules) -> None:
        self.world = world
        self.store = store
        self.rules: GroupRules | None = given
        self._ids = count(1)
        self.cancelled_requests = WithdrawnNames()
        self.schedules = ScheduleService(
            store, world.clock, ScheduleOptions(catch_up_after_ms=1 << 50)
        )
        self.delivery = Delivery(
            store,
            world.clock,
            world.randomness,
            new_task_id=lambda: world.identifiers.new("task"),
            rules_of=lambda group: self.rules if group == GROUP else None,
            cancelled_requests=self.cancelled_requests,
        )

    async def start(self, *, queues: int = 1, begins: bool = True) -> "House":
        await self.store.create_topic("orders", queue_count=queues)
        await self.delivery.open_group(GROUP)
        await self.schedules.start()
        await self.delivery.start()
        if begins:
            assert self.rules is not None
            await self.delivery.begin(GROUP, self.rules)
        return self

    @property
    def now_ms(self) -> int:
        return self.world.clock.wall_ms()

    async def send(
        self, *names: str, queue: QueueId = ORDERS, key: str | None = None, tag: str | None = None
    ) -> None:
        """Messages whose id and body is their name."""
        system = {} if key is None else {ORDERING_KEY: key}
        await self.store.append(
            [
                message(name.encode(), queue=queue, message_id=name, tag=tag, system=system)
                for name in names
            ],
            durability=Durability.SYNCED,
        )

    async def receive(self, max_messages: int = 100, **fields: Any) -> list[LeasedMessage]:
        assert self.rules is not None
        request = Request(
            max_messages=max_messages,
            max_bytes=fields.pop("max_bytes", 1 << 20),
            lease_ms=fields.pop("lease_ms", self.rules.lease_ms),
            **fields,
        )
        return await self.delivery.receive(GROUP, self.rules, request)

    async def names(self, max_messages: int = 100, **fields: Any) -> list[tuple[str, int]]:
        """What a receive is given: names and attempts."""
        return [named(one) for one in await self.receive(max_messages, **fields)]

    async def long_poll(
        self, *, for_ms: int, attempt_id: str | None = None
    ) -> tuple[list[LeasedMessage], int]:
        """For one message: what it is given, and after how many receives."""
        assert self.rules is not None
        request = Request(
            max_messages=1, max_bytes=1 << 20, lease_ms=self.rules.lease_ms, attempt_id=attempt_id
        )
        begun_ms, turns = self.now_ms, 0
        while True:
            found, turns = await self.delivery.receive(GROUP, self.rules, request), turns + 1
            left_ms = for_ms - (self.now_ms - begun_ms)
            if found or left_ms <= 0:
                return found, turns
            assert turns < 1_000, "it spins"
            await self.wait(request, timeout_ms=left_ms)

    async def wait(self, request: Request, *, timeout_ms: int) -> None:
        """Until it may be worth receiving again, or the time is up."""
        assert self.rules is not None
        woken = asyncio.Event()
        await self.delivery.begin_wait(GROUP, self.rules, request, woken.set)
        try:
            await asyncio.wait_for(woken.wait(), timeout_ms / 1000)
        except TimeoutError:
            self.delivery.end_wait(GROUP, woken.set)
        except asyncio.CancelledError:
            self.delivery.end_wait(GROUP, woken.set)
            raise

    async def ack(self, *given: LeasedMessage) -> list[bool]:
        return await self.delivery.ack(GROUP, [one.handle for one in given])

    async def nack(
        self,
        *given: LeasedMessage,
        delay_ms: int | None = None,
        reason: str | None = None,
        unprocessed: bool = False,
    ) -> list[bool]:
        """Which were accepted."""
        assert self.rules is not None
        refused = [Rejection(one.handle, delay_ms, reason, unprocessed) for one in given]
        errors = await self.delivery.nack(GROUP, self.rules, refused)
        return [error is None for error in errors]

    async def release(
        self, *given: LeasedMessage, delay_ms: int | None = None, reason: str | None = None
    ) -> list[bool]:
        """Give back messages unprocessed. Which were accepted."""
        return await self.nack(*given, delay_ms=delay_ms, reason=reason, unprocessed=True)

    async def give_up(self, *given: LeasedMessage, reason: str | None = None) -> list[bool]:
        assert self.rules is not None
        errors = await self.delivery.dead_letter(
            GROUP, self.rules, [Rejection(one.handle, None, reason) for one in given]
        )
        return [error is None for error in errors]

    async def extend(self, one: LeasedMessage, lease_ms: int) -> int | None:
        return (await self.delivery.extend(GROUP, [(one.handle, lease_ms)]))[0]

    async def sleep(self, ms: int) -> None:
        """Let so much time pass, and nothing be swept."""
        await asyncio.sleep(ms / 1000)

    async def pass_time(self, ms: int) -> None:
        """Let so much time pass, then do what is due."""
        await self.sleep(ms)
        await self.schedules.run_once(self.now_ms)
        await self.delivery.run_once()
        await self.delivery.dead_letters.run_once()

    async def dead_letters(self) -> list[StoredMessage]:
        return await self.store.read(QueueId(f"%DLQ%{GROUP}", 0), 0, **EVERYTHING)

    async def position(self, queue: QueueId = ORDERS) -> int | None:
        return await self.delivery.position(GROUP, queue)

    async def close(self) -> None:
        await self.delivery.drain()
        await self.delivery.save_snapshot()
        await self.store.aclose()


def named(one: LeasedMessage) -> tuple[str, int]:
    return one.message.message_id, one.attempt


def without_snapshot(disk: SimulatedDisk) -> None:
    """Take the kept table of leases away."""
    if disk.exists(path := ROOT / "snapshots" / "leases"):
        disk.remove(path)


def spoil(
    disk: SimulatedDisk,
    log_offset: int,
    *,
    found: bytes = b"",
    segment_bytes: int = OPTIONS.segment_bytes,
) -> None:
    """Flip a bit in the first byte of this record's body, on the disk itself, or of the bytes that
    are `found` behind it.
    """
    base = log_offset - log_offset % segment_bytes
    file = disk.open(ROOT / "commitlog" / f"{base:020d}")
    begin = log_offset - base + _BODY_AT
    at = begin + file.read(begin, 1_000).index(found)
    (byte,) = file.read(at, 1)
    file.write(at, bytes([byte ^ 1]))
    file.sync()


Life = Callable[[House], Awaitable[None]]


def in_house(
    *lives: Life,
    given: GroupRules | None = None,
    queues: int = 1,
    down_ms: int = 1,
    cuts_power: bool = False,
    options: LocalStoreOptions = OPTIONS,
    seed: int = 0,
    between: Callable[[SimulatedDisk], None] = lambda disk: None,
) -> SimulatedDisk:
    """Each life on the disk that the one before it left when it was killed, or the power went.

    `between`: done to it then.
    """

    async def enter(world: World) -> House:
        return await House(world, await world.open_store(options), given or rules()).start(
            queues=queues
        )

    def leave(world: World) -> SimulatedDisk:
        disk = world.disk_left(End.CUT if cuts_power else End.KILL)
        between(disk)
        return disk

    disk, _ = run_lives(lives, enter, down_ms=down_ms, seed=seed, leave=leave)
    return disk


with_house = one_life(in_house)
