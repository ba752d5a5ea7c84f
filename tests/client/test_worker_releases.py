"""Messages that a worker gives back unprocessed at its stop, against a real service."""

import asyncio
import threading
import time

import pytest

from escrowmq_client import AsyncClient, AsyncWorker, Client, LeasedMessage, MessageInput, Worker
from tests.support.server import Server

PATIENCE_S = 60
COUNT = 5


@pytest.fixture
def group(client, topic) -> str:
    """An ordered group with messages of one key, all but the first of which wait in its worker; they
    have one attempt.
    """
    name = f"ordered-{topic}"
    client.put_group(name, topics=[topic], ordered=True, max_attempts=1, lease_ms=600_000)
    client.send_message_batch(topic, [MessageInput(json=n, ordering_key="k") for n in range(COUNT)])
    return name


def test_messages_that_wait_in_a_worker_that_stops_keep_their_last_attempt(client, group):
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: LeasedMessage) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    worker = Worker(client, group, handle, wait_ms=200)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(PATIENCE_S)
    worker.stop()
    deadline = time.monotonic() + PATIENCE_S
    while worker.stats.nacked < COUNT - 1 and time.monotonic() < deadline:
        thread.join(0.01)
    may_end.set()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    check_given_back(client, group, worker)


async def test_messages_that_wait_in_a_worker_of_tasks_that_stops_keep_their_last_attempt(
    server, client, group
):
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: LeasedMessage) -> None:
        begun.set()
        await may_end.wait()

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle, wait_ms=200, handle_signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        worker.stop()
        deadline = time.monotonic() + PATIENCE_S
        while worker.stats.nacked < COUNT - 1 and time.monotonic() < deadline:
            await asyncio.wait({running}, timeout=0.01)
        may_end.set()
        await asyncio.wait_for(running, PATIENCE_S)

    check_given_back(client, group, worker)


def check_given_back(client: Client, group: str, worker: Worker | AsyncWorker) -> None:
    stats = worker.stats
    assert (stats.received, stats.acked, stats.nacked) == (COUNT, 1, COUNT - 1)
    assert client.list_dead_letters(group).items == []
    again = client.receive_messages(group, wait_ms=10_000).messages
    assert [(one.json(), one.attempt) for one in again] == [(n, 1) for n in range(1, COUNT)]


async def test_a_handler_that_the_stop_cancels_has_used_its_attempt(server: Server, client, group):
    begun = asyncio.Event()

    async def handle(message: LeasedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle, wait_ms=200, shutdown_ms=0, handle_signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)

    (dead,) = client.list_dead_letters(group).items
    assert dead.message.json() == 0
    again = client.receive_messages(group, wait_ms=10_000).messages
    assert [(one.json(), one.attempt) for one in again] == [(n, 1) for n in range(1, COUNT)]
