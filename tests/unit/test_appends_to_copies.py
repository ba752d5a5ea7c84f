"""Appends to a store whose messages must be on the disks of two machines."""

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import msgspec
import pytest

from storage.errors import (
    Backpressure,
    FlushFailed,
    InvalidRequest,
    NotEnoughCopies,
    StoreClosed,
)
from storage.files.simulated import SimulatedDisk
from storage.local import epoch_begin
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Durability, QueueId, safe_on
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.replicated import EVERYTHING, OPTIONS
from tests.support.simulation import ROOT, World

QUEUE = QueueId("orders", 0)


async def opened(
    world: World, *, copies: int = 2, options: LocalStoreOptions = OPTIONS
) -> LocalMessageStore:
    store = await LocalMessageStore.open(
        ROOT,
        options,
        world.vfs,
        world.clock,
        world.identifiers,
        runner=world.runner,
        copies=copies,
        on_failure=world.failures.append,
    )
    await store.create_topic("orders", queue_count=1)
    return store


async def count(store: LocalMessageStore) -> int:
    return len(await store.read(QUEUE, 0, **EVERYTHING)) if store.bounds(QUEUE).end else 0


def test_a_mistake_that_a_copy_brings_to_light_fails_the_store_and_leaves_no_append_waiting():
    async def main(world: World) -> None:
        def fail(_: object) -> None:
            raise ValueError("of the deriver")

        store = await opened(world)
        store.note_copy("b", 0)
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(1)
        store._engine.deriver.note_visible = fail

        store.note_copy("b", store.stored_offset())

        with pytest.raises(FlushFailed):
            await asyncio.wait_for(sending, 1)
        assert [str(failure) for failure in world.failures] == ["of the deriver"]
        await store.aclose()

    in_world(main)


def test_a_store_that_waits_for_no_replica_says_so_of_an_append_that_asks_for_one():
    async def main(world: World) -> None:
        store = await opened(world, copies=1)
        store.note_copy("b", 0)  # one follows all the same
        with pytest.raises(InvalidRequest, match="the store does not wait for replicas"):
            await store.append([message()], durability=Durability.REPLICATED)
        await store.aclose()

    in_world(main)


def test_a_message_is_acknowledged_and_seen_when_the_other_disk_has_it_too():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(1)
        end = store.on_disk_end()
        assert end == store.stored_offset()
        assert store.synced_offset() < end
        assert not sending.done()
        assert await count(store) == 0
        store.note_copy("b", end - 1)
        await asyncio.sleep(0)
        assert not sending.done()
        store.note_copy("b", end)
        (sent,) = await sending
        assert sent.durable
        assert await count(store) == 1

    in_world(main)


def test_what_the_other_disk_has_first_is_acknowledged_by_the_own_sync():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 1 << 30)
        (sent,) = await store.append([message()])
        assert sent.durable
        assert store.on_disk_end() == store.stored_offset()

    in_world(main)


def test_a_unit_can_be_sent_when_it_is_stored_and_its_sync_is_under_way():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        await store.append([message()], durability=Durability.BUFFERED)
        await asyncio.sleep(1)
        first_end = store.on_disk_end()
        assert store.copyable_end() == first_end == store.stored_offset()
        world.runner.hold_up(Lane.FLUSH, seconds=60)
        waiting = asyncio.ensure_future(store.wait_progress())
        begun = world.loop.now
        sending = asyncio.ensure_future(store.append([message()]))
        await waiting
        assert world.loop.now - begun < 1
        end = store.stored_offset()
        assert store.on_disk_end() == first_end < end == store.copyable_end()
        assert len(await store.read_log(first_end, end + 100)) == end - first_end
        store.note_copy("b", end)
        await asyncio.sleep(1)
        assert store.synced_offset() == first_end
        assert not sending.done()
        await asyncio.sleep(60)
        assert store.synced_offset() == end
        await sending

    in_world(main)


def test_nothing_can_be_sent_before_the_disk_has_a_unit_of_this_start():
    """Else a power cut could give the number of its epoch to other units."""

    async def first(world: World) -> None:
        store = await opened(world, copies=1)
        await store.append([message()])

    async def second(world: World) -> None:
        store = await opened(world, copies=1)
        end = store.stored_offset()
        assert store.copyable_end() == end
        world.runner.hold_up(Lane.FLUSH, seconds=60)
        await store.append([message()], durability=Durability.BUFFERED)
        assert store.stored_offset() > end == store.copyable_end()
        await store.flush()
        assert store.copyable_end() == store.stored_offset()

    in_world(second, in_world(first))


