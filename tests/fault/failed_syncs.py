"""Lives in which one sync fails, as Linux fails it: once, and from then on memory and disk differ
without another word.
"""

import asyncio
from random import Random

from storage.errors import FlushFailed
from storage.files.simulated import SimulatedDisk
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message
from tests.support.simulation import World

QUEUE = QueueId("orders", 0)
OPTIONS = LocalStoreOptions(
    index_slots=16,
    index_file_entries=40,
    segment_bytes=32_768,
    prepare_ahead_bytes=8_192,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=30,
)


def run_failed_sync(seed: int) -> list[str]:
    """Appends, of which one meets the failing sync; then the power goes.

    What was acknowledged and is lost.
    """
    randomness = Random(seed)
    disk = SimulatedDisk()
    acknowledged: dict[str, int] = {}
    with World(disk, seed) as world:
        world.run(_append(world, disk, randomness, acknowledged))
    disk = disk.after_power_cut(randomness)
    problems = []
    with World(disk, seed + 1) as world:
        store = world.call(world.open_store(OPTIONS))
        world.call(store.create_topic("orders", queue_count=1))
        found = world.call(store.read(QUEUE, 0, max_messages=1_000, max_bytes=1 << 30))
        there = {one.message_id: one.queue_offset for one in found}
        for message_id, queue_offset in acknowledged.items():
            if there.get(message_id) != queue_offset:
                problems.append(f"seed {seed}: {message_id} was acknowledged and is lost")
    return problems


async def _append(
    world: World, disk: SimulatedDisk, randomness: Random, acknowledged: dict[str, int]
) -> None:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    await asyncio.sleep(0.1)
    disk.fail_sync_number = disk.syncs + randomness.randrange(1, 30)

    async def send(number: int) -> None:
        await asyncio.sleep(randomness.random() * 0.1)
        body = randomness.randbytes(randomness.randrange(900))
        try:
            (place,) = await store.append([message(body, queue=QUEUE, message_id=f"m{number}")])
        except FlushFailed:
            return
        if place.durable:
            acknowledged[f"m{number}"] = place.queue_offset

    await asyncio.gather(*[send(number) for number in range(30)])
    await asyncio.sleep(0.2)
