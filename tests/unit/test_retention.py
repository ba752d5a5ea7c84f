"""What has expired is dropped, and everything that still counts survives it: offsets of queues and
groups, and a crash.
"""

import asyncio
import errno
from collections.abc import Mapping
from pathlib import PurePath

import pytest
import structlog

from storage.errors import OffsetExpired, StorageFull
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats import checkpoint
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.queues import queue_ends
from storage.local.retention_plan import OnFull
from storage.message import Durability, QueueId
from storage.store import KeyQuery, Snapshot
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import ROOT, World

ORDERS, RARE = QueueId("orders", 0), QueueId("rare", 1)
EVERYTHING = {"max_messages": 10_000, "max_bytes": 1 << 30}
EVERY_HOUR = ";".join(map(str, range(24)))
OPTIONS = {
    "segment_bytes": 16_384,
    "prepare_ahead_bytes": 8_192,
    "queue_file_entries": 10,
    "index_slots": 16,
    "index_file_entries": 20,
    "queue_flush_interval_ms": 10,
    "snapshot_interval_ms": 50,
    "retention_ms": 60_000,
    "delete_hours": EVERY_HOUR,
}


async def nothing(first_kept: Mapping[QueueId, int]) -> None:
    """There is nobody above who would write anything again."""


async def open_store(world: World, **given: object) -> LocalMessageStore:
    store = await world.open_store(LocalStoreOptions(**{**OPTIONS, **given}))
    await store.create_topic("orders", queue_count=1)
    await store.create_topic("rare", queue_count=2)
    return store


