"""An index file is made again in steps, beside what else is derived from the log."""

import asyncio
import errno
from collections.abc import Callable, Generator
from pathlib import PurePath

import pytest

from storage.files.faulty import FaultyVfs, Plan
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.local.index.key_index_file import DoubtfulIndex
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.simulation import ROOT, World

QUEUE = QueueId("orders", 0)
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,  # a step for each
    prepare_ahead_bytes=8_192,
    queue_file_entries=2_000,
    index_slots=200,
    index_file_entries=2_000,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=40,
)


class Calls:
    """A plan that fails the next write to a file of the index, and notes the calls behind it."""

    def __init__(self) -> None:
        self.is_failing = False
        self.behind: list[tuple[str, str]] = []

    def plan(self, call: str, path: PurePath) -> None:
        if self.is_failing and call == "write" and path.parent.name == "index":
            self.is_failing = False
            self.behind = [("failed", "index")]
            raise OSError(errno.EIO, "simulated")
        if self.behind and path.is_relative_to(ROOT):
            is_rebuilt = path.name.startswith("rebuilt-")
            folder = "rebuilt" if is_rebuilt else (*path.relative_to(ROOT).parts, "")[0]
            self.behind.append((call, folder))


async def opened(world: World, plan: Plan) -> LocalMessageStore:
    world.vfs = FaultyVfs(world.disk, plan)
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    return store


async def filled(world: World, plan: Plan) -> LocalMessageStore:
    """A store with 500 messages, of which everything that is derived is on disk."""
    store = await opened(world, plan)
    await send(store, 0, 500)
    await asyncio.sleep(1)
    return store


async def send(store: LocalMessageStore, begin: int, end: int) -> None:
    for n in range(begin, end):
        await store.append([message(message_id=f"m{n}", key=f"key-{n}")])


async def in_time(is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("not within a second")


async def all_are_found(store: LocalMessageStore, count: int) -> None:
    for n in range(count):
        found = await store.find_messages(KeyQuery(f"key-{n}", topics=["orders"], max_messages=2))
        assert [one.queue_offset for one in found] == [n]


def test_queue_entries_are_written_while_an_index_file_is_made_again():
    calls = Calls()

    async def main() -> None:
        store = await filled(world, calls.plan)
        calls.is_failing = True
        await send(store, 500, 600)
        await asyncio.sleep(1)
        assert store.status().rebuilt_index_files == 1
        assert store.status().replay_backlog_bytes == 0
        await all_are_found(store, 600)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures
    begun = calls.behind.index(("write", "rebuilt"))
    ended = calls.behind.index(("rename", "index"), begun)
    assert ("write", "consumequeue") in calls.behind[begun:ended]


def test_a_stop_while_an_index_file_is_made_again_ends_it_in_order():
    calls = Calls()

    async def main() -> None:
        store = await filled(world, calls.plan)
        calls.is_failing = True
        await send(store, 500, 501)
        await in_time(lambda: ("write", "rebuilt") in calls.behind)
        await store.aclose()

    async def look() -> None:
        store = await world.open_store(OPTIONS)
        assert store.recovery.was_clean
        assert store.recovery.replayed_records == 0
        await all_are_found(store, 501)

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures
    with World(world.disk.after_kill(), 2) as world:
        world.call(look())


def test_a_kill_while_an_index_file_is_made_again_hides_no_message():
    calls = Calls()

    async def main() -> None:
        store = await filled(world, calls.plan)
        calls.is_failing = True
        await send(store, 500, 600)
        await asyncio.sleep(2 * world.randomness.random())

    async def look() -> None:
        store = await world.open_store(OPTIONS)
        await all_are_found(store, 600)

    for seed in range(8):
        with World(SimulatedDisk(), seed) as world:
            world.call(main())
        with World(world.disk.after_kill(), seed + 100) as world:
            world.call(look())


def test_a_lookup_that_meets_a_file_that_the_disk_did_not_take_waits_until_it_is_made_again():
    """What was written is in the page cache alone, and can be lost there."""
    calls = Calls()

    async def main() -> None:
        store = await filled(world, calls.plan)
        index = store._files.key_index
        calls.is_failing = True
        await send(store, 500, 501)
        await in_time(lambda: index.doubtful is not None)
        with pytest.raises(DoubtfulIndex):
            list(index.find("orders", "key-0", from_ms=0, to_ms=1 << 62))
        await all_are_found(store, 501)
        assert store.status().rebuilt_index_files == 1

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures


def test_an_index_file_that_is_made_again_waits_for_space_before_the_log_is_read_for_it():
    log_reads: list[PurePath] = []
    calls = Calls()

    def plan(call: str, path: PurePath) -> None:
        if call == "read" and path.parent.name == "commitlog":
            log_reads.append(path)
        try:
            calls.plan(call, path)
        except OSError:
            world.disk.free_bytes = 3 * BLOCK_BYTES  # less than a file of 500 messages takes
            log_reads.clear()
            raise

    async def main() -> None:
        store = await filled(world, plan)
        index = store._files.key_index
        calls.is_failing = True
        await send(store, 500, 501)
        await in_time(lambda: index.doubtful is not None)
        await asyncio.sleep(1)  # a hundred tries
        assert index.doubtful is not None
        assert log_reads == []
        assert world.disk.list_directory(ROOT / "making") == []
        world.disk.free_bytes = None
        await in_time(lambda: index.doubtful is None)
        assert store.status().rebuilt_index_files == 1
        await all_are_found(store, 501)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures


@pytest.mark.parametrize("given_up_after", [None, 5])
def test_those_who_want_the_same_index_file_rebuilt_share_the_steps(given_up_after):
    async def main() -> None:
        store = await opened(world, lambda *_: None)
        await send(store, 0, 500)
        await asyncio.sleep(1)
        index, log = store._files.key_index, store._files.log
        (file,) = index._files
        waiting = [index.rebuild(file, log), index.rebuild(file, log)]
        steps = 0
        while waiting:
            waiting = [one for one in waiting if is_unfinished(one)]
            steps += 1
            if steps == given_up_after:
                waiting.pop(0).close()
        assert index.rebuilt_files == 1
        assert world.disk.list_directory(ROOT / "making") == []
        await all_are_found(store, 500)

    def is_unfinished(steps: Generator[None, None, None]) -> bool:
        return next(steps, "ended") is None

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures


def test_the_index_can_be_closed_while_a_lookup_takes_a_step_of_a_rebuilding():
    is_rebuilding = False

    def plan(call: str, path: PurePath) -> None:
        nonlocal is_rebuilding
        if is_rebuilding and call == "write" and path.name.startswith("rebuilt-"):
            is_rebuilding = False
            store._files.key_index.close()  # as the flush lane does it, in another thread

    async def main() -> None:
        nonlocal store, is_rebuilding
        store = await opened(world, plan)
        await send(store, 0, 500)
        await asyncio.sleep(1)
        index = store._files.key_index
        is_rebuilding = True
        for _ in index.rebuild(index._files[0], store._files.log):
            pass
        assert not is_rebuilding
        assert index.rebuilt_files == 0
        assert world.disk.list_directory(ROOT / "making") == []

    store: LocalMessageStore
    with World(SimulatedDisk(), 1) as world:
        world.call(main())
        assert not world.failures
