"""A deleted topic stays deleted, and its queue offsets stay used: after kills, power cuts,
retention and lost derived files.
"""

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from random import Random

import pytest

from storage.errors import Backpressure, UnknownTopic
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.formats.queue_entry import ENTRY_BYTES
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.mending import Mending
from storage.local.options import LocalStoreOptions
from storage.local.verify.verification import StoreVerification
from storage.message import QueueId
from storage.store import KeyQuery
from storage.store_status import Finding
from tests.support.builders import message
from tests.support.simulation import ROOT, World

QUEUES = ROOT / "consumequeue"
GONE, KEPT = QueueId("gone", 1), QueueId("kept", 0)
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    prepare_ahead_bytes=8_192,
    queue_file_entries=10,
    index_slots=16,
    index_file_entries=20,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=50,
    retention_ms=60_000,
    delete_hours=";".join(map(str, range(24))),
)


async def nothing(first_kept: Mapping[QueueId, int]) -> None:
    """No table above the store has anything to write again."""


async def open_store(world: World, options: LocalStoreOptions = OPTIONS) -> LocalMessageStore:
    store = await world.open_store(options)
    await store.create_topic("kept", queue_count=1)
    return store


async def fill(store: LocalMessageStore) -> None:
    await store.create_topic("gone", queue_count=2)
    for _ in range(3):
        await store.append(
            [message(b"old", queue=GONE, key="k"), message(b"kept", queue=KEPT, key="k")]
        )
    await store.commit_offset("group", GONE, 2)


async def check_gone(store: LocalMessageStore) -> None:
    """The topic is unknown; created again, it goes on behind its last offset without what
    it had.
    """
    assert "gone" not in await store.topics()
    with pytest.raises(UnknownTopic):
        await store.offsets(GONE)
    await store.create_topic("gone", queue_count=2)
    assert [await store.offsets(queue) for queue in await store.queues("gone")] == [(0, 0), (3, 3)]
    assert await store.committed_offset("group", GONE) is None
    assert await store.find_messages(KeyQuery("k", topics=["gone"], max_messages=9)) == []
    (appended,) = await store.append([message(b"new", queue=GONE)])
    assert appended.queue_offset == 3


def lose(disk: SimulatedDisk, *folders: str) -> None:
    for folder in folders:
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)


