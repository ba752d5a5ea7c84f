"""The scrub compares the consume queues and the key index with the log: it finds what is damaged in
them, in a store that runs, and nothing where they are whole or only behind.
"""

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

import pytest

from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.files.unreadable import Unreadable
from storage.formats import index_file
from storage.formats.names import file_name
from storage.formats.queue_entry import ENTRY_BYTES
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.simulation import ROOT, World

HOUR_MS = 3_600_000
SEGMENT_BYTES = 65_536
SLOTS, FILE_ENTRIES = 16, 120
ORDERS, EMAILS = QueueId("orders", 0), QueueId("emails", 1)


def options(**given) -> LocalStoreOptions:
    usual = {
        "segment_bytes": SEGMENT_BYTES,
        "prepare_ahead_bytes": 8_192,
        "queue_file_entries": 50,
        "index_slots": SLOTS,
        "index_file_entries": FILE_ENTRIES,
        "queue_flush_interval_ms": 10,
        "scrub_bytes_per_second": 50_000,
        "retention_ms": 60_000,
        "delete_hours": ";".join(f"{hour:02}" for hour in range(24)),
    }
    return LocalStoreOptions(**{**usual, **given})


SLOW = options(scrub_bytes_per_second=4_000)


async def opened(world: World, given: LocalStoreOptions | None = None) -> LocalMessageStore:
    store = await world.open_store(given or options())
    await store.create_topic("orders", queue_count=1)
    await store.create_topic("emails", queue_count=2)
    return store


async def fill(store: LocalMessageStore, begin: int, end: int) -> None:
    for n in range(begin, end):
        await store.append(
            [
                message(b"x" * 300, message_id=f"o{n}", key=f"k{n % 9}", tag="paid"),
                message(b"y" * 200, queue=EMAILS, message_id=f"e{n}"),
            ]
        )


async def kept(store: LocalMessageStore) -> None:
    """All that was appended lies below a snapshot."""
    done = asyncio.get_running_loop().create_future()
    store._deriver.run_thorough(done.set_result)
    assert await done


async def a_pass_that_fails(store: LocalMessageStore, seconds: int) -> int:
    """Scrub each second until a pass has ended, at most so long; seconds since it could not read
    for the first time.
    """
    failed_at = None
    ended = store.scrub_status().last_ended_at_ms
    for now in range(seconds):
        try:
            await store.scrub()
        except Unreadable:
            failed_at = now if failed_at is None else failed_at
        if store.scrub_status().last_ended_at_ms != ended:
            return 0 if failed_at is None else now - failed_at
        await asyncio.sleep(1)
    raise AssertionError("the pass does not end")


async def a_pass(store: LocalMessageStore, *, seconds: float = 0.5) -> None:
    await store.scrub()  # what was kept is known now
    ended = store.scrub_status().last_ended_at_ms
    for _ in range(10_000):
        await store.scrub()
        if store.scrub_status().last_ended_at_ms != ended:
            return
        await asyncio.sleep(seconds)
    raise AssertionError("it never ends")


def a_disk(count: int = 200) -> SimulatedDisk:
    """A store of some segments, queue files and index files that was closed in order."""

    async def main(world: World) -> None:
        store = await opened(world)
        await fill(store, 0, count)
        await store.aclose()

    return in_world(main)


def index_path(disk: SimulatedDisk, number: int) -> PurePath:
    names = [name for name in disk.list_directory(ROOT / "index") if len(name) == 17]
    return ROOT / "index" / names[number]


def queue_path(queue: QueueId, number: int) -> PurePath:
    base = file_name(number * 50 * ENTRY_BYTES)
    return ROOT / "consumequeue" / queue.topic / str(queue.number) / base


def flip(disk: SimulatedDisk, path: PurePath, at: int, mask: int = 1) -> None:
    file = disk.open(path)
    (byte,) = file.read(at, 1)
    file.write(at, bytes([byte ^ mask]))
    file.sync()