def test_without_a_replica_new_messages_are_refused_and_nothing_is_stored():
    async def main(world: World) -> None:
        store = await opened(world)
        before = store.stored_offset()
        with pytest.raises(NotEnoughCopies):
            await store.append([message()])
        assert store.stored_offset() == before
        assert store.lacks_copies
        store.note_copy("b", before)
        assert not store.lacks_copies
        store.forget_copy("b")
        with pytest.raises(NotEnoughCopies):
            await store.append([message()])

    in_world(main)


def test_a_message_that_no_replica_takes_in_time_is_answered_as_what_it_is_and_seen_later():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        begun = world.loop.now
        (sent,) = await store.append([message()])
        assert not sent.durable
        assert 0.9 < (world.loop.now - begun) * 1000 / OPTIONS.sync_timeout_ms < 1.1
        assert await count(store) == 0
        waiting = asyncio.ensure_future(store.wait_durable(sent.log_offset))
        await asyncio.sleep(60)
        assert not waiting.done()
        store.note_copy("b", store.stored_offset())
        await waiting
        assert await count(store) == 1

    in_world(main)


def test_a_buffered_message_is_acknowledged_at_once_and_seen_when_it_is_safe():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        (sent,) = await store.append([message()], durability=Durability.BUFFERED)
        assert not sent.durable
        assert world.loop.now < 1
        assert await count(store) == 0
        await asyncio.sleep(1)
        store.note_copy("b", store.stored_offset())
        assert await count(store) == 1

    in_world(main)


def test_what_settles_something_is_stored_without_a_replica_and_waits_for_one():
    async def main(world: World) -> None:
        store = await opened(world)
        committing = asyncio.ensure_future(store.commit_offset("billing", QUEUE, 0))
        await asyncio.sleep(1)
        assert not committing.done()
        store.note_copy("b", store.stored_offset())
        await asyncio.sleep(10)
        await committing

    in_world(main)


def test_no_more_waits_for_a_replica_than_may_wait_for_the_disk():
    """What settles something is taken without a replica, up to a limit."""
    limited = dataclasses.replace(OPTIONS, max_queued_bytes=4_000, reserved_queue_bytes=2_000)

    async def main(world: World) -> None:
        store = await opened(world, options=limited)
        refusal, taken = None, 0
        while refusal is None:
            try:
                await store.append([message(b"x" * 500)], from_reserve=True)
            except Backpressure as error:
                refusal = error.detail
            else:
                taken += 1
        assert "wait for a replica" in refusal
        assert 5 <= taken <= 20
        store.note_copy("b", store.stored_offset())
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(1)
        store.note_copy("b", store.stored_offset())
        assert (await sending)[0].durable

    in_world(main)


@pytest.mark.parametrize("durability", [Durability.BUFFERED, Durability.SYNCED])
def test_an_append_takes_as_long_however_much_waits_for_a_replica(durability):
    async def main(world: World) -> None:
        store = await opened(world)

        async def append(count: int, durability: Durability) -> None:
            for _ in range(count):
                await store.append([message()], durability=durability, from_reserve=True)

        await append(10, Durability.BUFFERED)
        few = await lines_run(append(1, durability))
        await append(3_000, Durability.BUFFERED)
        assert await lines_run(append(1, durability)) < 1.2 * few

    in_world(main)


async def lines_run(work: Coroutine[None, None, None]) -> int:
    """How many lines of Python it takes, each turn of a loop counted."""
    count, before = 0, sys.gettrace()

    def trace(_: FrameType, event: str, __: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        await work
    finally:
        sys.settrace(before)
    return count


def test_behind_the_end_of_appends_nothing_is_stored_and_what_was_taken_has_its_place():
    """So a replica that has the log then has all of it."""

    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 1 << 30)
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0)
        await store.end_appends()
        end = store.stored_offset()
        with pytest.raises(StoreClosed):
            await store.append([message()])
        (sent,) = await sending
        assert sent.durable
        assert await store.flush() == end
        assert await count(store) == 1
        await store.aclose()
        assert store.stored_offset() == end

    in_world(main)


