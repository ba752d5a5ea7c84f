"""Appends that go into a write pool: who sees them and who is answered before they are in the log's
files, what a kill takes, and what happens when the pool is full.
"""

import asyncio
import errno
import mmap
from pathlib import PurePath
from random import Random

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from storage.errors import Backpressure, FlushFailed
from storage.files import locked_memory, write_pool
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats import unit
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.simulation import World

ORDERS = QueueId("orders", 0)
BUFFER_BYTES = 4_096


def options(
    flush: FlushPolicy = FlushPolicy.INTERVAL, *, buffers: int = 4, **given: int
) -> LocalStoreOptions:
    return LocalStoreOptions(
        append=AppendMode.POOL,
        pool_buffers=buffers,
        pool_buffer_bytes=BUFFER_BYTES,
        flush=flush,
        segment_bytes=1 << 16,
        prepare_ahead_bytes=1 << 15,
        index_slots=16,
        index_file_entries=40,
        **given,
    )


async def opened(world: World, chosen: LocalStoreOptions) -> LocalMessageStore:
    store = await world.open_store(chosen)
    await store.create_topic("orders", queue_count=1)
    await asyncio.sleep(0.1)  # what is made ahead is made
    return store


async def bodies(store: LocalMessageStore) -> list[bytes]:
    found = await store.read(ORDERS, 0, max_messages=100, max_bytes=1 << 20)
    return [one.body for one in found]


def after_kill(world: World, chosen: LocalStoreOptions) -> list[bytes]:
    """The bodies that a start finds."""

    async def read() -> list[bytes]:
        store = await opened(again, chosen)
        found = await bodies(store)
        await store.aclose()
        return found

    world.end()
    with World(world.disk.after_kill(), 2) as again:
        return again.call(read())


def test_a_send_that_asks_for_memory_is_answered_first_and_seen_once_it_is_in_the_file():
    async def main() -> None:
        store = await opened(world, options())
        (sent,) = await store.append([message(b"one")], durability=Durability.MEMORY)

        assert sent.sureness.durability is Durability.MEMORY
        assert store.status().pool.committed_end < store.status().written_end
        assert await bodies(store) == []

        await asyncio.sleep(0.25)  # longer than the interval of commits
        assert await bodies(store) == [b"one"]
        assert store.status().pool.committed_end == store.status().written_end
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_reader_that_waits_has_it_committed_at_once():
    async def main() -> float:
        store = await opened(world, options())
        waiting = asyncio.ensure_future(store.wait_for_arrival(ORDERS, 0, timeout_ms=10_000))
        await asyncio.sleep(0.01)
        begun = world.loop.time()
        await store.append([message(b"one")], durability=Durability.MEMORY)
        assert await waiting
        took = world.loop.time() - begun
        await store.aclose()
        return took

    with World(SimulatedDisk(), 1) as world:
        assert world.call(main()) < 0.05  # of simulated time: without an interval of 0.2


@pytest.mark.parametrize(
    ("flush", "asked"),
    [(FlushPolicy.INTERVAL, None), (FlushPolicy.BEFORE_ACK, Durability.BUFFERED)],
)
def test_what_is_answered_as_buffered_survives_a_kill(flush, asked):
    chosen = options(flush)

    async def main() -> Durability:
        store = await opened(world, chosen)
        (sent,) = await store.append([message(b"one")], durability=asked)
        return sent.sureness.durability

    world = World(SimulatedDisk(), 1)
    assert world.call(main()) is Durability.BUFFERED
    assert after_kill(world, chosen) == [b"one"]


def test_a_kill_takes_what_is_in_memory_alone_and_nothing_else():
    chosen = options(commit_interval_ms=60_000, commit_thorough_interval_ms=60_000)

    async def main() -> None:
        store = await opened(world, chosen)
        await store.append([message(b"kept")])
        await store.append([message(b"lost")], durability=Durability.MEMORY)

    world = World(SimulatedDisk(), 1)
    world.call(main())
    assert after_kill(world, chosen) == [b"kept"]


