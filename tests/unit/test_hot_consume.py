"""Acknowledgements that are done in one turn of the loop, without a task."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from delivery.acknowledge import HeldAck
from storage.message import QueueId
from tests.support.two_ways import Way

GROUP = "/v1/groups/workers"
ORDERS = QueueId("orders", 0)


def asked(method: str, path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def handles_of(way: Way, count: int) -> list[str]:
    """Of messages that are leased now."""
    answer = await way.ask(asked("POST", f"{GROUP}/receive", {"max_messages": count}))
    return [one["receipt_handle"] for one in json.loads(answer.partition(b"\r\n\r\n")[2])["messages"]]


async def ack(way: Way, handles: list[str]) -> dict[str, Any]:
    answer = await way.ask(asked("POST", f"{GROUP}/ack", {"entries": [{"receipt_handle": one} for one in handles]}))
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def settle(way: Way, held: HeldAck) -> list[bool]:
    found: asyncio.Future[list[list[bool]]] = asyncio.get_running_loop().create_future()
    way.services.delivery.settle([held], done=found.set_result, failed=found.set_exception)
    return (await found)[0]


def played(directory, play: Callable[[Way], Awaitable[None]]) -> None:
    """With a group that reads a topic of twelve messages."""

    async def run() -> None:
        async with Way(directory, is_direct=True) as way:
            await way.ask(asked("POST", "/v1/topics", {"topic": "orders", "queues": 1}))
            await way.ask(asked("PUT", GROUP, {"topics": [{"topic": "orders"}]}))
            entries = [{"message": {"payload": str(number)}} for number in range(12)]
            await way.ask(asked("POST", "/v1/topics/orders/messages/batch", {"entries": entries}))
            await play(way)

    asyncio.run(run())


def test_acknowledgements_of_one_turn_are_taken_and_settle_their_messages(tmp_path):
    async def play(way: Way) -> None:
        await ack(way, await handles_of(way, 1))  # from now on its head is known
        handles, taken = await handles_of(way, 3), way.taken
        requests = [asked("POST", f"{GROUP}/ack", {"entries": [{"receipt_handle": one}]}) for one in handles]
        answers = await asyncio.gather(*(way.ask(one, connection=number) for number, one in enumerate(requests)))

        assert way.taken - taken == 3
        assert [answer[9:12] for answer in answers] == [b"200"] * 3
        assert await way.services.delivery.position("workers", ORDERS) == 4

    played(tmp_path, play)


def test_what_was_taken_and_given_back_can_be_acknowledged(tmp_path):
    async def play(way: Way) -> None:
        delivery, handles = way.services.delivery, await handles_of(way, 5)
        held = delivery.take_ack("workers", handles)
        assert held is not None
        assert delivery.take_ack("workers", handles[4:]) is None  # it is under way
        delivery.give_back([held])

        assert (await ack(way, handles))["accepted"] == 5
        assert await way.services.delivery.position("workers", ORDERS) == 5

    played(tmp_path, play)


def test_nothing_is_taken_where_one_of_the_handles_is_of_no_lease_that_lasts(tmp_path):
    async def play(way: Way) -> None:
        delivery, handles = way.services.delivery, await handles_of(way, 5)
        await ack(way, handles[2:3])

        assert delivery.take_ack("workers", handles) is None
        assert delivery.take_ack("workers", [handles[0], handles[0]]) is None
        assert delivery.take_ack("workers", [handles[0], "lh_"]) is None
        assert delivery.take_ack("others", handles[:1]) is None
        assert (await delivery.ack("workers", handles)) == [True] * 5

    played(tmp_path, play)


def test_a_message_whose_lease_a_reset_ends_before_the_acknowledgement_is_not_accepted(tmp_path):
    async def play(way: Way) -> None:
        delivery, handles = way.services.delivery, await handles_of(way, 2)
        held = delivery.take_ack("workers", handles)
        assert held is not None
        await delivery.set_positions("workers", {ORDERS: 0})

        assert await settle(way, held) == [False, False]
        assert len(await handles_of(way, 12)) == 12

    played(tmp_path, play)
