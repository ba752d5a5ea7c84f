"""Space of the log: allocated in steps ahead of the writer, the reserve first."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

import pytest
import structlog
import uvloop

from storage.clock import SystemClock
from storage.errors import StorageFull
from storage.files.faulty import FaultyVfs
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.files.vfs import OsVfs
from storage.formats import queue_entry
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.log.preparer import end_before_kept, end_with_kept
from storage.local.options import LocalStoreOptions
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.simulation import ROOT, End, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnState

MIB = 1 << 20
ORDERS = QueueId("orders", 0)
LOG = ROOT / "commitlog"
SMALL = LocalStoreOptions(
    segment_bytes=65_536, prepare_ahead_bytes=8_192, index_slots=64, index_file_entries=200
)
MOST_STEPS = 30  # of what a life below may allocate, before its disk is full
NEVER_CHECKED = CheckbackPolicy(first_after_ms=1 << 40)


@contextmanager
def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """(begin, length) of each call that allocates."""
    steps: list[tuple[int, int]] = []
    allocate = os.posix_fallocate

    def note(file: int, begin: int, length: int) -> None:
        steps.append((begin, length))
        allocate(file, begin, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", note)
        yield steps


def test_an_empty_store_takes_less_than_64_mib_of_disk_and_its_segment_has_its_full_length(
    tmp_path, monkeypatch
):
    options = LocalStoreOptions()
    clock = SystemClock()

    async def main() -> None:
        store = await LocalMessageStore.open(
            tmp_path, options, OsVfs(), clock, Identifiers(clock, SystemRandom())
        )
        await store.create_topic("orders", queue_count=1)
        await store.append([message()])
        while not store.is_prepared:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert disk_bytes(tmp_path) < 64 * MIB
        await store.aclose()

    with recorded_steps(monkeypatch) as steps:
        uvloop.run(main())

    (segment,) = (tmp_path / "commitlog").iterdir()
    assert segment.stat().st_size == options.segment_bytes == 1 << 30
    assert disk_bytes(tmp_path) < 64 * MIB
    assert steps[0] == (0, options.log_reserve_bytes), "the reserve comes first"
    assert all(length <= 16 * MIB for _, length in steps)
    assert sum(length for _, length in steps) == sum(steps[-1]), "no step is missing, none overlaps"


class Life:
    """A life of a store on a disk of which a test decides when it has no more space for the log."""

    def __init__(self, disk: SimulatedDisk, *, full_at_step: int | None = None) -> None:
        """`full_at_step`: number of steps that are allocated before; None: the disk is full."""
        self.world = World(disk, 1)
        self.world.vfs = FaultyVfs(disk, self._plan)
        self.is_full = full_at_step is None
        self._steps_left = full_at_step or 0

    def _plan(self, call: str, path: PurePath) -> None:
        if call == "allocate":
            self._steps_left -= 1
            self.is_full = self.is_full or self._steps_left == -1
        of_log = path.parent == LOG
        self.world.disk.free_bytes = 0 if self.is_full and of_log else None

    async def open(self) -> tuple[LocalMessageStore, TransactionCoordinator]:
        store = await self.world.open_store(SMALL)
        await store.create_topic("orders", queue_count=1)
        coordinator = TransactionCoordinator(
            store, self.world.clock, self.world.identifiers, TransactionOptions()
        )
        await coordinator.start()
        return store, coordinator


async def begin(coordinator: TransactionCoordinator, name: str) -> str:
    half = message(b"b" * 2_000, queue=ORDERS, message_id=f"m-{name}")
    request = Begin([half], "shop", NEVER_CHECKED, transaction_id=name)
    return (await coordinator.begin(request)).transaction.transaction_id


async def until_refused(act, *, most: int = 200) -> int:
    """How often `act` succeeded before the disk was full."""
    for number in range(most):
        try:
            await act(number)
        except StorageFull:
            return number
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("end", [End.KILL, End.CUT, End.CLOSE])
@pytest.mark.parametrize("step", range(MOST_STEPS))
def test_a_disk_that_is_full_at_any_step_refuses_sends_takes_decisions_and_goes_on_once_there_is_space(
    step, end
):
    names: list[str] = []
    sent = committed = 0

    async def first() -> None:
        nonlocal sent
        store, coordinator = await life.open()

        async def begin_or_send(number: int) -> None:
            nonlocal sent
            if number % 2 and len(names) < 12:
                names.append(await begin(coordinator, f"open-{number}"))
            await store.append([message(b"x" * 1_500)], durability=Durability.SYNCED)
            sent += 1

        await until_refused(begin_or_send)
        assert life.is_full
        assert step < 8 or len(names) > 3
        await decide_some(store, coordinator, names[: len(names) // 2])
        if end is End.CLOSE:
            await store.aclose()

    async def decide_some(
        store: LocalMessageStore, coordinator: TransactionCoordinator, some: list[str]
    ) -> None:
        nonlocal committed
        for name in some:
            assert (await coordinator.commit(name)).transaction.state is TxnState.COMMITTED
            committed += 1
            if (await store.offsets(ORDERS)).end:
                await store.commit_offset("group", ORDERS, 1)
        assert (await store.offsets(ORDERS)).end == sent + committed
        assert life.world.failures == []

    async def second() -> None:
        store, coordinator = await life.open()
        await decide_some(store, coordinator, names[len(names) // 2 :])
        with pytest.raises(StorageFull):
            await store.append([message(b"x" * 60_000)])

        life.is_full = False
        await asyncio.sleep(2)

        for number in range(60):  # over the border of a segment
            await store.append([message(b"x" * 1_500)])
            await begin(coordinator, f"after-{number}")
        assert (await store.offsets(ORDERS)).end == sent + committed + 60
        assert life.world.failures == []
        await store.aclose()

    disk = SimulatedDisk()
    life = Life(disk, full_at_step=step)
    with life.world as world:
        world.call(first())
        disk = world.disk_left(end)
    life = Life(disk)
    with life.world as world:
        world.call(second())
    assert {disk.open(LOG / name).size() for name in disk.list_directory(LOG)} == {65_536}


def test_a_full_disk_is_one_line_however_long_it_is_full_and_another_one_when_it_has_space_again():
    async def main() -> None:
        store, _ = await life.open()
        for _ in range(2):
            life.is_full = True
            await until_refused(lambda _: store.append([message(b"x" * 1_500)]))
            await asyncio.sleep(600)
            with pytest.raises(StorageFull):
                await store.append([message(b"x" * 60_000)])

            life.is_full = False
            await asyncio.sleep(2)
            await store.append([message(b"x" * 1_500)])
        await store.aclose()

    life = Life(SimulatedDisk(), full_at_step=MOST_STEPS)
    with life.world as world, structlog.testing.capture_logs() as lines:
        world.call(main())

    found = [(line["event"], line["log_level"]) for line in lines]
    of_space = [line for line in found if line[0] in ("disk_full", "log_has_room_again")]
    assert of_space == [("disk_full", "warning"), ("log_has_room_again", "info")] * 2


def test_a_shortage_of_the_reserve_that_is_owed_no_more_is_over_and_the_next_one_is_in_the_log():
    async def main() -> None:
        store, _ = await life.open()
        await asyncio.sleep(10)  # all that is made ahead is there
        life.is_full = True
        preparer = store._engine.preparer
        preparer.set_reserve(200_000)
        await asyncio.sleep(10)
        preparer.set_reserve(0)
        await asyncio.sleep(10)
        assert not preparer.is_full
        await until_refused(lambda _: store.append([message(b"x" * 1_500)]))
        await store.aclose()

    life = Life(SimulatedDisk(), full_at_step=MOST_STEPS)
    with life.world as world, structlog.testing.capture_logs() as lines:
        world.call(main())

    found = [line["event"] for line in lines]
    of_space = [event for event in found if event in ("disk_full", "log_has_room_again")]
    assert of_space == ["disk_full", "log_has_room_again", "disk_full"]


def test_the_end_of_a_store_without_space_behind_its_messages_is_given_some():
    """As of a sparse copy, or of a broker, whose last file is a hole behind its messages."""

    async def first() -> None:
        store, _ = await life.open()
        for _ in range(5):
            await store.append([message(b"x" * 1_500)])
        await store.aclose()

    async def second() -> None:
        store, _ = await life.open()
        with pytest.raises(StorageFull):
            await store.append([message(b"x" * 4_000)])
        life.is_full = False
        await asyncio.sleep(2)
        for _ in range(60):
            await store.append([message(b"x" * 1_500)])
        for _ in range(3):  # each takes more than several steps
            await store.append([message(b"x" * 50_000)])
        assert (await store.offsets(ORDERS)).end == 68
        assert life.world.failures == []
        await store.aclose()

    life = Life(SimulatedDisk(), full_at_step=1_000)
    with life.world as world:
        world.call(first())
        disk = world.disk_left(End.CLOSE)
    for name in disk.list_directory(LOG):
        disk.make_sparse(LOG / name)
    life = Life(disk)
    with life.world as world:
        world.call(second())


def test_a_damaged_queue_entry_never_makes_the_mapping_be_read_where_the_file_has_a_hole():
    """The simulated mapping fails such a read, as that of a full tmpfs kills the process."""

    async def main() -> None:
        store = await world.open_store(SMALL)
        await store.create_topic("orders", queue_count=1)
        places = await store.append([message(b"x" * 100) for _ in range(20)])
        begins = [place.log_offset for place in places]
        log = store._log
        lengths = [log.length_at(begin) for begin in begins]
        assert log.block_now(ORDERS, 0, entries(begins, lengths), max_bytes=1 << 20)

        assert log.read_now(60_000, 300) is None
        assert log.read_now(begins[-1], 50_000) is None
        lengths[1] = 50_000
        for count in (3, 20):
            of_damaged = entries(begins[:count], lengths[:count])
            assert log.block_now(ORDERS, 0, of_damaged, max_bytes=1 << 20) is None

    def entries(begins: list[int], lengths: list[int]) -> bytes:
        pairs = zip(begins, lengths, strict=True)
        return b"".join(queue_entry.encode(at, length, 0) for at, length in pairs)

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


@pytest.mark.parametrize("kept_bytes", [0, 1, 5, 9, 10, 25])
def test_what_is_kept_fits_one_segment_where_it_can_and_the_room_reaches_as_far_as_the_space_allows(
    kept_bytes,
):
    for room_end in range(45):
        space_end = end_with_kept(room_end, kept_bytes, segment_bytes=10)
        kept_from = space_end - kept_bytes
        assert kept_from >= room_end
        assert kept_bytes in (0, 25) or kept_from // 10 == (space_end - 1) // 10
        assert end_before_kept(space_end, kept_bytes, segment_bytes=10) >= room_end
    for space_end in range(45):
        room_end = end_before_kept(space_end, kept_bytes, segment_bytes=10)
        assert end_with_kept(room_end, kept_bytes, segment_bytes=10) <= space_end
        assert end_with_kept(room_end + 1, kept_bytes, segment_bytes=10) > space_end


def test_a_simulated_file_has_space_only_for_what_was_written_or_allocated():
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    file = disk.open(ROOT / "file", create=True)
    file.extend(8 * BLOCK_BYTES)
    disk.free_bytes = 2 * BLOCK_BYTES
    file.allocate(BLOCK_BYTES, 2 * BLOCK_BYTES)
    file.write(4 * BLOCK_BYTES - 1, b"x")

    for act in (
        lambda: file.write(5 * BLOCK_BYTES, b"x"),
        lambda: file.allocate(BLOCK_BYTES, 3 * BLOCK_BYTES),
    ):
        with pytest.raises(OSError, match="simulated"):
            act()
    file.write(BLOCK_BYTES, b"over what was allocated")

    assert file.data_ranges(10) == [
        (BLOCK_BYTES, 2 * BLOCK_BYTES),
        (3 * BLOCK_BYTES, 4 * BLOCK_BYTES),
    ]


def disk_bytes(folder: Path) -> int:
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))


def test_an_allocation_for_which_there_is_no_space_takes_none(tmp_path):
    """ext4 would keep what it found before it failed, which is all that the registry has left."""
    disk = os.statvfs(tmp_path)
    too_much = disk.f_bavail * disk.f_frsize + (1 << 30)
    path = tmp_path / "segment"
    file = OsVfs().open(path, create=True)
    file.extend(too_much)

    with pytest.raises(OSError, match="No space left on device"):
        file.allocate(0, too_much)

    assert path.stat().st_blocks == 0
    file.close()
