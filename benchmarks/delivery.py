"""Consuming under leases: wake-ups, a redrive, and what a million unsettled messages take."""

import asyncio
import tempfile
import time
import tracemalloc
from pathlib import Path

import httpx

from benchmarks.report import Figure, seconds, show
from delivery.groups import GroupRules, Subscription
from delivery.leases.message_states import Event
from delivery.leases.queue_slots import QueueSlots
from delivery.receive.receive import Request
from delivery.service import Delivery
from storage.clock import SystemClock
from storage.identifiers import Identifiers, SystemRandom
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId
from tests.support.server import Server

BODY = "x" * 100
QUEUES = 4
DEAD = 20_000
UNSETTLED = 1_000_000
WAKES = 200


def run() -> None:
    with tempfile.TemporaryDirectory(dir=".") as directory:
        redriven = _over_http(Path(directory))
    figures = [redriven, asyncio.run(_wake_up(1)), asyncio.run(_wake_up(1_000)), _memory()]
    show(
        "Delivery under leases",
        f"bodies of {len(BODY)} bytes, {QUEUES} queues; durability synced",
        figures,
    )


def _over_http(data_dir: Path) -> Figure:
    with (
        Server(
            data_dir / "data",
            environment={"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 30)},
            forked=False,
        ) as server,
        server.client() as api,
    ):
        api.post("/v1/topics", json={"topic": "orders", "queues": QUEUES}).raise_for_status()
        entries = [
            {"message": {"payload": BODY, "key": f"order-{number:04d}", "tag": "created"}}
            for number in range(1_000)
        ]
        for _ in range(DEAD // len(entries)):
            api.post(
                "/v1/topics/orders/messages/batch", json={"entries": entries}
            ).raise_for_status()
        return _redrive(api)


def _redrive(api: httpx.Client) -> Figure:
    """Dead letters that come back to their group; the limit is sending as many in batches."""
    api.put("/v1/groups/dead", json={"topics": [{"topic": "orders"}]}).raise_for_status()
    for _ in range(DEAD // 1_000):
        messages = api.post("/v1/groups/dead/receive", json={"max_messages": 1_000}).json()[
            "messages"
        ]
        handles = [{"receipt_handle": one["receipt_handle"]} for one in messages]
        api.post("/v1/groups/dead/dead-letter", json={"entries": handles}).raise_for_status()
    entries = [{"message": {"payload": BODY}} for _ in range(1_000)]
    sending = seconds(
        lambda: [
            api.post("/v1/topics/orders/messages/batch", json={"entries": entries})
            for _ in range(5)
        ]
    )
    begun = time.perf_counter()
    path = api.post("/v1/groups/dead/dead-letters/redrive", json={"select": "all"}).headers[
        "location"
    ]
    while api.get(path).json()["state"] == "running":
        time.sleep(0.01)
    rate = DEAD / (time.perf_counter() - begun)
    return Figure(
        f"redrive of {DEAD:,}",
        rate,
        "messages/s",
        5_000 / sending,
        "batches of 1,000 sent one by one",
    )


async def _wake_up(waiting: int) -> Figure:
    """From a send to the message in the hands of one of those who wait; the limit is a future of a
    bare event loop.
    """
    clock = SystemClock()
    identifiers, store = Identifiers(clock, SystemRandom()), MemoryMessageStore(clock)
    rules = GroupRules(subscriptions=(Subscription("orders"),))
    delivery = Delivery(
        store, clock, SystemRandom(), new_task_id=lambda: identifiers.new("task"),
        rules_of=lambda group: rules
    )  # fmt: skip
    await store.create_topic("orders", queue_count=1)
    await delivery.open_group("g")
    await delivery.start()
    wanted = Request(max_messages=1, max_bytes=1 << 20, lease_ms=30_000)
    got: asyncio.Queue[float] = asyncio.Queue()

    async def consume() -> None:
        while True:
            while not await delivery.receive("g", rules, wanted):
                woken = asyncio.Event()
                await delivery.begin_wait("g", rules, wanted, woken.set)
                await woken.wait()
            got.put_nowait(time.perf_counter())

    consumers = [asyncio.create_task(consume()) for _ in range(waiting)]
    taken = []
    for message_id in identifiers.many("msg", WAKES):
        await asyncio.sleep(0.002)
        begun = time.perf_counter()
        await store.append(
            [Message(queue=QueueId("orders", 0), message_id=message_id, body=b"x", born_at_ms=0)]
        )
        taken.append(await got.get() - begun)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.wait(consumers)
    await delivery.drain()
    work = f"wake-up, {waiting:,} waiting, memory store"
    return Figure(
        work,
        sorted(taken)[WAKES // 2] * 1e6,
        "µs",
        await _bare_wake_up(),
        "a future that is resolved",
    )


async def _bare_wake_up() -> float:
    loop, taken = asyncio.get_running_loop(), []
    for _ in range(WAKES):
        woken: asyncio.Future[None] = loop.create_future()
        begun = time.perf_counter()
        loop.call_soon(woken.set_result, None)
        await woken
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[WAKES // 2] * 1e6


def _memory() -> Figure:
    """Each lent in a call of its own, which is the worst: bytes of the table a message."""
    tracemalloc.start()
    slots = QueueSlots(0)
    for offset in range(UNSETTLED):
        slots.put(offset, 1, Event.LEASE, attempt=1, lease=offset + 1, deadline_ms=1)
        slots.advance_to(offset + 1)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    note = "and 24 a run for its deadline"
    return Figure(
        f"{UNSETTLED:,} unsettled",
        taken / UNSETTLED,
        "bytes/message",
        19,
        "the numbers themselves",
        note,
    )
