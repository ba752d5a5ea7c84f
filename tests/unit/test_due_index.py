"""The timer files: what they hold is what was said, whatever is merged when, and whenever the power
goes.
"""

import asyncio
import errno
from collections import Counter
from pathlib import PurePath
from random import Random

import numpy as np
import pytest

from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats import timer_file
from storage.formats.timer_file import DamagedTimers
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.timers.timer_files import Memory
from storage.message import DueEntry, QueueId
from tests.support.builders import message
from tests.support.simulation import ROOT, World

ORDERS = QueueId("orders", 0)
TIMERS = ROOT / "timers"
OPTIONS = LocalStoreOptions(
    segment_bytes=65_536,
    prepare_ahead_bytes=16_384,
    index_slots=8,
    index_file_entries=2_000,
    queue_flush_interval_ms=5,
    snapshot_interval_ms=10,
)


# --------------------------------------------------------------------------------------------------
# formats


def rows(count: int, seed: int = 1) -> list[tuple[int, int, int, int]]:
    chosen = Random(seed)
    return [(chosen.randrange(count // 4 + 1), number, 2, number % 7) for number in range(count)]


def as_rows(entries: timer_file.Entries) -> list[tuple[int, ...]]:
    return [tuple(row) for row in entries.tolist()]


@pytest.mark.parametrize("count", [1, 169, 170, 171, 5_000])
def test_a_file_gives_back_what_was_written(count):
    entries = timer_file.made_of(rows(count), count)

    raw = timer_file.encode(entries, 5, 0)

    assert len(raw) == timer_file.file_bytes(count)
    assert as_rows(timer_file.decode(raw, 5, 0)) == sorted(rows(count))
    assert as_rows(timer_file.decode(raw[4096:], 5, 1)) == sorted(rows(count))[170:]


@pytest.mark.parametrize("at", [0, 5, 9, 13, 16, 300, 4_095])
def test_any_changed_byte_of_a_block_is_found(at):
    raw = bytearray(timer_file.encode(timer_file.made_of(rows(170), 170), 5, 0))
    raw[at] ^= 1

    with pytest.raises(DamagedTimers):
        timer_file.decode(bytes(raw), 5, 0)


@pytest.mark.parametrize(("number", "block"), [(6, 0), (5, 1)])
def test_a_block_in_the_place_of_another_is_found(number, block):
    raw = timer_file.encode(timer_file.made_of(rows(170), 170), 5, 0)

    with pytest.raises(DamagedTimers):
        timer_file.decode(raw, number, block)


def test_files_merged_in_any_number_are_the_set_of_what_was_added_and_not_taken_away():
    chosen = Random(3)
    added = rows(40_000)
    taken = chosen.sample(added, 15_000)
    piles: list[list[tuple[int, int, int, int]]] = [[] for _ in range(6)]
    for row in added:
        chosen.choice(piles).append(row)
    for row in taken:
        chosen.choice(piles).append((row[0], row[1], row[2] + 1, row[3]))
    sources = [Memory(timer_file.made_of(pile, len(pile))) for pile in piles]
    left = sorted(set(added) - set(taken))

    merged = [
        row for piece in timer_file.merged(sources, timer_file.FIRST) for row in as_rows(piece)
    ]

    assert merged == left
    after = timer_file.Key(*left[9_999][:3])
    assert [row for piece in timer_file.merged(sources, after) for row in as_rows(piece)] == left[
        9_999:
    ]


def test_a_merge_holds_little_at_once_however_many_are_due_at_the_same_time():
    same = np.zeros(100_000, timer_file.ENTRY)
    same["place"] = np.arange(100_000)
    same["version"] = 2
    sources = [Memory(same[::2]), Memory(same[1::2])]

    pieces = list(timer_file.merged(sources, timer_file.FIRST))

    assert max(map(len, pieces)) <= 20_000
    assert np.concatenate(pieces)["place"].tolist() == list(range(100_000))


# --------------------------------------------------------------------------------------------------
# in a store


class Saying:
    """What its owner says to the index, message by message of a queue: the same every time."""

    def __init__(self, seed: int, count: int, *, entries_each: int = 40) -> None:
        chosen = Random(seed)
        self.steps: list[tuple[list[DueEntry], list[DueEntry]]] = []
        open_: list[DueEntry] = []
        place = 0
        for _ in range(count):
            added = []
            for _ in range(chosen.randrange(entries_each)):
                place += 1
                added.append(DueEntry(chosen.randrange(10_000), place, 1, place % 3))
            open_ += added
            taken = []
            if chosen.random() < 0.5:
                # The earliest ones, as they are delivered, and one of any time, as it is cancelled.
                open_.sort()
                count_taken = chosen.randrange(2 * entries_each)
                taken, open_ = open_[:count_taken], open_[count_taken:]
                if open_:
                    taken.append(open_.pop(chosen.randrange(len(open_))))
            self.steps.append((added, taken))
        self._due: list[set[DueEntry]] = [set()]
        for added, taken in self.steps:
            self._due.append((self._due[-1] | set(added)) - set(taken))

    def due_after(self, steps: int) -> list[DueEntry]:
        return sorted(self._due[steps])

    async def say(self, store: LocalMessageStore, *, pause: float = 0.003) -> None:
        """From where the index is, which reads on in the queue, and then what comes."""
        at = store.due_positions().get(ORDERS, 0)
        while at < len(self.steps):
            if at >= (await store.offsets(ORDERS)).end:
                await store.append([message(b"step")])
            store.change_due(*self.steps[at], {ORDERS: at + 1})
            at += 1
            await asyncio.sleep(pause)


async def everything_due(store: LocalMessageStore) -> list[DueEntry]:
    return (await store.read_due(None, until_ms=1 << 62, max_entries=1 << 30)).entries


async def opened(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    return store


async def expect_true(store: LocalMessageStore, saying: Saying) -> None:
    reflected = store.due_positions().get(ORDERS, 0)
    assert reflected <= (await store.offsets(ORDERS)).end
    assert await everything_due(store) == saying.due_after(reflected)
    assert store.due_counts().waiting == len(saying.due_after(reflected))


def a_life(
    disk: SimulatedDisk, seed: int, saying: Saying, *, cut_after: int | None = None
) -> SimulatedDisk:
    """Until all is said or the power goes; then the disk, as it is found."""
    with World(disk, seed) as world:

        async def main() -> None:
            store = await opened(world)
            await expect_true(store, saying)
            if cut_after is not None:
                disk.cut_after = disk.operations + cut_after
            await saying.say(store)
            await expect_true(store, saying)

        is_over = world.run(main())
    return disk.after_kill() if is_over else disk.after_power_cut(Random(seed))


def test_a_start_has_what_was_said_up_to_some_message_whatever_operation_of_the_disk_was_the_last():
    """One life after another on the same disk, each cut at another place."""
    for seed in range(12):
        saying, disk = Saying(seed, 60), SimulatedDisk()
        chosen = Random(seed)
        for life in range(8):
            disk = a_life(disk, 100 * seed + life, saying, cut_after=chosen.randrange(1, 250))
        a_life(disk, 100 * seed + 99, saying)


def test_files_are_merged_and_given_back_so_that_few_are_left_and_none_when_all_is_over():
    saying = Saying(5, 400, entries_each=60)
    with World(SimulatedDisk(), 5) as world:

        async def main() -> None:
            store = await opened(world)
            counts = []
            for number in range(400):
                await store.append([message()])
                store.change_due(saying.steps[number][0], [], {ORDERS: 0})
                await asyncio.sleep(0.01)
                counts.append(len(world.disk.list_directory(TIMERS)))
            assert 2 <= max(counts) <= 12
            assert len(await everything_due(store)) > 10_000
            for at in range(0, 400, 10):
                gone = [entry for added, _ in saying.steps[at : at + 10] for entry in added]
                store.change_due([], gone, {ORDERS: 0})
                await store.append([message()])
                await asyncio.sleep(0.03)
            assert await everything_due(store) == []
            await store.append([message()])
            await asyncio.sleep(0.1)
            assert world.disk.list_directory(TIMERS) == []

        world.call(main())


@pytest.mark.parametrize("at", ["0", "timers", "consume_queues"])
def test_a_disk_without_space_delays_the_files_and_loses_nothing_of_them(at):
    """Whether it is the timer file itself that does not fit, its snapshot, or what comes after that
    in the same round.
    """
    saying = Saying(7, 60)
    refused = 0
    is_full = False

    def plan(call: str, path: PurePath) -> None:
        nonlocal refused
        if (
            is_full
            and call == "write"
            and path.parent.name == "making"
            and path.name.startswith(at)
        ):
            refused += 1
            raise OSError(errno.ENOSPC, "no space")

    with World(SimulatedDisk(), 7) as world:
        world.vfs = FaultyVfs(world.disk, plan)

        async def main() -> None:
            nonlocal is_full
            store = await opened(world)
            for number in range(60):
                is_full = number % 5 > 1
                await store.append([message(b"step")])
                store.change_due(*saying.steps[number], {ORDERS: number + 1})
                await asyncio.sleep(0.03)
                assert await everything_due(store) == saying.due_after(number + 1)

        world.call(main())
        disk = world.disk.after_kill()
    assert refused > 5
    a_life(disk, 8, saying)


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("write", errno.ENOSPC),
        ("rename", errno.ENOSPC),
        ("sync_directory", errno.ENOSPC),
        ("open", errno.EMFILE),
    ],
)
def test_rounds_that_a_full_disk_ends_leave_no_file_and_close_none_twice(failing, error):
    saying = Saying(9, 120)
    refused: Counter[str] = Counter()
    folders = {"0": "timers", "timers": "snapshots", "consume_queues": "snapshots"}
    begins = ""  # of the names that the full disk takes no more of

    def plan(call: str, path: PurePath) -> None:
        if call != failing or not begins:
            return
        folder = folders[begins]
        is_file = path.parent.name in ("making", folder) and path.name.startswith(begins)
        if is_file or (call == "sync_directory" and path.name == folder):
            refused[begins] += 1
            raise OSError(error, "simulated")

    with World(SimulatedDisk(), 9) as world:
        world.vfs = FaultyVfs(world.disk, plan)

        async def main() -> None:
            nonlocal begins
            store, most = await opened(world), 0
            for number in range(120):
                if number % 30 == 10:
                    most = len(world.disk.list_directory(TIMERS)) + 2
                is_full = number % 30 >= 10
                begins = world.randomness.choice([*folders]) if is_full else ""
                await store.append([message(b"step")])
                store.change_due(*saying.steps[number], {ORDERS: number + 1})
                await asyncio.sleep(0.05)
                assert not is_full or len(world.disk.list_directory(TIMERS)) <= most
                assert world.disk.list_directory(ROOT / "making") == []
                assert await everything_due(store) == saying.due_after(number + 1)
            begins = ""
            store.change_due([], saying.due_after(120), {ORDERS: 120})
            await store.append([message()])
            await asyncio.sleep(0.1)
            assert world.disk.list_directory(TIMERS) == []
            await store.aclose()

        world.call(main())
        assert not world.failures
        assert world.disk.open_files == 0
    assert min(refused[kind] for kind in folders) > 5