async def send(store: LocalMessageStore, count: int, *, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        await store.append(
            [message(b"x" * 1_000, queue=ORDERS, message_id=f"m{number}", key=f"k{number}")]
        )


async def expire(world: World, store: LocalMessageStore, put_back=nothing, **given: int) -> int:
    return await store.expire(world.clock.wall_ms(), put_back, **given)


async def ids(store: LocalMessageStore, queue: QueueId = ORDERS) -> list[str]:
    first = (await store.offsets(queue)).first
    return [found.message_id for found in await store.read(queue, first, **EVERYTHING)]


def names(world: World, folder: str) -> list[str]:
    return world.disk.list_directory(ROOT / folder)


def in_lives(*lives, disk: SimulatedDisk | None = None, **given) -> SimulatedDisk:
    """Each life on what the one before it left when it was killed, a minute later."""

    async def enter(world: World) -> tuple[World, LocalMessageStore]:
        return world, await open_store(world, **given)

    disk, _ = run_lives(lives, enter, disk=disk, down_ms=60_000)
    return disk


with_house = one_life(in_lives, given=2)


@with_house()
async def test_expired_segments_go_and_reading_below_what_is_left_says_what_there_is(world, store):
    await store.append([message(b"first", queue=RARE)])
    await send(store, 100)
    assert await expire(world, store) == 0, "nothing has expired"
    await asyncio.sleep(61)
    await send(store, 1, begin=100)
    segments = len(names(world, "commitlog"))

    dropped = await expire(world, store)

    assert 0 < dropped < segments
    assert len(names(world, "commitlog")) == segments - dropped
    bounds = await store.offsets(ORDERS)
    assert 0 < bounds.first < bounds.end == 101
    assert await ids(store) == [f"m{number}" for number in range(bounds.first, 101)]
    with pytest.raises(OffsetExpired) as expired:
        await store.read(ORDERS, bounds.first - 1, **EVERYTHING)
    assert expired.value.available == bounds
    assert await store.offsets(RARE) == (1, 1)
    assert await store.find_messages(KeyQuery("k0", topics=["orders"], max_messages=1)) == []
    (found,) = await store.find_messages(KeyQuery("k100", topics=["orders"], max_messages=1))
    assert found.message_id == "m100"


@with_house()
async def test_a_clock_that_was_set_back_ends_no_measurement_of_the_growth_of_the_disk(
    world, store
):
    async def fill(megabytes: int) -> None:
        for _ in range(5):
            await asyncio.sleep(60)
            world.disk.used_by_others += megabytes << 20
            await expire(world, store)

    await fill(1)
    world.clock.jump(-24 * 3_600_000)
    await fill(60)

    usage = store.disk_usage()
    assert usage.growth_window_ms == pytest.approx(240_000, rel=0.1)
    assert usage.growth_bytes_per_second == pytest.approx(1 << 20, rel=0.1)


@with_house()
async def test_what_somebody_wants_to_keep_for_longer_than_the_store_would_stays_as_long(
    world, store
):
    await send(store, 60)
    await asyncio.sleep(50)
    assert await expire(world, store, keep_ms=1_000) == 0, (
        "nor does a shorter time make the store's own shorter"
    )
    await asyncio.sleep(11)
    assert await expire(world, store, keep_ms=100_000) == 0
    await asyncio.sleep(40)
    assert await expire(world, store, keep_ms=100_000)


@with_house()
async def test_nothing_goes_that_has_not_expired_and_never_the_last_segment(world, store):
    await send(store, 30)
    await asyncio.sleep(40)
    await send(store, 30, begin=30)
    await asyncio.sleep(30)  # the first half has expired by now

    while await expire(world, store):
        pass

    first = (await store.offsets(ORDERS)).first
    assert 0 < first <= 30
    await asyncio.sleep(300)
    while await expire(world, store):
        pass
    assert (await store.offsets(ORDERS)).end == 60
    assert await ids(store)


def test_a_segment_whose_head_is_damaged_keeps_nothing_from_expiring():
    async def filled(world, store):
        await send(store, 60)

    async def expired(world, store):
        await asyncio.sleep(61)
        await send(store, 20, begin=60)

        dropped = await expire(world, store)

        left = [int(name) for name in names(world, "commitlog")]
        assert dropped >= 3, "the one before it, it itself, and those behind it that have expired"
        assert left[0] == 16_384 * dropped
        assert await expire(world, store) == 0

    disk = in_lives(filled)
    spoiled = disk.open(ROOT / "commitlog" / "16384".zfill(20))
    (byte,) = spoiled.read(95, 1)  # in the body of its first record
    spoiled.write(95, bytes([byte ^ 1]))
    spoiled.sync()
    in_lives(expired, disk=disk)


@with_house()
async def test_what_was_stored_while_the_clock_was_a_year_ahead_expires_after_as_long_as_the_retention(
    world, store
):
    year_ms = 365 * 86_400_000
    world.clock.jump(year_ms)
    await send(store, 1)
    world.clock.jump(-year_ms)
    await send(store, 60, begin=1)
    assert await expire(world, store) == 0
    await asyncio.sleep(50)
    assert await expire(world, store) == 0
    await asyncio.sleep(11)
    assert await expire(world, store) >= 3


@with_house()
async def test_a_clock_that_was_set_ahead_makes_nothing_older_and_younger_only_until_it_has_been_seen(
    world, store
):
    year_ms = 365 * 86_400_000
    await send(store, 60)
    await asyncio.sleep(30)
    world.clock.jump(year_ms)
    await send(store, 60, begin=60)
    assert await expire(world, store, ahead_ms=year_ms) == 0
    assert await store.expired_segments(world.clock.wall_ms(), ahead_ms=year_ms) == []
    await asyncio.sleep(31)
    assert await expire(world, store, ahead_ms=year_ms) >= 3
    bounds = await store.offsets(ORDERS)
    assert 0 < bounds.first <= 60, "what was stored before has expired by now, and no more"
    await asyncio.sleep(30)

    assert await expire(world, store, ahead_ms=year_ms) >= 2, "it was seen for as long"


@with_house()
async def test_a_segment_that_filled_slowly_is_as_old_as_what_was_stored_in_it_last(world, store):
    await send(store, 10)
    await asyncio.sleep(1)
    assert len(names(world, "commitlog")) == 2, "the next one is made ahead"
    assert await expire(world, store) == 0
    await asyncio.sleep(61)
    await send(store, 20, begin=10)
    await asyncio.sleep(1)

    assert await expire(world, store) == 0

    await asyncio.sleep(60)
    assert await expire(world, store)


@with_house()
async def test_what_the_floors_above_write_again_is_told_by_queue_and_a_failure_of_theirs_drops_nothing(
    world, store
):
    await send(store, 50)
    await asyncio.sleep(61)
    told: list[Mapping[QueueId, int]] = []

    async def refuse(first_kept: Mapping[QueueId, int]) -> None:
        told.append(first_kept)
        raise StorageFull

    with pytest.raises(StorageFull):
        await expire(world, store, refuse)
    assert (await store.offsets(ORDERS)).first == 0
    assert await ids(store) == [f"m{number}" for number in range(50)]

    assert await expire(world, store)
    assert told[0][ORDERS] == (await store.offsets(ORDERS)).first


@with_house()
async def test_files_of_what_is_derived_follow_once_a_snapshot_has_been_kept(world, store):
    await send(store, 100)
    await asyncio.sleep(61)
    files = len(names(world, "consumequeue/orders/0"))
    index_files = len(names(world, "index"))
    await expire(world, store)
    assert len(names(world, "consumequeue/orders/0")) == files

    await send(store, 1, begin=100)
    await asyncio.sleep(1)
    await expire(world, store)

    first = (await store.offsets(ORDERS)).first
    left = names(world, "consumequeue/orders/0")
    assert len(left) < files
    assert int(left[0]) == first // 10 * 10 * 20
    assert len(names(world, "index")) < index_files
    assert await ids(store) == [f"m{number}" for number in range(first, 101)]


@pytest.mark.parametrize("derived", ["kept", "lost", "queue files lost"])
def test_after_a_crash_queues_go_on_where_they_were_even_those_of_which_nothing_is_left(derived):
    async def first_life(world, store):
        await store.append([message(b"rare", queue=RARE)] * 3)
        await store.commit_offset("group", RARE, 2)
        await send(store, 100)
        await asyncio.sleep(61)
        await send(store, 1, begin=100)
        assert await expire(world, store)
        nonlocal first
        first = (await store.offsets(ORDERS)).first

    async def second_life(world, store):
        assert await store.offsets(ORDERS) == (first, 101)
        assert await ids(store) == [f"m{number}" for number in range(first, 101)]
        assert await store.offsets(RARE) == (3, 3)
        assert await store.committed_offset("group", RARE) == 2
        (appended,) = await store.append([message(b"next", queue=RARE)])
        assert appended.queue_offset == 3

    first = -1
    disk = in_lives(first_life)
    if derived != "kept":
        queue_files = ("consumequeue/orders/0", "consumequeue/rare/1")
        for folder in (*queue_files, *(("snapshots", "index") if derived == "lost" else ())):
            for name in disk.list_directory(ROOT / folder):
                disk.remove(ROOT / folder / name)
    in_lives(second_life, disk=disk)


def test_the_log_has_no_message_of_an_emptied_queue_before_its_end_that_is_not_before_it():
    """Else a log that begins at the end would have a gap behind it."""

    async def life(world: World, delay_ms: float) -> None:
        store = await open_store(world)
        for _ in range(5):
            await store.append([message(queue=RARE)])
        await send(store, 40)
        await asyncio.sleep(61)

        dropping = asyncio.ensure_future(expire(world, store))
        await asyncio.sleep(delay_ms / 1_000)
        sends = []
        for queue in (ORDERS, RARE, RARE):  # the others wait for the flush of the first
            sends.append(asyncio.ensure_future(store.append([message(queue=queue)])))
            await asyncio.sleep(0.0002)
        await asyncio.gather(*sends)
        assert await dropping

        is_said = queue_ends.QUEUE.topic in await store.topics()
        ends = await store.read(queue_ends.QUEUE, 0, **EVERYTHING) if is_said else []
        rare = await store.read(RARE, (await store.offsets(RARE)).first, **EVERYTHING)
        for said in ends:
            end = dict(queue_ends.read_ends(said.body)).get(RARE)
            before = [one.queue_offset for one in rare if one.log_offset < said.log_offset]
            assert end is None or max(before, default=-1) < end

    for step in range(60):
        with World(SimulatedDisk(), 1) as world:
            world.call(life(world, delay_ms=step / 5))


def test_an_offset_that_is_committed_while_it_is_put_back_is_the_one_that_counts():
    async def first_life(world, store):
        for number in range(20):
            await store.commit_offset(f"g{number}", ORDERS, 0)
        await send(store, 100)
        await asyncio.sleep(61)

        commits = [
            asyncio.ensure_future(store.commit_offset(f"g{number}", ORDERS, 50))
            for number in range(0, 20, 2)
        ]
        assert await expire(world, store)
        await asyncio.gather(*commits)
        for name in world.disk.list_directory(ROOT / "snapshots"):
            world.disk.remove(ROOT / "snapshots" / name)

    async def second_life(world, store):
        kept = [await store.committed_offset(f"g{number}", ORDERS) for number in range(20)]
        assert kept == [50, 0] * 10

    in_lives(first_life, second_life)


def test_a_snapshot_that_has_not_seen_what_was_dropped_is_not_given_back():
    async def life(world, store):
        await store.save_snapshot("seen", Snapshot((b"all",), {ORDERS: 100}))
        await store.save_snapshot("late", Snapshot((b"half",), {ORDERS: 1}))
        await send(store, 100)
        await asyncio.sleep(61)
        assert await expire(world, store)

    async def after(world, store):
        assert await store.load_snapshot("late") is None
        assert (await store.load_snapshot("seen")).data == b"all"

    in_lives(life, after)


@pytest.mark.parametrize("call", ["remove", "sync_directory"])
def test_a_segment_that_cannot_be_removed_goes_with_a_later_run_and_nothing_else_is_lost(call):
    failing = False

    def plan(name: str, path: PurePath) -> None:
        if failing and name == call and "commitlog" in str(path):
            raise OSError(errno.EIO, "simulated")

    async def main(world: World) -> None:
        nonlocal failing
        store = await open_store(world)
        await send(store, 100)
        await asyncio.sleep(61)
        failing = True
        with pytest.raises(OSError, match="simulated"):
            await expire(world, store)
        failing = False
        assert world.failures == []
        await send(store, 1, begin=100)

        while await expire(world, store):
            pass

        first = (await store.offsets(ORDERS)).first
        assert await ids(store) == [f"m{number}" for number in range(first, 101)]
        assert int(names(world, "commitlog")[0]) == store.status().first_offset > 0
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(main(world))
    in_lives(after, disk=world.disk.after_kill())


def recorded_beginning(disk: SimulatedDisk) -> int | None:
    """As a start after a power cut finds it."""
    slot = checkpoint.newest_slot(disk.on_disk(ROOT / "checkpoint"))
    return None if slot is None else slot.first_offset


@pytest.mark.parametrize("way", ["expired", "on_full=delete_oldest"])
def test_where_the_log_will_begin_is_on_disk_before_a_segment_is_removed(way):
    removed: list[tuple[int, int | None]] = []

    async def main(world: World) -> None:
        given = {} if way == "expired" else {"retention_ms": 10**9, "on_full": OnFull.DELETE_OLDEST}
        store = await open_store(world, **given)
        await send(store, 100)
        await asyncio.sleep(61)
        if way != "expired":
            world.disk.used_by_others = 9 * world.disk.total_bytes // 10
        assert await expire(world, store) > 1

    def plan(name: str, path: PurePath) -> None:
        if name == "remove" and "commitlog" in str(path):
            removed.append((int(path.name), recorded_beginning(world.disk)))

    with World(SimulatedDisk(), 1) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(main(world))

    assert len(removed) > 1
    assert all(recorded is not None and recorded > base_offset for base_offset, recorded in removed)


def test_nothing_is_dropped_where_the_new_beginning_cannot_be_recorded_and_the_store_fails():
    failing = False

    def plan(name: str, path: PurePath) -> None:
        if failing and name == "sync" and path.name == "checkpoint":
            raise OSError(errno.EIO, "simulated")

    async def main(world: World) -> None:
        nonlocal failing
        store = await open_store(world)
        await send(store, 100)
        await asyncio.sleep(61)
        kept = names(world, "commitlog")
        failing = True
        with pytest.raises(OSError, match="simulated"):
            await expire(world, store)

        assert names(world, "commitlog") == kept
        assert len(world.failures) == 1

    with World(SimulatedDisk(), 1) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(main(world))


async def after(world: World, store: LocalMessageStore) -> None:
    assert (await ids(store))[-1] == "m100"


@with_house()
async def test_a_nearly_full_disk_refuses_new_messages_until_it_is_below_the_lower_border(
    world, store
):
    disk = world.disk

    async def use(ratio: float) -> None:
        disk.used_by_others = int(disk.total_bytes * ratio)
        await expire(world, store)

    await use(0.89)
    await send(store, 1)
    assert store.disk_usage().is_writable
    await use(0.905)
    with pytest.raises(StorageFull):
        await send(store, 1)
    assert not store.disk_usage().is_writable
    await store.append([message(b"settled")], durability=Durability.SYNCED, from_reserve=True)
    await store.commit_offset("group", ORDERS, 1)
    assert len(await store.read(ORDERS, 0, **EVERYTHING)) == 2
    await use(0.855)
    with pytest.raises(StorageFull):
        await send(store, 1)

    await use(0.845)

    await send(store, 1)


def test_messages_that_have_not_expired_go_only_where_that_was_chosen_and_with_a_warning_of_their_own():
    async def life(world, store):
        await send(store, 100)
        await asyncio.sleep(1)
        world.disk.used_by_others = int(world.disk.total_bytes * 0.87)
        with structlog.testing.capture_logs() as lines:
            count = await expire(world, store)
        events = [line["event"] for line in lines]
        assert bool(count) == is_chosen
        assert events == ["disk_nearly_full"] + ["unexpired_segment_dropped"] * count
        usage = store.disk_usage()
        assert (usage.segments_dropped, usage.segments_dropped_unexpired) == (count, count)

    for is_chosen in (False, True):
        in_lives(life, on_full=OnFull.DELETE_OLDEST if is_chosen else OnFull.KEEP)


@with_house(delete_pause_ms=7_000)
async def test_there_is_a_pause_between_the_segments_of_one_run_and_none_is_counted_as_unexpired(
    world, store
):
    await send(store, 100)
    await asyncio.sleep(120)
    begun = world.loop.now
    count = await expire(world, store)
    took = world.loop.now - begun
    assert count > 3
    assert took == pytest.approx((count - 1) * 7, abs=1)
    usage = store.disk_usage()
    assert (usage.segments_dropped, usage.segments_dropped_unexpired) == (count, 0)


@pytest.mark.parametrize(("used_ratio", "events"), [(0.80, []), (0.87, ["disk_nearly_full"]),
                                                    (0.95,
                                                    ["disk_nearly_full",
                                                    "new_messages_refused"])])  # fmt: skip
def test_borders_of_the_disk_that_are_crossed_already_are_logged_at_a_start(used_ratio, events):
    async def life(world, store):
        """Nothing: the start is what is asked about."""

    disk = SimulatedDisk()
    disk.used_by_others = int(disk.total_bytes * used_ratio)
    with structlog.testing.capture_logs() as lines:
        in_lives(life, disk=disk)

    assert [line["event"] for line in lines] == events


@with_house(delete_hours="20")
async def test_what_has_expired_goes_at_any_hour_where_an_operator_asks_for_it_and_nothing_else(
    world, store
):
    await send(store, 100)
    assert await store.expired_segments(world.clock.wall_ms()) == []
    await asyncio.sleep(120)
    assert await expire(world, store) == 0, "it is another hour"
    expired = await store.expired_segments(world.clock.wall_ms())
    assert expired[0].begin == 0
    assert all(segment.is_sealed for segment in expired)

    now_ms = world.clock.wall_ms()
    counts = await asyncio.gather(
        *[store.expire(now_ms, nothing, at_any_hour=True) for _ in range(2)]
    )

    assert sum(counts) == len(expired) > 3
    assert await store.expired_segments(world.clock.wall_ms()) == []
    assert names(world, "commitlog")[0] == f"{expired[-1].end:020}"
