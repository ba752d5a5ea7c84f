"""Calls of a worker end with it: a program closes its client behind `run`."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from escrowmq_client import AsyncClient, AsyncQueueWorker, Client, QueueWorker, Worker
from escrowmq_client.call import Call
from tests.support.http import until

PATIENCE_S = 60
QUEUES = 4


class Calls:
    """Hooks that know the calls under way."""

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self._guard = threading.Lock()

    @contextmanager
    def on_call(self, call: Call[object], headers: dict[str, str]) -> Iterator[None]:
        with self._guard:
            self.under_way.append(call.operation)
        try:
            yield
        finally:
            with self._guard:
                self.under_way.remove(call.operation)

    def on_message(self, group: str, message: object) -> AbstractContextManager[None]:
        return nullcontext()


class SlowExtensions(Calls):
    """The first extension is sent once the message is settled."""

    def __init__(self) -> None:
        super().__init__()
        self.is_extending = threading.Event()
        self.is_settled = threading.Event()

    @contextmanager
    def on_call(self, call: Call[object], headers: dict[str, str]) -> Iterator[None]:
        with super().on_call(call, headers):
            if call.operation == "extendLeases":
                self.is_extending.set()
                assert self.is_settled.wait(PATIENCE_S)
            yield
        if call.operation == "ackMessages":
            self.is_settled.set()


@pytest.fixture
def queues(client, topic) -> str:
    """A topic of several queues; its name."""
    return client.create_topic(f"{topic}-of-queues", queues=QUEUES).topic


def run_in_threads(url: str, topic: str, calls: Calls, is_time: Callable[[], bool]) -> list[str]:
    with Client(url, hooks=calls) as client:
        worker = QueueWorker(client, f"of-{topic}", print, topics=[topic], wait_ms=30_000)
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(is_time, "calls of the worker wait")
        worker.stop()
        thread.join(PATIENCE_S)
        return list(calls.under_way)


def run_in_tasks(url: str, topic: str, calls: Calls, is_time: Callable[[], bool]) -> list[str]:
    async def handle(message: object) -> None: ...

    async def work() -> list[str]:
        async with AsyncClient(url, hooks=calls) as client:
            worker = AsyncQueueWorker(
                client, f"of-{topic}", handle, topics=[topic], wait_ms=30_000, handle_signals=False
            )
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(until, is_time, "calls of the worker wait")
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)
            return list(calls.under_way)

    return asyncio.run(work())


@pytest.mark.parametrize("run", [run_in_threads, run_in_tasks])
def test_a_worker_of_queues_ends_its_pulls_and_its_heartbeat(server, queues, run, caplog):
    calls = Calls()

    def all_wait() -> bool:
        return (
            calls.under_way.count("pullMessages") == QUEUES and "heartbeatMember" in calls.under_way
        )

    assert run(server.url, queues, calls, all_wait) == []

    assert caplog.messages == []  # none that its stop has ended is called a failure


def test_a_worker_that_is_extending_a_lease_returns_behind_the_answer(server, client, topic, group):
    client.send(topic, json=1)
    calls = SlowExtensions()

    def handle(_: object) -> None:
        assert calls.is_extending.wait(PATIENCE_S)

    with Client(server.url, hooks=calls) as own:
        worker = Worker(own, group, handle, lease_ms=9_000, ack_batch_ms=0)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert calls.is_extending.wait(PATIENCE_S)
        worker.stop()
        thread.join(PATIENCE_S)

        assert calls.under_way == []
