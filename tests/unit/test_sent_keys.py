"""Repeatable sends: an Idempotency-Key stands for one request, in memory or in the log, and for no other."""

import asyncio
from typing import Any

import pytest

from app.sent_keys import KeyedRequest, Sent, SentKeys
from storage.errors import IdempotencyInProgress, IdempotencyKeyReused
from storage.memory import MemoryMessageStore
from storage.message import QueueId, StoredMessage
from tests.support.builders import message
from tests.support.clock import ManualClock

ALWAYS = 1 << 40


def request(key: str, *, scope: str = "sendMessage orders", fingerprint: str = "print") -> KeyedRequest:
    return KeyedRequest(scope, key, fingerprint)


class AsksAFile(MemoryMessageStore):
    """A lookup takes a turn of the loop, as it does where an engine must ask a file: meanwhile others come."""

    async def find_messages(self, key: str, **asked: Any) -> list[StoredMessage]:
        await asyncio.sleep(0)
        return await super().find_messages(key, **asked)


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = AsksAFile(self.clock)

    async def open(self, *, kept: int = 2) -> SentKeys:
        await self.store.create_topic("orders", queue_count=1)
        keys = SentKeys(self.store, self.clock, kept=kept)
        await keys.start()
        return keys

    async def send(self, keys: SentKeys, key: str, **fields: str) -> Sent:
        """As a route does it: what was sent before, or a new message."""
        asked = request(key, **fields)
        before = await keys.sent_before(asked, window_ms=ALWAYS)
        if before is None:
            await keys.append(asked, "orders", {0: message(message_id=f"msg-{key}")}, self.store.append)
            before = await keys.sent_before(asked, window_ms=ALWAYS)
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
        await keys.sent_before(request("0", fingerprint="another"), window_ms=ALWAYS)
    assert await keys.sent_before(request("0", scope="sendMessage emails"), window_ms=ALWAYS) is None
    house.clock.advance(1_001)
    assert await keys.sent_before(request("0"), window_ms=1_000) is None


async def test_a_key_that_is_being_looked_up_is_in_progress_for_everybody_else():
    house = House()
    keys = await house.open()
    for n in range(4):
        await house.send(keys, str(n))

    results = await asyncio.gather(*[house.send(keys, "new") for _ in range(3)], return_exceptions=True)

    assert sum(isinstance(result, Sent) for result in results) == 1
    assert sum(isinstance(result, IdempotencyInProgress) for result in results) == 2
    assert await house.count() == 5


async def test_memory_holds_keys_by_the_number_of_their_messages():
    house = House()
    keys = await house.open(kept=9)
    batch = {number: message(message_id=f"b{number}") for number in range(7)}
    await keys.append(request("batch"), "orders", batch, house.store.append)

    await house.send(keys, "one")  # 8 for the batch and 2 for this: the batch has to go

    house.store.find_messages = nothing  # type: ignore[method-assign]
    assert await keys.sent_before(request("batch"), window_ms=ALWAYS) is None
    assert await keys.sent_before(request("one"), window_ms=ALWAYS) is not None


async def test_the_log_is_not_asked_where_the_window_lies_within_memory():
    house = House()
    keys = await house.open(kept=4)
    for n in range(3):
        await house.send(keys, str(n))
        house.clock.advance(1_000)

    house.store.find_messages = fails  # type: ignore[method-assign]
    assert await keys.sent_before(request("new"), window_ms=1_500) is None
    with pytest.raises(AssertionError):
        await keys.sent_before(request("new"), window_ms=10_000)


async def test_a_key_is_not_over_the_sooner_for_a_clock_that_was_set_back_meanwhile():
    day_ms = 86_400_000
    house = House()
    keys = await house.open()
    await house.send(keys, "before")
    house.clock.set_back_wall(day_ms)
    await house.send(keys, "meanwhile")

    house.clock.advance(day_ms + 1)  # it is right again

    assert await keys.sent_before(request("meanwhile"), window_ms=day_ms) is not None
    restarted = await house.open()
    assert await restarted.sent_before(request("meanwhile"), window_ms=day_ms) is not None


async def nothing(*_: Any, **__: Any) -> list[StoredMessage]:
    return []


async def fails(*_: Any, **__: Any) -> list[StoredMessage]:
    raise AssertionError("the log was asked")
