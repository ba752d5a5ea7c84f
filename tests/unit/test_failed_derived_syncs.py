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
from storage.message import DueEntry, QueueId, StoredMessage
from storage.store import KeyQuery
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


class BadReads:
    """A life of a store whose disk does not give back a derived file, and from then on fails so
    many syncs of the files that are made in its place.
    """

    def __init__(self, world: World, made: str, *, failing: int) -> None:
        """`made`: pattern of their names."""
        self._world = world
        self._made = made
        self._failing = failing
        self._has_begun = False
        world.vfs = FaultyVfs(world.disk, self._plan)

    def _plan(self, call: str, path: PurePath) -> None:
        if self._has_begun and self._failing and call == "sync" and path.match(self._made):
            self._failing -= 1
            raise OSError(errno.EIO, "simulated")

    async def open_store(self) -> LocalMessageStore:
        """Open a store with messages, of which everything that is derived is on disk."""
        store = await self._world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        await self.send(store, 0, COUNT // 2)
        return store

    async def send(self, store: LocalMessageStore, begin: int, end: int) -> None:
        """Send, and let what is derived be written."""
        await store.append([message(key=f"key-{n}") for n in range(begin, end)])
        await asyncio.sleep(1)

    def fail_reads(self, folder: str) -> None:
        """Fail all pages of the last file of this folder."""
        self._world.disk.fail_reads(self._last_of(folder), 0, 1 << 20)

    def spoil(self, folder: str) -> None:
        """Write over the last file of this folder."""
        file = self._world.disk.open(self._last_of(folder))
        file.write(0, b"\x55" * file.size())
        file.close()

    def _last_of(self, folder: str) -> PurePath:
        self._has_begun = True
        return ROOT / folder / self._world.disk.list_directory(ROOT / folder)[-1]


@pytest.mark.parametrize(
    ("folder", "made"), [("consumequeue/orders/0", "making/0-*"), ("index", "making/rebuilt-*")]
)
def test_a_bad_read_as_a_file_is_written_on_and_a_failed_sync_of_the_new_file_end_nothing(
    folder, made
):
    async def main() -> None:
        store = await disk.open_store()
        disk.fail_reads(folder)
        await disk.send(store, COUNT // 2, COUNT)
        assert [one.queue_offset for one in await all_messages(store)] == [*range(COUNT)]
        derived(store)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        disk = BadReads(world, made, failing=1)
        world.call(main())
        assert world.failures == []


@pytest.mark.parametrize(
    ("folder", "made"), [("consumequeue/orders/0", "making/0-*"), ("index", "making/rebuilt-*")]
)
def test_a_bad_read_and_failed_syncs_of_the_new_file_and_of_another_end_the_store(folder, made):
    async def main() -> None:
        store = await disk.open_store()
        disk.fail_reads(folder)
        with suppress(FlushFailed):
            await disk.send(store, COUNT // 2, COUNT)

    with World(SimulatedDisk(), 1) as world:
        disk = BadReads(world, made, failing=2)
        world.call(main())
        (failure,) = world.failures
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EIO


def test_a_reader_gets_its_message_though_the_sync_of_the_file_made_for_it_fails_once():
    async def read(store: LocalMessageStore) -> list[int]:
        page = await store.read(QUEUE, 0, max_messages=1, max_bytes=1)
        return [one.queue_offset for one in page]

    async def main() -> None:
        store = await disk.open_store()
        await store.aclose()
        store = await world.open_store(OPTIONS)
        disk.fail_reads("consumequeue/orders/0")
        assert await read(store) == [0]
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        disk = BadReads(world, "making/0-*", failing=1)
        world.call(main())
        assert world.failures == []


def test_a_key_is_found_though_the_sync_of_the_index_file_made_for_it_fails_once():
    async def main() -> None:
        store = await disk.open_store()
        await store.aclose()
        store = await world.open_store(OPTIONS)
        disk.spoil("index")
        await disk.send(store, COUNT // 2, COUNT // 2 + 1)  # into the same file
        found = await store.find_messages(KeyQuery("key-0", topics=["orders"], max_messages=2))
        assert [one.queue_offset for one in found] == [0]
        assert store.status().rebuilt_index_files == 1
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        disk = BadReads(world, "making/rebuilt-*", failing=1)
        world.call(main())
        assert world.failures == []


async def all_messages(store: LocalMessageStore) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while len(found) < COUNT:
        found += await store.read(QUEUE, len(found), max_messages=100, max_bytes=1 << 20)
    return found