def found_by(store: LocalMessageStore) -> list[tuple[str, str, int | None]]:
    return [(one.code, one.file, one.position) for one in store.scrub_status().findings]


# --------------------------------------------------------------------------------------------------
# nothing is wrong


def test_a_store_that_is_written_to_meanwhile_and_restarted_has_no_finding():
    async def life(world: World) -> None:
        store = await opened(world, options(scrub_interval_ms=1))
        for n in range(30):
            await fill(store, 1_000 + 10 * n, 1_010 + 10 * n)
            await store.scrub()
            await asyncio.sleep(1)
        await a_pass(store)
        await kept(store)
        await a_pass(store)
        assert store.scrub_status().findings == []
        await fill(store, 5_000, 5_050)
        await store.scrub()
        await store._scrub.save()  # killed in the middle of a pass, behind its snapshot

    async def rest(world: World) -> None:
        store = await opened(world, options(scrub_interval_ms=1))
        await a_pass(store)
        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(rest, in_world(life, a_disk()))


@pytest.mark.parametrize("seed", range(4))
def test_a_pass_that_is_interrupted_anywhere_continues_without_a_finding(seed):
    disk = a_disk()
    begun = []

    async def part(world: World) -> None:
        store = await opened(world, SLOW)
        for _ in range(25 + 8 * seed):
            await store.scrub()
            await asyncio.sleep(1)
        assert store.scrub_status().end is not None
        assert store.scrub_status().findings == []
        begun.append((store.scrub_status().begun_at_ms, store.scrub_status().position))
        await fill(store, 10_000, 10_010)
        await store.aclose()

    async def rest(world: World) -> None:
        store = await opened(world)
        await a_pass(store)
        status = store.scrub_status()
        assert (status.begun_at_ms, status.findings) == (begun[0][0], [])
        await store.aclose()

    in_world(rest, in_world(part, disk, seed), seed)
    assert begun[0][1] > 0


@pytest.mark.parametrize("steps", [1, 6, 12, 20, 40])
def test_what_retention_drops_and_topics_that_are_deleted_meanwhile_are_no_finding(steps):
    async def main(world: World) -> None:
        store = await opened(world, SLOW)
        await kept(store)
        for _ in range(steps):  # a pass has begun, and knows the files that there are
            await store.scrub()
            await asyncio.sleep(0.5)
        assert store.scrub_status().end is not None
        await store.delete_topic("emails")
        await store.scrub()
        world.clock.jump(10 * HOUR_MS)
        assert await store.expire(world.clock.wall_ms(), _nothing_to_put_back)
        await store.scrub()
        await kept(store)
        await store.expire(world.clock.wall_ms(), _nothing_to_put_back)  # derived files go, too
        assert not world.disk.exists(queue_path(EMAILS, 0))
        assert len(world.disk.list_directory(ROOT / "index")) < 4

        await a_pass(store)

        assert store.scrub_status().findings == []
        assert store.scrub_status().position > store.status().first_offset
        await store.aclose()

    in_world(main, a_disk())


@pytest.mark.parametrize("is_shorter", [False, True])
def test_an_index_file_that_a_lookup_has_rebuilt_meanwhile_is_no_finding(is_shorter):
    disk = a_disk()
    flip(disk, index_path(disk, 1), index_file.entry_at(SLOTS, 112) + 11)

    async def main(world: World) -> None:
        store = await opened(world, replace(SLOW, delete_batch=1))
        while store.scrub_status().position < SEGMENT_BYTES // 2:  # its first half is compared
            await store.scrub()
            await asyncio.sleep(0.5)
        if is_shorter:  # the log of its first half is dropped
            world.clock.jump(10 * HOUR_MS)
            assert await store.expire(world.clock.wall_ms(), _nothing_to_put_back) == 1
        for n in range(9):
            await store.find_messages(KeyQuery(f"k{n}", topics=["orders"], max_messages=1_000))
        assert store.status().rebuilt_index_files == 1

        await a_pass(store)

        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


