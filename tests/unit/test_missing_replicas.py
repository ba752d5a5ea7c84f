"""When a service goes on without its replicas, and when it no longer does."""

import asyncio
from collections.abc import Callable

import pytest

from app.replicas.leader import Leader
from app.replicas.missing_replicas import MissingReplicas
from app.replicas.options import ReplicaOptions, WhenMissing
from storage.errors import NotEnoughCopies, RegistryUnavailable
from storage.local.local_store import LocalMessageStore
from storage.message import Durability
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS
from tests.support.simulation import ROOT, World

SETTINGS = {"ha_host": "127.0.0.1", "node": "a", "nodes": ("a", "b"), "copies": 2}
DEGRADES = ReplicaOptions(**SETTINGS, when_missing=WhenMissing.DEGRADE, degrade_after_ms=2_000)
REFUSES = ReplicaOptions(**SETTINGS)


class RegistryInMemory:
    """A registry that can be away, or fail behind a change."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.is_away = self.fails_late = False
        self.changes = 0

    async def read(self) -> Leader:
        if self.is_away:
            raise RegistryUnavailable
        return self.leader

    async def change(self, change: Callable[[Leader], Leader | None]) -> Leader | None:
        if self.is_away:
            raise RegistryUnavailable
        after = change(self.leader)
        self.leader = after or self.leader
        self.changes += 1
        if self.fails_late:
            raise RegistryUnavailable
        return after


class Service:
    """A store with two copies, its registry, and what goes on without replicas."""

    def __init__(
        self, store: LocalMessageStore, world: World, options: ReplicaOptions, leader: Leader
    ) -> None:
        self.store = store
        self.registry = RegistryInMemory()
        self.registry.leader = leader
        self.missing = MissingReplicas(store, self.registry, world.clock, options)

    def copy(self) -> None:
        """b has everything on its disk."""
        self.store.note_copy("b", self.store.on_disk_end())

    async def send(self) -> Durability:
        """How sure a message is that is sent now."""
        (sent,) = await self.store.append([message()])
        return sent.sureness.durability


async def service(
    world: World, options: ReplicaOptions = DEGRADES, *, leader: Leader | None = None
) -> Service:
    """One whose replica b has everything."""
    store = await LocalMessageStore.open(
        ROOT, OPTIONS, world.vfs, world.clock, world.identifiers, runner=world.runner, copies=2
    )
    await store.create_topic("orders", queue_count=1)
    await store.begin_epoch("a")
    made = Service(store, world, options, leader or Leader())
    if leader is None:
        store.note_copy("b", store.stored_offset())
    await made.missing.start()
    return made


async def lose_replica(one: Service) -> None:
    """Without b; until it is alone."""
    one.store.forget_copy("b")
    await asyncio.sleep(2.5)
    assert one.store.is_alone


def test_it_refuses_for_a_while_and_then_goes_on_alone():
    async def main(world: World) -> None:
        one = await service(world)
        one.store.forget_copy("b")
        await asyncio.sleep(1.5)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        assert one.registry.leader == Leader()
        await asyncio.sleep(1)
        assert await one.send() is Durability.SYNCED
        assert one.registry.leader == Leader(1, "a", is_alone=True)
        with pytest.raises(NotEnoughCopies):
            await one.store.append([message()], durability=Durability.REPLICATED)
        await one.missing.stop()

    in_world(main)


def test_a_replica_that_is_there_and_keeps_nothing_is_a_missing_one():
    async def main(world: World) -> None:
        one = await service(world)
        sending = asyncio.ensure_future(one.send())
        await asyncio.sleep(1.5)
        assert not sending.done()
        await asyncio.sleep(1)
        assert await sending is Durability.SYNCED
        assert one.store.is_alone
        await one.missing.stop()

    in_world(main)


def test_an_idle_service_with_its_replica_is_not_alone():
    async def main(world: World) -> None:
        one = await service(world)
        await asyncio.sleep(60)
        sending = asyncio.ensure_future(one.send())
        await asyncio.sleep(1)
        one.copy()
        assert await sending is Durability.REPLICATED
        assert one.registry.changes == 0
        await one.missing.stop()

    in_world(main)


def test_the_entry_is_taken_back_when_the_replica_has_everything_and_not_before():
    async def main(world: World) -> None:
        one = await service(world)
        await lose_replica(one)
        await one.send()
        one.store.note_copy("b", 0)
        await asyncio.sleep(10)
        assert one.store.is_alone
        end = one.store.on_disk_end()
        one.store.note_copy("b", end - 1)
        await asyncio.sleep(10)
        assert one.registry.leader.is_alone
        await one.send()
        one.store.note_copy("b", end)  # and not the message that came since
        await asyncio.sleep(2)
        assert one.registry.leader.is_alone
        assert one.missing.is_alone
        assert not one.store.is_alone
        one.copy()
        await asyncio.sleep(2)
        assert one.registry.leader == Leader(1, "a")
        assert not one.missing.is_noted
        assert not one.missing.is_alone
        sending = asyncio.ensure_future(one.send())
        await asyncio.sleep(0.5)
        one.copy()
        assert await sending is Durability.REPLICATED
        await one.missing.stop()

    in_world(main)


def test_a_replica_that_is_lost_before_it_has_everything_leaves_it_alone_without_another_entry():
    async def main(world: World) -> None:
        one = await service(world)
        await lose_replica(one)
        one.copy()
        for _ in range(20):  # it looks ten times a second
            if one.store.is_alone:
                await asyncio.sleep(0.01)
        assert not one.store.is_alone
        one.registry.is_away = True
        sending = asyncio.ensure_future(one.send())
        await asyncio.sleep(0)
        one.store.forget_copy("b")
        await asyncio.sleep(1.5)
        assert not sending.done()
        await asyncio.sleep(1)
        assert one.store.is_alone
        assert await sending is Durability.SYNCED
        assert await one.send() is Durability.SYNCED
        await one.missing.stop()

    in_world(main)


def test_it_is_not_alone_while_that_cannot_be_entered():
    async def main(world: World) -> None:
        one = await service(world)
        one.registry.is_away = True
        one.store.forget_copy("b")
        await asyncio.sleep(60)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        one.registry.is_away = False
        await asyncio.sleep(2)
        assert await one.send() is Durability.SYNCED
        await one.missing.stop()

    in_world(main)


def test_an_entry_that_may_have_been_made_is_taken_back():
    async def main(world: World) -> None:
        one = await service(world)
        one.registry.fails_late = True
        one.store.forget_copy("b")
        await asyncio.sleep(3)
        assert not one.store.is_alone
        assert one.registry.leader.is_alone
        one.registry.fails_late = False
        one.copy()
        await asyncio.sleep(2)
        assert one.registry.leader == Leader(1, "a")
        await one.missing.stop()

    in_world(main)


@pytest.mark.parametrize(
    "leader", [Leader(1_001, "b"), Leader(1, "b"), Leader(1, "b", is_alone=True)]
)
def test_it_does_not_go_alone_where_another_machine_leads(leader):
    async def main(world: World) -> None:
        one = await service(world)
        one.registry.leader = leader
        one.store.forget_copy("b")
        await asyncio.sleep(10)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        assert one.registry.leader == leader
        await one.missing.stop()

    in_world(main)


def test_one_that_is_alone_no_longer_is_when_another_machine_was_promoted():
    async def main(world: World) -> None:
        one = await service(world)
        await lose_replica(one)
        one.registry.leader = Leader(1_001, "b")
        await asyncio.sleep(1.5)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        await asyncio.sleep(10)
        assert one.registry.leader == Leader(1_001, "b")
        assert not one.missing.is_alone
        await one.missing.stop()

    in_world(main)


def test_a_start_goes_on_alone_where_it_was():
    async def main(world: World) -> None:
        one = await service(world, leader=Leader(1, "a", is_alone=True))
        assert await one.send() is Durability.SYNCED
        await one.missing.stop()

    in_world(main)


def test_a_start_of_one_that_was_alone_and_is_to_refuse_takes_the_entry_back_with_its_replica():
    async def main(world: World) -> None:
        one = await service(world, REFUSES, leader=Leader(1, "a", is_alone=True))
        await asyncio.sleep(10)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        assert one.registry.leader.is_alone
        assert one.missing.is_alone
        one.copy()
        await asyncio.sleep(2)
        assert one.registry.leader == Leader(1, "a")

    in_world(main)


def test_a_service_that_is_to_refuse_and_was_never_alone_asks_the_registry_once():
    async def main(world: World) -> None:
        one = await service(world, REFUSES)
        one.registry.is_away = True
        one.store.forget_copy("b")
        await asyncio.sleep(60)
        with pytest.raises(NotEnoughCopies):
            await one.send()
        assert one.registry.changes == 0

    in_world(main)
