"""Where a primary begins to send, and whom it refuses."""

from pathlib import Path

import pytest

from app.replicas.frames import Hello
from app.replicas.options import ReplicaOptions
from app.replicas.sender import Refused, Sender
from storage.local.local_store import LocalMessageStore
from tests.support.builders import message, messages
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS, SEGMENT_BYTES
from tests.support.simulation import World


async def opened(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=2)
    return store


def sender_of(world: World, store: LocalMessageStore) -> Sender:
    return Sender(
        store,
        SEGMENT_BYTES,
        Path("data"),
        world.clock,
        ReplicaOptions(),
        address="",
        let_in=lambda node: None,
    )


async def hello_of(store: LocalMessageStore, *, units_end: int, end: int) -> Hello:
    """A replica that has the log up to there."""
    last_bytes = await store.read_log(max(0, units_end - 64), units_end)
    epochs = [(begin.epoch, begin.offset) for begin in store.epochs]
    return Hello(1, "b", b"", b"", SEGMENT_BYTES, end, units_end, last_bytes, epochs, 1_000)


def test_a_replica_is_sent_what_lies_behind_its_end():
    async def main(world: World) -> None:
        store = await opened(world)
        await store.append([message()])
        end = store.stored_offset()
        await store.append([message()])
        hello = await hello_of(store, units_end=end, end=end)
        assert await sender_of(world, store)._begin_of(hello) == end

    in_world(main)


def test_a_replica_whose_segment_is_closed_where_this_log_goes_on_is_refused():
    """It was the primary, closed the segment, and died before its next unit."""

    async def main(world: World) -> None:
        store = await opened(world)
        await store.append(messages(3, body_bytes=4_000))
        end = store.stored_offset()
        hello = await hello_of(store, units_end=end, end=SEGMENT_BYTES)
        with pytest.raises(Refused, match=f"parts from this one at {end}"):
            await sender_of(world, store)._begin_of(hello)
        await store.append([message()])
        with pytest.raises(Refused, match=f"parts from this one at {end}"):
            await sender_of(world, store)._begin_of(hello)

    in_world(main)


def test_a_replica_whose_segment_is_closed_here_too_goes_on_in_the_next():
    async def main(world: World) -> None:
        store = await opened(world)
        await store.append(messages(3, body_bytes=4_000))
        end = store.stored_offset()
        await store.append(messages(3, body_bytes=4_000))
        assert store.stored_offset() > SEGMENT_BYTES
        hello = await hello_of(store, units_end=end, end=SEGMENT_BYTES)
        assert await sender_of(world, store)._begin_of(hello) == SEGMENT_BYTES
        hello = await hello_of(store, units_end=end, end=end)
        assert await sender_of(world, store)._begin_of(hello) == end

    in_world(main)
