"""Workers against a real service: in this process, and in one that is stopped and killed."""

import asyncio
import functools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import Queue

import httpx
import pytest

from escrowmq_client import (
    AsyncClient,
    AsyncWorker,
    Client,
    DeadLetter,
    LeasedMessage,
    MessageInput,
    NotFound,
    RetryLater,
    Worker,
)
from escrowmq_client.worker import outcomes
from escrowmq_client.worker.book import WorkerStats
from tests.client.receives import Receives, await_receive
from tests.house.source import ROOT
from tests.support.server import Server

PATIENCE_S = 60


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Run the worker in a thread, and stop it at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def send(client: Client, topic: str, count: int, **fields) -> None:
    client.send_message_batch(topic, [MessageInput(json=n, **fields) for n in range(count)])


def test_each_message_is_handled_and_acknowledged(client, topic, group):
    send(client, topic, 200)
    handled: Queue[int] = Queue()
    worker = Worker(
        client, group, lambda message: handled.put(message.json()), wait_ms=200, concurrency=8
    )
    assert not worker.healthy()

    with running(worker):
        numbers = {handled.get(timeout=PATIENCE_S) for _ in range(200)}
        assert worker.healthy()

    assert numbers == set(range(200))
    assert worker.stats.acked == worker.stats.received == 200
    assert worker.stats.lost == 0
    assert client.get_group_lag(group).messages_leased == 0
    assert not worker.healthy()


def test_a_handler_says_what_becomes_of_its_message(client, topic, group, caplog):
    client.put_group(group, topics=[topic], backoff_ms=[50], max_attempts=3)
    send(client, topic, 3)
    seen: Queue[tuple[int, int]] = Queue()

    def handle(message: LeasedMessage) -> None:
        number = message.json()
        seen.put((number, message.attempt))
        if number == 0 and message.attempt == 1:
            raise RetryLater(50)
        if number == 1:
            raise DeadLetter("bad schema")
        if number == 2 and message.attempt < 3:
            raise ValueError("db down")

    worker = Worker(client, group, handle, wait_ms=200)
    with caplog.at_level(logging.WARNING, "escrowmq_client"), running(worker):
        handled = {seen.get(timeout=PATIENCE_S) for _ in range(6)}

    assert handled == {(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (2, 3)}
    assert [one.reason for one in client.items(client.list_dead_letters, group)] == ["bad schema"]
    assert caplog.text.count("ValueError: db down") == 2
    assert "RetryLater" not in caplog.text
    assert (worker.stats.acked, worker.stats.nacked, worker.stats.dead_lettered) == (2, 3, 1)


def test_a_message_that_takes_longer_than_its_lease_is_handled_once(client, topic, group):
    send(client, topic, 1)
    attempts: list[int] = []
    done = threading.Event()

    def handle(message: LeasedMessage) -> None:
        attempts.append(message.attempt)
        while worker.stats.extended < 4:
            done.wait(0.01)
        assert not message.lost
        done.set()

    worker = Worker(client, group, handle, lease_ms=900, wait_ms=200)
    with running(worker):
        assert done.wait(PATIENCE_S)

    assert attempts == [1]
    assert (worker.stats.acked, worker.stats.lost) == (1, 0)


def test_without_extension_a_lease_ends_and_the_handler_can_see_it(client, topic, group, caplog):
    send(client, topic, 1)
    saw_the_loss, done = threading.Event(), threading.Event()

    def handle(message: LeasedMessage) -> None:
        if message.attempt > 1:
            done.set()
            return
        while not message.lost:
            done.wait(0.01)
        saw_the_loss.set()

    worker = Worker(client, group, handle, lease_ms=300, extend=False, wait_ms=200)
    with caplog.at_level(logging.WARNING, "escrowmq_client"), running(worker):
        assert done.wait(PATIENCE_S)

    assert saw_the_loss.is_set()
    assert "lost the lease" in caplog.text
    assert (worker.stats.acked, worker.stats.lost) == (1, 1)


async def test_a_handler_whose_message_lost_its_lease_is_cancelled(client, server, topic, group):
    send(client, topic, 1)
    begun, cancelled, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(message: LeasedMessage) -> None:
        if begun.is_set():
            again.set()
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert message.lost
            cancelled.set()

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle, lease_ms=900, wait_ms=200, handle_signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        await one.reset_offsets(group, topic, "earliest")  # ends its leases
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
        await asyncio.wait_for(again.wait(), PATIENCE_S)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)

    assert (worker.stats.acked, worker.stats.lost) == (1, 1)


