"""C29: the power of a service goes while its replica is sent what no disk has yet. What the service
lost is cut from the replica, and never anything that two disks had.
"""

import asyncio
from collections import Counter
from random import Random

import pytest

from app.replicas.frames import Hello
from app.replicas.sender import BLOCK_BYTES, Refused
from storage.errors import MessagingError
from storage.files.simulated import SimulatedDisk
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.repair.repair import Repair
from storage.local.replica_store import LocalReplica
from storage.message import Durability, QueueId
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.replicated import OPTIONS, SEGMENT_BYTES, log_bytes, sender_of
from tests.support.simulation import ROOT, End, SimulatedRunner, World

pytestmark = pytest.mark.faults

PAIRS = sized(ci=120, full=2_000)
LIVES = 8
QUEUE = QueueId("orders", 0)


class Pair:
    """A service and its replica, each on its disk, over several lives of both."""

    def __init__(self, seed: int) -> None:
        self.randomness = Random(seed)
        self.seed = seed
        self.own, self.its = SimulatedDisk(), SimulatedDisk()
        # log offsets of messages that were said to be on two disks, by their ids
        self.acknowledged: dict[str, int] = {}
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        for life in range(LIVES):
            with World(self.own, 1_000 * self.seed + life) as world:
                is_last = life == LIVES - 1
                has_ended = world.run(self._live(world, loses_power=not is_last and life > 0))
                assert has_ended or not is_last
            self.own = world.disk_left(End.KILL if has_ended else End.CUT)
            self.its = (
                self.its.after_kill()
                if self.randomness.random() < 0.7
                else self.its.after_power_cut(self.randomness)
            )

    async def _live(self, world: World, *, loses_power: bool) -> None:
        store = await LocalMessageStore.open(
            ROOT,
            OPTIONS,
            world.vfs,
            world.clock,
            world.identifiers,
            runner=world.runner,
            copies=2,
            on_failure=world.failures.append,
        )
        await store.create_topic("orders", queue_count=1)
        self._check_own(store)
        if loses_power:  # sometimes before the first sync of this life
            most = self.randomness.choice((4, 12, 100))
            self.own.cut_after = self.own.operations + self.randomness.randrange(most)
        sending = asyncio.ensure_future(self._send(world, store))
        for _ in range(2):
            replica = await self._let_in(world, store, await self._open(world))
            copying = asyncio.ensure_future(self._copy(store, replica))
            acknowledging = asyncio.ensure_future(acknowledge(store, replica))
            await asyncio.sleep(self.randomness.random() * (3 if loses_power else 0.1))
            await stop(copying, acknowledging)
            if self.randomness.random() < 0.5:
                await replica.wait_on_disk()
            store.forget_copy("b")
            await replica.aclose()
        await stop(sending)

    def _check_own(self, store: LocalMessageStore) -> None:
        """All that was acknowledged is in the log of the service."""
        assert max(self.acknowledged.values(), default=-1) < store.stored_offset()

    async def _open(self, world: World) -> LocalReplica:
        return await LocalReplica.open(
            ROOT,
            OPTIONS,
            self.its,
            world.clock,
            world.identifiers,
            runner=SimulatedRunner(world.loop, world.randomness),  # of another machine
            on_failure=world.failures.append,
        )

    async def _let_in(
        self, world: World, store: LocalMessageStore, replica: LocalReplica
    ) -> LocalReplica:
        """As a sender and a follower greet each other."""
        sender = sender_of(world, store)
        try:
            begin = await sender._begin_of(await hello_of(replica))
        except Refused as found:
            replica = await self._cut(world, replica, found)
            begin = await sender._begin_of(await hello_of(replica))
        end = replica.stored_offset()
        assert begin == end
        assert log_bytes(self.its, end) == log_bytes(self.own, end)
        return replica

    async def _cut(self, world: World, replica: LocalReplica, refused: Refused) -> LocalReplica:
        """Cut what the service has lost; no receipt said that it was safe."""
        assert refused.was_lost, refused
        assert refused.parts_at is not None
        assert refused.parts_at >= replica.safe_units_end()
        assert refused.parts_at > max(self.acknowledged.values(), default=-1)
        await replica.aclose()
        self.seen["cuts"] += 1
        repair = Repair(
            self.its,
            ROOT,
            folder=f"set-aside-{self.seen['cuts']}",
            now_ms=0,
            segment_bytes=SEGMENT_BYTES,
        )
        repair.cut_to_follow(refused.parts_at)
        repair.close()
        return await self._open(world)

    async def _copy(self, store: LocalMessageStore, replica: LocalReplica) -> None:
        """Send what may be sent, at once and in blocks that end anywhere."""
        at, rest = replica.stored_offset(), b""
        while True:
            block = self.randomness.choice((100, 3_000, BLOCK_BYTES))
            rest += await store.read_log(at, min(at + block, store.copyable_end()))
            begin = replica.stored_offset()
            self.seen["ahead"] += at + len(rest) > store.on_disk_end()
            at = begin + len(rest)
            if rest:
                await replica.take(begin, rest)
                taken = replica.stored_offset() - begin
                rest, at = (b"", begin + taken) if taken >= len(rest) else (rest[taken:], at)
            replica.note_safe(store.synced_offset())
            if at >= store.copyable_end():
                await store.wait_progress()

    async def _send(self, world: World, store: LocalMessageStore) -> None:
        while True:
            if self.randomness.random() < 0.2:
                world.runner.hold_up(Lane.FLUSH, seconds=self.randomness.random() * 0.02)
            name = f"msg_{len(self.acknowledged)}_{self.randomness.getrandbits(32):08x}"
            body = self.randomness.randbytes(self.randomness.choice((10, 300, 4_000)))
            durability = self.randomness.choice((None, Durability.BUFFERED))
            try:
                (placed,) = await store.append(
                    [message(body, queue=QUEUE, message_id=name)], durability=durability
                )
            except MessagingError:
                await asyncio.sleep(0.01)
                continue
            if placed.sureness.copies == 2:
                self.acknowledged[name] = placed.log_offset
                self.seen["acknowledged"] += 1
            await asyncio.sleep(self.randomness.choice((0, 0.001, 0.01)))


async def stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        await asyncio.wait({task})


async def hello_of(replica: LocalReplica) -> Hello:
    units_end, last_bytes = await replica.read_end()
    end = replica.stored_offset() if last_bytes else 0
    epochs = [(begin.epoch, begin.offset) for begin in replica.epochs]
    return Hello(1, "b", b"", b"", SEGMENT_BYTES, end, units_end, last_bytes, epochs, 1_000)


async def acknowledge(store: LocalMessageStore, replica: LocalReplica) -> None:
    end = -1
    while True:
        while replica.stored_offset() <= end:
            await replica.wait_progress()
        end = await replica.wait_on_disk()
        store.note_copy("b", end)
        await asyncio.sleep(0)


def test_a_power_cut_takes_nothing_that_two_disks_had_and_the_replica_follows_by_itself():
    seen: Counter[str] = Counter()
    for seed in range(PAIRS):
        pair = Pair(seed)
        pair.run()
        seen += pair.seen
    assert seen["cuts"] > PAIRS // 4, seen
    assert seen["acknowledged"] > 10 * PAIRS, seen
    assert seen["ahead"] > 10 * PAIRS, seen
