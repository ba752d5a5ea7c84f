"""A network that is none: what was connected to, what was written there, and what is answered."""

import asyncio
import socket
import ssl
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.certificates import self_signed

NAMES = ("shop.example", "shop.internal", "localhost", "93.184.215.14")


class Wire:
    """Gives sockets that lead to an endpoint in this process: no test that uses them reaches
    beyond it.
    """

    def __init__(self, *answers: bytes, refusing: Iterable[str] = (), keeps: bool = False) -> None:
        """`answers`: of each request, the last one again and again. `keeps`: the endpoint leaves
        the connection open.
        """
        self.answers = list(answers)
        self.refusing = set(refusing)  # addresses that refuse connections
        self.keeps = keeps
        self.hangs_up = 0  # on so many requests, instead of an answer
        self.transports: list[asyncio.Transport] = []  # the endpoint's ends
        self.connected: list[tuple[str, int]] = []
        self.server_names: list[str | None] = []
        self.written: list[bytes] = []
        self.open = 0  # connections
        self._changed = asyncio.Event()
        self.trusted, self._own_tls = _contexts()
        self._own_tls.sni_callback = lambda _socket, name, _context: self.server_names.append(name)

    async def until_open(self, count: int) -> None:
        """Until so many connections are open."""
        async with asyncio.timeout(20):
            while self.open != count:
                self._changed.clear()
                await self._changed.wait()

    def count_open(self, change: int) -> None:
        self.open += change
        self._changed.set()

    def make_socket(self, address: Any) -> socket.socket:
        return _Socket(self)

    def connect(self, ours: socket.socket, address: tuple[str, int]) -> None:
        host, port = address[:2]
        self.connected.append((host, port))
        if host in self.refusing:
            ours.close()
            raise ConnectionRefusedError("no endpoint listens there")
        ours.setblocking(False)
        asyncio.get_running_loop().create_task(self._serve(ours, port in (443, 8443)))

    async def _serve(self, ours: socket.socket, is_tls: bool) -> None:
        with suppress(OSError):  # the client did not trust the certificate
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Endpoint(self), ours, ssl=self._own_tls if is_tls else None
            )


class _Socket(socket.socket):
    """One end of a pair, which believes that it connects to an address."""

    def __init__(self, wire: Wire) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, fileno=theirs.detach())
        self._wire, self._ours = wire, ours

    def connect(self, address: Any) -> None:
        self._wire.connect(self._ours, address)


class _Endpoint(asyncio.Protocol):
    """Answers each request once it has come whole."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._wire.transports.append(transport)
        self._wire.count_open(1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.count_open(-1)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, rest = self._read.partition(b"\r\n\r\n")
        if not end or len(rest) < _length(head):
            return
        if self._wire.hangs_up:
            self._wire.hangs_up -= 1
            self._transport.close()
            return
        written = self._wire.written
        written.append(self._read)
        self._read = b""
        answers = self._wire.answers
        self._transport.write(answers[min(len(written), len(answers)) - 1])
        if not self._wire.keeps:
            self._transport.close()


def _length(head: bytes) -> int:
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return int(lines.get(b"content-length", b"0"))


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(of a client that trusts the endpoint, of the endpoint)."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = self_signed(Path(folder), names=NAMES)
        client = ssl.create_default_context(cafile=str(certificate))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key)
    return client, server
