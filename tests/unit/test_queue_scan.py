"""Reading a queue piece by piece."""

import asyncio
from pathlib import PurePath

import pytest

from storage.errors import CorruptRecord, UnknownTopic
from storage.memory import MemoryMessageStore
from storage.message import QueueId, StoredMessage
from storage.queue_scan import Piece, scan
from tests.support.builders import message
from tests.support.clock import ManualClock

QUEUE = QueueId("orders", 0)


class Damaged(MemoryMessageStore):
    """An engine whose records at some offsets are damaged: what is in front of one is read first,
    as the local engine does.
    """

    damaged: frozenset[int] = frozenset()

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        if queue_offset in self.damaged:
            raise CorruptRecord(PurePath("log"), queue_offset, "planted")
        found = await super().read(
            queue, queue_offset, max_messages=max_messages, max_bytes=max_bytes
        )
        whole = []
        for one in found:
            if one.queue_offset in self.damaged:
                break
            whole.append(one)
        return whole


@pytest.fixture
async def store() -> Damaged:
    store = Damaged(ManualClock())
    await store.create_topic("orders", queue_count=1)
    await store.append([message(bytes([number])) for number in range(10)])
    return store


def parts(pieces: list[Piece]) -> list[list[int] | str]:
    """The offsets of each piece, or its damage."""
    return [
        [one.queue_offset for one in piece.messages] if piece.damage is None else "damaged"
        for piece in pieces
    ]


async def test_a_queue_is_read_in_pieces_up_to_an_end(store):
    pieces = [piece async for piece in scan(store, QUEUE, 2, 9, max_messages=3)]

    assert parts(pieces) == [[2, 3, 4], [5, 6, 7], [8]]
    assert [(piece.begin, piece.end) for piece in pieces] == [(2, 5), (5, 8), (8, 9)]


async def test_without_an_end_it_is_read_as_far_as_it_goes(store):
    assert parts([piece async for piece in scan(store, QUEUE, 7)]) == [[7, 8, 9]]


async def test_each_damaged_record_is_a_piece_of_its_own(store):
    store.damaged = frozenset({0, 4, 5, 9})

    pieces = [piece async for piece in scan(store, QUEUE, 0)]

    assert parts(pieces) == ["damaged", [1, 2, 3], "damaged", "damaged", [6, 7, 8], "damaged"]
    assert [piece.begin for piece in pieces if piece.damage] == [0, 4, 5, 9]
    assert pieces[-1].end == 10


async def test_other_tasks_run_between_two_pieces(store):
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces = [piece async for piece in scan(store, QUEUE, 0, max_messages=1)]
    counting.cancel()

    assert len(pieces) == 10
    assert turns >= 10


async def test_other_errors_end_the_scan(store):
    with pytest.raises(UnknownTopic):
        async for _ in scan(store, QueueId("nothing", 0), 0):
            pass
