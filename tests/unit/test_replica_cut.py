"""A replica's log that is cut where it parts from its primary's, and goes on there."""

import errno
from copy import deepcopy
from pathlib import PurePath
from random import Random

import pytest

from storage.files.faulty import FaultyVfs
from storage.files.simulated import PowerCut, SimulatedDisk
from storage.local.repair.repair import Repair
from storage.local.repair.repair_report import RepairRefused
from tests.support.lives import in_world
from tests.support.replicated import (
    SEGMENT_BYTES,
    Recorded,
    Seen,
    log_bytes,
    open_replica,
    record,
    see,
)
from tests.support.simulation import ROOT, World

FOLDER = "set-aside-1"


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return record(11)


@pytest.fixture(scope="module")
def followed(recorded) -> SimulatedDisk:
    return disk_of_a_replica(recorded)


def disk_of_a_replica(recorded: Recorded) -> SimulatedDisk:
    """It has all of the log, and was stopped in order."""

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        for piece in recorded.pieces:
            await replica.take(piece.offset, piece.data)
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        await replica.aclose()

    return in_world(follow)


def cut(disk: SimulatedDisk, offset: int) -> None:
    repair = Repair(disk, ROOT, folder=FOLDER, now_ms=0, segment_bytes=SEGMENT_BYTES)
    try:
        repair.cut_to_follow(offset)
    finally:
        repair.close()


def unit_ends(recorded: Recorded) -> list[int]:
    return [
        piece.offset + len(piece.data)
        for piece in recorded.pieces
        if piece.end == piece.offset + len(piece.data)
    ]


def goes_on(disk: SimulatedDisk, recorded: Recorded, *, cut_at: int) -> tuple[Seen, SimulatedDisk]:
    """Let it follow again to the end; all that its readers see then, and its disk."""
    seen: list[Seen] = []

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        end = replica.stored_offset()
        assert end >= cut_at
        assert log_bytes(disk, end) == log_bytes(recorded.disk, end)
        for piece in recorded.pieces:
            if piece.offset >= end:
                await replica.take(piece.offset, piece.data)
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        seen.append(await see(replica))
        await replica.aclose()

    left = in_world(follow, disk)
    return seen[0], left


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.8, 0.99])
def test_a_log_that_was_cut_ends_there_and_follows_again_to_the_same_end(recorded, followed, part):
    ends = unit_ends(recorded)
    at = ends[int(len(ends) * part)]
    expected, _ = goes_on(deepcopy(followed), recorded, cut_at=recorded.end)
    disk = deepcopy(followed)

    cut(disk, at)

    async def look(world: World) -> None:
        replica = await open_replica(world)
        assert (replica.stored_offset(), replica.recovery.end_offset) == (at, at)
        await replica.aclose()

    disk = in_world(look, disk)
    seen, disk = goes_on(disk, recorded, cut_at=at)
    assert seen == expected
    assert log_bytes(disk, recorded.end) == log_bytes(recorded.disk, recorded.end)


def test_a_disk_without_space_for_the_copy_leaves_the_log_and_what_is_derived_as_they_were(
    recorded, followed
):
    def plan(operation: str, path: PurePath) -> None:
        if operation == "write" and FOLDER in path.parts and path.parent.name == "commitlog":
            raise OSError(errno.ENOSPC, "simulated")

    def derived() -> list[str]:
        return disk.list_directory(ROOT / "snapshots") + disk.list_directory(ROOT / "index")

    disk = deepcopy(followed)
    before = derived()
    repair = Repair(
        FaultyVfs(disk, plan), ROOT, folder=FOLDER, now_ms=0, segment_bytes=SEGMENT_BYTES
    )
    with pytest.raises(OSError, match="simulated"):
        repair.cut_to_follow(unit_ends(recorded)[3])
    repair.close()
    assert disk.list_directory(ROOT / FOLDER / "commitlog") == []
    assert derived() == before
    goes_on(disk, recorded, cut_at=recorded.end)


def test_what_is_cut_is_in_the_folder(recorded, followed):
    at = unit_ends(recorded)[3]
    disk = deepcopy(followed)
    whole = log_bytes(disk, recorded.end)

    cut(disk, at)

    kept = ROOT / FOLDER / "commitlog"
    found = b"".join(
        disk.open(kept / name).read(0, SEGMENT_BYTES) for name in disk.list_directory(kept)
    )
    assert found[: recorded.end] == whole


def test_a_place_inside_a_unit_is_no_place_to_cut_at(recorded, followed):
    disk = deepcopy(followed)

    with pytest.raises(RepairRefused):
        cut(disk, unit_ends(recorded)[3] - 8)
    assert log_bytes(disk, recorded.end) == log_bytes(recorded.disk, recorded.end)
    assert not disk.exists(ROOT / FOLDER)


@pytest.mark.parametrize("way", ["kill", "power cut"])
def test_a_cut_that_is_stopped_anywhere_leaves_a_log_that_can_be_cut_again(way):
    recorded = record(5, lives=2, calls=16)
    ends = unit_ends(recorded)
    at = ends[len(ends) // 3]
    base = disk_of_a_replica(recorded)
    for folder in base._folders.values():
        folder.sync()
    whole = deepcopy(base)
    cut(whole, at)
    expected, _ = goes_on(deepcopy(base), recorded, cut_at=at)

    async def open_again(world: World) -> None:
        replica = await open_replica(world)
        assert replica.stored_offset() >= at
        await replica.aclose()

    for stopped in range(whole.operations - base.operations):
        disk = deepcopy(base)
        disk.cut_after = disk.operations + stopped
        with pytest.raises(PowerCut):
            cut(disk, at)
        left = disk.after_power_cut(Random(stopped)) if way == "power cut" else disk.after_kill()
        left = in_world(open_again, left)
        repair = Repair(left, ROOT, folder="set-aside-2", now_ms=0, segment_bytes=SEGMENT_BYTES)
        repair.cut_to_follow(at)
        repair.close()
        seen, _ = goes_on(left, recorded, cut_at=at)
        assert seen == expected, f"stopped at operation {stopped}"
