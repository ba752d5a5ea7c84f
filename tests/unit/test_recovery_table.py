"""Recovery decides by a table: every combination of what can be found has exactly one verdict, and the log obeys it."""

import asyncio
import itertools

import pytest

from storage.errors import CorruptRecord
from storage.files.simulated import SimulatedDisk
from storage.formats import checkpoint
from storage.formats.names import file_name
from storage.local.options import LocalStoreOptions
from storage.local.recovery import RECOVERY, Ending, Verdict
from tests.support.builders import a_log, encoded, messages
from tests.support.simulation import ROOT, World

OPTIONS = LocalStoreOptions(segment_bytes=16_384, prepare_ahead_bytes=4_096, index_slots=64, index_file_entries=200)
GARBAGE = b"\xa5" * 40


@pytest.mark.parametrize("case", list(itertools.product(Ending, [False, True], [False, True])))
def test_every_combination_has_a_verdict(case):
    assert RECOVERY[case] in Verdict


def test_the_table_has_no_other_rows():
    assert len(RECOVERY) == len(Ending) * 2 * 2


def test_what_was_on_disk_is_never_cut():
    for (_, is_before_synced, _), verdict in RECOVERY.items():
        assert (verdict is Verdict.REFUSE) == is_before_synced


def a_disk(log: bytes, *, synced_offset: int, behind: bytes = b"", behind_at: int = 0) -> SimulatedDisk:
    """A store after a crash: so many bytes of log, of which so many are known to have been on disk."""
    disk = SimulatedDisk()

    async def make_a_segment(world: World) -> None:
        await world.open_store(OPTIONS)
        await asyncio.sleep(0.5)

    with World(disk, 1) as world:
        world.call(make_a_segment(world))
    disk = disk.after_kill()
    segment = disk.open(ROOT / "commitlog" / file_name(0))
    segment.write(0, log)
    segment.write(len(log) + behind_at, behind)
    page = disk.open(ROOT / "checkpoint")
    slot = checkpoint.Slot(sequence=99, synced_offset=synced_offset, epoch=1, is_clean=False)
    page.write(checkpoint.SLOT_AT[0], checkpoint.encode_slot(slot))
    return disk


LOG = a_log(1, 3, 1)
TORN = a_log(1, 3, 1, 2)[len(LOG) :][:-30] + bytes(30)


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize(
    ("behind", "behind_at", "ending"),
    [
        pytest.param(b"", 0, Ending.EMPTY, id="nothing behind"),
        pytest.param(GARBAGE, 512, Ending.EMPTY, id="garbage behind a gap"),
        pytest.param(GARBAGE, 0, Ending.DAMAGED, id="garbage"),
        pytest.param(TORN, 0, Ending.DAMAGED, id="a torn unit"),
    ],
)
def test_the_log_is_treated_as_the_table_says(ending, behind, behind_at, is_synced):
    synced_offset = len(LOG) + (8 if is_synced else 0)
    disk = a_disk(LOG, synced_offset=synced_offset, behind=behind, behind_at=behind_at)

    with World(disk, 1) as world:
        match RECOVERY[ending, is_synced, bool(behind)]:
            case Verdict.REFUSE:
                with pytest.raises(CorruptRecord) as caught:
                    world.call(world.open_store(OPTIONS))
                assert caught.value.physical_offset == len(LOG)
                left = disk.on_disk(ROOT / "commitlog" / file_name(0))[len(LOG) + behind_at :]
                assert left.startswith(behind), "a store that is refused is left as it was"
            case Verdict.ACCEPT:
                store = world.call(world.open_store(OPTIONS))
                assert (store.status().written_end, store.recovery.cut_at) == (len(LOG), None)
            case Verdict.CUT:
                store = world.call(world.open_store(OPTIONS))
                assert (store.status().written_end, store.recovery.cut_at) == (len(LOG), len(LOG))
                assert not any(disk.on_disk(ROOT / "commitlog" / file_name(0))[len(LOG) :])


def test_a_newer_synced_position_that_a_later_unit_states_counts():
    """The checkpoint is old; a whole unit behind the damage says that more was on disk when it was written."""
    first, rest = a_log(1), a_log(1, 1)
    damaged_at = len(first)
    later = encoded(messages(1), first_offset=len(rest), first_queue_offset=2, synced_offset=len(rest)).data
    raw = bytearray(rest + later)
    raw[damaged_at + 95] ^= 1

    disk = a_disk(bytes(raw), synced_offset=0)

    with World(disk, 1) as world, pytest.raises(CorruptRecord) as caught:
        world.call(world.open_store(OPTIONS))
    assert caught.value.physical_offset == damaged_at


def test_a_later_unit_that_states_no_newer_position_is_cut_with_the_tail():
    """After a power cut the unsynced end may hold whole units behind torn ones."""
    first, rest = a_log(1), a_log(1, 1)
    later = encoded(messages(1), first_offset=len(rest), first_queue_offset=2, synced_offset=len(first)).data
    raw = bytearray(rest + later)
    raw[len(first) + 95] ^= 1

    disk = a_disk(bytes(raw), synced_offset=0)

    with World(disk, 1) as world:
        store = world.call(world.open_store(OPTIONS))
        assert store.recovery.cut_at == len(first)
        assert store.recovery.wiped_bytes > 0