def test_enough_pages_are_committed_before_the_interval_and_fewer_are_not():
    async def main() -> None:
        store = await opened(
            world, options(commit_interval_ms=60_000, commit_thorough_interval_ms=60_000)
        )
        await store.append([message(b"x" * 9_000)], durability=Durability.MEMORY)
        await asyncio.sleep(1)
        assert await bodies(store) == []

        await store.append([message(b"y" * 4_000)], durability=Durability.MEMORY)
        await store.append([message(b"z" * 3_500)], durability=Durability.MEMORY)
        await asyncio.sleep(0.1)
        assert [body[:1] for body in await bodies(store)] == [b"x", b"y", b"z"]
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_commit_of_enough_pages_begins_a_flush_before_its_interval():
    async def main() -> None:
        store = await opened(
            world, options(flush_interval_ms=60_000, flush_thorough_interval_ms=60_000)
        )
        await store.append([message(b"x" * 9_000)])
        await asyncio.sleep(1)
        assert store.synced_offset() < store.stored_offset()

        await store.append([message(b"y" * 9_000)])
        await asyncio.sleep(0.1)
        assert store.synced_offset() == store.stored_offset()
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_message_that_is_larger_than_the_pool_goes_through_it_in_pieces():
    async def main() -> None:
        store = await opened(world, options(buffers=2))
        await store.append([message(b"x" * 40_000)])
        await store.append([message(b"y" * 40_000)])  # in the next segment
        assert [len(body) for body in await bodies(store)] == [40_000, 40_000]
        assert store.status().pool.free_buffers == 2
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_unit_of_any_length_goes_through_the_pool_in_pieces():
    async def main() -> None:
        store = await opened(world, options(buffers=2))
        for body_bytes in range(7_850, 8_250, 8):  # up to two buffers, and more than they have
            await store.append([message(b"x" * body_bytes)])
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


@pytest.mark.parametrize("body_bytes", [10, 40_000])
def test_an_append_that_fails_in_the_pool_for_whatever_reason_is_final_and_reported(
    body_bytes, monkeypatch
):
    async def main() -> None:
        store = await opened(world, options())
        with pytest.raises(FlushFailed):
            await store.append([message(b"x" * body_bytes)])
        with pytest.raises(FlushFailed):
            await store.append([message(b"two")])
        await store.aclose()

    def read_only(byte_count: int) -> tuple[mmap.mmap, None]:
        return mmap.mmap(-1, byte_count, prot=mmap.PROT_READ), None

    monkeypatch.setattr(write_pool, "locked_memory", read_only)
    with World(SimulatedDisk(), 1) as world:
        world.raises_bugs = False
        world.call(main())
        assert [type(error) for error in world.failures] == [TypeError]


def test_a_piece_that_cannot_be_made_is_a_failure_that_is_final_and_reported(monkeypatch):
    async def main() -> None:
        store = await opened(world, options())
        monkeypatch.setattr(unit, "crc32c", out_of_memory)
        sends = [store.append([message(b"x" * 40_000)]), store.append([message(b"two")])]
        for answer in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(answer, FlushFailed)
        await store.aclose()

    def out_of_memory(data: bytes, crc: int = 0) -> int:
        if len(data) == 2 * BUFFER_BYTES:  # a piece
            raise MemoryError
        return crc32c(data, crc)

    with World(SimulatedDisk(), 1) as world:
        world.raises_bugs = False
        world.call(main())
        assert [type(error) for error in world.failures] == [MemoryError]


def test_without_a_free_buffer_a_send_waits_and_is_refused_in_the_end_with_the_reason():
    async def main() -> None:
        store = await opened(world, options(buffers=2, sync_timeout_ms=500))
        world.runner.hold_up(Lane.COMMIT, seconds=2)
        world.runner.hold_up(Lane.FLUSH, seconds=2)
        in_memory = [
            await store.append([message(b"x" * 3_000)], durability=Durability.MEMORY)
            for _ in range(2)
        ]
        with pytest.raises(Backpressure, match="all 2 buffers of the write pool"):
            await store.append([message(b"y" * 3_000)])
        assert store.status().pool.free_buffers == 0
        assert store.status().pool.refusals == 1

        await asyncio.sleep(3)
        await store.append([message(b"z")])
        assert [body[:1] for body in await bodies(store)] == [b"x", b"x", b"z"]
        assert len(in_memory) == store.status().pool.free_buffers == 2
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_a_commit_that_fails_is_final_and_nothing_more_is_answered():
    broken = []

    def plan(call: str, path: PurePath) -> None:
        if call == "write" and broken and "commitlog" in str(path):
            raise OSError(errno.EIO, "simulated")

    async def main() -> None:
        store = await opened(world, options())
        broken.append(True)
        with pytest.raises(FlushFailed):
            await store.append([message(b"one")])
        with pytest.raises(FlushFailed):
            await store.append([message(b"two")])
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(main())
        assert [str(error) for error in world.failures] == ["[Errno 5] simulated"]


