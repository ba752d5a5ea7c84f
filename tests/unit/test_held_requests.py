"""Requests that go as bytes (`HttpServer.take`): the order of answers, and what becomes of what
arrives behind them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from app.http.connections import Connections
from app.server.asgi import answer
from app.server.connection import Connection, HttpServer
from app.settings import HttpOptions
from tests.unit.test_connection_answers import Wire

TAKEN = b"POST /taken HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
ORDINARY = b"GET /ordinary HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\ntaken"


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]}
    )
    await send({"type": "http.response.body", "body": b"ordinary"})


def on_a_connection(play: Callable[[Connection, Wire, HttpServer], Awaitable[None]]) -> bytes:
    """What is written while this is played.

    What is exactly `TAKEN` is taken and waits to be answered.
    """

    async def run() -> bytes:
        server = HttpServer(
            HttpOptions(), Connections(8), lambda request: answer(application, request), take=take
        )
        wire, connection = Wire(), server.connect()
        connection.connection_made(wire)
        await play(connection, wire, server)
        for _ in range(5):  # what is left to be done in the next turns of the loop
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return b"".join(wire.pieces)

    def take(connection: Connection, data: bytes) -> bool:
        if data == TAKEN:
            connection.hold()
        return data == TAKEN

    return asyncio.run(run())


def test_what_arrives_behind_a_held_request_is_answered_after_it():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.data_received(ORDINARY[:20])
        connection.data_received(ORDINARY[20:])
        await asyncio.sleep(0)
        assert wire.pieces == []
        connection.answer_held(ANSWER)

    written = on_a_connection(play)

    assert written.startswith(ANSWER)
    assert written.removeprefix(ANSWER).startswith(b"HTTP/1.1 200 OK")
    assert written.endswith(b"\r\n\r\nordinary")


def test_a_held_request_behind_a_held_one_is_taken_when_that_is_answered():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.data_received(TAKEN)
        connection.answer_held(ANSWER)
        assert wire.pieces == [ANSWER]
        connection.answer_held(ANSWER)

    assert on_a_connection(play) == ANSWER + ANSWER


def test_a_held_request_can_be_answered_in_the_ordinary_way():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.data_received(ORDINARY)
        connection.read_again(TAKEN)

    assert on_a_connection(play).count(b"\r\n\r\nordinary") == 2


def test_what_is_no_http_behind_a_held_request_is_refused_after_its_answer():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.data_received(b"\x00\x01\r\n\r\n")
        assert wire.pieces == []
        connection.answer_held(ANSWER)
        assert wire.is_closing()

    written = on_a_connection(play)

    assert written.startswith(ANSWER)
    assert b"HTTP/1.1 400 Bad Request" in written.removeprefix(ANSWER)


def test_when_the_service_stops_a_held_request_is_the_last_one_of_its_connection_and_says_so():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.shutdown()
        assert not wire.is_closing()
        connection.answer_held(ANSWER)
        assert wire.is_closing()

    assert (
        on_a_connection(play)
        == b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\nconnection: close\r\n\r\ntaken"
    )


def test_the_answer_to_a_client_that_has_left_is_dropped():
    async def play(connection: Connection, wire: Wire, server: HttpServer) -> None:
        connection.data_received(TAKEN)
        connection.connection_lost(None)
        connection.answer_held(ANSWER)

    assert on_a_connection(play) == b""
