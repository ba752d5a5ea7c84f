"""The same requests asked in both ways: of the server's own lane, and of the ASGI application, each
with a store of its own.

Nothing goes over a network: a connection is given bytes, and what it writes is kept. Ids, times and
other things that differ each time are replaced by their place among those that one way has shown,
so that equal answers are equal texts.
"""

import asyncio
import gzip
import re
import weakref
from collections.abc import Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httptools

from app.http.access import KeyOptions
from app.http.connections import Connections
from app.life.service_life import Phase
from app.main import create_app, http_server
from app.server import asgi
from app.server.connection import Connection, HotTake, HttpServer
from app.services import Services
from app.settings import HttpOptions, Settings
from storage.local.options import FlushPolicy, LocalStoreOptions
from tests.support.http import reached

_MADE_UP = re.compile(
    r"\b[a-z]+_[-\w]{24,}|\b\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=request-id: "
    r")[0-9a-f]{16}|(?<=_id\":\")[0-9a-f]{16}"
    r"|(?<=log_offset\":)\d+"  # it depends on how many appends become one unit
    r"|(?<=durability\":\")(?:synced|buffered)"  # and this on when the log was synced last
    r"|(?<=checking\":)(?:true|false)"  # a slow run comes to the first check
)
_REFERENCE = re.compile(rb"<(\w+) (-?\d+)>")
_LENGTH = re.compile(rb"content-length: \d+")
_LENGTH_TEXT = re.compile(r"(?<=content-length: )\d+")
_ANSWER_SECONDS = 60