def test_a_store_that_is_closed_while_its_replica_is_away_ends_and_has_everything_at_its_next_start():
    sent = []

    async def close(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0)
        await store.aclose()
        sent.extend(await sending)
        assert world.loop.now < 60
        assert world.failures == []

    async def again(world: World) -> None:
        store = await opened(world, copies=1)
        assert store.recovery.was_clean
        assert await count(store) == 1

    in_world(again, in_world(close))
    assert [one.durable for one in sent] == [False]


def test_a_wait_for_a_replica_that_is_away_fails_soon_once_the_store_is_to_end():
    """A decision, for example, which is stored and must not be acknowledged."""

    async def main(world: World) -> None:
        store = await opened(world)
        waiting = [asyncio.ensure_future(_settle(store))]
        await asyncio.sleep(1)
        waiting.append(asyncio.ensure_future(store.flush()))
        begun = world.loop.now
        store.stop_waiting()
        await asyncio.sleep(1)
        assert not any(one.done() for one in waiting)
        for one in waiting:
            with pytest.raises(FlushFailed, match="too few replicas have this"):
                await one
        with pytest.raises(FlushFailed):
            await _settle(store)
        await store.aclose()
        assert world.loop.now - begun < 3
        assert world.failures == []

    in_world(main)


def test_what_a_replica_has_in_time_is_acknowledged_while_the_store_is_to_end():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        store.stop_waiting()
        for _ in range(20):
            settling = asyncio.ensure_future(_settle(store))
            await asyncio.sleep(0.05)
            store.note_copy("b", store.stored_offset())
            await settling
            await asyncio.sleep(0.25)

    in_world(main)


def test_a_replica_that_stands_still_is_not_waited_for_either_once_the_store_is_to_end():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        settling = asyncio.ensure_future(_settle(store))
        await asyncio.sleep(0)
        store.stop_waiting()
        with pytest.raises(FlushFailed):
            await settling
        await store.aclose()
        assert world.loop.now < 6

    in_world(main)


def test_what_the_own_disk_has_not_taken_is_waited_for_until_the_store_ends():
    async def main(world: World) -> None:
        store = await opened(world)
        world.runner.hold_up(Lane.FLUSH, seconds=20)
        settling = asyncio.ensure_future(_settle(store))
        closing = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(19)
        assert not settling.done()
        await closing
        with pytest.raises(FlushFailed):
            await settling
        assert store.on_disk_end() == store.stored_offset()

    in_world(main)


async def _settle(store: LocalMessageStore) -> None:
    """Store what settles something, and wait until it can be acknowledged."""
    (placed,) = await store.append([message()], durability=Durability.SYNCED, from_reserve=True)
    await store.wait_durable(placed.log_offset)


def killed_with(copied: int) -> SimulatedDisk:
    """A disk with ten messages on it, of which another disk had so many; the store was killed a
    second after that.
    """

    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        for number in range(10):
            await store.append([message()], durability=Durability.BUFFERED)
            await asyncio.sleep(0.1)
            if number < copied:
                store.note_copy("b", store.stored_offset())
        await asyncio.sleep(1)

    return in_world(main)


@pytest.mark.parametrize("copied", [0, 3, 9])
def test_what_no_other_disk_had_is_not_safe_after_a_kill_until_one_has_it(copied):
    async def main(world: World) -> None:
        store = await opened(world)
        end = store.stored_offset()
        assert store.unsafe_bytes == end // 10 * (10 - copied)
        flushing = asyncio.ensure_future(store.flush())
        store.note_copy("b", end - 1)
        await asyncio.sleep(1)
        assert not flushing.done()
        store.note_copy("b", end)
        assert await flushing == end
        assert store.unsafe_bytes == 0

    in_world(main, killed_with(copied))


def test_what_another_disk_had_is_known_to_be_safe_after_a_kill():
    async def main(world: World) -> None:
        store = await opened(world)
        assert store.unsafe_bytes == 0
        assert await count(store) == 10

    in_world(main, killed_with(10))


