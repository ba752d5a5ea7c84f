"""HTTP/1.1 connections: requests in, answers out, one after another.

A client that is silent or dribbles must not hold a connection, nor one that reads its answer not at
all or too slowly (`unread.py`); a head must not grow without end; and what is not HTTP gets a
problem document as any other refusal.
"""

import asyncio
import re
import secrets
import termios
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools
import structlog
from msgspec import UNSET, UnsetType

from app.answering import REQUEST_ID, request_id_of
from app.bodies.budget import BodyBudget
from app.encoding import codec
from app.http.connections import Connections
from app.http.exchange import headers_by_name, takes_a_stream
from app.problems import MEDIA_TYPE, Refusal, document
from app.server.deadline import Deadline
from app.server.request import Headers, Request, head_of
from app.server.unread import UnreadAnswers, kernel_bytes
from app.settings import HttpOptions

KEEP_ALIVE_MS = 75_000  # that a connection may be idle
# of what has arrived are read before it is seen whether requests wait: heads and short bodies, of
# which many may be in it, or a body
_AT_ONCE_BYTES = 1 << 10
_BODY_AT_ONCE_BYTES = 8 << 10
_MOST_KEPT_BYTES = 64 << 20  # of requests that have not begun, over all connections
_KEPT_OF_EACH_BYTES = 16 << 10  # so many of them a connection may keep in any case
_WAITING_BYTES = 512  # that a request takes which waits behind another
_FIRST_BYTES = 4 << 10  # of what has arrived with a head, which is kept while its request lasts
# a size and the ends of lines; what chunk extensions and trailers may take is the limit of the head
_CHUNK_HEAD_BYTES = 32
_OF_AN_UPGRADE = (b"upgrade", b"http2-settings")
# the line of a request whose method the parser does not know, and the method that it reads in its
# place: of any but HEAD and CONNECT the rest of a request means the same
_UNKNOWN_METHOD = re.compile(
    rb"(?:\r?\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64})(?= [!-~]+ HTTP/1\.[01]\r?\n)"
)
_STAND_IN = b"PATCH"

Answering = Callable[[Request], Awaitable[None]]
HotTake = Callable[["Connection", bytes], bool]

log = structlog.get_logger()


class HttpServer:
    """The state that all connections share. Event loop only."""

    def __init__(
        self,
        options: HttpOptions,
        connections: Connections,
        answer: Answering,
        *,
        take: HotTake = lambda connection, data: False,
        bodies: BodyBudget | None = None,
        on_slow_reader: Callable[[], None] = lambda: None,
    ) -> None:
        """`answer`: answers one request. `take`: is asked first, about what arrives on a connection
        that has no request in progress; where it takes the data, it answers by
        `Connection.answer_held`. `bodies`: counts the answers that clients leave unread.
        `on_slow_reader`: called for each connection that is cut off, as its client reads too
        slowly.
        """
        self.options = options
        self.counted = connections
        self.answer = answer
        self.take = take
        self.bodies = bodies or BodyBudget(options.max_bodies_bytes)
        self.on_slow_reader = on_slow_reader
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.kept_bytes = 0  # of requests that have not begun
        self.default_lines: list[bytes] = []  # of the head of every answer
        self.loop = asyncio.get_running_loop()

    def connect(self) -> "Connection":
        """The protocol of one more connection."""
        return Connection(self)

    def run(self, request: Request, answering: Awaitable[None]) -> None:
        """Have the request answered."""
        task = self.loop.create_task(_guarded(request, answering))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


async def _guarded(request: Request, answering: Awaitable[None]) -> None:
    try:
        await answering
    except Exception:
        log.exception("answer_broken_off", path=request.path)
    finally:
        if not request.is_answered and not request.is_gone and not request.is_suspended:
            request.break_off()


