"""Requests that are sent without waiting for answers: their order, and what they take meanwhile."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable
from typing import Any

import pytest

from app.http.connections import Connections
from app.server.asgi import answer
from app.server.connection import Connection, HttpServer
from app.server.request import Request
from app.settings import HttpOptions
from tests.unit.test_connection_answers import Wire

PACKET = 1_000  # requests
TURNS = 100  # of the loop, each with an answer at most
MOST_BYTES = 4 << 20
MANY = 700  # connections
ALL_BYTES = 100 << 20  # for all connections
KEPT = {
    "requests": lambda: numbered(0, 6_000),
    "a body": lambda: (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + b"x" * 250_000
    ),
    "a head": lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 120_000,
}


class _PausingWire(Wire):
    is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.close()


def numbered(first: int, count: int = PACKET) -> bytes:
    return b"".join(
        [
            b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number
            for number in range(first, first + count)
        ]
    )


async def echo_path(scope: Any, receive: Any, send: Any) -> None:
    body = scope["path"].encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


def paths_of(pieces: list[bytes]) -> list[bytes]:
    return [piece.rpartition(b"\r\n")[2] for piece in pieces]


def test_a_client_that_sends_faster_than_it_is_answered_fills_no_memory():
    async def play() -> tuple[int, list[bytes]]:
        server = HttpServer(
            HttpOptions(), Connections(8), lambda request: answer(echo_path, request)
        )
        wire, connection = _PausingWire(), server.connect()
        connection.connection_made(wire)
        sent = 0
        tracemalloc.start()
        for _ in range(TURNS):
            if wire.is_reading:
                connection.data_received(numbered(sent))
                sent += PACKET
            await asyncio.sleep(0)
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        connection.connection_lost(None)
        return taken_bytes, paths_of(wire.pieces)

    taken_bytes, found = asyncio.run(play())

    assert taken_bytes < MOST_BYTES
    assert len(found) > TURNS // 4
    assert found == [b"/%d" % number for number in range(len(found))]


def test_all_requests_of_a_large_packet_are_answered_in_their_order_and_a_body_among_them_is_whole():
    async def play() -> list[bytes]:
        bodies: list[bytes] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body, has_more = b"", True
            while has_more:
                message = await receive()
                body, has_more = body + message.get("body", b""), message.get("more_body", False)
            bodies.append(body)
            await echo_path(scope, receive, send)

        server = HttpServer(HttpOptions(), Connections(8), lambda request: answer(app, request))
        wire, connection = _PausingWire(), server.connect()
        connection.connection_made(wire)
        large = b"x" * 100_000
        post = b"POST /large HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
            len(large),
            large,
        )
        rest = numbered(0, 1_000) + post + numbered(1_000, 1_000)
        while rest or len(wire.pieces) < 2_001:
            if rest and wire.is_reading:
                connection.data_received(rest[:70_000])
                rest = rest[70_000:]
            await asyncio.sleep(0)
        connection.connection_lost(None)
        assert [body for body in bodies if body] == [large]
        return paths_of(wire.pieces)

    before, behind = ([b"/%d" % number for number in range(at, at + 1_000)] for at in (0, 1_000))
    assert asyncio.run(play()) == [*before, b"/large", *behind]


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
BEFORE = {
    "nothing": b"",
    "a short body": HEAD + b"Content-Length: 1\r\n\r\nx",
    "a body": HEAD + b"Content-Length: 2000\r\n\r\n" + b"x" * 2_000,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2_000 + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_of_many_requests_that_arrive_at_once_few_are_begun_before_the_first_is_answered(before):
    """Else a few thousand connections that do so would keep the event loop for seconds."""

    async def never(request: Request) -> None:
        await asyncio.Event().wait()

    async def play() -> int:
        server = HttpServer(HttpOptions(), Connections(8), never)
        connection = server.connect()
        connection.connection_made(_PausingWire())
        connection.data_received(before + numbered(0))
        await asyncio.sleep(0)
        count = sum(
            isinstance(one, Request) and one.connection is connection for one in gc.get_objects()
        )
        connection.connection_lost(None)
        return count

    assert asyncio.run(play()) <= 1 + (1 << 10) // len(numbered(0, 1))


def test_a_request_keeps_little_of_the_packet_that_its_head_came_in():
    async def play() -> list[Request]:
        requests: list[Request] = []

        def note(request: Request) -> Awaitable[None]:
            requests.append(request)
            return answer(echo_path, request)

        server = HttpServer(HttpOptions(), Connections(8), note)
        connection = server.connect()
        connection.connection_made(_PausingWire())
        connection.data_received(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            + b"x" * 200_000
        )
        await asyncio.sleep(0)
        connection.connection_lost(None)
        return requests

    (request,) = asyncio.run(play())

    assert len(request.arrived_with) <= 4 << 10


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_what_many_connections_keep_behind_their_requests_is_bounded_and_little_is_always_kept(
    kept,
):
    async def never(request: Request) -> None:
        await asyncio.Event().wait()

    packet = kept()

    def packet_of_its_own() -> bytes:
        """As one that comes from a socket: nothing of it is shared."""
        return bytes(bytearray(packet))

    async def play() -> None:
        server = HttpServer(HttpOptions(), Connections(2 * MANY), never)

        def connect() -> tuple[Connection, _PausingWire]:
            wire, connection = _PausingWire(), server.connect()
            connection.connection_made(wire)
            connection.data_received(numbered(0, 1))
            return connection, wire

        tracemalloc.start()
        connected = [connect() for _ in range(MANY)]
        for connection, wire in connected:
            connection.data_received(packet_of_its_own())
            if wire.is_closing():
                connection.connection_lost(None)
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken_bytes < ALL_BYTES
        assert any(wire.is_closing() for _, wire in connected)

        small, wire = connect()
        small.data_received(numbered(0, 10) + b"GET / HTTP/1.1\r\nHost: ")
        assert not wire.is_closing()

        for connection, wire in connected:
            if not wire.is_closing():
                connection.connection_lost(None)
        large, wire = connect()
        large.data_received(packet_of_its_own())
        assert not wire.is_closing()

    asyncio.run(play())
