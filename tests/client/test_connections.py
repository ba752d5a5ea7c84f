"""Connections of both clients: a process of its own, a limit of its own, and an end."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from escrowmq_client import AsyncClient, Client, ClientClosed, Retry, Unreachable
from escrowmq_client.operations import consume
from escrowmq_client.pools import Deadline
from escrowmq_client.worker.outage import Outage
from escrowmq_client.worker.poller import AsyncPoller, Poller
from tests.client.test_event_stream import lines_of
from tests.support.http import reached, until

PATIENCE_S = 60
ONCE = Retry(total_ms=0)
LONG = Retry(total_ms=600_000, first_ms=600_000, longest_ms=600_000)
MANY = 120  # more than the connections that httpx has by default
LARGE = (1 << 20) - 1
VERSION = b'{"name":"EscrowMQ","version":"1","api_version":"v1"}'
EVENTS = "\n".join([*lines_of("lh_1"), ""]).encode()


class Service:
    """A service that answers by path, and notes the connection of each request.

    `/v1/version` is answered; `/v1/topics/slow-body` and what has `slow-head` in small pieces; a
    stream has one message; `slow-request` is taken in small pieces; all else waits until the end.
    """

    def __init__(self) -> None:
        self.url = ""
        self.brought_by: list[int] = []  # the number of the connection, for each request
        self.has_answered_slowly = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * MANY)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._is_over.set()
        with suppress(OSError):  # a thread that waits in accept is not woken by a close
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                serving = threading.Thread(target=self._serve, args=(connection, len(self._open)))
                self._threads.append(serving)
                serving.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError):
            while request := connection.recv(65_536):
                self.brought_by.append(number)
                path = request.split(b" ", 2)[1]
                if path == b"/v1/version":
                    connection.sendall(_head(len(VERSION)) + VERSION)
                elif b"slow-request" in path:
                    self._receive_slowly(connection)
                    return  # a body may be left
                elif b"slow-head" in path:
                    head = _head(len(VERSION))
                    self._send_slowly(connection, head[:-4], head[-4:] + VERSION)
                elif path == b"/v1/topics/slow-body":
                    self._send_slowly(connection, _head(300 + len(VERSION)), VERSION)
                elif path.endswith(b"/stream"):
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
                    connection.sendall(head + EVENTS)
                    self._is_over.wait(PATIENCE_S)
                else:
                    self._is_over.wait(PATIENCE_S)
                    return  # a body may be left

    def _send_slowly(self, connection: socket.socket, begin: bytes, rest: bytes) -> None:
        """Send spaces in an answer, which would take 30 s."""
        connection.sendall(begin)
        for _ in range(300):
            if self._is_over.wait(0.1):
                return
            connection.sendall(b" ")
        self.has_answered_slowly = True
        connection.sendall(rest)

    def _receive_slowly(self, connection: socket.socket) -> None:
        """Take a request within 13 s, and answer it."""
        received = 0
        while received < LARGE and not self._is_over.wait(0.05):
            received += len(connection.recv(4_096))
        self.has_answered_slowly = True
        connection.sendall(_head(len(VERSION)) + VERSION)


def _head(length: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        length
    )


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


def in_child(work: Callable[[], Any]) -> str:
    """Fork; return what the work returns or raises there, as text."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            try:
                text = str(work())
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(process, 0)
    return text


@pytest.mark.parametrize("kind", [Client, Poller])
def test_a_process_that_forks_and_the_other_one_have_connections_of_their_own(service, kind):
    with Client(service.url, retry=ONCE) as client:
        caller = client if kind is Client else Poller(client)
        caller.get_version()

        assert in_child(lambda: caller.get_version().name) == "EscrowMQ"
        caller.get_version()

        assert service.brought_by == [1, 2, 1]
        caller.close()


@pytest.mark.parametrize("kind", [AsyncClient, AsyncPoller])
def test_a_process_that_forks_has_connections_of_its_own_for_an_event_loop(service, kind):
    async def version(caller: AsyncClient) -> str:
        return (await caller.get_version()).name

    client = AsyncClient(service.url, retry=ONCE)
    caller = client if kind is AsyncClient else AsyncPoller(client, Outage("billing"))
    with asyncio.Runner() as runner:
        runner.run(version(caller))

        assert in_child(lambda: asyncio.run(version(caller))) == "EscrowMQ"

        runner.run(version(caller))
        assert service.brought_by == [1, 2, 1]
        runner.run(caller.close())


def test_connections_of_the_caller_are_refused_behind_a_fork(service):
    with httpx.Client(verify=False) as http:
        client = Client(service.url, http=http, retry=ONCE)
        assert in_child(lambda: client.get_version().name) == "EscrowMQ"  # nothing was open

        client.get_version()

        assert in_child(client.get_version).startswith("ClientClosed: its Client was used by pro")
        assert client.get_version().name == "EscrowMQ"