async def test_a_worker_of_tasks_handles_many_messages_at_once(client, server, topic, group):
    send(client, topic, 50)
    all_begun, handled = asyncio.Event(), []

    async def handle(message: LeasedMessage) -> None:
        handled.append(message.json())
        if len(handled) == 50:
            all_begun.set()
        await all_begun.wait()

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle, concurrency=50, handle_signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(all_begun.wait(), PATIENCE_S)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)

    assert worker.stats.acked == 50
    assert client.get_group_lag(group).messages_leased == 0


def test_until_idle_each_message_is_handled_in_this_thread_and_settled(client, topic, group):
    client.put_group(group, topics=[topic], max_attempts=2)
    send(client, topic, 3)
    threads: set[threading.Thread] = set()

    def handle(message: LeasedMessage) -> None:
        threads.add(threading.current_thread())
        if message.json() == 1:
            raise RetryLater(0)
        if message.json() == 2:
            raise DeadLetter("bad schema")

    worker = Worker(client, group, handle)
    assert worker.run_until_idle() == 4
    assert worker.run_until_idle() == 0
    send(client, topic, 1)
    assert worker.run_until_idle() == 1

    assert threads == {threading.current_thread()}
    assert (worker.stats.acked, worker.stats.nacked, worker.stats.dead_lettered) == (2, 1, 2)
    assert client.get_group_lag(group).messages_leased == 0


async def test_until_idle_a_worker_of_tasks_does_the_same(client, server, topic, group):
    client.put_group(group, topics=[topic], max_attempts=2)
    send(client, topic, 2)

    async def handle(message: LeasedMessage) -> None:
        if message.json() == 1:
            raise RetryLater(0)

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle)
        assert await worker.run_until_idle() == 3
        assert await worker.run_until_idle() == 0

    assert (worker.stats.acked, worker.stats.nacked, worker.stats.dead_lettered) == (1, 1, 1)
    assert client.get_group_lag(group).messages_leased == 0


def test_a_worker_that_stops_does_not_receive_what_is_sent_afterwards(server, client, topic, group):
    client.put_group(group, topics=[topic], max_attempts=1)
    receives, begun, may_end = Receives(), threading.Event(), threading.Event()

    def handle(message: LeasedMessage) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    with Client(server.url, hooks=receives) as own:
        worker = Worker(own, group, handle, wait_ms=30_000)
        thread = threading.Thread(target=worker.run)
        thread.start()
        await_receive(client, receives)
        client.send(topic, json=0)
        assert begun.wait(PATIENCE_S)
        await_receive(client, receives)
        worker.stop()
        client.send(topic, json=1)

        (other,) = client.receive_messages(group, wait_ms=10_000).messages
        may_end.set()
        thread.join(PATIENCE_S)

    assert (other.json(), other.attempt) == (1, 1)
    assert (worker.stats.received, worker.stats.acked) == (1, 1)
    assert client.list_dead_letters(group).items == []


@pytest.mark.parametrize("has_own_connections", [True, False])
def test_what_a_worker_gives_back_does_not_come_to_it_again(
    server, client, http, topic, group, has_own_connections
):
    client.put_group(group, topics=[topic], max_attempts=2)
    receives, begun, may_end = Receives(), threading.Event(), threading.Event()

    def handle(message: LeasedMessage) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    with Client(server.url, hooks=receives, http=None if has_own_connections else http) as own:
        worker = Worker(own, group, handle, wait_ms=30_000, shutdown_ms=0)
        with running(worker):
            await_receive(client, receives)
            client.send(topic, json=0)
            assert begun.wait(PATIENCE_S)
            await_receive(client, receives)
    may_end.set()

    assert (worker.stats.received, worker.stats.nacked) == (1, 1)
    (again,) = client.receive_messages(group, wait_ms=10_000).messages
    assert again.attempt == 2


def test_an_answer_that_was_on_its_way_when_the_worker_stopped_is_handled(client, topic, group):
    """Over connections of the caller, a receive lasts for up to a second after the stop."""
    client.put_group(group, topics=[topic], max_attempts=1)
    receives = Receives()
    handled: list[int] = []
    own = Client(client.url, http=client._pool.http, hooks=receives)
    worker = Worker(own, group, lambda message: handled.append(message.json()))
    thread = threading.Thread(target=worker.run)
    thread.start()
    await_receive(client, receives)
    worker.stop()
    client.send(topic, json=1)
    thread.join(PATIENCE_S)

    late = client.receive_messages(group, wait_ms=100).messages
    assert [*handled, *(message.json() for message in late)] == [1]
    assert client.list_dead_letters(group).items == []


