"""Repeatable sends: an Idempotency-Key stands for one request, in memory or in the log, and for no
other.
"""

import asyncio
import tracemalloc
from typing import Any

import pytest

from app.idempotency.keys import IdempotencyKeys, KeyedRequest
from app.idempotency.stored_responses import MessagePlace, ResponseTable, StoredResponse
from storage.errors import IdempotencyInProgress, IdempotencyKeyReused
from storage.memory import MemoryMessageStore
from storage.message import QueueId, StoredMessage
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.clock import ManualClock

ALWAYS = 1 << 40
ONE_KEY_BYTES = 350  # of those that are sent here


def request(
    key: str, *, scope: str = "sendMessage orders", fingerprint: str = "print"
) -> KeyedRequest:
    return KeyedRequest(scope, key, fingerprint)


class AsksAFile(MemoryMessageStore):
    """A lookup takes a turn of the loop, as it does where an engine must ask a file: meanwhile
    others come.
    """

    async def find_messages(self, query: KeyQuery) -> list[StoredMessage]:
        await asyncio.sleep(0)
        return await super().find_messages(query)


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = AsksAFile(self.clock)

    async def open(self, *, kept: int = 1) -> IdempotencyKeys:
        """`kept`: so many keys of one message have room in memory."""
        await self.store.create_topic("orders", queue_count=1)
        keys = IdempotencyKeys(self.store, self.clock, kept_bytes=kept * ONE_KEY_BYTES)
        await keys.start()
        return keys

    async def send(self, keys: IdempotencyKeys, key: str, **fields: str) -> StoredResponse:
        """As a route does it: what was sent before, or a new message."""
        asked = request(key, **fields)
        before = await keys.lookup(asked, window_ms=ALWAYS)
        if before is None:
            await keys.append(
                asked, "orders", {0: message(message_id=f"msg-{key}")}, self.store.append
            )
            before = await keys.lookup(asked, window_ms=ALWAYS)
        assert before is not None
        return before

    async def count(self) -> int:
        return (await self.store.offsets(QueueId("orders", 0))).end


async def test_a_key_that_memory_has_forgotten_is_found_in_the_log():
    house = House()
    keys = await house.open()
    first = [await house.send(keys, str(n)) for n in range(6)]

    again = [await house.send(keys, str(n)) for n in range(6)]

    assert again == first
    assert await house.count() == 6
    ((_, place),) = await keys.find(again[0])
    assert (place.queue, place.queue_offset) == (QueueId("orders", 0), 0)


async def test_a_forgotten_key_is_found_after_a_restart():
    house = House()
    first = [await house.send(await house.open(), str(n)) for n in range(6)]

    keys = await house.open()

    assert [await house.send(keys, str(n)) for n in range(6)] == first
    assert await house.count() == 6


async def test_a_forgotten_key_counts_only_for_its_request_and_within_the_window():
    house = House()
    keys = await house.open()
    for n in range(4):
        await house.send(keys, str(n))

    with pytest.raises(IdempotencyKeyReused):
        await keys.lookup(request("0", fingerprint="another"), window_ms=ALWAYS)
    assert await keys.lookup(request("0", scope="sendMessage emails"), window_ms=ALWAYS) is None
    house.clock.advance(1_001)
    assert await keys.lookup(request("0"), window_ms=1_000) is None


async def test_a_key_that_is_being_looked_up_is_in_progress_for_everybody_else():
    house = House()
    keys = await house.open()
    for n in range(4):
        await house.send(keys, str(n))

    results = await asyncio.gather(
        *[house.send(keys, "new") for _ in range(3)], return_exceptions=True
    )

    assert sum(isinstance(result, StoredResponse) for result in results) == 1
    assert sum(isinstance(result, IdempotencyInProgress) for result in results) == 2
    assert await house.count() == 5


async def test_memory_holds_as_many_keys_as_have_room_and_a_large_one_takes_the_room_of_many():
    house = House()
    keys = await house.open(kept=9)
    for n in range(4):
        await house.send(keys, str(n))
    batch = {number: message(message_id=f"b{number}") for number in range(300)}
    await keys.append(request("batch"), "orders", batch, house.store.append)
    await house.send(keys, "one")

    house.store.find_messages = nothing  # type: ignore[method-assign]
    known = [
        key
        for key in ("0", "1", "2", "3", "batch", "one")
        if await keys.lookup(request(key), window_ms=ALWAYS)
    ]

    assert known == ["one"]


@pytest.mark.parametrize(("key_bytes", "messages"), [(36, 1), (255, 1), (36, 50)])
def test_the_keys_in_memory_take_no_more_than_is_said(key_bytes, messages):
    kept_bytes = 1 << 20
    tracemalloc.start()
    try:
        table = ResponseTable(kept_bytes)
        for number in range(4_000 if messages == 1 else 1_000):
            sent = [
                MessagePlace(f"msg_{number:026d}{entry:02d}", 3, number, entry)
                for entry in range(messages)
            ]
            table.keep(
                StoredResponse(
                    "sendMessage orders",
                    f"{number:0{key_bytes}d}",
                    f"{number:064d}",
                    "orders",
                    number,
                    201,
                    sent,
                )
            )
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert table.has_forgotten
    assert kept_bytes * 0.8 < taken_bytes < kept_bytes * 1.1
    assert (table.get("sendMessage orders", f"{number:0{key_bytes}d}") or sent) != sent
    assert table.get("sendMessage orders", f"{0:0{key_bytes}d}") is None


def test_a_key_that_comes_again_takes_the_room_of_one():
    table = ResponseTable(3 * ONE_KEY_BYTES)
    first, again = (
        StoredResponse("sendMessage orders", key, "print", "orders", 0, 201, [])
        for key in ("first", "again")
    )
    table.keep(first)
    for _ in range(100):
        table.keep(again)

    assert [sent.key for sent in table] == ["first", "again"]
    assert not table.has_forgotten


async def test_the_log_is_not_asked_where_the_window_lies_within_memory():
    house = House()
    keys = await house.open(kept=2)
    for n in range(3):
        await house.send(keys, str(n))
        house.clock.advance(1_000)

    house.store.find_messages = fails  # type: ignore[method-assign]
    assert await keys.lookup(request("new"), window_ms=1_500) is None
    with pytest.raises(AssertionError):
        await keys.lookup(request("new"), window_ms=10_000)


async def test_a_key_is_not_over_the_sooner_for_a_clock_that_was_set_back_meanwhile():
    day_ms = 86_400_000
    house = House()
    keys = await house.open()
    await house.send(keys, "before")
    house.clock.jump(-day_ms)
    await house.send(keys, "meanwhile")

    house.clock.advance(day_ms + 1)  # it is right again

    assert await keys.lookup(request("meanwhile"), window_ms=day_ms) is not None
    restarted = await house.open()
    assert await restarted.lookup(request("meanwhile"), window_ms=day_ms) is not None


async def nothing(*_: Any, **__: Any) -> list[StoredMessage]:
    return []


async def fails(*_: Any, **__: Any) -> list[StoredMessage]:
    raise AssertionError("the log was asked")
