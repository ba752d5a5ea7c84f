"""Derived tables on disk: given in pieces, given back whole, and after a power cut the old one or
the new one.
"""

from pathlib import PurePath
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files.simulated import PowerCut, SimulatedDisk
from storage.files.vfs import Vfs
from storage.formats import parts
from storage.local.data_directory import DataDirectory
from storage.local.snapshot_files import SnapshotFiles
from storage.message import QueueId
from storage.store import Snapshot

ROOT = PurePath("/store")
POSITIONS = {QueueId("orders", 3): 7, QueueId("emails", 0): 1 << 40}


@given(st.lists(st.binary(max_size=600), max_size=20))
def test_what_was_given_in_pieces_is_given_back_whole_with_its_positions(pieces):
    files = opened(SimulatedDisk())

    files.save("table", Snapshot(pieces, POSITIONS))

    assert files.load("table") == Snapshot((b"".join(pieces),), POSITIONS)


@given(st.lists(st.binary(max_size=600), max_size=20))
def test_parts_that_are_framed_one_by_one_are_a_list_of_them(given_parts):
    together = parts.head(len(given_parts)) + b"".join(map(parts.framed, given_parts))

    assert msgspec.msgpack.decode(together, type=list[bytes]) == given_parts
    assert [bytes(part) for part in parts.read(together)] == given_parts


def test_no_byte_of_a_snapshot_can_be_changed_or_missing_unnoticed():
    disk = SimulatedDisk()
    files = opened(disk)
    files.save("table", Snapshot((b"a table", b" of two"), POSITIONS))
    file = disk.open(ROOT / "snapshots" / "table")
    good = file.read(0, file.size())

    for at in range(len(good)):
        file.write(at, bytes([good[at] ^ 1]))
        assert files.load("table") is None
        file.write(at, good[at : at + 1])
    for length in range(len(good)):
        file.extend(length)
        assert files.load("table") is None
        file.write(0, good)
    assert files.load("table") is not None


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_at_any_operation_there_is_the_old_one_or_the_new_one(seed):
    old, new = Snapshot((b"old" * 500,), {}), Snapshot([b"new" * 100] * 20, POSITIONS)
    operations = 0
    found = []
    while not found or found[-1] != "whole":
        disk = SimulatedDisk()
        files = opened(disk)
        files.save("table", old)
        disk.cut_after = disk.operations + operations
        operations += 1
        try:
            files.save("table", new)
            found.append("whole")
        except PowerCut:
            found.append("cut")
        kept = opened(disk.after_power_cut(Random(seed))).load("table")
        assert kept == Snapshot((new.data,), POSITIONS) or (kept == old and found[-1] == "cut")
    assert len(found) > 20, "each piece is an operation of its own"


def opened(disk: Vfs) -> SnapshotFiles:
    return SnapshotFiles(DataDirectory(disk, ROOT))