def test_a_slow_commit_is_reported_with_its_duration_and_bytes():
    async def main() -> None:
        chosen = options(warn_sync_ms=500, commit_interval_ms=10, commit_thorough_interval_ms=10)
        store = await opened(world, chosen)
        with capture_logs() as lines:
            await store.append([message(b"quick")])
            await asyncio.sleep(0.1)
            assert lines == []
            world.runner.hold_up(Lane.COMMIT, seconds=0.7)
            await store.append([message(b"slow")])
            await asyncio.sleep(1)
        (line,) = lines
        assert (line["event"], line["bytes"] > 100) == ("commit_was_slow", True)
        assert line["took_ms"] == pytest.approx(700, abs=20)
        await store.aclose()

    with World(SimulatedDisk(), 2) as world:
        world.call(main())


def test_what_a_flush_has_committed_is_seen_before_its_sync_ends():
    async def main() -> None:
        store = await opened(world, options())
        world.runner.report_late(Lane.FLUSH, seconds=2)
        await store.append([message(b"one")], durability=Durability.MEMORY)
        synced = asyncio.ensure_future(
            store.append([message(b"two")], durability=Durability.SYNCED)
        )
        await asyncio.sleep(0.5)  # longer than the interval of commits
        assert await bodies(store) == [b"one"]
        assert store.status().pool.free_buffers == store.status().pool.buffers
        assert not synced.done()
        await synced
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(main())


def test_an_orderly_stop_has_the_end_of_a_segment_on_disk_though_nothing_follows_it():
    chosen = options(FlushPolicy.BEFORE_ACK, buffers=2, sync_timeout_ms=500)

    async def main() -> None:
        store = await opened(world, chosen)
        await store.append([message(b"x" * 59_000)], durability=Durability.SYNCED)
        world.runner.hold_up(Lane.COMMIT, seconds=10_000)
        world.runner.report_late(Lane.FLUSH, seconds=2)
        for _ in range(2):
            await store.append([message(b"x" * 2_500)], durability=Durability.MEMORY)
        with pytest.raises(Backpressure):
            await store.append([message(b"y" * 3_800)])  # it would begin the next segment
        await store.aclose()

    async def read(world: World) -> list[int]:
        store = await opened(world, chosen)
        found = [len(body) for body in await bodies(store)]
        await store.aclose()
        return found

    world = World(SimulatedDisk(), 1)
    world.call(main())
    world.end()
    for seed in range(20):
        with World(world.disk.after_power_cut(Random(seed)), seed) as again:
            assert again.call(read(again)) == [59_000, 2_500, 2_500]


def test_an_orderly_stop_loses_nothing_that_is_in_memory():
    chosen = options(commit_interval_ms=60_000, commit_thorough_interval_ms=60_000)

    async def main() -> None:
        store = await opened(world, chosen)
        await store.append([message(b"one")], durability=Durability.MEMORY)
        await store.aclose()

    world = World(SimulatedDisk(), 1)
    world.call(main())
    assert after_kill(world, chosen) == [b"one"]


def test_a_start_says_that_a_pool_answers_no_sooner_where_each_send_waits_for_its_sync():
    async def main(flush: FlushPolicy) -> None:
        await (await opened(world, options(flush))).aclose()

    for flush in FlushPolicy:
        with capture_logs() as lines, World(SimulatedDisk(), 1) as world:
            world.call(main(flush))
        said = [line["event"] for line in lines if line["event"] == "write_pool_answers_no_sooner"]
        assert len(said) == (flush is FlushPolicy.BEFORE_ACK)


def test_memory_that_cannot_be_locked_is_used_with_a_warning(monkeypatch):
    async def main() -> list[bytes]:
        store = await opened(world, options())
        assert store.status().pool.locked_bytes == 0
        await store.append([message(b"one")])
        found = await bodies(store)
        await store.aclose()
        return found

    monkeypatch.setattr(locked_memory, "_mlock", None)
    with capture_logs() as lines, World(SimulatedDisk(), 1) as world:
        assert world.call(main()) == [b"one"]
    (line,) = [line for line in lines if line["event"] == "write_pool_not_locked"]
    assert (line["locked_bytes"], line["wanted_bytes"]) == (0, 4 * BUFFER_BYTES)


@pytest.mark.parametrize(
    "given", [{"buffers": 1}, {"pool_buffer_bytes": 100}, {"commit_interval_ms": 0}]
)
def test_a_pool_that_cannot_work_is_refused(given):
    with pytest.raises(ValueError, match=r"pool_buffer|commit_interval_ms"):
        LocalStoreOptions(
            **{
                "append": AppendMode.POOL,
                **{
                    {"buffers": "pool_buffers"}.get(name, name): value
                    for name, value in given.items()
                },
            }
        )