def test_a_key_index_that_a_start_has_rebuilt_is_no_finding():
    disk = a_disk()
    for name in disk.list_directory(ROOT / "index"):
        disk.remove(ROOT / "index" / name)

    async def main(world: World) -> None:
        store = await opened(world)
        assert store.recovery.snapshot_offset is None
        await a_pass(store)
        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


def test_queues_that_a_start_has_rebuilt_are_compared_once_they_are_in_their_files():
    disk = a_disk()
    for number in range(4):
        disk.remove(queue_path(ORDERS, number))

    async def main(world: World) -> None:
        given = options(queue_flush_interval_ms=20_000, scrub_bytes_per_second=1 << 30)
        store = await opened(world, given)
        assert store.recovery.snapshot_offset is None
        while store.scrub_status().last_ended_at_ms is None:
            await store.scrub()
            await asyncio.sleep(0.5)
        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


# --------------------------------------------------------------------------------------------------
# something is


def test_a_flipped_bit_in_an_old_queue_file_is_found_and_stays_as_it_is():
    disk = a_disk()
    flip(disk, queue_path(ORDERS, 1), 7 * ENTRY_BYTES + 7)
    before = disk.open(queue_path(ORDERS, 1)).read(0, 50 * ENTRY_BYTES)

    async def main(world: World) -> None:
        store = await opened(world)
        await a_pass(store)
        (found,) = store.scrub_status().findings
        assert (found.code, found.file, found.position, found.place, found.is_derived) == (
            "queue_entry_differs",
            f"consumequeue/orders/0/{file_name(50 * ENTRY_BYTES)}",
            7 * ENTRY_BYTES,
            "orders/0, offset 57",
            True,
        )
        assert world.disk.open(queue_path(ORDERS, 1)).read(0, 50 * ENTRY_BYTES) == before
        await store.aclose()

    in_world(main, disk)


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (index_file.entry_at(SLOTS, 30) + 11, "index_entry_differs"),  # its log offset
        (index_file.slot_at(3) + 3, "index_slot_differs"),
        (index_file.entry_at(SLOTS, 40) + 19, "index_chain_broken"),
        (15, "index_header_differs"),
    ],
)
def test_a_flipped_bit_in_an_old_index_file_is_found(at, code):
    disk = a_disk()
    path = index_path(disk, 1)
    flip(disk, path, at)

    async def main(world: World) -> None:
        store = await opened(world)
        await a_pass(store)
        assert [(one[0], one[1]) for one in found_by(store)] == [(code, f"index/{path.name}")]
        await store.aclose()

    in_world(main, disk)


def test_an_old_queue_file_that_is_gone_is_found_in_a_store_that_runs():
    async def main(world: World) -> None:
        store = await opened(world)
        world.disk.remove(queue_path(EMAILS, 0))
        await a_pass(store)
        (found,) = store.scrub_status().findings
        assert (found.code, found.places) == ("queue_entry_missing", 50)
        await store.aclose()

    in_world(main, a_disk())


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_found_in_derived_files_is_known_after_a_restart_in_the_middle_of_a_pass(
    is_killed,
):
    disk = a_disk()
    flip(disk, queue_path(ORDERS, 0), 2 * ENTRY_BYTES + 7)
    path = index_path(disk, 1)
    flip(disk, path, index_file.entry_at(SLOTS, 5) + 5)  # its log offset is far ahead
    expected = [
        ("queue_entry_differs", 2 * ENTRY_BYTES),
        ("index_entry_differs", index_file.entry_at(SLOTS, 5)),
    ]

    async def half(world: World) -> None:
        store = await opened(world, SLOW)
        while not store.scrub_status().position:
            await store.scrub()
            await asyncio.sleep(1)
        assert store.scrub_status().end is not None, "the pass goes on"
        assert [(one[0], one[2]) for one in found_by(store)] == expected
        if is_killed:
            await store._scrub.save()
        else:
            await store.aclose()

    async def rest(world: World) -> None:
        store = await opened(world, options(scrub_interval_ms=1))
        await asyncio.sleep(1)
        await store.scrub()
        assert sorted((one[0], one[2]) for one in found_by(store)) == sorted(expected)
        await a_pass(store)
        assert set(expected) <= {(one[0], one[2]) for one in found_by(store)}
        assert {one.places for one in store.scrub_status().findings} == {1}
        flip(world.disk, queue_path(ORDERS, 0), 2 * ENTRY_BYTES + 7)  # the same bits again
        flip(world.disk, path, index_file.entry_at(SLOTS, 5) + 5)
        await a_pass(store)
        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(rest, in_world(half, disk))


