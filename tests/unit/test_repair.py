"""Named repairs: each damage that a start refuses has one, nothing but the damaged is lost, and no
offset is used again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import count
from pathlib import PurePosixPath
from random import Random
from typing import NamedTuple

import pytest

from storage.errors import CorruptRecord, OffsetExpired, UnknownFormat, UnknownQueue, UnknownTopic
from storage.files.simulated import BLOCK_BYTES, PowerCut, SimulatedDisk
from storage.files.unreadable import Unreadable
from storage.formats import checkpoint, lost_note
from storage.formats import record as records
from storage.formats.names import file_name
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.repair.repair import Repair
from storage.local.repair.repair_report import Done, Finding, LostOffsets, RepairRefused
from storage.message import OffsetRange, QueueId
from tests.support.builders import encoded, message
from tests.support.simulation import ROOT, World

ORDERS, RARE, EMAILS = QueueId("orders", 0), QueueId("rare", 0), QueueId("emails", 1)
QUEUES = (ORDERS, RARE, EMAILS)
SEGMENT_BYTES = 16_384
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES,
    prepare_ahead_bytes=4_096,
    queue_file_entries=16,
    index_slots=64,
    index_file_entries=200,
)
NOW_MS = 1_900_000_000_000
LOG = ROOT / "commitlog"


class Stored(NamedTuple):
    queue: QueueId
    queue_offset: int
    log_offset: int
    message_id: str


class Written(NamedTuple):
    disk: SimulatedDisk
    stored: list[Stored]

    @property
    def ends(self) -> dict[QueueId, int]:
        return {
            queue: 1 + max(one.queue_offset for one in self.stored if one.queue == queue)
            for queue in QUEUES
        }


@pytest.fixture(scope="module")
def written() -> Written:
    """Three segments: units of one message and of three, and one queue of which all is in the first
    segment.
    """
    stored: list[Stored] = []

    async def write(world: World) -> None:
        store = await world.open_store(OPTIONS)
        await store.create_topic("emails", queue_count=2)
        for topic in ("orders", "rare"):
            await store.create_topic(topic, queue_count=1)
        number = 0
        while store.status().written_end < 2 * SEGMENT_BYTES + 3_000:
            queues = (
                [RARE] if number == 3 else [ORDERS, EMAILS, ORDERS] if number % 3 == 0 else [ORDERS]
            )
            given = [
                message(b"x" * 600, queue=queue, message_id=f"m{number}-{at}")
                for at, queue in enumerate(queues)
            ]
            for one, place in zip(given, await store.append(given), strict=True):
                assert place.log_offset is not None
                stored.append(
                    Stored(place.queue, place.queue_offset, place.log_offset, one.message_id)
                )
            number += 1
            await asyncio.sleep(0.3)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(write(world))
    return Written(world.disk.after_kill(), stored)


def flip(disk: SimulatedDisk, log_offset: int, length: int = 1) -> None:
    base = log_offset - log_offset % SEGMENT_BYTES
    file = disk.open(LOG / file_name(base))
    file.write(
        log_offset - base, bytes(byte ^ 0xFF for byte in file.read(log_offset - base, length))
    )
    file.sync()


def lose_derived(disk: SimulatedDisk, *, queue_files: bool = False) -> None:
    folders = ["snapshots", "index", "timers"]
    if queue_files:
        folders += [f"consumequeue/{queue.topic}/{queue.number}" for queue in QUEUES]
    for folder in folders:
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)


def refused(disk: SimulatedDisk) -> str:
    """The repair that a refused start names."""
    with (
        World(disk.after_kill(), 1) as world,
        pytest.raises((CorruptRecord, UnknownFormat)) as caught,
    ):
        world.call(world.open_store(OPTIONS))
    assert caught.value.repair
    return caught.value.repair


def repaired(disk: SimulatedDisk, repair: str, *, folder: str = "repair-1") -> Done:
    name, _, value = repair.removeprefix("--").partition(" ")
    owner = Repair(disk, ROOT, folder=folder, now_ms=NOW_MS, segment_bytes=SEGMENT_BYTES)
    try:
        method = getattr(owner, name.replace("-", "_"))
        return method(
            *[int(value) if value.isdigit() and len(value) < 20 else value] if value else []
        )
    finally:
        owner.close()


def findings(disk: SimulatedDisk) -> list[Finding]:
    owner = Repair(disk, ROOT, folder="repair-1", now_ms=NOW_MS, segment_bytes=SEGMENT_BYTES)
    try:
        return owner.findings()
    finally:
        owner.close()


def served(disk: SimulatedDisk, written: Written) -> set[str]:
    """Ids that a start serves, each at its own offset; no offset that was ever used is used
    again.
    """
    found: set[str] = set()

    async def look(world: World) -> None:
        store = await world.open_store(OPTIONS)
        for one in written.stored:
            message_id = await read(store, one.queue, one.queue_offset)
            assert message_id in (None, one.message_id), (
                "another message at an offset that was read before"
            )
            found.update([message_id] if message_id is not None else [])
        for queue in QUEUES:
            await store.create_topic(queue.topic, queue_count=queue.number + 1)
            (place,) = await store.append([message(b"next", queue=queue)])
            assert place.queue_offset >= written.ends[queue], f"an offset of {queue} is used again"
            assert await read(store, queue, place.queue_offset) is not None
        await store.aclose()

    with World(disk.after_kill(), 1) as world:
        world.call(look(world))
    return found


async def read(store: LocalMessageStore, queue: QueueId, queue_offset: int) -> str | None:
    try:
        (found, *_) = await store.read(queue, queue_offset, max_messages=1, max_bytes=1)
    # the last two: nothing of the queue is left
    except (CorruptRecord, OffsetExpired, UnknownTopic, UnknownQueue):
        return None
    return found.message_id


def ids_of(written: Written, is_wanted: Callable[[Stored], bool]) -> set[str]:
    return {one.message_id for one in written.stored if is_wanted(one)}


ALL = range(0, 41, 4)


@pytest.mark.parametrize("derived", ["kept", "lost"])
@pytest.mark.parametrize("number", ALL)
def test_of_a_damaged_body_only_its_message_is_lost(written, number, derived):
    disk, hit = deepcopy(written.disk), written.stored[number]
    flip(disk, hit.log_offset + 200)
    lose_derived(disk, queue_files=derived == "lost")

    done = repaired(disk, refused(disk))

    assert done.lost_messages == 1
    assert served(disk, written) == ids_of(written, lambda one: one != hit)
    assert served(disk, written) == ids_of(written, lambda one: one != hit), "at a later start too"


@pytest.mark.parametrize("derived", ["kept", "lost"])
@pytest.mark.parametrize("number", ALL)
def test_of_a_damaged_length_at_most_its_unit_is_lost(written, number, derived):
    disk, hit = deepcopy(written.disk), written.stored[number]
    unit = hit.message_id.partition("-")[0] + "-"
    flip(disk, hit.log_offset, 4)
    lose_derived(disk, queue_files=derived == "lost")

    done = repaired(disk, refused(disk))

    lost = ids_of(written, lambda one: one.message_id.startswith(unit))
    assert done.lost_messages == len(lost)
    assert served(disk, written) == ids_of(written, lambda one: one.message_id not in lost)


@pytest.mark.parametrize("derived", ["kept", "lost"])
@pytest.mark.parametrize("number", [0, 5, 20, 44])
def test_a_cut_serves_what_came_before_and_uses_no_offset_again(written, number, derived):
    disk, hit = deepcopy(written.disk), written.stored[number]
    first_of_unit = min(
        one.log_offset
        for one in written.stored
        if one.message_id.partition("-")[0] == hit.message_id.partition("-")[0]
    )
    if derived == "lost":
        lose_derived(disk, queue_files=True)

    done = repaired(disk, f"--cut-log-at {first_of_unit}")

    kept = ids_of(written, lambda one: one.log_offset < first_of_unit)
    assert done.lost_messages == len(written.stored) - len(kept)
    assert {one.message_id for one in done.messages} >= ids_of(
        written, lambda one: one.log_offset >= first_of_unit
    )
    assert served(disk, written) == kept
    lose_derived(disk)
    assert served(disk, written) == kept


async def append_and_close(
    world: World, queues: list[QueueId], body: bytes = b"y" * 300
) -> list[Stored]:
    """One more unit, the last of the log."""
    store = await world.open_store(OPTIONS)
    for queue in queues:
        await store.create_topic(queue.topic, queue_count=queue.number + 1)
    given = [
        message(body, queue=queue, message_id=world.identifiers.new("msg")) for queue in queues
    ]
    places = await store.append(given)
    await store.aclose()
    assert all(place.log_offset is not None for place in places)
    return [
        Stored(place.queue, place.queue_offset, place.log_offset or 0, one.message_id)
        for one, place in zip(given, places, strict=True)
    ]


def with_last_unit(written: Written, queues: list[QueueId], body: bytes = b"y" * 300) -> Written:
    with World(deepcopy(written.disk), 1) as world:
        last = world.call(append_and_close(world, queues, body))
    return Written(world.disk.after_kill(), [*written.stored, *last])


@pytest.mark.parametrize("derived", ["kept", "lost"])
@pytest.mark.parametrize(("count", "hit"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_of_a_last_unit_only_the_damaged_message_is_lost_and_no_offset_is_used_again(
    written, count, hit, derived
):
    stored = with_last_unit(written, [ORDERS, EMAILS, RARE][:count])
    disk, damaged = deepcopy(stored.disk), stored.stored[-count + hit]
    flip(disk, damaged.log_offset + 200)
    lose_derived(disk, queue_files=derived == "lost")

    repair = refused(disk)
    done = repaired(disk, repair)

    assert repair.startswith("--blank-unit")
    assert done.lost_messages == 1
    assert served(disk, stored) == ids_of(stored, lambda one: one != damaged)
    lose_derived(disk)
    assert served(disk, stored) == ids_of(stored, lambda one: one != damaged)


def test_of_a_last_unit_whose_lengths_are_damaged_the_whole_unit_is_lost(written):
    stored = with_last_unit(written, [ORDERS, EMAILS, RARE])
    disk = deepcopy(stored.disk)
    flip(disk, stored.stored[-3].log_offset, 4)
    lose_derived(disk)

    done = repaired(disk, refused(disk))

    assert done.lost_messages == 3
    assert served(disk, stored) == ids_of(stored, lambda one: one not in stored.stored[-3:])


def test_a_damaged_head_does_not_say_that_more_was_lost_than_the_damage_can_have_held(written):
    stored = with_last_unit(written, [ORDERS])
    disk = deepcopy(stored.disk)
    flip(disk, stored.stored[-1].log_offset + 22)  # a high byte of the queue offset
    lose_derived(disk, queue_files=True)

    assert repaired(disk, refused(disk)).lost_messages == 0


def test_what_the_next_start_cuts_is_not_blanked(written):
    """An append that was never known to be on disk is there whole or not at all."""
    stored = with_last_unit(written, [ORDERS, EMAILS])
    disk, first = deepcopy(stored.disk), stored.stored[-2]
    flip(disk, first.log_offset + 200)
    lose_derived(disk)
    page = disk.open(ROOT / "checkpoint")
    slot = checkpoint.newest_slot(page.read(0, checkpoint.PAGE_BYTES))
    for at in checkpoint.SLOT_AT:
        page.write(
            at,
            checkpoint.encode_slot(slot._replace(synced_offset=first.log_offset, is_clean=False)),
        )
    before = everything(disk)

    assert findings(disk) == []
    with pytest.raises(RepairRefused, match="the next start cuts"):
        repaired(disk, f"--blank-unit {first.log_offset}")
    assert everything(disk) == before
    assert served(disk, written) == ids_of(written, lambda one: True)


def log_of(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: raw for path, raw in everything(disk).items() if path.startswith(str(LOG))}


def killed(disk: SimulatedDisk) -> None:
    """As after a kill: the next start does not trust the end of the log unseen."""
    disk.open(ROOT / "abort", create=True).close()


@pytest.mark.parametrize("place", ["in the middle", "at the end", "behind the end"])
def test_a_start_over_a_sector_that_cannot_be_read_names_it_and_changes_nothing(written, place):
    disk = deepcopy(written.disk)
    end = written.stored[-1].log_offset
    at = {"in the middle": SEGMENT_BYTES + 5_000, "at the end": end, "behind the end": end + 4_096}
    bad = at[place] // BLOCK_BYTES * BLOCK_BYTES
    path = LOG / file_name(bad - bad % SEGMENT_BYTES)
    lose_derived(disk)
    killed(disk)
    before = log_of(disk)
    disk.fail_reads(path, bad % SEGMENT_BYTES, bad % SEGMENT_BYTES + 1)
    checkpoint_page = disk.open(ROOT / "checkpoint").read(0, checkpoint.PAGE_BYTES)
    disk.fail_reads(ROOT / "checkpoint", 0, 1)

    with World(disk.after_kill(), 1) as world, pytest.raises(Unreadable) as caught:
        world.call(world.open_store(OPTIONS))

    assert (caught.value.path, caught.value.log_offset) == (path, bad)
    assert str(caught.value) == (
        f"[Errno 5] Input/output error at byte {bad % SEGMENT_BYTES}, log offset {bad}: '{path}'"
    )
    disk.heal_reads(path)
    disk.heal_reads(ROOT / "checkpoint")
    assert log_of(disk) == before
    assert disk.open(ROOT / "checkpoint").read(0, checkpoint.PAGE_BYTES) == checkpoint_page
    assert served(disk, written) == ids_of(written, lambda one: True), "the disk had a bad moment"


def test_a_segment_that_cannot_be_read_as_a_whole_is_replaced_and_only_its_messages_are_lost(
    written,
):
    disk = deepcopy(written.disk)
    path = LOG / file_name(SEGMENT_BYTES)
    bad = range(SEGMENT_BYTES + BLOCK_BYTES, SEGMENT_BYTES + 2 * BLOCK_BYTES)
    lose_derived(disk)
    killed(disk)
    disk.fail_reads(path, BLOCK_BYTES, BLOCK_BYTES + 1)
    (found,) = findings(disk)
    assert (found.offset, found.repair) == (bad.start, f"--replace-unreadable {path.name}")

    done = repaired(disk, found.repair)

    assert done.set_aside == [f"{ROOT}/repair-1/commitlog/{path.name}"]
    with pytest.raises(OSError, match="Input/output error"):
        disk.open(PurePosixPath(done.set_aside[0])).read(BLOCK_BYTES, 1)
    repaired(disk, refused(disk))
    kept = served(disk, written)
    assert kept < ids_of(written, lambda one: True)
    reach = 3 * 1_200  # of a unit
    assert kept >= ids_of(
        written, lambda one: not bad.start - reach < one.log_offset < bad.stop + reach
    )
    with pytest.raises(RepairRefused, match="can be read"):
        repaired(disk, f"--replace-unreadable {path.name}")
    assert disk.list_directory(ROOT / "making") == []


@pytest.mark.parametrize("by", ["a start", "a repair", "the same repair"])
@pytest.mark.parametrize("segment", [1, -1], ids=["in the middle", "the last"])
def test_a_replacement_that_was_killed_at_any_time_is_finished_by_what_comes_next(
    written, segment, by
):
    path = LOG / written.disk.list_directory(LOG)[segment]
    repair = f"--replace-unreadable {path.name}"
    outcomes = set()
    for cut_after in count():
        disk = deepcopy(written.disk)
        lose_derived(disk)
        killed(disk)
        disk.fail_reads(path, 0, 1)
        disk.cut_after = cut_after
        try:
            repaired(disk, repair)
        except PowerCut:
            is_over = False
        else:
            is_over = True
        disk.cut_after = None
        disk = disk.after_kill()
        if by == "a start":
            with World(disk.after_kill(), 1) as world, pytest.raises((CorruptRecord, Unreadable)):
                world.call(world.open_store(OPTIONS))
        elif by == "a repair":
            findings(disk)
        else:
            with suppress(RepairRefused):
                repaired(disk, repair, folder="repair-2")
        is_replaced = not reads_fail(disk, path)
        outcomes.add(is_replaced)
        assert is_replaced or by != "the same repair"
        assert len(disk.open(path).read(BLOCK_BYTES, SEGMENT_BYTES)) == SEGMENT_BYTES - BLOCK_BYTES
        kept = [name for name in disk.list_directory(ROOT) if name.startswith("repair-")]
        assert not is_replaced or any(
            reads_fail(disk, ROOT / name / "commitlog" / path.name)
            for name in kept
            if disk.exists(ROOT / name / "commitlog" / path.name)
        ), "the segment is kept as it is"
        if is_over:
            break
    assert outcomes == ({True} if by == "the same repair" else {True, False})


def reads_fail(disk: SimulatedDisk, path: PurePosixPath) -> bool:
    try:
        disk.open(path).read(0, 1)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("where", ["last", "before another"])
@pytest.mark.parametrize("derived", ["kept", "lost"])
def test_the_smallest_message_can_be_blanked(written, where, derived):
    small = QueueId("t", 0)
    stored = with_last_unit(written, [small], body=b"")
    damaged = stored.stored[-1]
    if where == "before another":
        stored = with_last_unit(stored, [ORDERS])
    disk = deepcopy(stored.disk)
    flip(disk, damaged.log_offset + 75)
    lose_derived(disk, queue_files=derived == "lost")

    done = repaired(disk, refused(disk))

    assert (
        done.lost == [LostOffsets("t", 0, 0, 1)]
        if where == "last" or derived == "kept"
        else done.lost_messages <= 1
    )
    assert served(disk, stored) == ids_of(stored, lambda one: one != damaged)


@pytest.mark.parametrize("queue_offset", [0, 99_999, 1 << 31, 1 << 47])
def test_a_note_fits_into_every_message_that_the_service_writes(queue_offset):
    """The smallest one: no body, a topic of one letter, an id and nothing else."""
    with World(SimulatedDisk(), 1) as world:
        one = message(b"", queue=QueueId("t", 0), message_id=world.identifiers.new("msg"))
    begin = 1 << 47
    data = encoded([one], first_offset=begin, first_queue_offset=queue_offset).data
    rows = [lost_note.LostRange(one.queue, OffsetRange(queue_offset, queue_offset + 1))]

    note = lost_note.encode_unit(
        rows, begin=begin, synced_offset=begin, epoch=1, stored_at_ms=1, length=len(data)
    )

    assert len(note) == len(data)
    assert lost_note.read(records.decode(note).body) == rows


@pytest.mark.parametrize("lost", ["all that is derived", "its entry"])
def test_reading_a_lost_message_says_that_a_repair_left_it_out(written, lost):
    disk, hit = deepcopy(written.disk), written.stored[12]
    flip(disk, hit.log_offset + 200)
    repaired(disk, f"--blank-unit {findings(disk)[0].offset}")
    lose_derived(disk)
    if lost == "its entry":
        with World(disk.after_kill(), 1) as world:
            world.call(world.call(world.open_store(OPTIONS)).aclose())
        disk = world.disk.after_kill()
        queue = ROOT / "consumequeue" / hit.queue.topic / str(hit.queue.number)
        disk.fail_reads(queue / file_name(0), 0, 1)

    with World(disk.after_kill(), 1) as world:
        store = world.call(world.open_store(OPTIONS))
        for _ in range(2):
            with pytest.raises(CorruptRecord, match="a repair left it out") as caught:
                world.call(store.read(hit.queue, hit.queue_offset, max_messages=1, max_bytes=1))
            assert caught.value.was_taken_out
        assert store.status().rebuilt_entries > 0 or lost != "its entry"


def test_of_a_committed_offset_that_is_left_out_the_one_before_counts(written):
    disk = deepcopy(written.disk)
    committed_at: list[int] = []

    async def commit(world: World) -> None:
        store = await world.open_store(OPTIONS)
        for queue_offset in (3, 5):
            committed_at.append(store.status().written_end)
            await store.commit_offset("group", ORDERS, queue_offset)
        await store.append([message(b"behind", queue=ORDERS)])
        await store.aclose()

    with World(disk.after_kill(), 1) as world:
        world.call(commit(world))
    flip(disk, committed_at[1] + 91)
    lose_derived(disk)
    repaired(disk, refused(disk))

    with World(disk.after_kill(), 1) as world:
        store = world.call(world.open_store(OPTIONS))
        assert world.call(store.committed_offset("group", ORDERS)) == 3


def test_a_cut_that_is_no_border_of_units_changes_nothing(written):
    disk = deepcopy(written.disk)
    before = everything(disk)

    with pytest.raises(RepairRefused, match="is no border"):
        repaired(disk, f"--cut-log-at {written.stored[10].log_offset + 8}")

    assert everything(disk) == before


def test_without_its_first_segment_a_store_goes_on_behind_it_and_uses_no_offset_again(written):
    disk = deepcopy(written.disk)
    disk.remove(LOG / file_name(0))

    done = repaired(disk, refused(disk))

    kept = ids_of(written, lambda one: one.log_offset >= SEGMENT_BYTES)
    assert done.lost_messages == len(written.stored) - len(kept)
    assert served(disk, written) == kept
    lose_derived(disk)
    assert served(disk, written) == kept


def test_without_any_segment_a_store_goes_on_empty_and_uses_no_offset_again(written):
    disk = deepcopy(written.disk)
    for name in disk.list_directory(LOG):
        disk.remove(LOG / name)

    repaired(disk, refused(disk))

    assert served(disk, written) == set()
    assert int(disk.list_directory(LOG)[0]) >= 2 * SEGMENT_BYTES, (
        "no offset of the log is used again either"
    )


def test_a_segment_that_is_missing_between_others_is_left_out(written):
    disk = deepcopy(written.disk)
    disk.remove(LOG / file_name(SEGMENT_BYTES))

    repaired(disk, refused(disk))

    assert served(disk, written) == ids_of(
        written, lambda one: one.log_offset // SEGMENT_BYTES != 1
    )


def test_a_last_segment_that_is_missing_is_cut_off(written):
    disk = deepcopy(written.disk)
    for name in disk.list_directory(LOG)[2:]:
        disk.remove(LOG / name)

    repaired(disk, refused(disk))

    assert served(disk, written) == ids_of(written, lambda one: one.log_offset < 2 * SEGMENT_BYTES)


def test_a_file_that_is_no_segment_is_set_aside(written):
    disk = deepcopy(written.disk)
    disk.open(LOG / file_name(1), create=True).write(0, b"of a backup tool")

    done = repaired(disk, refused(disk))

    assert [path.rpartition("/")[2] for path in done.set_aside] == [file_name(1)]
    assert served(disk, written) == ids_of(written, lambda one: True)


def test_a_segment_that_lost_its_end_gets_its_length_back_and_then_its_damage_is_named(written):
    disk = deepcopy(written.disk)
    disk.open(LOG / file_name(SEGMENT_BYTES)).extend(SEGMENT_BYTES // 2)

    repaired(disk, refused(disk))
    lose_derived(disk)
    repaired(disk, refused(disk))

    assert served(disk, written) >= ids_of(
        written, lambda one: not 0.4 < one.log_offset / SEGMENT_BYTES - 1 < 1
    )


def everything(disk: SimulatedDisk) -> dict[str, bytes]:
    return {
        f"{path}/{name}": bytes(inode.live)
        for path, folder in disk._folders.items()
        for name, inode in folder.live.items()
    }


DAMAGES: dict[str, Callable[[SimulatedDisk, Written], None]] = {
    "body": lambda disk, written: flip(disk, written.stored[12].log_offset + 200),
    "two bodies": lambda disk, written: (
        [flip(disk, written.stored[at].log_offset + 200) for at in (12, 20)] and None
    ),
    "tail": lambda disk, written: flip(disk, written.stored[-1].log_offset, 4),
    "first segment": lambda disk, written: disk.remove(LOG / file_name(0)),
    "stray file": lambda disk, written: disk.open(LOG / file_name(1), create=True).write(0, b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_an_option_every_repair_is_listed_and_nothing_is_changed(written, damage):
    disk = deepcopy(written.disk)
    DAMAGES[damage](disk, written)
    before = everything(disk)

    found = findings(disk)

    assert everything(disk) == before
    assert len(found) == (2 if damage == "two bodies" else 1)
    for finding in found:
        repaired(disk, finding.repair)
    assert findings(disk) == []
    served(disk, written)


def test_a_whole_store_has_nothing_to_repair(written):
    assert findings(deepcopy(written.disk)) == []


@pytest.mark.parametrize("way", ["kill", "power cut"])
@pytest.mark.parametrize("damage", ["body", "tail", "first segment"])
def test_a_repair_that_is_stopped_anywhere_leaves_a_store_that_refuses_as_before_or_is_repaired(
    written, damage, way
):
    base = deepcopy(written.disk)
    DAMAGES[damage](base, written)
    for name in base.list_directory(ROOT / "snapshots"):
        base.remove(ROOT / "snapshots" / name)
    repair = findings(base)[0].repair
    whole = deepcopy(base)
    repaired(whole, repair)
    expected = served(deepcopy(whole), written)

    for cut in range(whole.operations - base.operations):
        disk = deepcopy(base)
        for folder in disk._folders.values():
            folder.sync()
        disk.cut_after = disk.operations + cut
        with pytest.raises(PowerCut):
            repaired(disk, repair)
        left = disk.after_power_cut(Random(cut)) if way == "power cut" else disk.after_kill()
        if found := findings(left):
            repaired(left, found[0].repair)
        assert served(left, written) == expected, f"stopped at operation {cut}"


@pytest.mark.parametrize("length", [None, 400, 405])
def test_a_note_fills_its_place_and_says_what_is_lost(length):
    rows = [
        lost_note.LostRange(ORDERS, OffsetRange(3, 5)),
        lost_note.LostRange(RARE, OffsetRange(7, 7)),
    ]

    raw = lost_note.encode_record(
        rows, begin=64, stored_at_ms=1, item=None, is_last=True, length=length
    )

    assert len(raw) == length or (length is None and (64 + len(raw)) % 8 == 0)
    assert lost_note.read(records.decode(raw).body) == rows


@pytest.mark.parametrize("file", ["checkpoint", "consumequeue/orders/0/00000000000000000000"])
def test_a_repair_needs_no_derived_file_that_the_disk_gives_back(written, file):
    disk = deepcopy(written.disk)
    DAMAGES["body"](disk, written)
    disk.fail_reads(ROOT / file, 0, 1)

    (found,) = findings(disk)
    repaired(disk, found.repair)

    assert served(disk, written) == ids_of(written, lambda one: one != written.stored[12])


def test_a_checkpoint_that_is_lost_too_refuses_nothing_that_can_be_told_from_a_brokers_store(
    written,
):
    disk = deepcopy(written.disk)
    disk.open(ROOT / "checkpoint").write(0, bytes(checkpoint.PAGE_BYTES))

    assert findings(disk) == []
    assert served(disk, written) == ids_of(written, lambda one: True)