@pytest.mark.parametrize("lost", [(), ("snapshots", "index"), ("consumequeue/kept/0",)])
@pytest.mark.parametrize("expired", [False, True])
def test_a_deleted_topic_stays_deleted_and_its_offsets_used(lost, expired):
    async def first_life(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await store.delete_topic("gone")
        if expired:  # the deletion itself, too
            for _ in range(30):
                await store.append([message(b"x" * 2_000, queue=KEPT)])
            await asyncio.sleep(61)
            assert await store.expire(world.clock.wall_ms(), nothing)
            assert store.status().first_offset > 0
        await asyncio.sleep(1)

    async def second_life(world: World) -> None:
        await check_gone(await open_store(world))

    async def third_life(world: World) -> None:
        store = await open_store(world)
        assert await store.offsets(GONE) == (3, 4)
        assert [one.body for one in await store.read(GONE, 3, max_messages=9, max_bytes=99)] == [
            b"new"
        ]

    with World(SimulatedDisk(), 1) as world:
        world.call(first_life(world))
    disk = world.disk.after_kill()
    for number, life in enumerate((second_life, third_life)):
        lose(disk, *lost)
        with World(disk, 2 + number, wall_ms=world.clock.wall_ms()) as world:
            world.call(life(world))
        disk = world.disk.after_kill()


@pytest.mark.parametrize("lost", [(), ("snapshots", "index")])
def test_a_topic_that_is_created_again_with_fewer_queues_keeps_what_it_has_and_goes_on_where_the_others_ended(
    lost,
):
    async def first_life(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await store.append([message(b"old", queue=QueueId("gone", 0))])
        await store.delete_topic("gone")
        await store.create_topic("gone", queue_count=1)
        await store.append([message(b"new", queue=QueueId("gone", 0))])
        for _ in range(30):
            await store.append([message(b"x" * 2_000, queue=KEPT)])
        await asyncio.sleep(61)
        assert await store.expire(world.clock.wall_ms(), nothing)
        await store.append([message(b"newer", queue=QueueId("gone", 0))])
        await asyncio.sleep(1)

    async def second_life(world: World) -> None:
        store = await open_store(world)
        await store.create_topic("gone", queue_count=1)
        assert [queue.number for queue in await store.queues("gone")] == [0]
        assert [
            one.body
            for one in await store.read(QueueId("gone", 0), 2, max_messages=9, max_bytes=99)
        ] == [b"newer"]
        await store.create_topic("gone", queue_count=2)
        assert await store.offsets(GONE) == (3, 3)

    with World(SimulatedDisk(), 1) as world:
        world.call(first_life(world))
    disk = world.disk.after_kill()
    lose(disk, *lost)
    with World(disk, 2, wall_ms=world.clock.wall_ms()) as world:
        world.call(second_life(world))


def test_the_queue_files_of_a_deleted_topic_go_once_no_snapshot_needs_them():
    async def life(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await asyncio.sleep(1)
        folder = QUEUES / "gone" / "1"
        assert world.disk.list_directory(folder)

        await store.delete_topic("gone")
        await store.expire(world.clock.wall_ms(), nothing)
        assert world.disk.list_directory(folder)
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)

        assert not world.disk.exists(QUEUES / "gone")
        await check_gone(store)

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_the_queue_files_of_deleted_topics_go_however_often_topics_are_deleted():
    async def life(world: World) -> None:
        store = await open_store(world, replace(OPTIONS, snapshot_interval_ms=500))
        for number in range(5):
            topic = f"gone-{number}"
            await store.create_topic(topic, queue_count=1)
            await store.append([message(queue=QueueId(topic, 0))])
            await asyncio.sleep(1)
            await store.delete_topic(topic)
            await store.expire(world.clock.wall_ms(), nothing)

        left = [name for name in world.disk.list_directory(QUEUES) if name.startswith("gone")]
        assert left == ["gone-4"]

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_what_another_program_has_in_the_folder_of_a_deleted_topic_stays():
    async def life(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await asyncio.sleep(1)
        world.disk.open(QUEUES / "gone" / "note", create=True).close()
        await store.delete_topic("gone")
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)

        assert world.disk.list_directory(QUEUES / "gone") == ["note"]

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_queue_files_that_could_not_be_removed_go_with_the_next_run():
    fails = False

    def plan(call: str, path: PurePath) -> None:
        if fails and call == "remove" and path.parent.parent.name == "gone":
            raise OSError(errno.EIO, "simulated")

    async def main() -> None:
        nonlocal fails
        store = await open_store(world)
        await fill(store)
        await store.delete_topic("gone")
        await asyncio.sleep(1)
        await store.append([message(queue=KEPT)])
        await asyncio.sleep(1)

        fails = True
        with pytest.raises(OSError, match="simulated"):
            await store.expire(world.clock.wall_ms(), nothing)
        fails = False
        await store.expire(world.clock.wall_ms(), nothing)

        assert not world.disk.exists(QUEUES / "gone")

    with World(SimulatedDisk(), 1) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(main())


def test_the_files_of_a_topic_that_is_deleted_while_others_are_removed_go_with_the_next_run():
    first, second = QueueId("first", 0), QueueId("second", 0)

    async def main() -> None:
        store = await open_store(world)
        for queue in (first, second):
            await store.create_topic(queue.topic, queue_count=1)
            await store.append([message(queue=queue)])
        await asyncio.sleep(1)
        await store.delete_topic("first")
        await asyncio.sleep(1)
        await store.append([message(queue=KEPT)])
        await asyncio.sleep(1)

        world.runner.hold_up(Lane.DERIVE, seconds=1)
        removing = asyncio.ensure_future(store.expire(world.clock.wall_ms(), nothing))
        await asyncio.sleep(0.5)
        await store.delete_topic("second")
        await removing
        await store.append([message(queue=KEPT)])
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)

        for queue in (first, second):
            assert not world.disk.exists(QUEUES / queue.topic)

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_deletion_that_could_not_be_written_leaves_the_topic_as_it_was():
    async def life(world: World) -> None:
        options = LocalStoreOptions(
            segment_bytes=16_384, max_queued_bytes=1_000, reserved_queue_bytes=1
        )
        store = await open_store(world, options)
        await fill(store)
        waiting = asyncio.ensure_future(store.append([message(b"x" * 900, queue=KEPT)]))
        await asyncio.sleep(0)
        with pytest.raises(Backpressure):
            await store.delete_topic("gone")
        await waiting

        assert await store.offsets(GONE) == (0, 3)
        assert await store.committed_offset("group", GONE) == 2

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_a_deletion_whose_last_step_fails_is_reported_and_has_happened():
    async def life(world: World) -> None:
        def fail(_: str) -> None:
            raise ValueError("of the retention")

        store = await open_store(world)
        await fill(store)
        store._retention.topic_deleted = fail

        with pytest.raises(ValueError, match="of the retention"):
            await asyncio.wait_for(store.delete_topic("gone"), 1)

        await check_gone(store)

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


SURPLUS = [QueueId("gone", number) for number in range(3)]


async def make_again_with_one_queue(world: World, answered: list[str]) -> LocalMessageStore:
    """A topic of three queues; the log has nothing of the two that it has not any more."""
    store = await open_store(world)
    await store.create_topic("gone", queue_count=3)
    await store.append([message(b"old", queue=queue) for queue in SURPLUS] * 25)
    await asyncio.sleep(1)
    await store.delete_topic("gone")
    await store.create_topic("gone", queue_count=1)
    await store.append([message(b"new", queue=SURPLUS[0])])
    for _ in range(30):
        await store.append([message(b"x" * 2_000, queue=KEPT)])
    await asyncio.sleep(61)
    answered.append("made again")
    assert await store.expire(world.clock.wall_ms(), nothing)
    await asyncio.sleep(1)
    await store.expire(world.clock.wall_ms(), nothing)
    return store


def findings(disk: SimulatedDisk) -> list[Finding]:
    verification = StoreVerification(disk, ROOT, is_running=False)
    return [finding for step in verification.steps() for finding in step.findings]


async def grow_again(world: World) -> None:
    """Each queue goes on where the one of before has ended."""
    store = await open_store(world)
    await store.create_topic("gone", queue_count=1)
    for life in range(2):
        await store.create_topic("gone", queue_count=3)
        for queue in SURPLUS[1:]:
            (appended,) = await store.append([message(b"newer", queue=queue)])
            assert appended.queue_offset == 25 + life
        await asyncio.sleep(1)
        await store.aclose()
        assert findings(world.disk) == []
        store = await open_store(world)
    for queue in SURPLUS[1:]:
        read = await store.read(queue, 25, max_messages=9, max_bytes=99)
        assert [one.body for one in read] == [b"newer"] * 2
    await store.aclose()


@pytest.mark.parametrize("is_started_before", [False, True])
def test_the_files_of_queues_that_a_topic_has_not_any_more_go(is_started_before):
    async def first_life(world: World) -> None:
        store = await make_again_with_one_queue(world, [])
        if is_started_before:
            await store.aclose()
            store = await open_store(world)
            await asyncio.sleep(1)
            await store.append([message(queue=KEPT)])
            await asyncio.sleep(1)
            await store.expire(world.clock.wall_ms(), nothing)

        assert world.disk.list_directory(QUEUES / "gone") == ["0"]
        assert world.disk.list_directory(QUEUES / "gone" / "0") == [file_name(20 * ENTRY_BYTES)]
        await store.aclose()
        assert findings(world.disk) == []

    with World(SimulatedDisk(), 1) as world:
        world.call(first_life(world))
        world.call(grow_again(world))


def test_what_another_program_has_beside_the_queues_that_a_topic_has_not_any_more_stays():
    async def life(world: World) -> None:
        store = await open_store(world)
        await store.append([message(queue=KEPT)])
        await store.aclose()
        for path in (QUEUES / "gone" / "1" / "own" / "file", QUEUES / "gone" / "own" / "file"):
            world.disk.make_directory(path.parent)
            world.disk.open(path, create=True).close()
        store = await make_again_with_one_queue(world, [])
        await store.aclose()

        assert sorted(world.disk.list_directory(QUEUES / "gone")) == ["0", "1", "own"]
        assert world.disk.list_directory(QUEUES / "gone" / "1") == ["own"]

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_a_queue_that_a_topic_gets_again_while_its_files_of_before_are_removed_loses_nothing():
    async def life(world: World) -> None:
        store = await open_store(world)
        await store.create_topic("gone", queue_count=3)
        await store.append([message(b"old", queue=queue) for queue in SURPLUS] * 25)
        await asyncio.sleep(1)
        await store.delete_topic("gone")
        await store.create_topic("gone", queue_count=1)
        await store.append([message(queue=KEPT)])
        await asyncio.sleep(1)

        world.runner.hold_up(Lane.DERIVE, seconds=1)
        removing = asyncio.ensure_future(store.expire(world.clock.wall_ms(), nothing))
        await asyncio.sleep(0.5)
        await store.create_topic("gone", queue_count=3)
        await store.append([message(b"new", queue=queue) for queue in SURPLUS])
        await removing
        await asyncio.sleep(1)

        for queue in SURPLUS:
            (one,) = await store.read(queue, 25, max_messages=9, max_bytes=99)
            assert one.body == b"new"
        await store.aclose()
        assert findings(world.disk) == []

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def test_a_topic_that_is_just_deleted_once_more_keeps_its_files_until_that_is_written():
    async def life(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await store.delete_topic("gone")
        await fill(store)
        await asyncio.sleep(1)
        folder = QUEUES / "gone" / "1"
        assert world.disk.list_directory(folder)

        store._queues.close("gone")
        await store.expire(world.clock.wall_ms(), nothing)
        store._queues.reopen("gone")  # as where it cannot be written

        assert world.disk.list_directory(folder)
        await store.create_topic("gone", queue_count=2)
        read = await store.read(GONE, 3, max_messages=9, max_bytes=99)
        assert [one.body for one in read] == [b"old"] * 3
        await store.delete_topic("gone")
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)
        assert not world.disk.exists(QUEUES / "gone")

    with World(SimulatedDisk(), 1) as world:
        world.call(life(world))


def operations_of_removal() -> range:
    with World(SimulatedDisk(), 1) as world:
        world.call(make_again_with_one_queue(world, []))
        last = world.disk.operations
    return range(last - 80, last)


@pytest.mark.parametrize("power_goes", [False, True])
def test_a_removal_of_queues_that_a_topic_has_not_any_more_may_be_cut_off_anywhere(power_goes):
    cuts = 0
    for cut_after in operations_of_removal():
        disk, answered = SimulatedDisk(), list[str]()
        disk.cut_after = cut_after
        with World(disk, 1) as world:
            world.run(make_again_with_one_queue(world, answered))
        disk = disk.after_power_cut(Random(cut_after)) if power_goes else disk.after_kill()
        cuts += 0 < len(disk.list_directory(QUEUES / "gone")) < 3
        with World(disk, 2, wall_ms=world.clock.wall_ms()) as world:
            world.call(grow_again(world))
    assert cuts


async def delete_after_a_snapshot(world: World, answered: list[str]) -> None:
    store = await open_store(world)
    await fill(store)
    await asyncio.sleep(1)
    answered.append("filled")
    await store.delete_topic("gone")
    answered.append("deleted")
    await asyncio.sleep(1)
    await store.expire(world.clock.wall_ms(), nothing)
    await asyncio.sleep(1)


def operations() -> range:
    """Of the disk, from the deletion on."""
    with World(SimulatedDisk(), 1) as world:
        world.call(delete_after_a_snapshot(world, []))
        last = world.disk.operations
    return range(last - 60, last)


@pytest.mark.parametrize("power_goes", [False, True])
def test_a_deletion_that_is_cut_off_has_happened_as_a_whole_or_not_at_all(power_goes):
    seen = set()
    for cut_after in operations():
        disk, answered = SimulatedDisk(), list[str]()
        disk.cut_after = cut_after
        with World(disk, 1) as world:
            world.run(delete_after_a_snapshot(world, answered))
        disk = disk.after_power_cut(Random(cut_after)) if power_goes else disk.after_kill()

        async def next_life(world: World, answered: list[str] = answered) -> str:
            store = await open_store(world)
            if (
                "filled" in answered
                and "deleted" not in answered
                and "gone" in await store.topics()
            ):
                assert await store.offsets(GONE) == (0, 3)
                assert await store.committed_offset("group", GONE) == 2
                return "kept"
            if "filled" in answered:
                await check_gone(store)
                return "gone"
            return "earlier"

        with World(disk, 2) as world:
            seen.add(world.call(next_life(world)))

    assert {"kept", "gone"} <= seen


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("kind", ["repair", "mending"])
def test_entries_that_are_being_made_again_bring_no_file_of_a_deleted_topic_back(
    kind, is_created_again
):
    """A repair, or a mending, is between two of its steps as the topic goes with its files."""
    folder = QUEUES / "gone" / "1"
    path = folder / file_name(0)

    async def fill_log(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        for _ in range(300):  # segments, of which a repair takes one at a step
            await store.append([message(b"kept", queue=KEPT)])
        await store.append([message(b"old", queue=GONE)])
        await store.aclose()

    async def delete(world: World) -> None:
        store = await open_store(world)
        files = store._files
        world.disk.fail_reads(path, 0, 1)
        if kind == "repair":
            steps = files.queue_check.repair(files.recovered.queues[GONE], 0)
        else:
            files.queue_files.replace_unreadable(GONE, 0)
            steps = Mending(files).steps()
        next(steps)
        next(steps)

        await store.delete_topic("gone")
        await asyncio.sleep(1)
        await store.append([message(queue=KEPT)])
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)
        assert not world.disk.exists(folder)
        if is_created_again:
            await store.create_topic("gone", queue_count=2)
        for _ in steps:
            pass

        assert not world.disk.exists(folder)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(fill_log(world))
    with World(world.disk.after_kill(), 2) as world:
        world.call(delete(world))
        assert not world.failures


def test_a_reader_that_waits_for_a_repair_as_its_topic_is_deleted_and_made_again_is_answered():
    async def fill_log(world: World) -> None:
        store = await open_store(world)
        await fill(store)
        await store.aclose()

    async def read(world: World) -> None:
        store = await open_store(world)
        world.disk.fail_reads(QUEUES / "gone" / "1" / file_name(0), 0, 1)
        world.runner.hold_up(Lane.DERIVE, seconds=1)
        reading = asyncio.ensure_future(store.read(GONE, 0, max_messages=1, max_bytes=1))
        await asyncio.sleep(0.5)
        await store.delete_topic("gone")
        await store.create_topic("gone", queue_count=2)
        await asyncio.wait({reading}, timeout=5)

        assert reading.done()
        assert isinstance(reading.exception(), UnknownTopic)
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(fill_log(world))
    with World(world.disk.after_kill(), 2) as world:
        world.call(read(world))
        assert not world.failures