def test_a_stream_is_not_read_by_two_processes(service):
    with Client(service.url, retry=ONCE) as client:
        messages = client.stream_messages("billing")
        next(messages)

        assert in_child(lambda: next(messages)).startswith("ClientClosed: the stream is that of")
        messages.close()


@pytest.mark.parametrize("kind", [Client, Poller])
def test_calls_that_wait_keep_no_others_from_a_connection(service, kind):
    with Client(service.url, retry=ONCE, timeout_ms=PATIENCE_S * 1_000) as client:
        caller = client if kind is Client else Poller(client)

        def wait() -> None:
            with suppress(ClientClosed):
                caller.receive_messages("billing", wait_ms=PATIENCE_S * 1_000)

        threads = [threading.Thread(target=wait) for _ in range(MANY)]
        for thread in threads:
            thread.start()
        until(lambda: len(service.brought_by) == MANY, "all receives wait")

        assert caller.get_version().name == "EscrowMQ"

    for thread in threads:
        thread.join(PATIENCE_S)


async def test_tasks_that_wait_keep_no_others_from_a_connection(service):
    async with AsyncClient(service.url, retry=ONCE, timeout_ms=PATIENCE_S * 1_000) as client:
        waits = [
            asyncio.ensure_future(client.receive_messages("billing", wait_ms=PATIENCE_S * 1_000))
            for _ in range(MANY)
        ]
        await reached(lambda: len(service.brought_by) == MANY, "all receives wait")

        assert (await client.get_version()).name == "EscrowMQ"

    ends = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), PATIENCE_S)
    assert {type(end) for end in ends} == {ClientClosed}


def wait_for_answer(client: Client) -> None:
    client.get_topic("orders")


def wait_for_message(client: Client) -> None:
    messages = client.stream_messages("billing")
    next(messages)
    next(messages)


@pytest.mark.parametrize("wait", [wait_for_answer, wait_for_message])
def test_a_close_ends_the_calls_of_other_threads(service, wait):
    client = Client(service.url, timeout_ms=PATIENCE_S * 10_000)
    ended_by: list[Exception] = []

    def call() -> None:
        try:
            wait(client)
        except Exception as error:
            ended_by.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: service.brought_by, "the call waits")

    client.close()
    thread.join(PATIENCE_S)

    (error,) = ended_by
    assert isinstance(error, ClientClosed)
    assert error.outcome_unknown
    assert len(service.brought_by) == 1
    with pytest.raises(ClientClosed, match="the client is closed") as later:
        client.get_version()
    assert not later.value.outcome_unknown


async def wait_for_async_answer(client: AsyncClient) -> None:
    await client.get_topic("orders")


async def wait_for_async_message(client: AsyncClient) -> None:
    async for _ in client.stream_messages("billing"):
        pass


@pytest.mark.parametrize("wait", [wait_for_async_answer, wait_for_async_message])
async def test_a_close_ends_the_calls_of_other_tasks(service, wait):
    client = AsyncClient(service.url, timeout_ms=PATIENCE_S * 10_000)
    call = asyncio.ensure_future(wait(client))
    await reached(lambda: service.brought_by, "the call waits")

    await client.close()

    with pytest.raises(ClientClosed) as ended:
        await asyncio.wait_for(call, PATIENCE_S)
    assert ended.value.outcome_unknown
    assert len(service.brought_by) == 1
    with pytest.raises(ClientClosed, match="the client is closed") as later:
        await client.get_version()
    assert not later.value.outcome_unknown


def test_a_close_ends_the_calls_of_pollers(service):
    client = Client(service.url, timeout_ms=PATIENCE_S * 10_000)
    with Poller(client) as poller:
        ended_by: list[Exception] = []

        def call() -> None:
            try:
                poller.receive_messages("billing", wait_ms=PATIENCE_S * 1_000)
            except ClientClosed as error:
                ended_by.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: service.brought_by, "the call waits")

        client.close()
        thread.join(PATIENCE_S)

        assert len(ended_by) == 1
        with pytest.raises(ClientClosed):
            poller.get_version()
    with pytest.raises(ClientClosed):
        Poller(client)


async def test_a_close_ends_the_calls_of_pollers_of_tasks(service):
    client = AsyncClient(service.url, timeout_ms=PATIENCE_S * 10_000)
    async with AsyncPoller(client, Outage("billing")) as poller:
        call = asyncio.ensure_future(poller.receive_messages("billing", wait_ms=PATIENCE_S * 1_000))
        await reached(lambda: service.brought_by, "the call waits")

        await client.close()

        with pytest.raises(ClientClosed):
            await asyncio.wait_for(call, PATIENCE_S)
        with pytest.raises(ClientClosed):
            await poller.get_version()
    with pytest.raises(ClientClosed):
        AsyncPoller(client, Outage("billing"))


class Pausing(Client):
    """A client that says when it waits before a repetition."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self.pauses = threading.Event()

    def _pause(self, wait_ms: float) -> None:
        self.pauses.set()
        super()._pause(wait_ms)


class AsyncPausing(AsyncClient):
    """A client that says when it waits before a repetition."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self.pauses = asyncio.Event()

    async def _pause(self, wait_ms: float) -> None:
        self.pauses.set()
        await super()._pause(wait_ms)


