"""A store whose log is a copy of another one's."""

import asyncio
import dataclasses
import errno
from collections.abc import Callable
from pathlib import PurePath
from random import Random
from typing import NamedTuple

import pytest

from storage.errors import CorruptRecord, StorageFull, StoreClosed, UnknownTopic
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION
from storage.local.append import received_units
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode
from storage.local.verify.verification import StoreVerification
from storage.message import QueueId
from tests.support import replicated
from tests.support.builders import message, messages
from tests.support.lives import in_world, run_lives
from tests.support.replicated import OPTIONS as REPLICA_OPTIONS
from tests.support.replicated import (
    SEGMENT_BYTES,
    Piece,
    Recorded,
    block,
    joined,
    log_bytes,
    open_replica,
    open_with_topics,
    record,
    recorded_of,
    see,
)
from tests.support.simulation import ROOT, World

ORDERS, DRAFTS = QueueId("orders", 0), QueueId("drafts", 0)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return record(7)


async def take_all(replica, pieces: list[Piece]) -> None:
    for piece in pieces:
        await replica.take(piece.offset, piece.data)


def seen_of(disk: SimulatedDisk):
    """What readers of the store on this disk see, opened as one that takes messages."""
    seen = []

    async def look(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        seen.append(await see(store))
        await store.aclose()

    in_world(look, disk.after_kill())
    return seen[0]


def test_a_replica_that_took_all_of_it_has_the_log_byte_for_byte_and_shows_the_same(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        assert await replica.wait_on_disk() == recorded.end
        replica.note_safe(recorded.end)
        assert await see(replica) == expected
        await replica.aclose()

    expected = seen_of(recorded.disk)
    disk = in_world(follow)

    assert log_bytes(disk, 1 << 40) == log_bytes(recorded.disk, 1 << 40)
    assert seen_of(disk) == expected


def test_a_replica_needs_no_write_pool_whatever_the_settings(recorded, monkeypatch):
    pooled = dataclasses.replace(REPLICA_OPTIONS, append=AppendMode.POOL)
    monkeypatch.setattr(replicated, "OPTIONS", pooled)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        assert await replica.wait_on_disk() == recorded.end

    in_world(follow)


def test_its_files_have_no_finding(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        replica.note_safe(recorded.end)
        await replica.wait_on_disk()
        await replica.aclose()

    disk = in_world(follow)

    verification = StoreVerification(disk, ROOT, is_running=False)
    assert [finding for piece in verification.steps() for finding in piece.findings] == []


def test_it_shows_nothing_that_its_primary_has_not_called_safe_and_nothing_before_its_own_sync(
    recorded,
):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        half = next(n for n in range(20, 40) if len(recorded.pieces[n].data) > 8)
        await take_all(replica, recorded.pieces)
        await replica.wait_on_disk()
        assert replica.status().visible_end == 0
        replica.note_safe(recorded.pieces[half].end)
        assert replica.status().visible_end == recorded.pieces[half].end
        assert replica.synced_offset() == recorded.pieces[half].end

    async def unsynced(world: World) -> None:
        replica = await open_replica(world)
        world.runner.hold_up(Lane.FLUSH, seconds=60)
        replica.note_safe(recorded.end)
        await replica.take(*recorded.pieces[0][:2])
        await asyncio.sleep(59)
        assert replica.status().visible_end == 0
        await replica.wait_on_disk()
        assert replica.status().visible_end == recorded.pieces[0].end

    in_world(follow)
    in_world(unsynced)


def test_a_reader_that_waits_is_woken_by_what_becomes_safe(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await replica.create_topic("orders", queue_count=2)
        waiting = asyncio.ensure_future(replica.wait_for_arrival(ORDERS, 0, timeout_ms=60_000))
        await take_all(replica, recorded.pieces)
        await replica.wait_on_disk()
        assert not waiting.done()
        replica.note_safe(recorded.end)
        assert await waiting

    in_world(follow)


def test_a_reader_that_waits_at_the_end_of_a_topic_is_woken_by_its_deletion():
    async def delete(store: LocalMessageStore) -> None:
        await store.append([message(queue=DRAFTS)])
        await store.delete_topic("drafts")
        await store.aclose()

    disk, _ = run_lives((delete,), open_with_topics)
    recorded = recorded_of(disk)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await replica.take(*recorded.pieces[0][:2])
        replica.note_safe(recorded.end)
        await replica.wait_on_disk()
        waiting = asyncio.ensure_future(replica.wait_for_arrival(DRAFTS, 1, timeout_ms=3_600_000))
        await asyncio.sleep(1)
        await take_all(replica, recorded.pieces[1:])
        assert not await waiting
        assert world.loop.now < 60
        with pytest.raises(UnknownTopic):
            await replica.offsets(DRAFTS)

    in_world(follow)


@pytest.mark.parametrize("kept_bytes", [0, 1_000])
def test_units_beyond_what_may_wait_in_memory_are_taken_and_read_again_when_they_are_safe(
    recorded, monkeypatch, kept_bytes
):
    monkeypatch.setattr(received_units, "_MOST_KEPT_BYTES", kept_bytes)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        for piece in recorded.pieces:
            await replica.take(piece.offset, piece.data)
        assert replica.stored_offset() == recorded.end
        hidden = replica._engine.received._hidden
        assert sum(len(units.data) for units in hidden if units.data) <= kept_bytes
        await replica.wait_on_disk()
        assert replica.status().visible_end == 0
        replica.note_safe(recorded.end)
        assert await see(replica) == expected

    expected = seen_of(recorded.disk)
    in_world(follow)


def test_units_that_the_disk_does_not_give_back_end_the_replica(recorded, monkeypatch):
    monkeypatch.setattr(received_units, "_MOST_KEPT_BYTES", 0)
    is_broken = False

    def plan(operation: str, path: PurePath) -> None:
        if is_broken and operation == "read" and path.parent.name == "commitlog":
            raise OSError(errno.EIO, "simulated")

    async def follow(world: World) -> None:
        nonlocal is_broken
        world.vfs = FaultyVfs(world.disk, plan)
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces[:5])
        await replica.wait_on_disk()
        is_broken = True
        replica.note_safe(recorded.end)
        assert [one.errno for one in world.failures] == [errno.EIO]
        with pytest.raises(StoreClosed):
            await replica.take(*recorded.pieces[5][:2])

    in_world(follow)


def test_units_that_wait_for_room_are_refused_when_the_replica_is_closed(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces[:1])
        world.runner.hold_up(Lane.PREPARE, seconds=60)
        taking = asyncio.ensure_future(take_all(replica, recorded.pieces[1:]))
        await asyncio.sleep(10)
        assert 0 < replica.stored_offset() < recorded.end
        await replica.aclose()
        with pytest.raises(StoreClosed):
            await taking
        last = recorded.pieces[-1]
        with pytest.raises(StoreClosed):
            await replica.take(last.offset, last.data)

    in_world(follow)


def test_units_that_a_full_disk_refuses_are_taken_when_there_is_space_again(recorded):
    is_full = False

    def plan(operation: str, _: PurePath) -> None:
        if is_full and operation == "allocate":
            raise OSError(errno.ENOSPC, "simulated")

    async def follow(world: World) -> None:
        nonlocal is_full
        world.vfs = FaultyVfs(world.disk, plan)
        replica = await open_replica(world)
        await asyncio.sleep(0.5)
        is_full = True
        with pytest.raises(StorageFull):
            await take_all(replica, recorded.pieces)
        begin = replica.stored_offset()
        assert 0 < begin < recorded.end
        is_full = False
        await asyncio.sleep(2)
        await take_all(replica, [piece for piece in recorded.pieces if piece.offset >= begin])
        assert await replica.wait_on_disk() == recorded.end

    in_world(follow)


def test_it_refuses_appends_offsets_and_deletions(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        for refused in (
            replica.append([message()]),
            replica.commit_offset("billing", ORDERS, 0),
            replica.delete_topic("orders"),
        ):
            with pytest.raises(StoreClosed):
                await refused
        assert replica.stored_offset() == recorded.end

    in_world(follow)


def spoiled(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def wrong_pieces(pieces: list[Piece]) -> dict[str, tuple[int, bytes]]:
    """What may not follow the first piece."""
    first, second, third = pieces[:3]
    in_middle = len(second.data) // 2
    return {
        "a gap": (third.offset, third.data),
        "a unit again": (first.offset, first.data),
        "a flipped bit": (second.offset, spoiled(second.data, in_middle)),
        "a unit of another place": (second.offset, third.data),
        "zeros": (second.offset, bytes(512)),
        "an end of file of another length": (second.offset, pieces_end(pieces).data),
        "more than a segment": (second.offset, second.data + bytes(20_000)),
    }


def pieces_end(pieces: list[Piece]) -> Piece:
    return next(piece for piece in pieces if len(piece.data) == 8)


@pytest.mark.parametrize(
    "what",
    [
        "a gap", "a unit again", "a flipped bit", "a unit of another place", "zeros", "an end of file of another length",
        "more than a segment",
    ],
)  # fmt: skip
def test_what_may_not_follow_is_refused_whole_and_the_right_units_are_taken_then(recorded, what):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        first, second = recorded.pieces[:2]
        await replica.take(first.offset, first.data)
        offset, data = wrong_pieces(recorded.pieces)[what]
        with pytest.raises(CorruptRecord):
            await replica.take(offset, data)
        assert replica.stored_offset() == first.end
        await replica.take(second.offset, second.data)
        assert await replica.wait_on_disk() == second.end

    in_world(follow)


def test_of_bytes_that_end_within_a_unit_the_whole_units_are_taken(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        first, second = recorded.pieces[:2]
        half = second.data[: len(second.data) // 2]
        await replica.take(first.offset, first.data + half)
        assert replica.stored_offset() == first.end
        await replica.take(second.offset, half)
        assert replica.stored_offset() == first.end
        await replica.take(second.offset, second.data)
        assert await replica.wait_on_disk() == second.end

    in_world(follow)


def test_bytes_that_are_no_unit_however_many_follow_are_refused_at_a_limit(recorded, monkeypatch):
    """A length that was damaged on the way may claim a unit of a whole segment."""
    monkeypatch.setattr(received_units, "MAX_UNIT_BYTES", 1_000)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        long = (12_000).to_bytes(4, "big") + recorded.pieces[0].data[4:]
        await replica.take(0, (long * 20)[:900])
        with pytest.raises(CorruptRecord, match="more than 1000 bytes"):
            await replica.take(0, (long * 20)[:1_100])

    in_world(follow)


def test_segments_that_the_primary_has_dropped_are_dropped_and_no_others(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        await asyncio.sleep(5)
        assert await replica.drop_before(3 * SEGMENT_BYTES + 100) == 3
        assert replica.first_offset == 3 * SEGMENT_BYTES
        assert await replica.drop_before(1 << 40) > 0
        assert replica.first_offset <= recorded.end - recorded.end % SEGMENT_BYTES
        bounds = replica.bounds(ORDERS)
        assert 0 < bounds.first < bounds.end
        await replica.aclose()

    async def again(world: World) -> None:
        replica = await open_replica(world)
        assert replica.stored_offset() == recorded.end
        assert replica.first_offset > 0

    in_world(again, in_world(follow))


def test_a_replica_that_starts_behind_a_closed_segment_knows_where_its_last_unit_ends(recorded):
    closing = next(n for n, piece in enumerate(recorded.pieces) if piece.end == SEGMENT_BYTES)
    units_end = recorded.pieces[closing].offset
    assert units_end < SEGMENT_BYTES - 8

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces[: closing + 1])
        replica.note_safe(SEGMENT_BYTES)
        await replica.wait_on_disk()
        await replica.aclose()

    async def again(world: World) -> None:
        replica = await open_replica(world)
        assert replica.stored_offset() == SEGMENT_BYTES
        end, last_bytes = await replica.read_end()
        assert (end, last_bytes) == (units_end, log_bytes(recorded.disk, units_end)[-64:])
        await replica.aclose()

    disk = in_world(follow)
    for _ in range(3):
        disk = in_world(again, disk)


def test_the_end_of_a_closed_segment_is_synced_though_no_unit_follows_it(recorded):
    """The primary may wait for it: at a hand-over it is the end of the log."""
    closing = next(n for n, piece in enumerate(recorded.pieces) if piece.end == SEGMENT_BYTES)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces[:closing])
        await asyncio.sleep(1)
        units_end = recorded.pieces[closing].offset
        assert replica.on_disk_end() == replica.stored_offset() == units_end
        await take_all(replica, recorded.pieces[closing : closing + 1])
        await asyncio.sleep(1)
        assert replica.on_disk_end() == replica.stored_offset() == SEGMENT_BYTES
        await replica.aclose()

    in_world(follow)


def test_bytes_of_the_log_are_read_as_they_are_in_its_files_and_no_further(recorded):
    async def read(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        expected = log_bytes(recorded.disk, 1 << 40)
        assert await store.read_log(100, 300) == expected[100:300]
        # not across a segment
        begin = SEGMENT_BYTES - 10
        assert await store.read_log(begin, begin + 100) == expected[begin:SEGMENT_BYTES]
        end = store.stored_offset()
        assert await store.read_log(end - 10, end + 100) == expected[end - 10 : end]
        assert await store.read_log(end, end + 100) == b""

    in_world(read, recorded.disk.after_kill())


def test_a_promoted_replica_begins_an_epoch_where_its_log_ends_though_it_ended_in_order(recorded):
    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces[:30])
        replica.note_safe(recorded.end)
        await replica.wait_on_disk()
        await replica.promote(replica.epochs.last_epoch + EPOCHS_OF_A_PROMOTION)

    async def begin(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        assert store.recovery.was_clean
        last, before = list(store.epochs)[-1], list(store.epochs)[-2]
        assert last.offset == recorded.pieces[29].offset  # of the record that closes a segment
        assert last.epoch > before.epoch + 100, "later than restarts of its service come to"
        await store.create_topic("orders", queue_count=2)
        await store.append([message()])

    in_world(begin, in_world(follow))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_promotion_lasts_though_the_disk_takes_nothing_new_and_it_cannot_end_in_order(
    recorded, error
):
    disk, promoted = promoted_where(
        recorded,
        lambda operation, path: operation == "allocate" or "making" in path.parts,
        error,
    )
    assert not promoted.failed

    async def begin(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        assert not store.recovery.was_clean
        assert store.epochs.last_epoch > promoted.epoch
        await store.aclose()

    in_world(begin, disk)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_promotion_whose_epoch_the_disk_refuses_fails_and_can_be_repeated(recorded, operation):
    disk, promoted = promoted_where(
        recorded, lambda done, path: done == operation and path.name == "checkpoint", errno.EIO
    )
    assert promoted.failed

    async def promote(world: World) -> None:
        replica = await open_replica(world)
        assert replica.stored_offset() == recorded.end
        await replica.promote(promoted.epoch + EPOCHS_OF_A_PROMOTION)

    async def begin(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        assert store.epochs.last_epoch == promoted.epoch + EPOCHS_OF_A_PROMOTION
        await store.aclose()

    in_world(begin, in_world(promote, disk))


class Promoted(NamedTuple):
    epoch: int
    failed: bool


def promoted_where(
    recorded: Recorded, fails: Callable[[str, PurePath], bool], error: int
) -> tuple[SimulatedDisk, Promoted]:
    """A replica is promoted while such calls of the disk fail: the disk, and how it went."""
    is_failing = False
    promoted = []

    def plan(operation: str, path: PurePath) -> None:
        if is_failing and fails(operation, path):
            raise OSError(error, "simulated")

    async def follow(world: World) -> None:
        nonlocal is_failing
        world.vfs = FaultyVfs(world.disk, plan)
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        is_failing = True
        epoch = replica.epochs.last_epoch + EPOCHS_OF_A_PROMOTION
        try:
            await replica.promote(epoch)
            promoted.append(Promoted(epoch, failed=False))
        except OSError:
            promoted.append(Promoted(epoch, failed=True))

    return in_world(follow), promoted[0]


def test_a_unit_of_an_older_epoch_is_refused(recorded):
    """A primary that was deposed goes on sending."""
    old = record(7, lives=1)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        new = [piece for piece in recorded.pieces if piece.offset < old.pieces[-1].offset]
        await take_all(replica, new)
        replica.epochs.note(9, replica.stored_offset())
        offset = replica.stored_offset()
        late = next(piece for piece in old.pieces if piece.offset == offset)
        with pytest.raises(CorruptRecord, match="epoch"):
            await replica.take(late.offset, late.data)

    in_world(follow)


def killed_in_front_of_a_border() -> Recorded:
    """Two lives, the first unit of the second is the first of a segment."""

    async def life(store: LocalMessageStore) -> None:
        await store.append(messages(3, body_bytes=4_000))

    disk, _ = run_lives((life, life), open_with_topics)
    return recorded_of(disk)


@pytest.mark.parametrize("make", [lambda: record(7), killed_in_front_of_a_border])
def test_a_replica_knows_the_epochs_of_its_primary(make):
    recorded = make()
    known = []

    async def look(world: World) -> None:
        store = await world.open_store(REPLICA_OPTIONS)
        epochs = store._files.recovered.epochs
        known.append([begin for begin in epochs if begin.offset < recorded.end])
        await store.aclose()

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        await take_all(replica, recorded.pieces)
        assert list(replica.epochs) == known[0]
        await replica.aclose()

    async def again(world: World) -> None:
        assert list((await open_replica(world)).epochs) == known[0]

    in_world(look, recorded.disk.after_kill())
    in_world(again, in_world(follow))


@pytest.mark.parametrize("seed", range(12))
def test_a_replica_that_is_cut_off_at_any_operation_goes_on_where_its_disk_ends(seed):
    recorded = record(seed, lives=2, calls=25)
    randomness = Random(seed)
    expected, disk, rounds = seen_of(recorded.disk), SimulatedDisk(), 0
    end = 0

    async def follow(world: World) -> None:
        nonlocal end
        replica = await open_replica(world)
        assert replica.stored_offset() >= end, "what was on disk is gone"
        starts = {piece.offset: number for number, piece in enumerate(recorded.pieces)}
        while (at := replica.stored_offset()) < recorded.end:
            pieces = block(recorded.pieces, starts[at], randomness.randrange(1, 12))
            offset, data, safe_end = joined(pieces)
            await replica.take(offset, data[: randomness.randrange(1, 2 * len(data))])
            if randomness.random() < 0.5:
                end = await replica.wait_on_disk()
                replica.note_safe(randomness.choice((0, safe_end, recorded.end)))
        await replica.wait_on_disk()
        replica.note_safe(recorded.end)
        assert await see(replica) == expected
        await replica.aclose()

    while True:
        rounds += 1
        with World(disk, seed * 1_000 + rounds) as world:
            if rounds < 6:
                disk.cut_after = disk.operations + randomness.randrange(30, 400)
            is_done = world.run(follow(world))
        disk = world.disk.after_power_cut(randomness) if not is_done else world.disk.after_kill()
        if is_done:
            break
    assert rounds > 1
    assert log_bytes(disk, recorded.end) == log_bytes(recorded.disk, recorded.end)
    assert seen_of(disk) == expected