class Connection(asyncio.Protocol):
    """One connection. The parser calls the methods that begin with `on_`."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._parser = _new_parser(self)
        # `connection_made` gives them
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._unread: UnreadAnswers = cast("UnreadAnswers", None)
        self._current: Request | None = None  # the request that is being answered
        # one is being answered that came and goes as bytes (`HttpServer.take`)
        self._is_held = False
        self._ends_held = False  # and it is the last one
        self._on_lost: Callable[[], None] | None = None  # of what waits and is held
        self._kept_bytes = 0  # of those that the server counts
        # what has arrived and is not read before the requests so far have been begun
        self._behind = b""
        self._first = b""  # what has arrived with the beginning of the request that is being read
        self._waiting: deque[Request] = deque()  # those that were sent behind it, the oldest first
        self._arriving: Request | None = None  # the newest one
        self._is_reading_paused = False
        self._is_half_closed = False  # the client sends nothing more, and may read still
        self._deadline = Deadline(server.loop, self._close_late)
        # what the deadline becomes when what has arrived is read; 0: none
        self._timeout_ms: int | None = None
        # Of the head and the body that are being received:
        self._target = b""
        self._unknown_method: str | None = None
        self._headers: Headers = []
        self._head_bytes = 0  # what the parser has reported of it
        self._received_bytes = 0  # since the head began
        self._framing_bytes = 0  # of a body: what came with it and is none of it
        self._body_left_bytes = 0  # of a body of known length
        self._chunks = 0
        self._is_in_head = False
        self._is_in_body = False
        self._is_stream = False  # the body may go on for as long as it moves

    # ----------------------------------------------------------------------------------------------
    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self.server
        self._transport = cast("asyncio.Transport", transport)
        self._unread = UnreadAnswers(
            self._transport, server.options, server.bodies, server.loop, self._cut_slow
        )
        server.connections.add(self)
        server.counted.opened(self)
        self._deadline.set(server.options.head_timeout_ms)

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still read the answer that is being made, behind
        which the connection ends; a request that waits has ended. True: the connection stays open.

        A client that has left looks the same until something is written.
        """
        self._is_half_closed = True
        request = self._current
        if self._is_held:
            is_answering = self._on_lost is None
        else:
            is_answering = request is not None and request.half_close()
        if is_answering:
            self.shutdown()
        return is_answering

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._unread.watch_no_more()
        self.server.connections.discard(self)
        if self._current is not None:
            self._current.leave()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost()
        self._unread.end()
        self._transport.close()
        self.server.counted.lost(self)
        # These refer to the connection. Its memory would wait for the garbage collector, and a
        # client that opens one connection after another would take hundreds of megabytes meanwhile.
        self._parser = self._current = self._arriving = None
        self._waiting.clear()
        self._behind = b""  # its request may be in progress for long
        self._count_kept(0)

    def close_idle(self) -> bool:
        if kernel_bytes(self._transport, termios.FIONREAD):
            return False
        self._deadline.clear()
        self.close()
        return True

    def shutdown(self) -> None:
        """The service stops: close the connection, at once or behind the request in progress."""
        if self._is_held:
            self._ends_held = True
        elif self._current is None:
            self.close()
        else:
            self._current.keep_alive = False

    def close(self) -> None:
        """Close it when everything that was written is sent; a client that does not take that is
        cut off.
        """
        self._transport.close()
        self._unread.watch_closing()

    def cut(self) -> None:
        """Close it at once."""
        self._unread.watch_no_more()
        self._transport.abort()

    @property
    def default_lines(self) -> list[bytes]:
        return self.server.default_lines

    def addresses(self) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
        """The service's and the client's."""
        own, peer = (
            self._transport.get_extra_info("sockname"),
            self._transport.get_extra_info("peername"),
        )
        return own and (own[0], own[1]), peer and (peer[0], peer[1])

    # ----------------------------------------------------------------------------------------------
    # reading

    def data_received(self, data: bytes) -> None:
        if self._is_held or self._behind:
            self._behind += data
            self._note_kept()
            if self._on_lost is None or len(self._behind) > self.server.options.max_head_bytes:
                self.pause_reading()  # else the end of the connection is to be seen
        elif self._current is not None or self._is_in_head or self._is_in_body:
            self._read(data)
        elif not self.server.take(self, data):
            self._first = data[:_FIRST_BYTES]
            self._read(data)
            self._first = b""

    def _read(self, data: bytes) -> None:
        """Read what has arrived, but no further than to requests that wait: as objects they take
        twenty times the memory.
        """
        at = 0
        while at < len(data):
            if self._waiting:
                self._behind = data[at:]
                break
            piece_bytes = self._piece_bytes()
            self._read_piece(data[at : at + piece_bytes])
            at += piece_bytes
        if self._waiting or self._is_in_head or self._kept_bytes:
            self._note_kept()

    def _piece_bytes(self) -> int:
        """How many of the bytes that have arrived to read next.

        A body whose length is known ends with the piece, so that no request behind it is read with
        it.
        """
        if not self._is_in_body or self._body_left_bytes <= 0:
            return _AT_ONCE_BYTES
        return min(self._body_left_bytes, _BODY_AT_ONCE_BYTES)

    def _read_behind(self) -> None:
        """Read on: no request waits."""
        behind, self._behind = self._behind, b""
        self.resume_reading()
        if behind and not self._transport.is_closing():
            self.data_received(behind)
        if self._kept_bytes:
            self._note_kept()

    def _note_kept(self) -> None:
        """Count what is kept of requests that have not begun.

        Where that is too much, a client with much of it is cut off.
        """
        head_bytes = self._received_bytes if self._is_in_head else 0
        self._count_kept(len(self._behind) + len(self._waiting) * _WAITING_BYTES + head_bytes)
        if self.server.kept_bytes > _MOST_KEPT_BYTES and self._kept_bytes > _KEPT_OF_EACH_BYTES:
            self.cut()

    def _count_kept(self, byte_count: int) -> None:
        self.server.kept_bytes += byte_count - self._kept_bytes
        self._kept_bytes = byte_count

    def _read_piece(self, data: bytes) -> None:
        was_in_head, was_in_body = self._is_in_head, self._is_in_body
        self._framing_bytes += len(data) if was_in_body else 0
        self._feed(data)
        options = self.server.options
        if (
            self._is_in_body
            and self._framing_bytes > options.max_head_bytes + _CHUNK_HEAD_BYTES * self._chunks
        ):
            self._end_reading()
        if was_in_head and self._is_in_head:  # a header that does not end is not reported either
            self._received_bytes += len(data)
            if self._received_bytes > options.max_head_bytes:
                self._end_reading()
        if self._timeout_ms is not None:
            timeout_ms, self._timeout_ms = self._timeout_ms or self._idle_ms(), None
            if timeout_ms:
                self._deadline.set(timeout_ms)
            else:
                self._deadline.clear()

    def pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _idle_ms(self) -> int:
        """Milliseconds that the connection may stay as it is, where nothing is being received."""
        return KEEP_ALIVE_MS if self._current is None else 0

    def _feed(self, data: bytes) -> None:
        newest, begins_request = self._arriving, not (self._is_in_head or self._is_in_body)
        while data:
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                # Java's client asks for HTTP/2 with every first request, and the parser would take
                # the body for that. We stay with HTTP/1.1, as RFC 9110 (7.8) allows: the request is
                # read again without the question.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._parser = _new_parser(self)
            except httptools.HttpParserInvalidMethodError:
                is_first = begins_request and self._arriving is newest
                found = _UNKNOWN_METHOD.match(data) if is_first else None
                if found is None:
                    self._end_reading()
                    return
                self._unknown_method = found[1].decode("ascii")
                data = _STAND_IN + data[found.end() :]
                self._parser = _new_parser(self)
            except httptools.HttpParserError:
                self._end_reading()
                return

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%s %s HTTP/1.1" % (self._parser.get_method(), self._target)]
        for name, value in self._headers:
            if name == b"connection":
                value = b", ".join(
                    word for word in value.split(b",") if word.strip().lower() not in _OF_AN_UPGRADE
                )
            if name not in _OF_AN_UPGRADE:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._target, self._headers = b"", []
        self._head_bytes = self._received_bytes = self._framing_bytes = self._chunks = 0
        self._is_in_head, self._is_in_body, self._body_left_bytes = True, False, 0
        self._timeout_ms = self.server.options.head_timeout_ms

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        # a trailer is ignored: a gateway in front has judged the head alone (RFC 9110, 6.5.1)
        if self._is_in_head:
            name = name.lower()
            value = value.rstrip(b" \t")  # is no part of it (RFC 9112, 5); the parser leaves it
            self._headers.append((name, value))
            if name == b"content-length" and value.isdigit():
                # `int` does not take thousands of zeros, and the parser no more than 20 digits
                self._body_left_bytes = int(value.lstrip(b"0")[:20] or b"0")

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        parser, options = self._parser, self.server.options
        method = self._unknown_method or parser.get_method().decode("ascii")
        if parser.should_upgrade():
            if method == "CONNECT":
                raise ValueError("this is no proxy")
            return
        http_version = parser.get_http_version()
        if http_version not in ("1.0", "1.1"):
            raise ValueError("this is HTTP/1")
        if http_version == "1.0" and any(name == b"transfer-encoding" for name, _ in self._headers):
            raise ValueError("HTTP/1.0 has no chunks")  # RFC 9112, 6.1
        self._take_host_of_target()
        keep_alive = http_version != "1.0" and parser.should_keep_alive()
        request = Request(
            self, method, self._target, self._headers, http_version, keep_alive=keep_alive
        )
        request.arrived_with, self._first, self._unknown_method = self._first, b"", None
        self._is_in_body = True
        self._is_stream = takes_a_stream(method, request.path)
        self._timeout_ms = options.stream_idle_ms if self._is_stream else options.body_timeout_ms
        self._arriving = request
        if self._current is None:
            self._start(request)
        else:
            self.pause_reading()
            self._waiting.append(request)

    def _take_host_of_target(self) -> None:
        """Replace the value of the one Host header by the authority of a target in absolute form
        (RFC 9112, 3.2.2).
        """
        if self._target.startswith((b"/", b"*")):
            return
        target = httptools.parse_url(self._target)
        hosts = [at for at, (name, _) in enumerate(self._headers) if name == b"host"]
        if target.host is not None and len(hosts) == 1:
            host = b"[%s]" % target.host if b":" in target.host else target.host
            self._headers[hosts[0]] = (
                b"host",
                host if target.port is None else b"%s:%d" % (host, target.port),
            )

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        self._body_left_bytes -= len(body)
        request = self._arriving
        if request is not None and not request.is_answered:
            request.feed(body)
        if self._is_stream:
            self._timeout_ms = self.server.options.stream_idle_ms

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._is_in_body = False
        self._timeout_ms = 0
        request = self._arriving
        if request is None:
            return
        # a trailer may say so: the parser takes nothing that follows
        if not self._parser.should_keep_alive():
            request.keep_alive = False
        if not request.is_answered:
            request.end()
        elif not request.keep_alive:
            self.close()

    def _count(self, length: int) -> None:
        self._head_bytes += length
        if self._head_bytes > self.server.options.max_head_bytes:
            raise ValueError("the head is too large")  # the parser makes an error of it

    def _end_reading(self) -> None:
        """Answer bytes that are not HTTP, behind the requests before them, and close."""
        newest = self._arriving
        if newest is not None and newest is not self._current and newest.has_more and self._waiting:
            # It broke off in the body of a request that still waits behind others: that one is
            # never begun.
            self._waiting.pop()
            newest = self._arriving = self._waiting[-1] if self._waiting else self._current
        if newest is not None and not newest.is_answered and not newest.has_more:
            newest.keep_alive = False
            self.pause_reading()
            return
        most = self.server.options.max_head_bytes
        is_too_large = max(self._head_bytes, self._received_bytes) > most
        detail = (
            f"the head has more than {most} bytes"
            if is_too_large
            else "the request is not HTTP/1.1"
        )
        self._refuse(Refusal("malformed_request", detail))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer outside of any request, and close."""
        self._deadline.clear()
        self._timeout_ms = None
        if self._transport.is_closing():
            return
        # else it would become a part of that answer
        if self._current is None or not self._current.has_begun:
            headers, body = refused(refusal, request_id=secrets.token_hex(8))
            head = head_of(refusal.kind.status, self.default_lines, headers)
            self._transport.write(head + body)
        self.close()

    # ----------------------------------------------------------------------------------------------
    # answering

    def _start(self, request: Request) -> None:
        self._current = request
        if self._is_half_closed:
            request.half_close()
        server = self.server
        if server.counted.serves(self, request.path):
            server.run(request, server.answer(request))
            return
        refusal = Refusal(
            "overloaded", "the limit of open connections is reached; this connection is closed"
        )
        headers, body = refused(
            refusal,
            request_id=request_id_of(headers_by_name(request.headers)),
            path=request.raw_path.decode("ascii"),
        )
        request.begin(refusal.kind.status, headers)
        request.write(body)

    def run(self, request: Request, answering: Awaitable[None]) -> None:
        """Have the request answered, which was suspended."""
        self.server.run(request, answering)

    def end_answer(self, request: Request) -> None:
        """The request is answered; the next one has its turn."""
        self._current = None
        self.server.counted.answered(self)
        if not request.keep_alive:
            self.close()
        if self._transport.is_closing():
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        elif not (self._is_in_head or self._is_in_body):
            self._deadline.set(KEEP_ALIVE_MS)
        if not self._waiting:
            self._read_behind()

    def is_served(self) -> bool:
        """May anything be asked over this connection (`Connections.serves`), whose client takes its
        answers?
        """
        return not self._unread.is_much and self.server.counted.serves(self, "")

    def hold(self, on_lost: Callable[[], None] | None = None) -> None:
        """A request has been taken, which is answered by `answer_held`; what arrives waits behind
        it.

        `on_lost`: called when the client leaves before, of a request that waits for long.
        """
        self._is_held = True
        self._on_lost = on_lost
        self._deadline.clear()

    def answer_held(self, answer: bytes) -> None:
        """Answer the request that is held; the next one has its turn."""
        self._on_lost = None
        transport = self._transport
        if transport.is_closing():
            return
        if self._ends_held:
            head, _, body = answer.partition(b"\r\n\r\n")
            transport.write(b"%b\r\nconnection: close\r\n\r\n%b" % (head, body))
            self.close()
            return
        transport.write(answer)
        self._is_held = False
        self.server.counted.answered(self)
        self._deadline.set(KEEP_ALIVE_MS)
        if self._behind:
            self._read_behind()

    def answer_now(self, answer: bytes) -> None:
        """Answer a request that is complete and was never held; the connection waits for the next
        one.
        """
        transport = self._transport
        if transport.is_closing():
            return
        transport.write(answer)
        self.server.counted.answered(self)
        self._deadline.set(KEEP_ALIVE_MS)

    def read_again(self, data: bytes) -> None:
        """Have the request that is held, of which these are the bytes, answered in the ordinary
        way.
        """
        self._is_held = False
        self._on_lost = None
        if self._transport.is_closing():
            return
        data, self._behind = data + self._behind, b""
        self.resume_reading()
        self._read(data)
        if self._ends_held and self._current is not None:
            self._current.keep_alive = False

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._unread.note_much()

    def resume_writing(self) -> None:
        self._unread.note_taken()

    def drain(self) -> Awaitable[None]:
        """Return once the client has taken enough of what was written, or has left."""
        return self._unread.drain()

    def _cut_slow(self, read_bytes: int, left_bytes: int) -> None:
        _, peer = self.addresses()
        log.warning(
            "client_reads_too_slowly",
            client=peer and peer[0],
            read_bytes=read_bytes,
            unread_bytes=left_bytes,
            within_ms=self.server.options.unread_timeout_ms,
        )
        self.server.on_slow_reader()
        self.cut()

    def _close_late(self) -> None:
        # we are late, not the client: it waits behind a request that it sent before
        if self._is_reading_paused:
            self._deadline.set(self.server.options.body_timeout_ms)
        elif not self._transport.is_closing():
            self.close()


def refused(
    refusal: Refusal, *, request_id: str, path: str | UnsetType = UNSET
) -> tuple[Headers, bytes]:
    """The headers and the body of an answer that is the last one of its connection.

    `path`: of the request; UNSET for bytes that are no request.
    """
    body = codec.encode(document(refusal, instance=path, request_id=request_id))
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
        REQUEST_ID: request_id,
    }
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()], body


def _new_parser(protocol: Connection) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    # a request behind the last one is not answered, that is all
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
