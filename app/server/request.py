"""A request as it comes over a connection, and the answer that goes back.

What answers it reads the body with `receive` and writes with `begin` and `write`, in this order;
any of them may be left out.
"""

import asyncio
import http
import re
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import unquote

import httptools

Headers = list[tuple[bytes, bytes]]

_HELD_BYTES = 64 << 10  # of a body that wait to be received, before the client has to wait
_NOT_IN_A_NAME = re.compile(b'[\x00-\x1f\x7f()<>@,;:\\[\\]={} \t\\\\"]')
_NOT_IN_A_VALUE = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = (204, 304)

STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}


def head_of(status: int, default_lines: list[bytes], headers: Headers) -> bytes:
    """The head of an answer. Raises ValueError."""
    lines = [STATUS_LINES[status], *default_lines]
    for name, value in headers:
        if _NOT_IN_A_NAME.search(name) or _NOT_IN_A_VALUE.search(value):
            raise ValueError(f"no header of an answer: {name!r}")
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


class Wire(Protocol):
    """The methods of a connection that a request needs."""

    @property
    def default_lines(self) -> list[bytes]:
        """Lines of the head of every answer."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def drain(self) -> Awaitable[None]:
        """Return once the client has taken enough of what was written, or has left."""

    def run(self, request: "Request", answering: Awaitable[None]) -> None:
        """Have the request answered, which was suspended."""

    def end_answer(self, request: "Request") -> None:
        """The request is answered; the next one has its turn."""

    def close(self) -> None:
        """Close the connection when everything that was written is sent."""

    def cut(self) -> None:
        """Close it at once."""

    def addresses(self) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
        """The service's and the client's."""


class Request:
    """One request and its answer. Event loop only.

    `target`: as it was sent; `path`: decoded. Names of `headers` are in lower case. `is_gone`: the
    client has left. `is_half_closed`: it sends nothing more, and may read the answer still; there
    is nothing to wait for. `arrived_with`: the bytes that the head came in, where they begin with
    it and hold all of it.
    """

    __slots__ = (
        "_expects_continue", "_has_news", "_held_head", "_is_chunked", "_is_until_close",
        "_left_bytes", "_on_gone",
        "_received", "_waiter",
        "arrived_with", "connection", "has_begun", "has_more", "headers", "http_version",
        "is_answered", "is_gone", "is_half_closed",
        "keep_alive", "method", "path", "query_string", "raw_path", "target",
    )  # fmt: skip

    def __init__(
        self,
        connection: Wire,
        method: str,
        target: bytes,
        headers: Headers,
        http_version: str,
        *,
        keep_alive: bool,
    ) -> None:
        """Raises HttpParserError where the target is none."""
        self.connection = connection
        self.arrived_with = b""
        self.method = method
        self.target = target
        self.headers = headers
        self.http_version = http_version
        self.keep_alive = keep_alive
        parsed = httptools.parse_url(target)
        self.raw_path: bytes = parsed.path or b"/"
        self.query_string: bytes = parsed.query or b""
        path = self.raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        self.has_more = True  # of the body
        self.is_gone = False
        self.is_half_closed = False
        # called when the client leaves while the request is suspended
        self._on_gone: Callable[[], None] | None = None
        # one in HTTP/1.0 is to be ignored (RFC 9110, 10.1.1): its client takes no interim answer
        self._expects_continue = http_version != "1.0" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        self._received = bytearray()
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self.has_begun = False  # to be answered
        self.is_answered = False
        self._held_head = b""
        self._is_chunked = False
        self._is_until_close = False  # an answer that ends with the connection
        self._left_bytes = 0  # of an answer of known length

    # ----------------------------------------------------------------------------------------------
    # what has arrived

    def feed(self, piece: bytes) -> None:
        """More of the body has arrived."""
        self._received += piece
        if len(self._received) > _HELD_BYTES:
            self.connection.pause_reading()
        self._wake()

    def end(self) -> None:
        """Note that the body has arrived."""
        self.has_more = False
        self._wake()

    def half_close(self) -> bool:
        """The client sends nothing more. False if the request waits, for it or for an event."""
        self.is_half_closed = True
        is_receiving = self._waiter is not None and not self._waiter.done()
        return not (self.has_more or is_receiving or self.is_suspended)

    def leave(self) -> None:
        """The client has left."""
        self.is_gone = True
        self._wake()
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()

    @property
    def is_suspended(self) -> bool:
        """Does it wait without a task?"""
        return self._on_gone is not None

    def suspend(self, on_gone: Callable[[], None]) -> None:
        """Wait without a task, until it goes on; `on_gone` is called when the client leaves before.

        Lets go of the headers, which may be most of the memory that the request takes.
        """
        self._on_gone = on_gone
        self.headers.clear()
        self.arrived_with = b""
        self.connection.resume_reading()

    def go_on(self, answering: Awaitable[None]) -> None:
        """Have it answered after all."""
        self._on_gone = None
        self.connection.run(self, answering)

    async def receive(self) -> bytes | None:
        """Wait for more of the body, and return it; `has_more` says whether that was all.

        None where nothing is to come: the client has left or sends no more, or the request is
        answered.
        """
        if self._expects_continue and not self.has_begun:
            self._expects_continue = False
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._has_news or self.is_gone or self.is_answered or self.is_half_closed):
            self.connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        has_news, self._has_news = self._has_news, False
        if self.is_gone or self.is_answered or not has_news:
            return None
        received, self._received = self._received, bytearray()
        return bytes(received)

    def _wake(self) -> None:
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ----------------------------------------------------------------------------------------------
    # the answer

    def begin(self, status: int, headers: Headers) -> None:
        """Begin the answer; names of headers are in lower case.

        One without a Content-Length is sent in chunks; to HTTP/1.0 it ends with the connection.

        The head waits for the first piece of a body of known length, so that both go out in one
        call and one packet.
        """
        self.has_begun = True
        length: int | None = None
        says_close = False
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                says_close = True
        more: Headers = []
        if not self.keep_alive and not says_close:
            more.append((b"connection", b"close"))
        has_body = self.method != "HEAD" and status not in _WITHOUT_BODY
        if length is None and has_body:
            # HTTP/1.0 has no chunks, and no second request over the connection (RFC 9112, 6.1)
            self._is_until_close = self.http_version == "1.0"
            self._is_chunked = not self._is_until_close
            if self._is_chunked:
                more.append((b"transfer-encoding", b"chunked"))
        self._left_bytes = (length or 0) if has_body else 0
        head = head_of(status, self.connection.default_lines, [*headers, *more])
        if self._left_bytes:
            self._held_head = head
        else:
            self.connection.write(head)

    def write(self, body: bytes, *, has_more: bool = False) -> None:
        """Write a piece of the answer's body; without more to come it is the last one, and the next
        request has its turn.
        """
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.connection.write(chunk if has_more else chunk + b"0\r\n\r\n")
        elif self._is_until_close:
            self.connection.write(body)
        elif self._left_bytes or self._held_head:
            if len(body) > self._left_bytes:
                raise ValueError("the answer is longer than its Content-Length")
            self._left_bytes -= len(body)
            self.connection.write(self._held_head + body if self._held_head else body)
            self._held_head = b""
            if self._left_bytes and not has_more:
                raise ValueError("the answer is shorter than its Content-Length")
        if not has_more:
            self.is_answered = True
            # nothing of it is received any more, and the connection may be idle for long
            self._received.clear()
            self._wake()
            self.connection.end_answer(self)

    def break_off(self) -> None:
        """End an answer that cannot be completed, by closing the connection."""
        if self._held_head:
            self.connection.write(self._held_head)
            self._held_head = b""
        self.connection.close()

    async def drain(self) -> None:
        """Return once the client has taken enough of what was written."""
        await self.connection.drain()
