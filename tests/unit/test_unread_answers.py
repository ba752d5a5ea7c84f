"""Clients that leave their answers unread, over sockets that hold little: however the connection
ends, it ends.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from app.bodies.budget import BodyBudget
from app.http.connections import Connections
from app.server.asgi import answer
from app.server.connection import Connection, HttpServer
from app.server.request import Request
from app.settings import HttpOptions
from tests.support.http import reached

ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LONG = 300_000  # a write of so many pauses writing
BODY = b"x" * 20_000  # several are fewer than those at which writing is paused


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(BODY))],
        }
    )
    await send({"type": "http.response.body", "body": BODY})


async def never(request: Request) -> None:
    raise AssertionError("nothing is asked")


def end_idle(connection: Connection) -> None:
    assert connection.close_idle()


ENDS = {
    "the last answer": lambda connection: connection.data_received(LAST),
    "nonsense": lambda connection: connection.data_received(b"\x00\r\n\r\n"),
    "the stop of the service": Connection.shutdown,
    "a new connection that needs its place": end_idle,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_connection_that_is_to_be_closed_does_not_wait_for_a_client_that_takes_nothing(end):
    async def play() -> None:
        counted = Connections(8)
        server = HttpServer(
            HttpOptions(unread_timeout_ms=50), counted, lambda request: answer(application, request)
        )
        own, client = socket.socketpair()
        with client:
            for one in (own, client):
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
                server.connect, own
            )
            for count in (1, 2):
                client.send(ASKED)
                await reached(
                    lambda count=count: transport.get_write_buffer_size() > (count - 1) * len(BODY),
                    "an answer waits to be taken",
                )
            end(connection)
            await reached(lambda: len(counted) == 0, "the connection is lost")

    asyncio.run(play())


def test_a_connection_that_is_to_be_closed_does_not_wait_for_a_client_that_stops_near_the_end():
    async def play() -> None:
        counted = Connections(8)
        server = HttpServer(HttpOptions(unread_timeout_ms=1_000), counted, never)
        own, client = socket.socketpair()
        with client:
            for one in (own, client):
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
                server.connect, own
            )
            connection.answer_now(b"x" * LONG)
            connection.close()
            least_bytes, _ = transport.get_write_buffer_limits()

            def read() -> bool:
                with suppress(BlockingIOError):
                    client.recv(512)
                return transport.get_write_buffer_size() <= least_bytes

            await reached(read, "writing goes on")
            assert transport.get_write_buffer_size() > 0
            await reached(lambda: len(counted) == 0, "the connection is lost")

    asyncio.run(play())


@pytest.mark.parametrize("end", [Connection.cut, None], ids=["is lost", "is read"])
def test_an_answer_is_counted_as_memory_for_as_long_as_its_client_leaves_it_unread(end):
    async def play() -> None:
        bodies = BodyBudget(1 << 20)
        server = HttpServer(HttpOptions(), Connections(8), never, bodies=bodies)
        own, client = socket.socketpair()
        with client:
            for one in (own, client):
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
                server.connect, own
            )
            connection.answer_now(b"x" * LONG)

            unread_bytes = transport.get_write_buffer_size()
            assert LONG // 2 < unread_bytes < LONG
            assert bodies.answer_bytes == unread_bytes

            if end is None:
                loop, left = asyncio.get_running_loop(), LONG
                while left:
                    left -= len(await loop.sock_recv(client, left))
            else:
                end(connection)
            await reached(lambda: bodies.answer_bytes == 0, "its memory is given back")
            transport.abort()

    asyncio.run(play())


def test_a_client_that_reads_too_slowly_is_cut_off_though_it_reads_again_and_again():
    async def play() -> tuple[int, int]:
        cut: list[None] = []
        bodies, counted = BodyBudget(1 << 20), Connections(8)
        server = HttpServer(
            HttpOptions(unread_timeout_ms=400, least_bytes_per_second=LONG),
            counted,
            never,
            bodies=bodies,
            on_slow_reader=lambda: cut.append(None),
        )
        own, client = tcp_pair()
        with client:
            _, connection = await asyncio.get_running_loop().connect_accepted_socket(
                server.connect, own
            )
            connection.answer_now(b"x" * LONG)
            received = 0

            def read() -> bool:
                nonlocal received
                with suppress(BlockingIOError, ConnectionResetError):
                    received += len(client.recv(512))
                return len(counted) == 0

            await reached(read, "the connection is cut")
        assert bodies.answer_bytes == 0
        return received, len(cut)

    received, cut = asyncio.run(play())

    assert 0 < received < LONG // 2
    assert cut == 1


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """The service's end of a connection and the client's, with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(listener.getsockname())
        own, _ = listener.accept()
    for one in (own, client):
        one.setblocking(False)
    return own, client
