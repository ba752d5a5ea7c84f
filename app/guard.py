"""uvicorn's HTTP protocol with what it lacks: deadlines, a limit for the head, problem documents for what is no HTTP.

A silent or dribbling client must not hold a connection, nor one that does not read its answer; a head must not grow without
end, and whoever speaks something else is told so in the same form as by any route.
"""

import asyncio
import fcntl
import secrets
import sys
import termios
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app import codec
from app.connections import Connections
from app.exchange import IS_GONE, takes_a_stream
from app.problems import MEDIA_TYPE, Refusal, document
from app.settings import HttpOptions
from app.testing.options import CUT

_CHUNK_HEAD_BYTES = 32  # a size and the ends of lines; what chunk extensions and trailers may take is the limit of the head
_OF_AN_UPGRADE = (b"upgrade", b"http2-settings")


def guarded(options: HttpOptions, *, connections: Connections | None = None, can_cut: bool = False) -> type[asyncio.Protocol]:
    """The protocol class for these limits. `can_cut`: a request may cut its connection, with the extension `CUT`."""
    open_ones = Connections(options.connection_limit, reserved=0) if connections is None else connections

    class GuardedProtocol(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _head_bytes = 0  # what the parser has reported of it
        _received_bytes = 0  # since the head began
        _is_in_head = False
        _is_in_body = False
        _framing_bytes = 0  # of a body: what came with it and is none of it
        _chunks = 0
        _is_stream = False  # the body that is being received may go on for as long as it moves
        _unread: asyncio.TimerHandle | None = None
        _running: RequestResponseCycle | None = None  # the request that is being answered; later ones wait behind it

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            open_ones.opened(self)
            self._expect_within(options.head_timeout_ms)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            self._watch_no_more()
            # uvicorn tells the newest request that its client has left, which may be one that still waits behind this.
            if self._running is not None and not self._running.response_complete:
                self._running.disconnected = True
                self._running.message_event.set()
            super().connection_lost(exc)
            open_ones.lost(self)

        def close_idle(self) -> bool:
            if _unread_bytes(self.transport):
                return False
            self._expect_nothing()
            self.transport.close()
            return True

        def on_response_complete(self) -> None:
            open_ones.answered(self)
            super().on_response_complete()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
            self._running = cycle
            extensions: dict[str, Any] = {IS_GONE: lambda: cycle.disconnected}
            if can_cut:
                extensions[CUT] = cycle.transport.abort
            cycle.scope["extensions"] = extensions
            cycle.transport = cast("asyncio.Transport", _AnswerAtOnce(cycle))
            is_served = open_ones.serves(self, cycle.scope["path"])
            super()._start_asgi_task(cycle, app if is_served else _no_connection_left)

        def data_received(self, data: bytes) -> None:
            was_in_head, was_in_body = self._is_in_head, self._is_in_body
            self._framing_bytes += len(data) if was_in_body else 0
            self._unset_keepalive_if_required()
            self._feed(data)
            if self._is_in_body and self._framing_bytes > options.max_head_bytes + _CHUNK_HEAD_BYTES * self._chunks:
                self.send_400_response("")
            if was_in_head and self._is_in_head:  # a header that does not end is not reported either
                self._received_bytes += len(data)
                if self._received_bytes > options.max_head_bytes:
                    self.send_400_response("")

        def _feed(self, data: bytes) -> None:
            while data:
                try:
                    self.parser.feed_data(data)
                    data = b""
                except httptools.HttpParserUpgrade as upgrade:
                    # Java's client asks for HTTP/2 with every first request, and the parser would take the body for that. We
                    # stay with HTTP/1.1, as RFC 9110 (7.8) allows: the request is read again without the question.
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
                    self.parser = _new_parser(self)
                except httptools.HttpParserError:
                    self.send_400_response("")
                    return

        def _head_without_upgrade(self) -> bytes:
            lines = [b"%s %s HTTP/1.1" % (self.scope["method"].encode(), self.url)]
            for name, value in self.headers:
                if name == b"connection":
                    value = b", ".join(word for word in value.split(b",") if word.strip().lower() not in _OF_AN_UPGRADE)
                if name not in _OF_AN_UPGRADE:
                    lines.append(b"%s: %s" % (name, value))
            return b"\r\n".join([*lines, b"", b""])

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head_bytes = self._received_bytes = self._framing_bytes = self._chunks = 0
            self._is_in_head, self._is_in_body = True, False
            self._expect_within(options.head_timeout_ms)

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + len(": \r\n"))
            if not self._is_in_head:
                return  # a trailer: a gateway in front has judged the head alone (RFC 9110, 6.5.1)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            if self.parser.should_upgrade():
                self.scope["method"] = self.parser.get_method().decode("ascii")
                if self.scope["method"] == "CONNECT":
                    raise ValueError("this is no proxy")
                return
            if self.parser.get_http_version() == "1.0" and any(name == b"transfer-encoding" for name, _ in self.headers):
                raise ValueError("HTTP/1.0 has no chunks")  # RFC 9112, 6.1
            self._take_host_of_target()
            super().on_headers_complete()
            self._is_in_body = True
            self._is_stream = takes_a_stream(self.scope["method"], self.scope["path"])
            self._expect_within(options.stream_idle_ms if self._is_stream else options.body_timeout_ms)

        def _take_host_of_target(self) -> None:
            """Replace the value of the one Host header by the authority of a target in absolute form (RFC 9112, 3.2.2)."""
            if self.url.startswith((b"/", b"*")):
                return
            target = httptools.parse_url(self.url)
            hosts = [at for at, (name, _) in enumerate(self.headers) if name == b"host"]
            if target.host is not None and len(hosts) == 1:
                host = b"[%s]" % target.host if b":" in target.host else target.host
                self.headers[hosts[0]] = (b"host", host if target.port is None else b"%s:%d" % (host, target.port))

        def on_chunk_header(self) -> None:
            self._chunks += 1

        def on_body(self, body: bytes) -> None:
            self._framing_bytes -= len(body)
            super().on_body(body)
            if self._is_stream:
                self._expect_within(options.stream_idle_ms)

        def on_message_complete(self) -> None:
            if self.parser.should_upgrade():
                return
            self._is_in_body = False
            self._expect_nothing()
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if self._running is not None and self.cycle is not self._running and self.cycle.more_body:
                # It broke off in the body of a request that still waits behind others: that one is never begun.
                self.pipeline.popleft()
                self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
                # What came before is answered first, and is the last on this connection.
                self.cycle.keep_alive = False
                self.flow.pause_reading()
                return
            too_large = max(self._head_bytes, self._received_bytes) > options.max_head_bytes
            detail = f"the head has more than {options.max_head_bytes} bytes" if too_large else "the request is not HTTP/1.1"
            self._refuse(Refusal("malformed_request", detail))

        def _count(self, length: int) -> None:
            self._head_bytes += length
            if self._head_bytes > options.max_head_bytes:
                raise ValueError("the head is too large")  # the parser makes a 400 of it

        def _refuse(self, refusal: Refusal) -> None:
            """Answer outside of any request, and close."""
            self._expect_nothing()
            if self.transport is None or self.transport.is_closing():
                return
            body = codec.encode(document(refusal, request_id=secrets.token_hex(8)))
            headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), "connection": "close", **refusal.headers}
            lines = [f"{name.lower()}: {value}\r\n".encode() for name, value in headers.items()]
            self.transport.write(b"".join([STATUS_LINE[refusal.kind.status], *lines, b"\r\n", body]))
            self.transport.close()

        def _expect_within(self, timeout_ms: int) -> None:
            self._expect_nothing()
            self._deadline = self.loop.call_later(timeout_ms / 1000, self._close_late, timeout_ms)

        def _expect_nothing(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch(self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            self._watch_no_more()
            super().resume_writing()

        def _watch(self, unread_bytes: int) -> None:
            self._watch_no_more()
            self._unread = self.loop.call_later(options.unread_timeout_ms / 1000, self._cut_unread, unread_bytes)

        def _watch_no_more(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _cut_unread(self, unread_bytes: int) -> None:
            """A slow reader is one thing, a client that takes nothing another: its answer would lie here for ever."""
            left_bytes = self.transport.get_write_buffer_size()
            if left_bytes < unread_bytes:
                self._watch(left_bytes)
            else:
                self.transport.abort()

        def _close_late(self, timeout_ms: int) -> None:
            if self.flow.read_paused:  # we are late, not the client: it waits behind a request that it sent before
                self._expect_within(timeout_ms)
            elif not self.transport.is_closing():
                self.transport.close()

    return GuardedProtocol


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has of what the client sent."""
    return int.from_bytes(fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


async def _no_connection_left(_: Scope, __: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer 503: as many connections are open as may be, and what is left is for probes and operators."""
    refusal = Refusal("overloaded", "as many connections are open as may be; this one is closed")
    body = codec.encode(document(refusal, request_id=secrets.token_hex(8)))
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), "connection": "close", **refusal.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.kind.status, "headers": pairs, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class _AnswerAtOnce:
    """What an answer is written to: its head waits for its body, so that they go out in one call and one packet.

    Only where the body is announced by its length, which is written as soon as it is there; a stream's head goes first.
    """

    __slots__ = ("_cycle", "_has_begun", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self._has_begun = False

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if self._head:
            data, self._head = self._head + data, b""
        elif cycle.response_started and not self._has_begun:
            self._has_begun = True
            if cycle.chunked_encoding is False and cycle.expected_content_length and cycle.scope["method"] != "HEAD":
                self._head = data
                return
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()


def _new_parser(protocol: HttpToolsProtocol) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
    return parser