def test_an_ordered_group_is_handled_in_order_one_message_of_a_key_at_a_time(client, topic):
    group = client.put_group(f"ordered-{topic}", topics=[topic], ordered=True).group
    for n in range(30):
        client.send(topic, json=n, ordering_key=f"key-{n % 3}")
    handled: dict[str | None, list[int]] = defaultdict(list)
    count: Queue[int] = Queue()
    at_work: set[str | None] = set()
    guard = threading.Lock()

    def handle(message: LeasedMessage) -> None:
        with guard:
            assert message.ordering_key not in at_work
            at_work.add(message.ordering_key)
        if message.json() == 4 and message.attempt == 1:
            with guard:
                at_work.discard(message.ordering_key)
            raise RetryLater(20)
        with guard:
            handled[message.ordering_key].append(message.json())
            at_work.discard(message.ordering_key)
        count.put(1)

    with running(Worker(client, group, handle, wait_ms=200)):
        for _ in range(30):
            count.get(timeout=PATIENCE_S)

    assert dict(handled) == {f"key-{key}": list(range(key, 30, 3)) for key in range(3)}


def test_a_group_that_does_not_exist_ends_the_worker_at_its_start(client):
    with pytest.raises(NotFound, match=r"group_not_found: .*no-such-group"):
        Worker(client, "no-such-group", print).run()
    with pytest.raises(NotFound, match=r"group_not_found: .*no-such-group"):
        Worker(client, "no-such-group", print).run_until_idle()


async def test_a_group_that_does_not_exist_ends_a_worker_of_tasks_at_its_start(server):
    async with AsyncClient(server.url) as one:
        with pytest.raises(NotFound, match=r"group_not_found: .*no-such-group"):
            await AsyncWorker(one, "no-such-group", print).run()


def test_a_worker_outlives_a_restart_of_the_service(tmp_path, http):
    with Server(tmp_path / "data") as server:
        client = Client(server.url, http=http)
        client.put_group("billing", topics=[client.create_topic("orders").topic])
        client.send("orders", json=0)
        handled: Queue[int] = Queue()
        worker = Worker(client, "billing", lambda one: handled.put(one.json()), wait_ms=200)
        with running(worker):
            assert handled.get(timeout=PATIENCE_S) == 0
            server.kill()
            server.start()
            client.send("orders", json=1)
            while handled.get(timeout=PATIENCE_S) != 1:  # the first may come again
                pass


class Program:
    """A worker in a process of its own."""

    def __init__(self, server: Server, group: str, kind: str, *, shutdown_ms: int) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.client.worker_program", server.url, group, kind,
                str(shutdown_ms),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def next_line(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def finish_one(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        status = self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return status


KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])


@KINDS
def test_sigterm_lets_a_handler_finish_and_starts_no_other(server, client, topic, group, kind):
    send(client, topic, 2)
    program = Program(server, group, kind, shutdown_ms=60_000)
    began = program.next_line()
    assert began[0] == "begun"

    program.signal(signal.SIGTERM)
    # Longer than the lease: it goes on being extended. Nobody else gets the message meanwhile.
    (other,) = client.receive_messages(group, wait_ms=2_500).messages
    assert client.receive_messages(group, wait_ms=2_500).messages == []
    program.finish_one()

    assert program.next_line() == ["finished", *began[1:]]
    assert program.ended() == 0
    client.ack_messages(group, [other])
    lag = client.get_group_lag(group)
    assert (lag.messages_ready, lag.messages_leased, lag.messages_waiting) == (0, 0, 0)


@KINDS
def test_what_has_not_finished_in_time_is_given_back_at_once(server, client, topic, group, kind):
    send(client, topic, 1)
    program = Program(server, group, kind, shutdown_ms=200)
    _, message_id, _ = program.next_line()

    program.signal(signal.SIGTERM)

    (again,) = client.receive_messages(group, wait_ms=10_000).messages
    assert (again.message_id, again.attempt) == (message_id, 2)
    program.finish_one()
    assert program.ended() == 0


