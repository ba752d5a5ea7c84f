"""Receives and acknowledgements that are done in one turn of the loop, without a task."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from delivery.leases import replay
from delivery.leases.clock_reading import ClockReading
from delivery.leases.events import LEASE_QUEUE, read_event
from delivery.leases.group import LeaseTable
from delivery.leases.queue_slots import QueueSlots
from delivery.settle.acknowledge import HeldAck
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
    return [
        one["receipt_handle"] for one in json.loads(answer.partition(b"\r\n\r\n")[2])["messages"]
    ]


def of_answer(answer: bytes) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(answer.partition(b"\r\n\r\n")[2])["messages"]
    return messages


def leased(table: LeaseTable) -> list[tuple[int, int, int, int]]:
    """What the table says of the queue's messages that are not settled."""
    queue = table.group("workers").find(ORDERS)
    slots = QueueSlots(0) if queue is None else queue.slots
    return [(slot.offset, slot.state, slot.attempt, slot.lease) for slot in slots]


async def ack(way: Way, handles: list[str]) -> dict[str, Any]:
    answer = await way.ask(
        asked("POST", f"{GROUP}/ack", {"entries": [{"receipt_handle": one} for one in handles]})
    )
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
        requests = [
            asked("POST", f"{GROUP}/ack", {"entries": [{"receipt_handle": one}]}) for one in handles
        ]
        answers = await asyncio.gather(
            *(way.ask(one, connection=number) for number, one in enumerate(requests))
        )

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


def test_receives_of_one_turn_get_different_messages_and_the_log_gives_their_leases_back(tmp_path):
    async def play(way: Way) -> None:
        first = await handles_of(way, 2)  # from now on its head is known
        taken, receive = way.taken, asked("POST", f"{GROUP}/receive", {"max_messages": 2})
        answers = await asyncio.gather(
            *(way.ask(receive, connection=number) for number in range(3))
        )
        assert way.taken - taken == 3
        assert [one["payload"] for answer in answers for one in of_answer(answer)] == list("234567")
        await ack(way, [*first, of_answer(answers[1])[0]["receipt_handle"]])

        replayed = LeaseTable()
        for message in await way.services.store.read(
            LEASE_QUEUE, 0, max_messages=100, max_bytes=1 << 20
        ):
            replay.apply(replayed, read_event(message), ClockReading(0, 0))

        assert leased(replayed) == leased(way.services.delivery.table)
        assert [offset for offset, *_ in leased(replayed)] == [2, 3, 5, 6, 7]

    played(tmp_path, play)


def test_a_receive_that_was_taken_back_leaves_its_messages_to_the_next_as_they_were(tmp_path):
    async def play(way: Way) -> None:
        delivery = way.services.delivery
        await handles_of(way, 1)
        rules = way.services.consumer_groups.get("workers").rules
        room = {"max_messages": 4, "max_bytes": 1 << 20, "lease_ms": 60_000, "worker": None}
        plan = delivery.plain_receiver.plan("workers", rules, {"orders": [ORDERS]}, **room)
        assert plan is not None
        grant = delivery.plain_receiver.lease(plan)
        assert not delivery.table.group("workers").queues[1].has_open
        delivery.plain_receiver.undo([grant])

        # they are open again
        assert delivery.plain_receiver.plan("workers", rules, {"orders": [ORDERS]}, **room) is None
        found = of_answer(await way.ask(asked("POST", f"{GROUP}/receive", {"max_messages": 4})))
        assert [(one["payload"], one["attempt"]) for one in found] == [
            ("1", 1),
            ("2", 1),
            ("3", 1),
            ("4", 1),
        ]

    played(tmp_path, play)