def test_a_close_ends_the_wait_before_a_repetition():
    client = Pausing("http://127.0.0.1:1", retry=LONG)
    ended_by: list[Exception] = []

    def call() -> None:
        try:
            client.get_version()
        except ClientClosed as error:
            ended_by.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert client.pauses.wait(PATIENCE_S)

    client.close()
    thread.join(PATIENCE_S)

    assert len(ended_by) == 1


async def test_a_close_ends_the_wait_of_a_task_before_a_repetition():
    client = AsyncPausing("http://127.0.0.1:1", retry=LONG)
    call = asyncio.ensure_future(client.get_version())
    await client.pauses.wait()

    await client.close()

    with pytest.raises(ClientClosed):
        await asyncio.wait_for(call, PATIENCE_S)


def test_connections_of_the_caller_that_are_closed_are_named():
    http = httpx.Client(verify=False)
    http.close()

    with pytest.raises(ClientClosed):
        Client("http://127.0.0.1:1", http=http).get_version()


def polling(client: Client) -> Client:
    return Poller(client)


def async_polling(client: AsyncClient) -> AsyncClient:
    return AsyncPoller(client, Outage("billing"))


def itself(client: Any) -> Any:
    return client


@pytest.mark.parametrize("made", [itself, polling])
@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_comes_byte_by_byte_is_given_up(service, part, made):
    with Client(service.url, retry=ONCE, timeout_ms=500) as client, made(client) as caller:
        with pytest.raises(Unreachable, match="ReadTimeout") as ended:
            caller.get_topic(f"slow-{part}")

        assert ended.value.outcome_unknown
        assert not service.has_answered_slowly
        assert caller.get_version().name == "EscrowMQ"


@pytest.mark.parametrize("made", [itself, async_polling])
@pytest.mark.parametrize("part", ["head", "body"])
async def test_an_answer_that_comes_byte_by_byte_is_given_up_by_a_task(service, part, made):
    async with AsyncClient(service.url, retry=ONCE, timeout_ms=500) as client, made(client) as one:
        with pytest.raises(Unreachable, match="ReadTimeout") as ended:
            await one.get_topic(f"slow-{part}")

        assert ended.value.outcome_unknown
        assert not service.has_answered_slowly
        assert (await one.get_version()).name == "EscrowMQ"


def test_a_body_of_a_caller_with_connections_of_its_own_is_given_up(service):
    with (
        httpx.Client(verify=False) as http,
        pytest.raises(Unreachable, match="ReadTimeout"),
    ):
        Client(service.url, http=http, retry=ONCE, timeout_ms=500).get_topic("slow-body")


def test_a_stream_whose_head_comes_byte_by_byte_is_given_up(service, monkeypatch):
    monkeypatch.setattr(consume, "_KEEP_ALIVE_MS", 0)
    with (
        Client(service.url, retry=ONCE, timeout_ms=500) as client,
        pytest.raises(Unreachable, match="ReadTimeout"),
    ):
        next(client.stream_messages("slow-head"))


async def test_a_stream_whose_head_comes_byte_by_byte_is_given_up_by_a_task(service, monkeypatch):
    monkeypatch.setattr(consume, "_KEEP_ALIVE_MS", 0)
    async with AsyncClient(service.url, retry=ONCE, timeout_ms=500) as client:
        with pytest.raises(Unreachable, match="ReadTimeout"):
            await client.stream_messages("slow-head").__anext__()


def test_a_request_that_is_taken_byte_by_byte_is_given_up(service, monkeypatch):
    connect = socket.create_connection

    def connect_with_small_buffer(*given: Any, **others: Any) -> socket.socket:
        connection = connect(*given, **others)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        return connection

    monkeypatch.setattr(socket, "create_connection", connect_with_small_buffer)
    with (
        Client(service.url, retry=ONCE, timeout_ms=2_000) as client,
        pytest.raises(Unreachable, match="Timeout"),
    ):
        client.send_message_raw("slow-request", bytes(LARGE))
    assert not service.has_answered_slowly


async def test_a_call_that_is_cancelled_ends_its_request(service):
    async with AsyncClient(service.url, retry=ONCE) as client:
        call = asyncio.ensure_future(client.get_topic("orders"))
        await reached(lambda: service.brought_by, "the call waits")

        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_try_has_its_time_again_for_each_mib_that_is_carried():
    timeout = httpx.Timeout(10, read=15)
    small = Deadline({"timeout": timeout, "content": None}, 100)
    large = Deadline({"timeout": timeout, "content": bytes(3 << 20)}, 100)

    assert (small.at_s, large.at_s) == (115, 145)

    small.receive((1 << 20) - 1)
    small.check(114)
    with pytest.raises(httpx.ReadTimeout):
        small.check(115)
    small.receive(1)
    small.check(124)
