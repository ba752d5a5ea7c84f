"""Starts on a disk that has no space for files that can be made again from the log."""

import asyncio
from errno import ENOSPC
from pathlib import PurePath

import pytest

from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.simulation import ROOT, End, World

LOG = ROOT / "commitlog"
ORDERS = QueueId("orders", 0)
SMALL = LocalStoreOptions(
    segment_bytes=65_536, prepare_ahead_bytes=8_192, index_slots=64, index_file_entries=30
)
COUNT = 40
_TAKES_SPACE = ("write", "extend", "allocate", "sync")
_OF_THE_LOG = ("abort", "checkpoint", "commitlog")


class Disk:
    """A disk that has no space, from a call on, for what is not the log itself."""

    def __init__(self, inner: SimulatedDisk, *, full_at: int | None) -> None:
        self.vfs = FaultyVfs(inner, self._plan)
        self.calls = 0
        self.is_full = False
        self._full_at = full_at

    def make_space(self) -> None:
        self.is_full, self._full_at = False, None

    def _plan(self, call: str, path: PurePath) -> None:
        if call not in _TAKES_SPACE or path.name.startswith(_OF_THE_LOG) or path.parent == LOG:
            return
        self.is_full = self.is_full or self.calls == self._full_at
        self.calls += 1
        if self.is_full:
            raise OSError(ENOSPC, "No space left on device", str(path))


async def fill(store: LocalMessageStore, *, first: int, count: int) -> None:
    for number in range(first, first + count):
        body = b"%d" % number * 100
        await store.append([message(body, message_id=f"m-{number}", key=f"key-{number}")])
    await store.commit_offset("group", ORDERS, first + count)


async def has_everything(store: LocalMessageStore, count: int) -> None:
    assert (await store.offsets(ORDERS)).end == count
    assert await store.committed_offset("group", ORDERS) == count
    found = await store.read(ORDERS, 0, max_messages=count, max_bytes=1 << 20)
    assert [stored.message_id for stored in found] == [f"m-{n}" for n in range(count)]
    for number in range(count):
        (stored,) = await store.find_messages(
            KeyQuery(f"key-{number}", topics=["orders"], max_messages=10)
        )
        assert stored.message_id == f"m-{number}"


def start(disk: SimulatedDisk, *, full_at: int | None) -> int:
    """A start and a life; the number of calls of the start."""
    with World(disk, 1) as world:
        limited = Disk(disk, full_at=full_at)
        world.vfs = limited.vfs

        async def life() -> int:
            store = await world.open_store(SMALL)
            calls = limited.calls
            await has_everything(store, COUNT + 10)
            await fill(store, first=COUNT + 10, count=5)
            await has_everything(store, COUNT + 15)
            await asyncio.sleep(30)
            limited.make_space()
            await asyncio.sleep(30)
            await fill(store, first=COUNT + 15, count=5)
            await has_everything(store, COUNT + 20)
            await store.aclose()
            assert world.failures == []
            return calls

        return world.call(life())


def left(end: End, *, full_at: int | None = None) -> tuple[SimulatedDisk, int]:
    """The disk that a life leaves, and the number of its calls."""
    disk = SimulatedDisk()
    with World(disk, 1) as world:
        limited = Disk(disk, full_at=full_at)
        world.vfs = limited.vfs

        async def life() -> None:
            store = await world.open_store(SMALL)
            await store.create_topic("orders", queue_count=1)
            await fill(store, first=0, count=COUNT)
            await asyncio.sleep(30)
            await fill(store, first=COUNT, count=10)
            if end is End.CLOSE:
                await store.aclose()

        world.call(life())
        return world.disk_left(end), limited.calls


@pytest.mark.parametrize("end", End)
def test_a_start_needs_no_space_but_for_the_log_itself(end):
    disk, _ = left(end)
    for full_at in range(start(disk.after_kill(), full_at=None)):
        left_disk, _ = left(end)
        start(left_disk, full_at=full_at)


@pytest.mark.parametrize("end", [End.CUT, End.KILL])
def test_a_disk_that_is_full_at_any_call_is_no_obstacle_to_the_next_start(end):
    _, calls = left(end)
    for full_at in range(calls):
        disk, _ = left(end, full_at=full_at)
        start(disk, full_at=0)