@KINDS
def test_a_second_signal_gives_back_at_once(server, client, topic, group, kind):
    send(client, topic, 1)
    program = Program(server, group, kind, shutdown_ms=600_000)
    _, message_id, _ = program.next_line()

    program.signal(signal.SIGTERM)
    while not client.list_leases(group).items:
        pass
    program.signal(signal.SIGINT)

    (again,) = client.receive_messages(group, wait_ms=10_000).messages
    assert (again.message_id, again.attempt) == (message_id, 2)
    program.finish_one()
    assert program.ended() == 0


def test_a_message_of_a_worker_that_was_killed_comes_again(server, client, topic, group):
    send(client, topic, 1)
    program = Program(server, group, "threads", shutdown_ms=1_000)
    _, message_id, _ = program.next_line()

    program.signal(signal.SIGKILL)

    assert program.ended() == -signal.SIGKILL
    (again,) = client.receive_messages(group, wait_ms=20_000).messages
    assert (again.message_id, again.attempt) == (message_id, 2)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


AWKWARD = [
    ValueError("1 validation error for Order\n  amount: must be positive"),
    ValueError("a\tb"),
    ValueError("bad \x00 name"),
    ValueError("bad \udc80 name"),
    ValueError("\U0001f600" * 700),
    ValueError(""),
    NoText(),
    DeadLetter(""),
    DeadLetter("x" * 501),
    DeadLetter("two\nlines"),
    DeadLetter(ValueError("no text at all")),
    RetryLater(60_000, ""),
    RetryLater(60_000, "two\nlines"),
]


def raise_awkward(number: int) -> None:
    """Raise one of the errors; return for the last number."""
    if number == len(AWKWARD):
        RetryLater(-5)
    if number < len(AWKWARD):
        raise AWKWARD[number]


@pytest.mark.usefixtures("not_captured")
def test_no_text_of_an_error_ends_the_worker_or_keeps_another_message(client, topic, group):
    client.put_group(group, topics=[topic], backoff_ms=[600_000])
    send(client, topic, len(AWKWARD) + 2)
    worker = Worker(
        client, group, lambda message: raise_awkward(message.json()), wait_ms=200, concurrency=20
    )

    with running(worker):
        wait_until(lambda: settled_count(worker) == len(AWKWARD) + 2)

    stats = worker.stats
    assert (stats.acked, stats.nacked, stats.dead_lettered, stats.lost) == (1, 10, 4, 0)
    reasons = {one.reason for one in client.items(client.list_dead_letters, group)}
    given_none = "given up by its consumer"
    assert reasons == {given_none, "x" * 500, "two lines", "no text at all"}


@pytest.mark.usefixtures("not_captured")
async def test_no_text_of_an_error_ends_a_worker_of_tasks(client, server, topic, group):
    client.put_group(group, topics=[topic], backoff_ms=[600_000])
    send(client, topic, len(AWKWARD) + 2)

    async def handle(message: LeasedMessage) -> None:
        raise_awkward(message.json())

    async with AsyncClient(server.url) as one:
        worker = AsyncWorker(one, group, handle, concurrency=20, handle_signals=False)
        running = asyncio.create_task(worker.run())
        while settled_count(worker) < len(AWKWARD) + 2:
            assert not running.done()
            await asyncio.wait({running}, timeout=0.01)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)

    assert (worker.stats.acked, worker.stats.nacked, worker.stats.lost) == (1, 10, 0)


@KINDS
def test_a_settlement_that_is_refused_as_a_whole_spoils_no_other_message(
    server, client, topic, group, kind, monkeypatch, caplog
):
    """Whatever a future version sends that the service does not take."""
    send(client, topic, 4)
    monkeypatch.setattr(outcomes, "error_text", lambda error: "two\nlines")

    def handle(message: LeasedMessage) -> None:
        if message.json() == 0:
            raise ValueError
        if message.json() < 3:
            raise RetryLater(600_000, "later")

    stats = worked(server, group, handle, kind, lambda stats: stats.acked and stats.nacked == 2)

    assert (stats.acked, stats.nacked, stats.lost) == (1, 2, 1)
    assert "messages are sent one by one" in caplog.text
    (again,) = client.receive_messages(group, wait_ms=20_000).messages
    assert (again.json(), again.attempt) == (0, 2)