def test_an_entry_that_leads_before_the_place_where_a_pass_continues_is_judged_by_the_next_pass():
    """It may be right: a broker's log may have an offset twice, and the first record counts."""
    disk = a_disk()
    flip(disk, queue_path(ORDERS, 3), 40 * ENTRY_BYTES + 5, 2)  # 131,072 bytes too early

    async def half(world: World) -> None:
        store = await opened(world, SLOW)
        while not store.scrub_status().position:
            await store.scrub()
            await asyncio.sleep(0.5)
        await store.aclose()

    async def rest(world: World) -> None:
        store = await opened(world, options(scrub_interval_ms=1))
        await a_pass(store)
        assert store.scrub_status().findings == []
        await a_pass(store)
        assert [one.place for one in store.scrub_status().findings] == ["orders/0, offset 190"]
        await store.aclose()

    in_world(rest, in_world(half, disk))


def test_a_finding_is_forgotten_with_the_topic_and_with_the_log_that_it_concerns():
    disk = a_disk()
    flip(disk, queue_path(EMAILS, 0), 2 * ENTRY_BYTES + 7)
    flip(disk, queue_path(ORDERS, 0), 2 * ENTRY_BYTES + 7)

    async def main(world: World) -> None:
        store = await opened(world)
        await a_pass(store)
        assert len(store.scrub_status().findings) == 2

        await store.delete_topic("emails")
        assert [one.place for one in store.scrub_status().findings] == ["orders/0, offset 2"]

        world.clock.jump(10 * HOUR_MS)
        assert await store.expire(world.clock.wall_ms(), _nothing_to_put_back)
        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


@pytest.mark.parametrize("folder", ["commitlog", "index", "orders/0"])
def test_a_read_that_fails_ends_no_pass_and_it_continues_where_it_was(folder):
    disk = a_disk()
    flip(disk, queue_path(ORDERS, 3), 40 * ENTRY_BYTES + 7)
    fails = False

    def plan(call: str, path: PurePath) -> None:
        if fails and call == "read" and path.parent.as_posix().endswith(folder):
            raise OSError(errno.EIO, "planted")

    async def main(world: World) -> None:
        nonlocal fails
        world.vfs = FaultyVfs(world.disk, plan)
        store = await opened(world, SLOW)
        while not store.scrub_status().position:
            await store.scrub()
            await asyncio.sleep(0.5)
        fails = True
        with pytest.raises(OSError, match="planted"):
            await a_pass(store)
        assert store.scrub_status().end is not None
        fails = False

        await a_pass(store)

        assert [one.place for one in store.scrub_status().findings] == ["orders/0, offset 190"]
        await store.aclose()

    in_world(main, disk)


async def _nothing_to_put_back(_: Mapping[QueueId, int]) -> None:
    return None


@pytest.mark.parametrize("folder", ["consumequeue/orders/0", "index"])
def test_a_derived_file_that_cannot_be_read_for_a_minute_is_a_finding_and_the_pass_ends(folder):
    async def main(world):
        store = await opened(world)
        await fill(store, 0, 400)
        await kept(store)
        name = world.disk.list_directory(ROOT / folder)[0]
        path = ROOT / folder / name
        world.disk.fail_reads(path, 0, 1)

        assert 60 <= await a_pass_that_fails(store, seconds=400) < 90

        findings = store.scrub_status().findings
        assert findings
        assert {one.file for one in findings} == {f"{folder}/{name}"}
        assert all(one.is_derived for one in findings)
        await store.aclose()

    in_world(main)
