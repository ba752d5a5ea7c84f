"""The scrub: walks the old log at its rate, goes on where it was, and finds what is damaged on the
disk.
"""

import asyncio
import errno
from pathlib import PurePath

import pytest

from storage.files.faulty import FaultyVfs
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.formats import scan
from storage.formats.names import file_name
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.scrub.scrub import SNAPSHOT
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.simulation import ROOT, World

SEGMENT_BYTES = 65_536
HOUR = 3_600
QUIET = {
    "segment_bytes": SEGMENT_BYTES,
    "prepare_ahead_bytes": 8_192,
    "index_slots": 16,
    "index_file_entries": 2_000,
}


def options(**given) -> LocalStoreOptions:
    return LocalStoreOptions(**{**QUIET, "scrub_bytes_per_second": 10_000, **given})


async def opened(world: World, given: LocalStoreOptions) -> LocalMessageStore:
    store = await world.open_store(given)
    await store.create_topic("orders", queue_count=1)
    return store


async def kept(store: LocalMessageStore) -> None:
    """All that was appended lies below a snapshot."""
    done = asyncio.get_running_loop().create_future()
    store._deriver.run_thorough(done.set_result)
    assert await done


async def a_pass(store: LocalMessageStore, *, seconds: float = 1.0) -> int:
    """Call it every second until its pass is over; how many seconds that took."""
    ended = store.scrub_status().last_ended_at_ms
    for second in range(10_000):
        await store.scrub()
        if store.scrub_status().last_ended_at_ms != ended:
            return second
        await asyncio.sleep(seconds)
    raise AssertionError("it never ends")


def a_disk(count: int = 300) -> SimulatedDisk:
    """A store of some segments that was closed in order."""

    async def main(world: World) -> None:
        store = await opened(world, options())
        for n in range(count):
            await store.append([message(b"x" * 500, message_id=f"m{n}")])
        await store.aclose()

    return in_world(main)


def segment_path(number: int) -> PurePath:
    return ROOT / "commitlog" / file_name(number * SEGMENT_BYTES)


def units(disk: SimulatedDisk, number: int) -> list[int]:
    """Where each unit of a segment begins."""
    file = disk.open(segment_path(number))
    raw, at, found = file.read(0, SEGMENT_BYTES), 0, []
    while isinstance(
        step := scan.judge(
            raw, at, number * SEGMENT_BYTES, segment_end=(number + 1) * SEGMENT_BYTES
        ),
        scan.Unit,
    ):
        found.append(at)
        at = step.end
    return found


def damage(disk: SimulatedDisk, number: int, at: int) -> None:
    file = disk.open(segment_path(number))
    (byte,) = file.read(at, 1)
    file.write(at, bytes([byte ^ 1]))
    file.sync()


def test_a_pass_reads_the_whole_old_log_no_faster_than_the_rate_and_the_next_waits_for_its_interval():
    async def main(world):
        store = await opened(world, options(scrub_interval_ms=HOUR * 1000))
        await kept(store)
        end = store.status().visible_end
        begun = world.loop.now

        await a_pass(store)

        status = store.scrub_status()
        assert (status.position, status.end, status.findings) == (end, None, [])
        assert world.loop.now - begun >= (end - 65_536) / 10_000 - 1
        assert [await store.scrub() for _ in range(3)] == [0, 0, 0]
        world.clock.jump(HOUR * 1000)
        await asyncio.sleep(1)
        assert await store.scrub() > 0
        await store.aclose()

    in_world(main, a_disk())


def test_what_is_damaged_below_the_last_snapshot_is_found_by_the_scrub_and_by_no_start():
    disk = a_disk()
    place = units(disk, 1)[3]
    damage(disk, 1, place + 120)

    async def main(world):
        store = await opened(world, options())
        assert store.recovery.was_clean

        await a_pass(store)

        (found,) = store.scrub_status().findings
        assert (found.code, found.file, found.position) == (
            "log_damaged",
            f"commitlog/{file_name(SEGMENT_BYTES)}",
            place,
        )
        assert (await store.append([message()]))[0].durable
        await store.aclose()

    in_world(main, disk)


@pytest.mark.parametrize("is_killed", [False, True])
def test_after_a_restart_it_goes_on_where_it_was_and_knows_what_it_found(is_killed):
    disk = a_disk()
    damage(disk, 0, units(disk, 0)[2] + 120)
    positions = []

    async def half(world):
        store = await opened(world, options())
        for _ in range(30):
            await store.scrub()
            await asyncio.sleep(1)
        positions.append(store.scrub_status().position)
        if is_killed:
            await store._scrub.save()
        else:
            await store.aclose()

    async def rest(world):
        store = await opened(world, options())
        await asyncio.sleep(1)
        await store.scrub()
        status = store.scrub_status()
        assert status.position >= positions[0] > 0
        assert len(status.findings) == 1
        await a_pass(store)
        assert len(store.scrub_status().findings) == 1
        await store.aclose()

    in_world(rest, in_world(half, disk))


