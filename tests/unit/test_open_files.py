"""Open files do not grow with what is stored, and having none left is no failed disk."""

import asyncio
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from storage.errors import Backpressure
from storage.files.handles import Handles
from storage.files.simulated import SimulatedDisk
from storage.files.vfs import OsVfs
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.simulation import SlowSync, World

ORDERS = QueueId("orders", 0)
SEGMENT_BYTES = 16_384
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES,
    prepare_ahead_bytes=SEGMENT_BYTES,
    max_open_segments=4,
    index_slots=64,
    index_file_entries=20_000,
)


def disk_with(*names: str) -> tuple[SimulatedDisk, list[PurePosixPath]]:
    disk = SimulatedDisk()
    folder = PurePosixPath("/data")
    disk.make_directory(folder)
    for name in names:
        file = disk.open(folder / name, create=True)
        file.write(0, name.encode())
        file.close()
    return disk, [folder / name for name in names]


async def write(store: LocalMessageStore, *, segments: int) -> int:
    await store.create_topic("orders", queue_count=1)
    end = store.status().written_end + segments * SEGMENT_BYTES
    while store.status().written_end < end:
        await store.append([message(b"x" * 3_000, queue=ORDERS)])
    return (await store.offsets(ORDERS)).end


async def read_all(store: LocalMessageStore) -> int:
    at = 0
    while page := await store.read(ORDERS, at, max_messages=100, max_bytes=1 << 20):
        at += len(page)
    return at


def test_the_file_that_was_used_longest_ago_is_closed_first_and_never_one_in_use():
    disk, (a, b, c) = disk_with("a", "b", "c")
    handles = Handles(disk, limit=2)

    for path in (a, b, a):
        with handles.use(path):
            pass
    with handles.use(c) as file:
        assert file.read(0, 9) == b"c"

    assert disk.open_files == 2
    for path, is_open in ((a, True), (b, False), (c, True)):
        with handles.use_open(path) as file:
            assert (file is not None) == is_open
    with handles.use(a) as first, handles.use(b) as second, handles.use(c) as third:
        assert (first.read(0, 9), second.read(0, 9), third.read(0, 9)) == (b"a", b"b", b"c")
        assert disk.open_files == 3  # one more than is kept, as all are in use
    assert disk.open_files == 2


def test_a_forgotten_file_is_closed_when_its_last_user_ends():
    disk, (a,) = disk_with("a")
    handles = Handles(disk, limit=2)
    with handles.use(a), handles.use_open(a) as file:
        handles.forget(a)
        assert file is not None
        assert file.read(0, 9) == b"a"
    assert disk.open_files == 0


def test_a_closed_file_reaches_no_other_file_that_has_got_its_descriptor(tmp_path):
    closed = OsVfs().open(tmp_path / "closed", create=True)
    closed.close()
    other = OsVfs().open(tmp_path / "other", create=True)

    for call in (lambda: closed.write(0, b"lost"), lambda: closed.read(0, 4), closed.close):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()

    other.write(0, b"kept")
    assert other.read(0, 8) == b"kept"
    other.close()


def test_open_files_and_mapped_bytes_do_not_grow_with_the_log():
    async def main() -> None:
        store = await world.open_store(OPTIONS)
        few = await write(store, segments=10)
        assert await read_all(store) == few
        await asyncio.sleep(2)
        open_before = world.disk.open_files

        many = await write(store, segments=90)
        assert await read_all(store) == many
        await asyncio.sleep(2)

        # where in its segment the writer is makes that much of a difference
        assert world.disk.open_files <= open_before + 2
        assert store.status().mapped_bytes <= OPTIONS.most_held_segments * SEGMENT_BYTES
        await store.aclose()

        again = await world.open_store(OPTIONS)
        assert await read_all(again) == many
        await asyncio.sleep(2)
        assert world.disk.open_files <= open_before + 2
        await again.aclose()
        assert world.disk.open_files == 0

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


@pytest.mark.parametrize("flush", list(FlushPolicy))
def test_segments_that_a_stuck_disk_has_yet_to_take_do_not_use_up_the_open_files(flush):
    """Appends wait for it, or are refused when they have waited long enough, and go on behind
    it; what settles something then has the reserve.
    """

    async def send(*, from_reserve: bool = False) -> bool:
        try:
            await store.append(
                [message(b"x" * 3_000, queue=ORDERS)],
                durability=Durability.BUFFERED,
                from_reserve=from_reserve,
            )
        except Backpressure:
            return False
        return True

    async def main() -> None:
        nonlocal store
        store = await world.open_store(options)
        await store.create_topic("orders", queue_count=1)
        await asyncio.sleep(1)
        disk.is_stuck = True

        calls = [asyncio.ensure_future(send()) for _ in range(500)]
        settling = asyncio.ensure_future(send(from_reserve=True))
        await asyncio.sleep(1)
        stored = sum(call.done() for call in calls)
        mapped_bytes = store.status().mapped_bytes
        await asyncio.sleep(10)

        assert 0 < stored < 500
        assert mapped_bytes == options.most_held_segments * SEGMENT_BYTES
        assert [call.done() and call.result() for call in calls].count(True) == stored
        assert all(call.done() for call in calls)
        assert settling.done()
        assert settling.result()
        later = asyncio.ensure_future(send())
        await asyncio.sleep(1)
        assert not later.done()

        disk.release()

        assert await later
        await asyncio.sleep(2)
        assert await read_all(store) == stored + 2
        assert store.status().mapped_bytes < mapped_bytes
        await store.aclose()

    options = replace(OPTIONS, flush=flush, slow_sync_ms=60_000, reserve_bytes=SEGMENT_BYTES)
    store: LocalMessageStore
    with World(SimulatedDisk(), 1) as world:
        disk = SlowSync(world)
        world.call(main())


def test_without_descriptors_appends_are_refused_what_is_derived_waits_and_both_go_on_by_themselves():
    async def main() -> None:
        store = await world.open_store(OPTIONS)
        sent = await write(store, segments=2)
        await asyncio.sleep(3)
        await store.create_topic("new", queue_count=4)

        world.disk.max_open_files = world.disk.open_files
        taken = refused = 0
        while refused < 3:
            try:
                await store.append([message(b"x" * 3_000, queue=QueueId("new", taken % 4))])
                taken += 1
            except Backpressure:
                refused += 1
                await asyncio.sleep(2)
        assert world.failures == []
        assert (await store.offsets(ORDERS)).end == sent
        assert store.status().derive_error is not None

        world.disk.max_open_files = None
        await asyncio.sleep(3)
        await store.append([message(b"x" * 3_000, queue=QueueId("new", 0))])
        await asyncio.sleep(3)

        assert store.status().derive_error is None
        assert await read_all(store) == sent
        await store.aclose()
        assert world.failures == []

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
