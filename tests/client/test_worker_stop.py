"""A worker that stops while the service answers its receive: no message stays leased for it."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import Queue

import httpx
import pytest
import uvloop

from escrowmq_client import AsyncClient, AsyncWorker, Client, LeasedMessage, Worker
from tests.client.receives import Receives, await_receive

PATIENCE_S = 60
KINDS = pytest.mark.parametrize("kind", ["threads", "tasks", "tasks on uvloop"])


class Relay:
    """A network between a worker and the service; answers wait while `is_open` is not set."""

    def __init__(self, port: int) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.held: Queue[int] = Queue()  # an item for each piece of an answer that has to wait
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.is_open.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()
                threading.Thread(target=self._pass_back, args=(far, near), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if not self.is_open.is_set():
                    self.held.put(len(data))
                    self.is_open.wait()
                target.sendall(data)


@pytest.fixture
def relay(server) -> Iterator[Relay]:
    opened = Relay(server.port)
    yield opened
    opened.close()


class Running:
    """A worker of one of the kinds, in a thread of its own."""

    def __init__(
        self,
        kind: str,
        url: str,
        group: str,
        handle: Callable[[LeasedMessage], None],
        *,
        owns_connections: bool = True,
        **options,
    ) -> None:
        self.receives = Receives()
        self.worker: Worker | AsyncWorker
        self._is_made = threading.Event()
        make = (group, handle, options, url, owns_connections)
        run = self._run_threads if kind == "threads" else self._run_tasks
        loop = uvloop.new_event_loop if kind.endswith("uvloop") else asyncio.new_event_loop
        self.thread = threading.Thread(target=run, args=(loop, *make))
        self.thread.start()
        assert self._is_made.wait(PATIENCE_S)

    def stop(self) -> None:
        self.worker.stop()

    def await_end(self, seconds: float = PATIENCE_S) -> None:
        self.thread.join(seconds)
        assert not self.thread.is_alive()

    def await_receive(self, client: Client) -> None:
        """Return when the service has the next receive of the worker."""
        await_receive(client, self.receives)

    def _run_threads(self, _, group, handle, options, url, owns_connections) -> None:
        own = nullcontext(None) if owns_connections else httpx.Client()
        with own as http, Client(url, hooks=self.receives, http=http) as client:
            self.worker = Worker(client, group, handle, **options)
            self._is_made.set()
            self.worker.run()

    def _run_tasks(self, new_loop, group, handle, options, url, owns_connections) -> None:
        async def in_a_thread(message: LeasedMessage) -> None:
            await asyncio.to_thread(handle, message)

        async def run() -> None:
            own = nullcontext(None) if owns_connections else httpx.AsyncClient()
            async with own as http, AsyncClient(url, hooks=self.receives, http=http) as client:
                self.worker = AsyncWorker(
                    client, group, in_a_thread, handle_signals=False, **options
                )
                self._is_made.set()
                await self.worker.run()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())


@contextmanager
def ended(running: Running) -> Iterator[None]:
    """Stop the worker at the end, if it has not been."""
    try:
        yield
    finally:
        running.stop()
        running.await_end()


@KINDS
def test_an_answer_under_way_at_the_stop_is_handled(client, relay, topic, group, kind):
    client.put_group(group, topics=[topic], max_attempts=1)
    handled: list[int] = []
    running = Running(
        kind, relay.url, group, lambda message: handled.append(message.json()), wait_ms=30_000
    )
    with ended(running):
        running.await_receive(client)
        relay.is_open.clear()
        client.send(topic, json=1)
        relay.held.get(timeout=PATIENCE_S)  # the service has leased it, the worker has not got it
        running.stop()
        relay.is_open.set()
        running.await_end()

    assert handled == [1]
    assert client.get_group_lag(group).messages_leased == 0
    assert client.list_dead_letters(group).items == []


@KINDS
def test_a_message_received_just_at_the_stop_is_available_again_at_once(
    client, relay, topic, group, kind
):
    may_end = threading.Event()
    running = Running(
        kind, relay.url, group, lambda message: may_end.wait(PATIENCE_S) and None,
        wait_ms=30_000, shutdown_ms=0, lease_ms=600_000,
    )  # fmt: skip
    with ended(running):
        running.await_receive(client)
        relay.is_open.clear()
        client.send(topic, json=1)
        relay.held.get(timeout=PATIENCE_S)
        running.stop()
        relay.is_open.set()

        (again,) = client.receive_messages(group, wait_ms=10_000).messages
        may_end.set()

    assert again.json() == 1
    assert running.worker.stats.nacked == 1


@KINDS
def test_a_message_received_at_the_second_stop_is_not_begun_and_keeps_its_last_attempt(
    client, relay, topic, group, kind
):
    client.put_group(group, topics=[topic], max_attempts=1)
    handled: list[int] = []
    running = Running(
        kind, relay.url, group, lambda message: handled.append(message.json()), wait_ms=30_000
    )
    with ended(running):
        running.await_receive(client)
        relay.is_open.clear()
        client.send(topic, json=1)
        relay.held.get(timeout=PATIENCE_S)
        running.stop()
        running.stop()
        relay.is_open.set()
        running.await_end()

    assert handled == []
    assert client.list_dead_letters(group).items == []
    (again,) = client.receive_messages(group, wait_ms=10_000).messages
    assert again.attempt == 1


@KINDS
def test_messages_that_arrive_just_at_the_stop_are_not_left_leased(client, server, topic, kind):
    """The service, too, may be leasing at that time: many times, each a little later."""
    for n in range(15):
        group = client.put_group(f"group-{n}-of-{topic}", topics=[topic]).group
        running = Running(kind, server.url, group, lambda message: None, wait_ms=30_000)
        with ended(running):
            running.await_receive(client)
            sending = threading.Thread(target=client.send, args=(topic,), kwargs={"json": n})
            sending.start()
            threading.Event().wait(n * 0.000_2)
            running.stop()
            running.await_end()
            sending.join()

        assert client.get_group_lag(group).messages_leased == 0, f"round {n}"


@KINDS
@pytest.mark.parametrize("owns_connections", [True, False])
def test_a_worker_that_waits_for_messages_ends_when_it_is_stopped(
    client, server, topic, group, kind, owns_connections
):
    """Over connections of the caller a receive waits for a second at most."""
    running = Running(
        kind, server.url, group, print, owns_connections=owns_connections, wait_ms=30_000
    )
    running.await_receive(client)

    running.stop()
    running.await_end(10)

    client.send(topic, json=1)
    (message,) = client.receive_messages(group, wait_ms=10_000).messages
    assert message.attempt == 1


@KINDS
def test_a_service_that_does_not_answer_does_not_keep_a_worker_that_was_stopped(
    client, relay, group, kind
):
    running = Running(kind, relay.url, group, print, wait_ms=30_000)
    running.await_receive(client)
    relay.is_open.clear()

    running.stop()

    running.await_end(10)
