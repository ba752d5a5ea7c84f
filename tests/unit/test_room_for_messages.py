"""Receives and streams whose messages have no room in memory now: what is read, and what is left."""

from collections.abc import Sequence
from typing import Any

import pytest

from delivery.streams import StreamOptions
from storage.formats.stored_record import Found
from storage.message import QueueId
from storage.store import ScannedRecords
from tests.support.delivery import GROUP, named, with_house


class NoRoomNow(Exception):
    """There is no room."""


class Room:
    """Memory that is full at times."""

    def __init__(self) -> None:
        self.is_full = True

    def reserve(self, byte_count: int) -> int:
        return byte_count

    async def fit(self, found: Sequence[Found]) -> None:
        if self.is_full:
            raise NoRoomNow


@with_house()
async def test_a_stream_that_has_no_room_again_and_again_remembers_none_of_its_tries(house):
    await house.send("a")
    stream = house.delivery.streams.open(GROUP, StreamOptions(credit=1, lease_ms=1_000))
    room = Room()

    for _ in range(3):
        with pytest.raises(NoRoomNow):
            await stream.take(house.rules, max_bytes=1_000, memory=room)
    assert stream.names == set()

    room.is_full = False
    assert [named(one) for one in await stream.take(house.rules, max_bytes=1_000, memory=room)] == [
        ("a", 1)
    ]
    house.delivery.streams.close(stream)


@with_house()
async def test_a_receive_that_is_repeated_reads_no_more_than_there_is_room_for(house):
    await house.send(*(letter * 1_000 for letter in "abcdefgh"))
    first = await house.receive(attempt_id="x")
    reads: list[int] = []
    read = house.store.read_records

    async def counted(queue: QueueId, queue_offset: int, **options: Any) -> ScannedRecords:
        reads.append(queue_offset)
        return await read(queue, queue_offset, **options)

    # the store itself reads; what is assigned only counts
    house.store.read_records = counted  # type: ignore[method-assign]
    room = Room()
    with pytest.raises(NoRoomNow):
        await house.receive(attempt_id="x", max_bytes=2_500, room=room)
    assert reads == [0, 1, 2]

    room.is_full = False
    assert await house.receive(attempt_id="x", max_bytes=2_500, room=room) == first
