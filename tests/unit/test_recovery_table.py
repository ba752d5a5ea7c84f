"""Recovery decides by a table: every combination of what can be found has exactly one verdict, and
the log obeys it.
"""

import asyncio
import itertools
from copy import deepcopy

import pytest

from storage.errors import CorruptRecord
from storage.files.simulated import SimulatedDisk
from storage.formats import checkpoint
from storage.formats.names import file_name
from storage.local.options import LocalStoreOptions
from storage.local.recovery.recovery import RECOVERY, Ending, Verdict
from tests.support.builders import a_log, encoded, messages
from tests.support.simulation import ROOT, World

OPTIONS = LocalStoreOptions(
    segment_bytes=16_384, prepare_ahead_bytes=4_096, index_slots=64, index_file_entries=200
)
GARBAGE = b"\xa5" * 40


@pytest.mark.parametrize("case", list(itertools.product(Ending, [False, True], [False, True])))
def test_every_combination_has_a_verdict(case):
    assert RECOVERY[case] in Verdict


def test_the_table_has_no_other_rows():
    assert len(RECOVERY) == len(Ending) * 2 * 2


def test_what_was_on_disk_is_never_cut():
    for (_, is_before_synced, _), verdict in RECOVERY.items():
        assert (verdict is Verdict.REFUSE) == is_before_synced


def a_disk(
    log: bytes, *, synced_offset: int, behind: bytes = b"", behind_at: int = 0
) -> SimulatedDisk:
    """A store after a crash: so many bytes of log, of which so many are known to have been
    on disk.
    """
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
    """The checkpoint is old; a whole unit behind the damage says that more was on disk when it was
    written.
    """
    first, rest = a_log(1), a_log(1, 1)
    damaged_at = len(first)
    later = encoded(
        messages(1), first_offset=len(rest), first_queue_offset=2, synced_offset=len(rest)
    ).data
    raw = bytearray(rest + later)
    raw[damaged_at + 95] ^= 1

    disk = a_disk(bytes(raw), synced_offset=0)

    with World(disk, 1) as world, pytest.raises(CorruptRecord) as caught:
        world.call(world.open_store(OPTIONS))
    assert caught.value.physical_offset == damaged_at


def test_a_later_unit_that_states_no_newer_position_is_cut_with_the_tail():
    """After a power cut the unsynced end may hold whole units behind torn ones."""
    first, rest = a_log(1), a_log(1, 1)
    later = encoded(
        messages(1), first_offset=len(rest), first_queue_offset=2, synced_offset=len(first)
    ).data
    raw = bytearray(rest + later)
    raw[len(first) + 95] ^= 1

    disk = a_disk(bytes(raw), synced_offset=0)

    with World(disk, 1) as world:
        store = world.call(world.open_store(OPTIONS))
        assert store.recovery.cut_at == len(first)
        assert store.recovery.wiped_bytes > 0


# ------------------------------------------------------------------------------------------------
# where the log begins

SEGMENT_BYTES = OPTIONS.segment_bytes
BORDERS = [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]


async def write_three_segments(world: World) -> None:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    while store.status().written_end < 2 * SEGMENT_BYTES + 1_000:
        await store.append(messages(1, body_bytes=1_000))
    await store.aclose()


@pytest.fixture(scope="module")
def three_segments() -> SimulatedDisk:
    """A store of three segments after an orderly close."""
    with World(SimulatedDisk(), 1) as world:
        world.call(write_three_segments(world))
    return world.disk.after_kill()


def without_segments_before(disk: SimulatedDisk, border: int) -> SimulatedDisk:
    left = deepcopy(disk)
    for base_offset in range(0, border, SEGMENT_BYTES):
        left.remove(ROOT / "commitlog" / file_name(base_offset))
    return left