class LostAnswers:
    """Transports that lose the first answer to each rejection, which the service carries out."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def lose(self, request: httpx.Request) -> None:
        operation = request.url.path.rsplit("/", 1)[-1]
        if operation in ("nack", "dead-letter") and operation not in self.lost:
            self.lost.append(operation)
            raise httpx.ReadError("the answer is lost", request=request)


class LossyTransport(httpx.HTTPTransport, LostAnswers):
    def __init__(self) -> None:
        httpx.HTTPTransport.__init__(self)
        LostAnswers.__init__(self)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        self.lose(request)
        return response


class AsyncLossyTransport(httpx.AsyncHTTPTransport, LostAnswers):
    def __init__(self) -> None:
        httpx.AsyncHTTPTransport.__init__(self)
        LostAnswers.__init__(self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aread()
        self.lose(request)
        return response


@KINDS
def test_a_rejection_that_is_repeated_after_a_lost_answer_is_no_error(
    server, client, topic, group, kind, caplog
):
    client.put_group(group, topics=[topic], backoff_ms=[600_000])
    send(client, topic, 3)
    transport = LossyTransport() if kind == "threads" else AsyncLossyTransport()

    def handle(message: LeasedMessage) -> None:
        if message.json() == 0:
            raise RetryLater(600_000)
        if message.json() == 1:
            raise DeadLetter("bad schema")

    with caplog.at_level(logging.INFO, "escrowmq_client"):
        stats = worked(
            server, group, handle, kind, lambda one: one.acked + one.lost == 3, transport=transport
        )

    assert sorted(transport.lost) == ["dead-letter", "nack"]
    assert (stats.acked, stats.lost) == (1, 2)
    logged = [one for one in caplog.records if one.name == "escrowmq_client"]
    logged = [one for one in logged if "raised DeadLetter" not in one.getMessage()]
    assert [one.levelname for one in logged] == ["INFO", "INFO"]
    assert "was rejected before" in logged[0].getMessage()
    assert [one.reason for one in client.items(client.list_dead_letters, group)] == ["bad schema"]


class RefusedExtensions:
    """Transports behind a gateway that refuses extensions of several messages, and of the first."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.refused = 0
        self.taken = 0

    def refusal(self, request: httpx.Request, body: bytes) -> httpx.Response | None:
        if not request.url.path.endswith("/extend"):
            return None
        handles = [entry["receipt_handle"] for entry in json.loads(body)["entries"]]
        self.first = self.first or handles[0]
        if handles != [self.first] and len(handles) == 1:
            self.taken += 1
            return None
        self.refused += 1
        problem = {
            "type": "about:blank", "title": "Forbidden", "status": 403, "code": "forbidden",
            "detail": "no", "retryable": False,
        }  # fmt: skip
        return httpx.Response(403, json=problem, request=request)


class RefusingTransport(httpx.HTTPTransport, RefusedExtensions):
    def __init__(self) -> None:
        httpx.HTTPTransport.__init__(self)
        RefusedExtensions.__init__(self)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.refusal(request, request.read()) or super().handle_request(request)