async def a_pass_that_fails(store: LocalMessageStore) -> int:
    """As `a_pass`, where runs fail meanwhile; for how many seconds they did."""
    ended, failed = store.scrub_status().last_ended_at_ms, []
    for second in range(10_000):
        try:
            await store.scrub()
        except OSError:
            failed.append(second)
        if store.scrub_status().last_ended_at_ms != ended:
            return failed[-1] - failed[0] if failed else 0
        await asyncio.sleep(1)
    raise AssertionError("it never ends")


def test_a_sector_that_cannot_be_read_for_a_minute_is_a_finding_and_the_log_behind_it_is_checked():
    disk = a_disk()
    begins = units(disk, 1)
    bad = (begins[8] + BLOCK_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    first = max(begin for begin in begins if begin < bad)
    following = min(begin for begin in begins if begin >= bad + 3 * BLOCK_BYTES)
    disk.fail_reads(segment_path(1), bad, bad + 3 * BLOCK_BYTES)
    behind = units(disk, 2)[1]
    damage(disk, 2, behind + 120)

    async def main(world):
        store = await opened(world, options(scrub_interval_ms=1))

        assert 59 <= await a_pass_that_fails(store) < 70, "a minute, but for the first run"

        unreadable, damaged = store.scrub_status().findings
        assert (unreadable.code, unreadable.file, unreadable.position) == (
            "log_damaged",
            f"commitlog/{file_name(SEGMENT_BYTES)}",
            first,
        )
        at = SEGMENT_BYTES + bad
        assert unreadable.found == f"unreadable: Input/output error at log offset {at}"
        assert unreadable.place == (
            f"log offsets {SEGMENT_BYTES + first} to {SEGMENT_BYTES + following}"
        )
        assert damaged.position == behind

        disk.heal_reads(segment_path(1))
        await a_pass(store)
        assert [one.position for one in store.scrub_status().findings] == [behind]
        await store.aclose()

    in_world(main, disk)


def test_a_disk_that_gives_back_nothing_for_an_hour_is_no_damage():
    disk = a_disk()

    async def main(world):
        store = await opened(world, options(scrub_interval_ms=1))
        disk.fail_reads(segment_path(0), 0, SEGMENT_BYTES)
        for _ in range(HOUR):
            with pytest.raises(OSError, match="Input/output error"):
                await store.scrub()
            await asyncio.sleep(1)
        disk.heal_reads(segment_path(0))

        await a_pass(store)

        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


def test_a_store_is_closed_though_the_place_of_its_scrub_cannot_be_saved():
    async def main(world: World) -> None:
        def plan(call: str, path: PurePath) -> None:
            if call == "rename" and path.name == SNAPSHOT:
                raise OSError(errno.EIO, "simulated")

        world.vfs = FaultyVfs(world.disk, plan)
        store = await opened(world, options())
        for _ in range(14):
            await store.scrub()
            await asyncio.sleep(1)
        assert store.scrub_status().position, "a file is being read"

        with pytest.raises(OSError, match="simulated"):
            await store.aclose()

        assert [str(failure) for failure in world.failures] == ["[Errno 5] simulated"]
        assert world.disk.open_files == 0
        world.vfs = world.disk
        again = await opened(world, options())
        assert not again.recovery.was_clean
        await again.aclose()

    in_world(main, a_disk())


def test_a_place_that_was_restored_is_no_finding_any_more_once_a_pass_has_come_by():
    disk = a_disk()
    place = units(disk, 0)[2] + 120
    damage(disk, 0, place)

    async def main(world):
        store = await opened(world, options(scrub_interval_ms=1))
        await a_pass(store)
        assert len(store.scrub_status().findings) == 1
        damage(disk, 0, place)  # the same bit again

        await a_pass(store)

        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, disk)


def test_a_rate_of_0_reads_nothing():
    async def main(world):
        store = await opened(world, options(scrub_bytes_per_second=0))
        await kept(store)
        await asyncio.sleep(100)
        assert await store.scrub() == 0
        assert store.scrub_status().begun_at_ms is None
        await store.aclose()

    in_world(main, a_disk(10))


def test_segments_that_retention_drops_under_it_are_passed_over():
    async def main(world):
        given = options(retention_ms=1, delete_hours=";".join(f"{hour:02}" for hour in range(24)))
        store = await opened(world, given)
        await kept(store)
        await asyncio.sleep(1)
        await store.scrub()
        world.clock.jump(10 * HOUR * 1000)
        assert await store.expire(world.clock.wall_ms(), _nothing_to_put_back)
        assert store.status().first_offset > 0

        await a_pass(store)

        assert store.scrub_status().findings == []
        await store.aclose()

    in_world(main, a_disk())


async def _nothing_to_put_back(_: object) -> None:
    return None
