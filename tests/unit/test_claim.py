"""A claim: leases in memory until their event is in the log, and undone wherever it does not get
there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from delivery.leases.message_states import State
from delivery.receive.receive import Request
from storage.errors import Backpressure
from storage.message import QueueId
from tests.support.delivery import GROUP, House, in_house

QUEUES = [QueueId("orders", 0), QueueId("orders", 1)]
PLACES = ["waits for the other receive", "reads the second queue", "appends the event"]


class Stop:
    """A place at which the first receive that gets there stops."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def at(self, call: Callable[..., Awaitable[Any]], applies: Callable[..., bool]) -> Any:
        async def stopping(*args: Any, **options: Any) -> Any:
            if not self.is_there.is_set() and applies(*args):
                self.is_there.set()
                await self.error
            return await call(*args, **options)

        return stopping


@pytest.mark.parametrize("ends", ["by an error", "by a cancellation"])
@pytest.mark.parametrize("place", PLACES)
def test_a_receive_that_ends_before_its_event_is_stored_leaves_its_messages_as_they_were(
    place, ends
):
    async def life(house: House) -> None:
        await house.send("a", queue=QUEUES[0])
        await house.send("b", queue=QUEUES[1])
        leases = house.delivery.table.group(GROUP)
        woken = asyncio.Event()
        stop, store = Stop(), house.store
        offsets, append = store.offsets, store.append
        lock = house.delivery._receiver.claim_lock(GROUP)
        if place == PLACES[0]:
            await lock.acquire()
        elif place == PLACES[1]:
            store.offsets = stop.at(offsets, lambda queue: leases.count(State.LEASED) == 1)
        else:
            store.append = stop.at(append, lambda messages: leases.count(State.LEASED) == 2)

        receiving = asyncio.ensure_future(house.receive())
        if place != PLACES[0]:
            await stop.is_there.wait()
        house.delivery._waiters.add(GROUP, [], woken.set)
        if ends == "by an error" and place != PLACES[0]:
            stop.error.set_exception(Backpressure("later"))
        else:
            await asyncio.sleep(0)
            receiving.cancel()
        with pytest.raises((Backpressure, asyncio.CancelledError)):
            await receiving
        if place == PLACES[0]:
            lock.release()

        assert leases.unlogged == {}
        assert leases.count(State.LEASED) == 0
        # what it claimed is for another
        assert woken.is_set() == (place != PLACES[0])
        assert sorted(await house.names()) == [("a", 1), ("b", 1)]

    in_house(life, queues=2)


def test_a_receive_whose_event_is_stored_has_no_claim_left():
    async def life(house: House) -> None:
        assert house.rules is not None
        assert await house.receive() == []
        await house.send("a")
        request = Request(max_messages=1, max_bytes=1 << 20, lease_ms=1_000, attempt_id="once")
        assert len(await house.delivery.receive(GROUP, house.rules, request)) == 1

        leases = house.delivery.table.group(GROUP)
        assert leases.unlogged == {}
        assert leases.count(State.LEASED) == 1

    in_house(life)
