"""Reads that are under way as the store is closed, in the lanes or between two of their jobs."""

import asyncio

import pytest

from storage.errors import StoreClosed
from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.simulation import ROOT, World

QUEUE = QueueId("orders", 0)
QUEUE_FILE = ROOT / "consumequeue" / "orders" / "0" / file_name(0)
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,  # a step of a repair for each
    prepare_ahead_bytes=8_192,
    queue_file_entries=2_000,
    index_slots=200,
    index_file_entries=200,
)
COUNT = 500


def filled() -> SimulatedDisk:
    async def main() -> None:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        for n in range(COUNT):
            await store.append([message(message_id=f"m{n}", key=f"key-{n}")])
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
    return world.disk.after_kill()


async def read(store: LocalMessageStore) -> list[int]:
    """A message whose entry of the queue file is to be made again."""
    return [one.queue_offset for one in await store.read(QUEUE, 0, max_messages=1, max_bytes=1)]


async def look_up(store: LocalMessageStore) -> list[int]:
    """A message whose index file is to be made again."""
    found = await store.find_messages(KeyQuery("key-0", topics=["orders"], max_messages=2))
    return [one.queue_offset for one in found]


@pytest.mark.parametrize("ask", [read, look_up])
def test_a_read_that_needs_a_repair_is_answered_whenever_the_store_is_closed(ask):
    """With the message, or as a closed store answers; and no file is opened behind the end."""
    answers: list[object] = []

    async def main(number: int) -> None:
        store = await world.open_store(OPTIONS)
        disk.fail_reads(QUEUE_FILE, 0, 1)
        oldest = store._files.key_index._files[0]
        path = oldest.path
        file = disk.open(path)
        file.write(40, b"\xff" * 800)  # slots
        file.close()
        asking = asyncio.ensure_future(ask(store))
        await asyncio.sleep(number / 1_000)
        await store.aclose()
        await asyncio.wait([asking], timeout=60)
        assert asking.done()
        answers.append(type(asking.exception()) if asking.exception() else asking.result())

    for number in range(40):
        disk = filled()
        with World(disk, number) as world:
            world.call(main(number))
            assert not world.failures
            assert disk.open_files == 0

    assert [one for one in answers if one not in ([0], StoreClosed)] == []