def test_a_new_epoch_begins_with_a_unit_and_what_was_there_is_safe_only_with_it():
    async def main(world: World) -> None:
        store = await opened(world)
        found_end = store.stored_offset()
        safe_end = store.synced_offset()
        await store.begin_epoch("b")
        end = store.stored_offset()
        assert end > found_end
        await store.begin_epoch("b")
        assert store.stored_offset() == end, "it has one"
        store.note_copy("b", found_end)
        await asyncio.sleep(1)
        assert store.synced_offset() == safe_end
        store.note_copy("b", end)
        await asyncio.sleep(1)
        assert store.synced_offset() == end
        (begun,) = await store.read(epoch_begin.QUEUE, 0, **EVERYTHING)
        assert msgspec.json.decode(begun.body) == {"epoch": store.epochs.last_epoch, "node": "b"}

    in_world(main, killed_with(3))


def test_an_epoch_that_goes_on_after_an_orderly_end_begins_once_and_is_safe_as_a_whole():
    """Its first unit may be on this disk alone."""

    async def first(world: World) -> None:
        store = await opened(world)
        await store.begin_epoch("a")
        await store.aclose()

    async def second(world: World) -> None:
        store = await opened(world)
        end, safe_end = store.stored_offset(), store.synced_offset()
        assert safe_end < end
        await store.begin_epoch("a")
        assert store.stored_offset() == end
        store.note_copy("b", end - 1)
        await asyncio.sleep(1)
        assert store.synced_offset() == safe_end
        store.note_copy("b", end)
        assert store.synced_offset() == end

    in_world(second, in_world(first, killed_with(3)))


@pytest.mark.parametrize("is_closed", [True, False])
def test_of_two_starts_without_a_replica_the_second_knows_as_little_to_be_safe(is_closed):
    async def look(world: World) -> None:
        store = await opened(world)
        assert store.unsafe_bytes > 0
        if is_closed:
            await store.aclose()

    in_world(look, in_world(look, killed_with(3)))


def test_what_one_disk_was_enough_for_stays_safe_when_two_must_have_what_comes():
    async def alone(world: World) -> None:
        store = await opened(world, copies=1)
        assert store.unsafe_bytes == 0
        await store.append([message()])

    async def with_two_again(world: World) -> None:
        assert (await opened(world)).unsafe_bytes == 0

    in_world(with_two_again, in_world(alone, killed_with(3)))


def test_a_store_that_shows_what_is_not_safe_ends_without_a_replica():
    """With `flush=interval` messages are seen before any disk has them."""
    at_once = dataclasses.replace(OPTIONS, flush=FlushPolicy.INTERVAL)

    async def main(world: World) -> None:
        store = await opened(world, options=at_once)
        store.note_copy("b", 0)
        await store.append([message()])
        assert await count(store) == 1
        store.forget_copy("b")
        await store.aclose()
        assert world.loop.now < 60

    async def again(world: World) -> None:
        store = await opened(world)
        assert store.recovery.was_clean
        assert store.unsafe_bytes == store.stored_offset()

    in_world(again, in_world(main))


def test_one_that_was_alone_is_together_when_the_other_disk_has_what_was_only_written_then():
    """The checkpoint may call that safe: its sync was under way when it was alone."""

    async def main(world: World) -> None:
        store = await opened(world)
        store.go_alone()
        await store.append([message()])
        await store.append([message()], durability=Durability.BUFFERED)
        safe_end, written_end = store.synced_offset(), store.stored_offset()
        assert safe_end < written_end

        store.end_alone()

        store.note_copy("b", safe_end)
        await asyncio.sleep(1)
        assert store.on_disk_end() == written_end
        assert not store.is_together
        assert store.synced_offset() == safe_end
        store.note_copy("b", written_end)
        assert store.is_together

    in_world(main)


def test_a_send_is_as_sure_as_the_machines_that_had_it_when_it_was_safe():
    async def main(world: World) -> None:
        store = await opened(world)
        store.note_copy("b", 0)
        sending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0)
        store.go_alone()
        (sent,) = await sending
        assert sent.sureness == safe_on(1)
        store.end_alone()
        assert store.sureness_of(sent.log_offset) == safe_on(1)
        store.note_copy("b", store.stored_offset())
        assert store.sureness_of(sent.log_offset) == safe_on(2)

    in_world(main)