class AsyncRefusingTransport(httpx.AsyncHTTPTransport, RefusedExtensions):
    def __init__(self) -> None:
        httpx.AsyncHTTPTransport.__init__(self)
        RefusedExtensions.__init__(self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        refusal = self.refusal(request, await request.aread())
        return refusal or await super().handle_async_request(request)


@KINDS
def test_an_extension_that_is_refused_does_not_end_the_worker(
    server, client, topic, group, kind, caplog
):
    transport = RefusingTransport() if kind == "threads" else AsyncRefusingTransport()
    send(client, topic, 2)
    is_extended = threading.Event()

    def handle(_: LeasedMessage) -> None:
        assert is_extended.wait(PATIENCE_S)

    async def handle_in_task(_: LeasedMessage) -> None:
        assert await asyncio.to_thread(is_extended.wait, PATIENCE_S)

    def is_done(stats: WorkerStats) -> bool:
        if stats.extended and transport.refused >= 2 and not is_extended.is_set():
            is_extended.set()
            send(client, topic, 3)
        return stats.acked >= 4

    handler = handle if kind == "threads" else handle_in_task
    stats = worked(server, group, handler, kind, is_done, transport=transport)

    assert stats.extended >= 1
    assert "messages are sent one by one" in caplog.text
    assert "is not extended: 403 forbidden: no" in caplog.text


def worked(
    server: Server,
    group: str,
    handle: Callable[[LeasedMessage], object],
    kind: str,
    is_done: Callable[[WorkerStats], object],
    *,
    transport: httpx.HTTPTransport | httpx.AsyncHTTPTransport | None = None,
) -> WorkerStats:
    """Run a worker of either kind until it is done; return its numbers."""
    if kind == "threads":
        http = httpx.Client(transport=transport) if transport else None
        with http or nullcontext(), Client(server.url, http=http) as client:
            threaded = Worker(client, group, handle, wait_ms=200, ack_batch_ms=300, lease_ms=3_000)
            with running(threaded):
                wait_until(lambda: is_done(threaded.stats))
        return threaded.stats

    async def of_tasks() -> WorkerStats:
        http = httpx.AsyncClient(transport=transport) if transport else None
        async with http or nullcontext(), AsyncClient(server.url, http=http) as one:
            worker = AsyncWorker(one, group, handle, wait_ms=200, ack_batch_ms=300,
                                 lease_ms=3_000, handle_signals=False)  # fmt: skip
            ended = asyncio.create_task(worker.run())
            while not is_done(worker.stats):
                assert not ended.done()
                await asyncio.wait({ended}, timeout=0.01)
            worker.stop()
            await asyncio.wait_for(ended, PATIENCE_S)
        return worker.stats

    return asyncio.run(of_tasks())


def settled_count(worker: Worker | AsyncWorker) -> int:
    stats = worker.stats
    return stats.acked + stats.nacked + stats.dead_lettered


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


@pytest.mark.parametrize("after_ms", [-5, 1 << 60])
def test_a_delay_out_of_range_is_refused_where_it_is_written(after_ms):
    with pytest.raises(ValueError, match="after_ms"):
        RetryLater(after_ms)


@pytest.mark.parametrize("after_ms", [1.5, "5", True])
def test_a_delay_that_is_no_whole_number_is_refused_where_it_is_written(after_ms):
    with pytest.raises(TypeError, match="whole number"):
        RetryLater(after_ms)


async def coroutine_handler(message: LeasedMessage) -> None:
    raise AssertionError


def generator_handler(message: LeasedMessage) -> Iterator[int]:
    yield 1


async def asynchronous_generator_handler(message: LeasedMessage) -> AsyncIterator[int]:
    yield 1


class CoroutineHandler:
    async def __call__(self, message: LeasedMessage) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    "handler",
    [
        coroutine_handler,
        functools.partial(coroutine_handler),
        CoroutineHandler(),
        generator_handler,
        asynchronous_generator_handler,
    ],
)
def test_a_handler_that_threads_cannot_run_is_refused(client, handler):
    with pytest.raises(TypeError, match=r"use AsyncWorker|use a plain function"):
        Worker(client, "billing", handler)


@pytest.mark.parametrize("handler", [generator_handler, asynchronous_generator_handler])
async def test_a_handler_that_tasks_cannot_run_is_refused(server, handler):
    async with AsyncClient(server.url) as one:
        with pytest.raises(TypeError, match="use a plain function"):
            AsyncWorker(one, "billing", handler)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(coroutine_handler, "threads"), (generator_handler, "threads"), (generator_handler, "tasks")],
)
def test_what_a_handler_returns_without_running_it_is_a_failure(
    server, client, topic, group, handler, kind, caplog
):
    client.put_group(group, topics=[topic], backoff_ms=[600_000])
    send(client, topic, 1)

    stats = worked(server, group, lambda message: handler(message), kind, lambda one: one.nacked)

    assert (stats.acked, stats.nacked) == (0, 1)
    assert "that has not run" in caplog.text


def test_a_worker_of_tasks_acknowledges_what_a_plain_function_handled(server, client, topic, group):
    send(client, topic, 1)
    handled: list[int] = []

    def handle(message: LeasedMessage) -> None:
        handled.append(message.json())

    stats = worked(server, group, handle, "tasks", lambda one: one.acked)

    assert (handled, stats.nacked) == ([0], 0)


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(
    client, server, topic, group, stops, caplog
):
    send(client, topic, 1)
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def handle(message: LeasedMessage) -> None:
        begun.set()
        while not is_over.is_set():
            with suppress(asyncio.CancelledError):
                await is_over.wait()

    async with AsyncClient(server.url) as one:
        shutdown_ms = 200 if stops == 1 else 600_000
        worker = AsyncWorker(
            one, group, handle, shutdown_ms=shutdown_ms, wait_ms=200, handle_signals=False
        )
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        for _ in range(stops):
            worker.stop()
        await asyncio.wait({running}, timeout=15)
        has_ended = running.done()
        is_over.set()
        await running

    assert has_ended
    assert "ignores its cancellation" in caplog.text
    assert worker.stats.nacked == 1
    (again,) = client.receive_messages(group, wait_ms=10_000).messages
    assert again.attempt == 2