def note(disk: SimulatedDisk, **changed: int | bool | None) -> None:
    """Change what the checkpoint says."""
    page = disk.open(ROOT / "checkpoint")
    slot = checkpoint.newest_slot(page.read(0, checkpoint.PAGE_BYTES))
    assert slot is not None
    page.write(512, bytes(1_024))
    page.write(checkpoint.SLOT_AT[0], checkpoint.encode_slot(slot._replace(**changed)))


def first_of(disk: SimulatedDisk) -> int:
    with World(disk, 1) as world:
        return world.call(world.open_store(OPTIONS)).status().first_offset


@pytest.mark.parametrize("derived", ["kept", "lost"])
@pytest.mark.parametrize(("recorded", "begins_at"), list(itertools.product(BORDERS, BORDERS)))
def test_a_log_may_begin_where_it_was_recorded_to_or_earlier_and_never_later(
    three_segments, recorded, begins_at, derived
):
    disk = without_segments_before(three_segments, begins_at)
    note(disk, first_offset=recorded)
    for folder in (
        ("snapshots", "index", "timers", "consumequeue/orders/0") if derived == "lost" else ()
    ):
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)

    if begins_at <= recorded:
        assert first_of(disk) == begins_at
    else:
        with pytest.raises(
            CorruptRecord, match=f"begins at {begins_at}, it was recorded to begin at {recorded}"
        ) as caught:
            first_of(disk)
        assert (caught.value.physical_offset, caught.value.repair) == (
            recorded,
            "--accept-beginning",
        )


def test_a_log_that_a_start_found_earlier_than_recorded_may_not_begin_later_at_the_next(
    three_segments,
):
    """A crash between the record and the removal leaves the segments: nothing of them may go by
    itself.
    """
    disk = deepcopy(three_segments)
    note(disk, first_offset=SEGMENT_BYTES)
    assert first_of(disk) == 0

    with pytest.raises(CorruptRecord):
        first_of(without_segments_before(disk.after_kill(), SEGMENT_BYTES))


@pytest.mark.parametrize("begins_at", BORDERS)
def test_a_store_of_a_version_that_recorded_no_beginning_is_taken_as_it_is_and_recorded(
    three_segments, begins_at
):
    disk = without_segments_before(three_segments, begins_at)
    note(disk, first_offset=None)

    assert first_of(disk) == begins_at

    slot = checkpoint.newest_slot(disk.on_disk(ROOT / "checkpoint"))
    assert slot is not None
    assert slot.first_offset == begins_at


def test_a_log_that_begins_behind_what_was_synced_is_refused_without_a_record_too(three_segments):
    """The segment that is written to is never dropped, so the older one that held the synced
    position was lost.
    """
    disk = without_segments_before(three_segments, SEGMENT_BYTES)
    note(disk, first_offset=None, synced_offset=SEGMENT_BYTES - 8)

    with pytest.raises(CorruptRecord, match=f"it was on disk up to {SEGMENT_BYTES - 8}"):
        first_of(disk)


@pytest.mark.parametrize(
    "kept", ["all", "queue files", "a snapshot", "a broker's checkpoint", "nothing"]
)
def test_an_empty_log_is_refused_beside_anything_that_shows_that_there_was_one(
    three_segments, kept
):
    disk = without_segments_before(three_segments, 3 * SEGMENT_BYTES)
    if kept != "all":
        disk.open(ROOT / "checkpoint").write(0, bytes(checkpoint.PAGE_BYTES))
    for kind, folder in (("queue files", "consumequeue/orders/0"), ("a snapshot", "snapshots")):
        for name in disk.list_directory(ROOT / folder) if kept not in ("all", kind) else ():
            disk.remove(ROOT / folder / name)
    if kept == "a broker's checkpoint":
        fields = checkpoint.Fields(1_700_000_000_000, 0, 0, 0, 0)
        disk.open(ROOT / "checkpoint").write(0, checkpoint.encode_fields(fields))

    if kept == "nothing":
        assert first_of(disk) == 0
    else:
        with pytest.raises(CorruptRecord) as caught:
            first_of(disk)
        assert caught.value.repair == "--accept-beginning"