class _Wire(asyncio.Transport):
    """Keeps what is written, and tells when an answer is complete."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8080), "peername": ("127.0.0.1", 40_000)})
        self.written = b""
        self.answered = asyncio.Event()
        self._is_closing = False
        self._has_body = True
        self._parser = httptools.HttpResponseParser(self)

    def expect(self, *, has_body: bool) -> None:
        """Wait for one more answer."""
        self.written = b""
        self.answered.clear()
        self._has_body = has_body
        self._parser = httptools.HttpResponseParser(self)

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        self._parser.feed_data(bytes(data))

    def on_headers_complete(self) -> None:
        if not self._has_body:
            self.answered.set()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != HTTPStatus.CONTINUE:
            self.answered.set()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        self.answered.set()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Way:
    """A service in this process; use as an async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        is_direct: bool,
        api_keys: Sequence[str] = (),
        scoped_keys: Sequence[KeyOptions] = (),
        max_queued_bytes: int = 64 << 20,
        flush: FlushPolicy = FlushPolicy.INTERVAL,
        segment_bytes: int = 1 << 24,
    ) -> None:
        local = LocalStoreOptions(
            flush=flush, segment_bytes=segment_bytes, max_queued_bytes=max_queued_bytes
        )
        settings = Settings(
            data_dir=directory,
            api_keys=tuple(api_keys),
            scoped_keys=tuple(scoped_keys),
            dev=True,
            local=local,
            http=HttpOptions(max_waiting=8),
        )
        self._app = create_app(settings)
        self._is_direct = is_direct
        self.taken = 0  # requests, by hot operations
        self.taken_reads = 0  # of these, those that were answered at once
        self._take_plain: HotTake = lambda connection, data: False
        self._stack = AsyncExitStack()
        self._server: HttpServer | None = None
        self._kept: dict[int, tuple[Connection, _Wire]] = {}
        self._seen: dict[str, list[str]] = {}  # what was made up, by its kind

    async def __aenter__(self) -> "Way":
        await self._stack.enter_async_context(self._app.router.lifespan_context(self._app))
        if self._is_direct:
            self._server = http_server(self._app)
            self._take_plain, self._server.take = self._server.take, self._take
        else:
            self._server = HttpServer(
                HttpOptions(), Connections(64), lambda request: asgi.answer(self._app, request)
            )
        lifecycle = self._app.state.lifecycle
        await reached(lambda: lifecycle.phase is Phase.READY, "the service is ready")
        return self

    @property
    def services(self) -> Services:
        services: Services = self._app.state.lifecycle.get_services()
        return services

    def _take(self, connection: Connection, data: bytes) -> bool:
        is_taken = self._take_plain(connection, data)
        self.taken += is_taken
        self.taken_reads += is_taken and data.startswith(b"GET ")
        return is_taken

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def ask(self, request: bytes, *, connection: int = 0, pieces: int = 1) -> bytes:
        """What is written in answer to a request on one of the connections, of which each waits for
        its answers.
        """
        assert self._server is not None
        protocol, wire = self._kept.get(connection, (None, None))
        if protocol is None or wire is None or wire.is_closing():
            protocol, wire = self._server.connect(), _Wire()
            self._kept[connection] = protocol, wire
            protocol.connection_made(wire)
        wire.expect(has_body=not request.startswith(b"HEAD"))
        size = -(-len(request) // pieces)
        for at in range(0, len(request), size):
            protocol.data_received(request[at : at + size])
        async with asyncio.timeout(_ANSWER_SECONDS):
            await wire.answered.wait()
        if wire.is_closing():
            protocol.connection_lost(None)
            del self._kept[connection]
        return wire.written

    async def ask_and_leave(
        self, request: bytes, *, turns: int = 0, is_answered: bool = False
    ) -> "weakref.ref[Connection]":
        """A request on a connection of its own, whose client leaves after so many turns of the
        loop, or when it is answered.
        """
        assert self._server is not None
        protocol, wire = self._server.connect(), _Wire()
        protocol.connection_made(wire)
        protocol.data_received(request)
        for _ in range(turns):
            await asyncio.sleep(0)
        if is_answered:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await wire.answered.wait()
        protocol.connection_lost(None)
        return weakref.ref(protocol)

    def pause_writing(self, connection: int = 0) -> None:
        """The client of this connection takes nothing for now."""
        self._kept[connection][0].pause_writing()

    def resume_writing(self, connection: int = 0) -> None:
        self._kept[connection][0].resume_writing()

    async def ask_all(self, requests: Sequence[bytes], *, pieces: int = 1) -> list[str]:
        """The answers to requests that arrive together, each on a connection of its own, without
        what was made up.

        `<kind n>` in a request stands for the n-th thing of this kind that was shown before, `<kind
        -1>` for the last one.
        """
        asked = [self._with_references(one) for one in requests]
        asking = (
            self.ask(one, connection=number, pieces=pieces) for number, one in enumerate(asked)
        )
        return [self._plain(answer) for answer in await asyncio.gather(*asking)]

    def metric(self, name: str, **labels: str) -> float:
        """The value of one of the service's metrics; 0 where it was never counted."""
        return self._app.state.metrics.registry.get_sample_value(name, labels) or 0.0

    def _with_references(self, request: bytes) -> bytes:
        head, end, body = _REFERENCE.sub(self._named, request).partition(b"\r\n\r\n")
        length = len(request.partition(b"\r\n\r\n")[2])
        return (
            head.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % len(body))
            + end
            + body
        )

    def _named(self, reference: re.Match[bytes]) -> bytes:
        kind, number = reference[1].decode(), int(reference[2])
        seen = self._seen.get(kind, [])
        return seen[number % len(seen)].encode() if seen else kind.encode() + b"_none"

    def _plain(self, answer: bytes) -> str:
        text = _MADE_UP.sub(self._place, _inflated(answer).decode("latin-1"))
        # With the digits of a log offset the length differs, and with a check; the parser has
        # checked it.
        return (
            _LENGTH_TEXT.sub("made up", text)
            if "log_offset" in text or '"checking"' in text
            else text
        )

    def _place(self, found: re.Match[str]) -> str:
        text = found[0]
        if not text[0].isalpha() or "_" not in text:
            return "made up"
        kind = text.partition("_")[0]
        seen = self._seen.setdefault(kind, [])
        if text not in seen[-200:]:
            seen.append(text)
        return f"{kind} {len(seen) - 1 - seen[::-1].index(text)}"


def _inflated(answer: bytes) -> bytes:
    """The answer with its body as it was before gzip, whose length depends on what was made up."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if b"\r\ncontent-encoding: gzip" not in head or not body:
        return answer
    if b"\r\ntransfer-encoding: chunked" in head:
        body = _unchunked(body)
    return _LENGTH.sub(b"content-length: made up", head) + end + gzip.decompress(body)


def _unchunked(body: bytes) -> bytes:
    """The bytes of all chunks, of which large answers have several."""
    chunks = []
    while True:
        digits, _, body = body.partition(b"\r\n")
        size = int(digits, 16)
        if not size:
            return b"".join(chunks)
        chunks.append(body[:size])
        body = body[size + 2 :]
