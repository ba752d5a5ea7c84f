"""Units are sent to a replica that has all earlier ones as they are written."""

import asyncio
from typing import Any

import pytest

from app.replicas import frames
from app.replicas.frames import Data
from app.replicas.new_units import NewUnits
from storage.local.local_store import LocalMessageStore
from storage.message import Durability
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS
from tests.support.simulation import World

HEARTBEAT_S = 10.0


class Wire(asyncio.Transport):
    """A connection that takes everything at once, or nothing."""

    def __init__(self, store: LocalMessageStore) -> None:
        super().__init__()
        self._store = store
        self._is_closed = False
        self.waiting_bytes = 0
        self.sent: list[Data] = []
        self.were_syncing: list[bool] = []

    def write(self, data: Any) -> None:
        self.sent.append(frames.decode_data(bytes(data)[5:-4]))
        self.were_syncing.append(self._store._engine.flusher.is_busy)

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


async def opened(world: World, *, copies: int) -> tuple[LocalMessageStore, Wire, NewUnits]:
    store = await world.open_store(OPTIONS, copies=copies)
    await store.create_topic("orders", queue_count=1)
    store.note_copy("b", 0)
    await store.append([message()], durability=Durability.BUFFERED)
    await store.wait_durable(0) if copies == 1 else await asyncio.sleep(1)
    store.note_copy("b", store.stored_offset())
    wire, loop = Wire(store), asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
    writer = asyncio.StreamWriter(wire, protocol, None, loop)
    return (
        store,
        wire,
        NewUnits(store, writer, store.copyable_end(), sent_safe_end=store.synced_offset()),
    )


@pytest.mark.parametrize("copies", [1, 2])
def test_a_unit_is_sent_before_its_sync_begins_where_it_must_have_a_copy_and_else_behind_that(
    copies,
):
    async def main(world: World) -> None:
        store, wire, new = await opened(world, copies=copies)
        sending = asyncio.ensure_future(new.send(HEARTBEAT_S))
        await asyncio.sleep(0.1)
        begin = store.stored_offset()
        appending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0.001)
        (first, *_) = wire.sent
        end = store.stored_offset()
        assert (first.offset, first.data) == (begin, await store.read_log(begin, end))
        assert wire.were_syncing[0] is (copies == 1)
        store.note_copy("b", end)
        await appending
        await sending
        assert new.sent_end == end
        wire.close()

    in_world(main)


def test_the_word_that_units_are_safe_goes_with_the_next_ones_or_alone_in_a_moment():
    async def main(world: World) -> None:
        store, wire, new = await opened(world, copies=2)
        sending = asyncio.ensure_future(new.send(HEARTBEAT_S))
        await asyncio.sleep(0.1)
        begin = store.stored_offset()
        for number in (1, 2):
            appending = asyncio.ensure_future(store.append([message()]))
            await asyncio.sleep(0.001)
            assert len(wire.sent) == number
            store.note_copy("b", store.stored_offset())
            await appending
        middle, end = wire.sent[1].offset, store.stored_offset()
        assert [(one.safe_end, bool(one.data)) for one in wire.sent] == [
            (begin, True),
            (middle, True),
        ]
        await asyncio.sleep(0.1)
        assert [(one.safe_end, one.data) for one in wire.sent[2:]] == [(end, b"")]
        assert not sending.done()
        await sending
        assert len(wire.sent) == 3
        wire.close()

    in_world(main)


@pytest.mark.parametrize("is_safe", [False, True])
def test_nothing_is_sent_over_a_connection_that_was_closed(is_safe):
    """uvloop raises an error for it."""

    async def main(world: World) -> None:
        store, wire, new = await opened(world, copies=2)
        sending = asyncio.ensure_future(new.send(HEARTBEAT_S))
        await asyncio.sleep(0.1)
        appending = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0.001)
        if is_safe:
            store.note_copy("b", store.stored_offset())
            await appending  # that it is safe is about to be said
        wire.close()
        store.note_copy("b", store.stored_offset())
        await appending
        await store.append([message()], durability=Durability.BUFFERED)
        await sending
        assert len(wire.sent) == 1

    in_world(main)


def test_what_became_safe_before_the_units_were_waited_for_is_said():
    async def main(world: World) -> None:
        store, wire, new = await opened(world, copies=2)
        new = NewUnits(store, new._writer, store.copyable_end(), sent_safe_end=0)
        await new.send(HEARTBEAT_S)
        assert [(one.safe_end, one.data) for one in wire.sent] == [(store.synced_offset(), b"")]
        wire.close()

    in_world(main)


def test_nothing_more_is_sent_over_a_connection_that_takes_nothing():
    async def main(world: World) -> None:
        store, wire, new = await opened(world, copies=2)
        sending = asyncio.ensure_future(new.send(HEARTBEAT_S))
        await asyncio.sleep(0.1)
        wire.waiting_bytes = 1 << 30
        for number in (1, 2):
            await store.append([message()], durability=Durability.BUFFERED)
            await asyncio.sleep(0.1)
            assert sending.done()
            assert len(wire.sent) == 1, number
        assert new.sent_end == wire.sent[0].offset + len(wire.sent[0].data)
        wire.close()

    in_world(main)
