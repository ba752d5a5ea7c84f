"""The last offsets of deleted topics are remembered while there are not too many of them, and as
long as the log has anything of theirs.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import msgspec
import pytest

from storage.errors import UnknownTopic
from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.local import retention
from storage.local.local_store import LocalMessageStore
from storage.local.queues import queue_ends
from storage.local.recovery.queues_snapshot import QueuesSnapshot
from storage.local.repair.repair import Repair
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.lives import in_world, run_lives
from tests.support.replicated import EVERYTHING, Piece, open_replica, recorded_of
from tests.support.replicated import OPTIONS as REPLICA_OPTIONS
from tests.support.simulation import ROOT, End, World

OPTIONS = replace(REPLICA_OPTIONS, retention_ms=60_000)
KEPT = QueueId("kept", 0)
NAMES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def _few_are_remembered(monkeypatch):
    monkeypatch.setattr(retention, "_REMEMBERED_QUEUES", 2)


async def nothing(first_kept: Mapping[QueueId, int]) -> None:
    """No table above the store has anything to write again."""


async def open_store(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("kept", queue_count=1)
    return store


async def expire_all(
    world: World, store: LocalMessageStore, look: Callable[[SimulatedDisk], None] = id
) -> None:
    """Drop every segment but the last; `look` at the disk before each drop."""
    for _ in range(12):
        await store.append([message(b"x" * 2_000, queue=KEPT)])
    await asyncio.sleep(61)
    look(world.disk)
    while await store.expire(world.clock.wall_ms(), nothing, at_any_hour=True):
        look(world.disk)


async def delete_with_messages(store: LocalMessageStore, *topics: str) -> None:
    for topic in topics:
        await store.create_topic(topic, queue_count=1)
        await store.append([message(b"old", queue=QueueId(topic, 0), key="k")] * 3)
        await store.delete_topic(topic)


def lose_snapshots(disk: SimulatedDisk) -> None:
    for folder in ("snapshots", "index"):
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)


async def stated(store: LocalMessageStore, tag: str) -> list[str]:
    """The topics of the messages with this tag that the log still has."""
    first = store.bounds(queue_ends.QUEUE).first
    found = await store.read(queue_ends.QUEUE, first, **EVERYTHING)
    return [
        queue.topic
        for one in found
        if one.tag == tag
        for queue, _ in queue_ends.read_ends(one.body)
    ]


def test_the_topics_that_were_deleted_first_are_forgotten_once_the_log_has_nothing_of_them():
    async def life(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        assert store.deleted_queues() == 4
        await expire_all(world, store)
        assert sorted(await stated(store, queue_ends.DELETED_ENDS)) == [*NAMES]
        assert store.deleted_queues() == 4
        await expire_all(world, store)
        assert store.deleted_queues() == 2
        for topic, begin in (("a", 0), ("b", 0), ("c", 3), ("d", 3)):
            await store.create_topic(topic, queue_count=1)
            assert await store.offsets(QueueId(topic, 0)) == (begin, begin)

    in_world(life)


def test_however_many_they_are_they_are_remembered_while_the_log_has_their_messages():
    async def life(world: World) -> None:
        store = await open_store(world)
        for _ in range(12):
            await store.append([message(b"x" * 2_000, queue=KEPT)])
        await asyncio.sleep(61)
        await delete_with_messages(store, *NAMES)
        assert await store.expire(world.clock.wall_ms(), nothing, at_any_hour=True)
        assert store.deleted_queues() == 4
        assert await stated(store, queue_ends.DELETED_ENDS) == []

    in_world(life)


@pytest.mark.parametrize("are_lost", [False, True])
def test_a_forgotten_topic_that_is_created_again_begins_at_0_after_every_kind_of_start(are_lost):
    async def forget(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        await expire_all(world, store)
        await expire_all(world, store)
        await store.create_topic("a", queue_count=1)
        await store.append([message(b"new", queue=QueueId("a", 0), key="k")])

    async def look(world: World) -> None:
        store = await open_store(world)
        await store.create_topic("a", queue_count=1)
        await store.create_topic("b", queue_count=1)
        assert await store.offsets(QueueId("a", 0)) == (0, 1)
        assert await store.offsets(QueueId("b", 0)) == (0, 0)
        assert store.deleted_queues() == 2
        new = await store.read(QueueId("a", 0), 0, **EVERYTHING)
        assert [one.body for one in new] == [b"new"]
        assert await store.find_messages(KeyQuery("k", topics=[*NAMES], max_messages=9)) == new

    disk = in_world(forget)
    if are_lost:
        lose_snapshots(disk)
    in_world(look, disk, seed=2)


def test_a_topic_that_may_still_have_files_is_remembered():
    async def life(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        store._retention._leftovers._topics = dict.fromkeys(NAMES, 1 << 40)
        await expire_all(world, store)
        await expire_all(world, store)
        assert store.deleted_queues() == 4

    in_world(life)


def test_what_a_snapshot_of_an_earlier_version_remembers_is_stated_again_before_it_is_forgotten(
    monkeypatch,
):
    async def earlier(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        await asyncio.sleep(1)

    async def later(world: World) -> None:
        store = await open_store(world)
        await expire_all(world, store)
        assert sorted(await stated(store, queue_ends.DELETED_ENDS)) == [*NAMES]
        assert store.deleted_queues() == 4
        await expire_all(world, store)
        assert store.deleted_queues() == 2

    made = QueuesSnapshot.of
    with monkeypatch.context() as patch:
        patch.setattr(
            QueuesSnapshot,
            "of",
            lambda *args, **kwargs: msgspec.structs.replace(
                made(*args, **kwargs), deleted_places=None
            ),
        )
        disk = in_world(earlier)
    in_world(later, disk, seed=2)


@pytest.mark.parametrize("are_lost", [False, True])
def test_until_the_log_has_nothing_of_a_topic_that_is_created_again_it_does_not_begin_at_0(
    are_lost,
):
    """Killed between the record and the drop, a retention round leaves the log as it was."""

    async def forget(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        store._retention._record_beginning = stopped
        with pytest.raises(Stopped):
            await expire_all(world, store)

    async def look(world: World) -> None:
        store = await open_store(world)
        for topic in NAMES:
            await store.create_topic(topic, queue_count=1)
            assert await store.offsets(QueueId(topic, 0)) == (3, 3)
        assert await store.find_messages(KeyQuery("k", topics=[*NAMES], max_messages=9)) == []

    disk = in_world(forget)
    if are_lost:
        lose_snapshots(disk)
    in_world(look, disk, seed=2)


class Stopped(Exception):
    """The end of a retention round."""


async def stopped(first_offset: int) -> None:
    raise Stopped


def test_files_of_queues_of_a_topic_that_is_not_known_go_and_those_of_others_stay():
    async def first(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, "a")
        await store.append([message(b"kept", queue=KEPT)])
        await asyncio.sleep(1)

    async def second(world: World) -> None:
        store = await open_store(world)
        await store.append([message(b"kept", queue=KEPT)])
        await asyncio.sleep(1)
        await store.expire(world.clock.wall_ms(), nothing)
        folders = set(world.disk.list_directory(ROOT / "consumequeue"))
        assert folders >= {"kept", "file"}
        assert not folders & {"a", "stale"}

    disk = in_world(first)
    queues = ROOT / "consumequeue"
    of_stale = queues / "stale" / "0"
    disk.make_directory(of_stale)
    disk.open(of_stale / file_name(0), create=True).close()
    disk.open(queues / "file", create=True).close()  # of another program
    in_world(second, disk, seed=2)


def test_a_repair_counts_the_offsets_of_a_forgotten_topic_from_0():
    places: list[int] = []

    async def forget(world: World) -> None:
        store = await open_store(world)
        await delete_with_messages(store, *NAMES)
        await expire_all(world, store)
        await expire_all(world, store)
        await store.create_topic("a", queue_count=1)
        for _ in range(2):
            (placed,) = await store.append([message(b"new", queue=QueueId("a", 0))])
            assert placed.log_offset is not None
            places.append(placed.log_offset)
        await store.aclose()

    async def look(world: World) -> None:
        store = await open_store(world)
        await store.create_topic("a", queue_count=1)
        assert (await store.offsets(QueueId("a", 0))).end == 2

    disk = in_world(forget)
    lose_snapshots(disk)
    repair = Repair(
        disk, ROOT, folder="repair-1", now_ms=1_900_000_000_000, segment_bytes=OPTIONS.segment_bytes
    )
    done = repair.cut_log_at(places[0])
    repair.close()
    assert done.lost_messages == 2
    in_world(look, disk, seed=2)


# -------------------------------------------------------------------------------------------------
# random lives, and a replica of them


@dataclass
class Story:
    """Messages that readers must find, and the pieces of the log as a replica gets them."""

    randomness: Random
    live: dict[str, dict[QueueId, list[tuple[int, bytes]]]] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)
    count: int = 0

    async def step(self, world: World, store: LocalMessageStore) -> None:
        randomness = self.randomness
        topic = randomness.choice(NAMES)
        kind = randomness.random()
        if topic not in self.live:
            queues = randomness.randint(1, 2)
            await store.create_topic(topic, queue_count=queues)
            self.live[topic] = {QueueId(topic, number): [] for number in range(queues)}
        if kind < 0.5:
            await self._append(store, topic)
        elif kind < 0.75:
            await store.delete_topic(topic)
            del self.live[topic]
        elif kind < 0.85:
            await asyncio.sleep(randomness.choice((0.01, 0.2, 11)))
        else:
            dropping = asyncio.ensure_future(expire_all(world, store, self.note_log))
            for _ in range(randomness.randrange(3)):
                await self._append(store, randomness.choice([*self.live, topic]))
            await dropping

    async def _append(self, store: LocalMessageStore, topic: str) -> None:
        if topic not in self.live:
            return
        queue = self.randomness.choice([*self.live[topic]])
        for _ in range(self.randomness.randint(1, 3)):
            self.count += 1
            body = b"%d" % self.count
            (placed,) = await store.append([message(body, queue=queue, key=topic)])
            self.live[topic][queue].append((placed.queue_offset, body))

    def note_log(self, disk: SimulatedDisk) -> None:
        found = recorded_of(disk).pieces
        before = ((at, piece) for at, piece in self.pieces.items() if at < found[0].offset)
        self.pieces = {**dict(before), **{piece.offset: piece for piece in found}}

    async def check(self, store: LocalMessageStore) -> None:
        for topic in NAMES:
            if topic not in self.live:
                with pytest.raises(UnknownTopic):
                    await store.offsets(QueueId(topic, 0))
                continue
            await store.create_topic(topic, queue_count=len(self.live[topic]))
            for queue, sent in self.live[topic].items():
                offsets = [queue_offset for queue_offset, _ in sent]
                first, end = store.bounds(queue)
                if sent:
                    assert offsets == list(range(end - len(sent), end)), queue
                found = await store.read(queue, first, **EVERYTHING) if first < end else []
                assert [(one.queue_offset, one.body) for one in found] == [
                    one for one in sent if one[0] >= first
                ], queue


@pytest.mark.parametrize("seed", range(12))
def test_readers_see_what_was_sent_since_a_topic_was_created_whatever_is_forgotten_or_lost(seed):
    story = Story(Random(seed))

    async def life(world: World, store: LocalMessageStore) -> None:
        await story.check(store)
        for _ in range(30):
            await story.step(world, store)
            await story.check(store)

    async def enter(world: World) -> tuple[World, LocalMessageStore]:
        return world, await open_store(world)

    def leave(world: World) -> SimulatedDisk:
        disk = world.disk_left(story.randomness.choice((End.KILL, End.CUT)))
        if story.randomness.random() < 0.4:
            lose_snapshots(disk)
        return disk

    disk, _ = run_lives((life,) * 4, enter, seed=seed, leave=leave)
    story.note_log(disk)

    async def follow(world: World) -> None:
        replica = await open_replica(world)
        for at, piece in sorted(story.pieces.items()):
            await replica.take(at, piece.data)
            replica.note_safe(piece.end)
            await replica.wait_on_disk()
            for topic, queues in story.live.items():
                # the registry may be ahead of the log
                if story.randomness.random() < 0.05 and not replica._queues.count(topic):
                    await replica.create_topic(topic, queue_count=len(queues))
            if story.randomness.random() < 0.02:
                await asyncio.sleep(11)
                await replica.drop_before(piece.offset)
        await story.check(replica)
        await replica.aclose()

    in_world(follow, seed=seed)
