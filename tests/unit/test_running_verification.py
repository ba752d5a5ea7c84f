"""A verification inside the service: it reads no faster than its rate, however often it is begun
and cancelled.
"""

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import pytest

from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.local.options import LocalStoreOptions
from storage.local.verify.verification import StoreVerification
from tests.support.builders import message
from tests.support.simulation import ROOT, World

SEGMENT_BYTES = 65_536
RATE = 50_000
HOUR_MS = 3_600_000
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=2_000,
    verify_bytes_per_second=RATE,
    scrub_bytes_per_second=0,
)


@pytest.fixture(scope="module")
def disk() -> SimulatedDisk:
    """A store of three segments that was closed in order."""

    async def write(world: World) -> None:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        for number in range(220):
            await store.append([message(b"x" * 500, message_id=f"m{number}")])
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(write(world))
    return world.disk.after_kill()


class Verified(NamedTuple):
    read_bytes: int
    most_bytes: int  # of one step
    findings: int
    seconds: float


def verified(disk: SimulatedDisk, *, times: int = 1, most_bytes: int = 1 << 30) -> Verified:
    """So many verifications one behind another; each is closed once it has read so much."""

    async def main() -> Verified:
        store = await world.open_store(OPTIONS)
        await asyncio.sleep(60)  # in which nothing is saved up but a second's worth
        begun, sizes, findings = world.loop.now, [0], 0
        for _ in range(times):
            running = await store.begin_verification()
            left = most_bytes
            while left > 0 and (step := await running.step()) is not None:
                sizes.append(step.read_bytes)
                findings += len(step.findings)
                left -= step.read_bytes
            await running.aclose()
        seconds = world.loop.now - begun
        await store.aclose()
        return Verified(sum(sizes), max(sizes), findings, seconds)

    with World(deepcopy(disk), 1) as world:
        return world.call(main())


def test_a_verification_inside_the_service_reads_no_faster_than_its_rate(disk):
    found = verified(disk)

    assert found.findings == 0
    assert found.read_bytes > 2 * SEGMENT_BYTES
    assert found.seconds >= (found.read_bytes - found.most_bytes) / RATE - 1
    assert found.seconds < 3 * found.read_bytes / RATE, "it does go on"


@pytest.mark.parametrize("kind", ["consumequeue", "index"])
def test_what_a_start_has_rebuilt_and_not_written_yet_is_not_missing(disk, kind):
    async def main() -> list[str]:
        store = await world.open_store(replace(OPTIONS, queue_flush_interval_ms=HOUR_MS))
        running = await store.begin_verification()
        other = StoreVerification(world.vfs, ROOT, is_running=True)
        findings = [found.code for step in other.steps() for found in step.findings]
        while (step := await running.step()) is not None:
            findings += [found.code for found in step.findings]
        await running.aclose()
        await store.aclose()
        return findings

    with World(deepcopy(disk), 1) as world:
        folder = ROOT / "consumequeue" / "orders" / "0" if kind == "consumequeue" else ROOT / kind
        for name in world.disk.list_directory(folder):
            world.disk.remove(folder / name)
        assert world.call(main()) == []


def test_verifications_that_are_cancelled_and_begun_again_have_no_more(disk):
    found = verified(disk, times=10, most_bytes=SEGMENT_BYTES // 2)

    assert found.read_bytes > 9 * SEGMENT_BYTES
    assert found.seconds >= (found.read_bytes - found.most_bytes) / RATE - 1


def test_what_is_read_to_find_the_next_whole_unit_counts(disk):
    damaged = deepcopy(disk)
    file = damaged.open(ROOT / "commitlog" / file_name(0))
    file.write(1_000, bytes(byte ^ 0xFF for byte in file.read(1_000, SEGMENT_BYTES - 2_000)))
    file.sync()

    found, whole = verified(damaged), verified(disk)

    assert found.findings
    assert found.seconds - whole.seconds >= 0.9 * (SEGMENT_BYTES - 2_000) / RATE


def test_an_index_file_that_has_grown_since_the_snapshot_is_read_whatever_its_number_of_slots():
    given = replace(
        OPTIONS,
        index_file_entries=30,  # not 4 for each slot, as in RocketMQ's
        snapshot_interval_ms=HOUR_MS,
        queue_flush_interval_ms=10,
        verify_bytes_per_second=1 << 30,
    )

    async def main() -> None:
        store = await world.open_store(given)
        await store.create_topic("orders", queue_count=1)
        for number in range(60):
            await store.append([message(message_id=f"m{number}")])
            if number == 10:
                kept = asyncio.get_running_loop().create_future()
                store._deriver.run_thorough(kept.set_result)
                assert await kept
        await asyncio.sleep(1)  # the file is full since, and the snapshot counts 11 of its keys
        running = await store.begin_verification()
        while (step := await running.step()) is not None:
            assert step.findings == ()
        await running.aclose()
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())
