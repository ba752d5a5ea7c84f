"""A derived file whose sync fails is replaced by another one, made from what the log has; if that
is not synced either, the store fails. No sync is tried again.
"""

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from random import Random

import pytest

from storage.errors import FlushFailed
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import DueEntry, QueueId
from tests.support.builders import message
from tests.support.simulation import ROOT, World

QUEUE = QueueId("orders", 0)
COUNT = 800
OPTIONS = LocalStoreOptions(  # many sectors of 512 bytes in each file
    segment_bytes=1 << 20,
    prepare_ahead_bytes=1 << 16,
    queue_file_entries=1_000,
    index_slots=2_000,
    index_file_entries=1_000,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=40,
)
KINDS: dict[str, Callable[[PurePath], bool]] = {
    "queue file": lambda path: "consumequeue" in path.parts,
    "index file": lambda path: path.parent.name == "index",
    "new queue file": lambda path: path.parent.name == "making" and path.name.startswith("0-"),
    "new index file": lambda path: path.name.startswith("index-"),
    "sums": lambda path: path.name.startswith("key_index-"),
    "snapshot": lambda path: path.name in ("consume_queues", "kept", "timers"),
    "timer file": lambda path: path.parent.name == "making" and path.name.isdigit(),
}


def forget_what_is_not_on_disk(disk: SimulatedDisk, folder: PurePath = ROOT) -> None:
    """The page cache forgets pages that it takes for written."""
    for name in disk.list_directory(folder):
        try:
            file = disk.open(folder / name)
        except FileNotFoundError:
            forget_what_is_not_on_disk(disk, folder / name)
        else:
            file.drop_cache()
            file.close()


def life(kind: str, failing: set[int]) -> tuple[World, list[int], int]:
    """A life in which those of the syncs of the kind fail; the places of the messages, and how many
    syncs there were.
    """
    syncs = 0
    world = World(SimulatedDisk(), 1)

    def plan(call: str, path: PurePath) -> None:
        nonlocal syncs
        if call == "sync" and KINDS[kind](path):
            syncs += 1
            if syncs in failing:  # its pages count as written from then on, and are not
                world.disk.fail_sync_number = world.disk.syncs + 1

    async def main() -> list[int]:
        world.vfs = FaultyVfs(world.disk, plan)
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        places: list[int] = []
        with suppress(FlushFailed):  # once the store has failed
            for begin in range(0, COUNT, 40):
                sent = [message(key=f"key-{n}") for n in range(begin, begin + 40)]
                places += [one.log_offset or 0 for one in await store.append(sent)]
                store.change_due([DueEntry(1_900_000_000_000, begin, 0)], [], {QUEUE: begin})
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        forget_what_is_not_on_disk(world.disk)
        if not world.failures:
            assert store.status().replay_backlog_bytes == 0
            assert derived(store) == places
        return places

    return world, world.call(main()), syncs


def due_count(world: World, store: LocalMessageStore) -> int:
    """Number of what is due, by the timer files."""
    return world.call(store.count_due(until_ms=2_000_000_000_000))


def derived(store: LocalMessageStore) -> list[int]:
    """Places of the messages by the queue's files, if the key index agrees."""
    files, index = store._files.queue_files, store._files.key_index
    found = [entry.physical_offset for entry in files.read(QUEUE, 0, COUNT)]
    by_key = [index.find("orders", f"key-{n}", from_ms=0, to_ms=1 << 62) for n in range(COUNT)]
    assert [[place] for place in found] == [*map(list, by_key)]
    return found


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_a_derived_file_whose_sync_fails_is_replaced_and_a_power_cut_takes_nothing_of_it(
    kind, number
):
    world, places, syncs = life(kind, {number})
    with world:
        assert syncs >= number or kind.startswith("new")
        assert world.failures == []

    with World(world.disk.after_power_cut(Random(1)), 2) as after:
        store = after.call(after.open_store(OPTIONS))
        assert store.recovery.snapshot_offset == store.recovery.end_offset
        assert derived(store) == places
        assert due_count(after, store) == COUNT // 40


@pytest.mark.parametrize("kind", ["new queue file", "new index file", "sums", "snapshot"])
def test_a_file_whose_second_one_is_not_synced_either_ends_the_store(kind):
    world, _, _ = life(kind, {1, 2})
    with world:
        (failure,) = world.failures
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EIO


@pytest.mark.parametrize(
    ("first", "second"), [("consumequeue/*/*/*", "making/0-*"), ("index/*", "making/rebuilt-*")]
)
def test_a_replacement_that_is_not_synced_either_ends_the_store(first, second):
    has_failed = is_failing = False

    def plan(call: str, path: PurePath) -> None:
        nonlocal has_failed
        if is_failing and call == "sync":
            if path.match(first):
                has_failed = True
            if path.match(first) or (has_failed and path.match(second)):
                raise OSError(errno.EIO, "simulated")

    async def main() -> None:
        nonlocal is_failing
        world.vfs = FaultyVfs(world.disk, plan)
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        await store.append([message()])
        await asyncio.sleep(1)
        is_failing = True
        await store.append([message()])
        await asyncio.sleep(1)

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        (failure,) = world.failures
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EIO
