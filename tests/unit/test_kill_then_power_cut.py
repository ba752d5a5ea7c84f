"""A kill leaves names and bytes that only the page cache has.

The next start builds on them, so it makes them durable first.
"""

import asyncio
from random import Random

import pytest

from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Durability
from tests.support.builders import ORDERS, message
from tests.support.simulation import World

OPTIONS = LocalStoreOptions(
    index_slots=64,
    index_file_entries=200,
    segment_bytes=16_384,
    prepare_ahead_bytes=8_192,
    queue_flush_interval_ms=5,
    snapshot_interval_ms=5,
)


class Pessimist(Random):
    """At a power cut everything is lost that may be lost."""

    def random(self) -> float:
        return 0.95


async def open_with_orders(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    return store


async def fill_two_segments(world: World) -> None:
    store = await open_with_orders(world)
    for number in range(10):
        await store.append([message(bytes(3_000), message_id=f"old {number}")])
        await asyncio.sleep(0.01)


async def acknowledged(world: World) -> str:
    store = await open_with_orders(world)
    (appended,) = await store.append(
        [message(message_id="acknowledged")], durability=Durability.SYNCED
    )
    assert appended.durable
    return "acknowledged"


async def served(world: World) -> list[str]:
    store = await open_with_orders(world)
    found: list[str] = []
    while page := await store.read(ORDERS, len(found), max_messages=10, max_bytes=1 << 20):
        found += [one.message_id for one in page]
    return found


def operations_of_a_life() -> int:
    disk = SimulatedDisk()
    with World(disk, 1) as world:
        world.call(fill_two_segments(world))
        return disk.operations


@pytest.mark.parametrize("kill_at", range(1, operations_of_a_life()))
def test_what_a_start_after_a_kill_acknowledges_survives_the_next_power_cut(kill_at):
    disk = SimulatedDisk()
    disk.cut_after = kill_at
    with World(disk, 1) as world:
        world.run(fill_two_segments(world))
    disk = disk.after_kill()
    with World(disk, 2) as world:
        promised = world.call(acknowledged(world))

    disk = disk.after_power_cut(Pessimist())

    with World(disk, 3) as world:
        assert promised in world.call(served(world))
