"""Connections on which the client sends nothing more: it may have left, or read its answer still."""

import asyncio
from collections.abc import Awaitable, Callable

from app.http.connections import Connections
from app.server.connection import Connection, HttpServer
from app.server.request import Request
from app.settings import HttpOptions
from tests.unit.test_connection_answers import Wire

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def connected(answer: Callable[[Request], Awaitable[None]]) -> tuple[Connection, Wire]:
    wire = Wire()
    connection = HttpServer(HttpOptions(), Connections(1), answer).connect()
    connection.connection_made(wire)
    return connection, wire


async def ended(connection: Connection, wire: Wire) -> bytes:
    """The bytes that the client has read when the service has closed the connection."""
    async with asyncio.timeout(10):
        await wire.is_closed.wait()
    connection.connection_lost(None)
    return b"".join(wire.pieces)


def write_ok(request: Request) -> None:
    request.begin(200, [(b"content-length", b"2")])
    request.write(b"ok")


async def test_the_answer_that_is_being_made_is_sent_and_ends_the_connection():
    may_answer = asyncio.Event()

    async def answer(request: Request) -> None:
        await may_answer.wait()
        write_ok(request)

    connection, wire = connected(answer)
    connection.data_received(GET + GET)
    await asyncio.sleep(0)

    assert connection.eof_received()
    may_answer.set()

    read = await ended(connection, wire)
    assert read.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close\r\n" in read


async def test_a_body_that_came_with_the_end_is_read_and_answered():
    async def answer(request: Request) -> None:
        assert await request.receive() == b"{}"
        assert await request.receive() is None
        write_ok(request)

    connection, wire = connected(answer)
    connection.data_received(POST + b"{}")

    assert connection.eof_received()
    assert (await ended(connection, wire)).endswith(b"ok")


async def test_a_request_without_a_body_that_came_with_the_end_is_answered():
    async def answer(request: Request) -> None:
        assert await request.receive() == b""
        write_ok(request)

    connection, wire = connected(answer)
    connection.data_received(GET)

    assert connection.eof_received()
    assert (await ended(connection, wire)).endswith(b"ok")


async def test_a_request_that_waits_for_its_client_to_leave_is_left():
    was_left = asyncio.Event()

    async def answer(request: Request) -> None:
        while await request.receive() is not None:
            pass
        was_left.set()

    connection, _ = connected(answer)
    connection.data_received(GET)
    await asyncio.sleep(0)

    assert not connection.eof_received()
    connection.connection_lost(None)
    async with asyncio.timeout(10):
        await was_left.wait()


async def test_a_request_whose_body_is_cut_short_is_left():
    async def answer(request: Request) -> None:
        while await request.receive() is not None:
            pass

    connection, _ = connected(answer)
    connection.data_received(POST + b"{")
    await asyncio.sleep(0)

    assert not connection.eof_received()
    connection.connection_lost(None)


async def test_a_request_whose_body_is_cut_short_is_left_though_no_task_waits_for_it():
    may_read = asyncio.Event()
    connection, _ = connected(lambda request: may_read.wait())
    connection.data_received(POST + b"{")
    await asyncio.sleep(0)

    assert not connection.eof_received()
    connection.connection_lost(None)
    may_read.set()


async def test_an_idle_connection_is_closed():
    connection, _ = connected(lambda request: asyncio.sleep(0))

    assert not connection.eof_received()


async def test_a_request_that_is_held_as_bytes_is_answered_unless_it_waits():
    held, wire = connected(lambda request: asyncio.sleep(0))
    held.hold()
    waiting, _ = connected(lambda request: asyncio.sleep(0))
    waiting.hold(lambda: None)

    assert not waiting.eof_received()
    assert held.eof_received()
    held.answer_held(ANSWER)

    read = await ended(held, wire)
    assert b"\r\nconnection: close\r\n" in read
    assert read.endswith(b"ok")


async def test_a_request_that_is_not_held_any_more_does_not_wait():
    found: list[bool] = []

    async def answer(request: Request) -> None:
        found.append(request.is_half_closed)
        write_ok(request)

    connection, wire = connected(answer)
    connection.hold()
    assert connection.eof_received()
    connection.read_again(GET)

    assert (await ended(connection, wire)).endswith(b"ok")
    assert found == [True]
