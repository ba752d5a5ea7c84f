"""What an answer looks like on the wire: in how many pieces it is handed to the network."""

import asyncio
from typing import Any

import pytest

from app.http.connections import Connections
from app.server.asgi import answer
from app.server.connection import HttpServer
from app.settings import HttpOptions

BODY = b'{"message_id": "msg_1"}'


class Wire(asyncio.Transport):
    """Keeps each piece that is written."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8080), "peername": ("127.0.0.1", 40_000)})
        self.pieces: list[bytes] = []
        self.is_closed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed.is_set()

    def close(self) -> None:
        self.is_closed.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def pieces_of(app: Any, request: bytes) -> list[bytes]:
    """What an app's answer is written as; the connection ends with it."""

    async def ask() -> list[bytes]:
        wire = Wire()
        server = HttpServer(HttpOptions(), Connections(1), lambda request: answer(app, request))
        protocol = server.connect()
        protocol.connection_made(wire)
        protocol.data_received(request)
        async with asyncio.timeout(10):
            await wire.is_closed.wait()
        protocol.connection_lost(None)
        return wire.pieces

    return asyncio.run(ask())


def request(method: str = "GET") -> bytes:
    return f"{method} / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def answering(*parts: bytes, length: int | None, breaks_off: bool = False) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if breaks_off:
            raise OSError("no body")
        for number, part in enumerate(parts, 1):
            await send(
                {"type": "http.response.body", "body": part, "more_body": number < len(parts)}
            )

    return app


def test_head_and_body_of_an_answer_go_out_in_one_piece():
    (piece,) = pieces_of(answering(BODY, length=len(BODY)), request())

    head, body = piece.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == BODY


def test_a_body_of_known_length_in_parts_goes_out_as_the_parts_come():
    first, second, third = pieces_of(answering(b"ab", b"cd", b"e", length=5), request())

    assert first.endswith(b"\r\n\r\nab")
    assert (second, third) == (b"cd", b"e")


def test_the_head_of_a_stream_does_not_wait_for_its_first_part():
    head, part, last = pieces_of(answering(b"line\n", b"", length=None), request())

    assert head.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (part, last) == (b"5\r\nline\n\r\n", b"0\r\n\r\n")


@pytest.mark.parametrize(("length", "method"), [(0, "GET"), (len(BODY), "HEAD")])
def test_an_answer_without_a_body_is_its_head(length, method):
    pieces = pieces_of(answering(BODY[:length], length=length), request(method))

    assert b"".join(pieces).startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"".join(pieces).endswith(b"\r\n\r\n")


def test_what_breaks_off_before_its_body_still_sends_its_head_and_closes():
    (head,) = pieces_of(answering(length=len(BODY), breaks_off=True), request())

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")


def test_nonsense_behind_an_answer_that_has_begun_does_not_become_a_part_of_it():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"500")]}
        )
        await send({"type": "http.response.body", "body": b"begin", "more_body": True})
        await receive()
        await receive()

    async def ask() -> list[bytes]:
        wire = Wire()
        server = HttpServer(HttpOptions(), Connections(1), lambda request: answer(app, request))
        protocol = server.connect()
        protocol.connection_made(wire)
        protocol.data_received(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
        )
        for _ in range(5):  # until the answer has begun
            await asyncio.sleep(0)
        protocol.data_received(b"no size\r\n")
        assert wire.is_closing()
        protocol.connection_lost(None)
        return wire.pieces

    (piece,) = asyncio.run(ask())
    assert piece.endswith(b"\r\n\r\nbegin")
