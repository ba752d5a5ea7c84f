"""C13: producers' endpoints that do everything but answer.

What they say reads like a commit all the same.
"""

import asyncio
import gzip
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from tests.support.certificates import self_signed

COMMIT = b'{"decision":"commit"}'
_MEGABYTE = 1 << 20

Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def said(
    status: str, body: bytes = COMMIT, *headers: str, content_type: str = "application/json"
) -> Behave:
    """A whole answer."""

    async def behave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            *headers,
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode() + body)

    return behave


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until whoever asked has gone


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A byte at a time, each well within any time limit of a read."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    )
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


async def endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    while True:
        writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        await writer.drain()


async def endless_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 8_000 + b"\r\n")
        await writer.drain()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """In the middle of an answer that begins well."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n" + COMMIT
    )
    await writer.drain()
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + COMMIT)


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Nothing at all."""


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(200 * _MEGABYTE), 6)


async def bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await said("200 OK", _bomb(), "Content-Encoding: gzip")(reader, writer)


BEHAVIOURS: dict[str, Behave] = {
    "hangs": hang,
    "drips": drip,
    "never ends its body": endless_body,
    "never ends its header": endless_header,
    "resets": reset,
    "speaks something else": nonsense,
    "closes": closing,
    "redirects": said("302 Found", COMMIT, "Location: /commit"),
    "redirects for ever": said("307 Temporary Redirect", COMMIT, "Location: /mq/check"),
    "is gone": said("410 Gone"),
    "is busy": said("429 Too Many Requests", COMMIT, "Retry-After: 1"),
    "is busy for ever": said("429 Too Many Requests", COMMIT, "Retry-After: 99999999999999999999"),
    "is broken": said("500 Internal Server Error"),
    "created something": said("201 Created"),
    "has no content": said("204 No Content", b""),
    "sends a bomb": bomb,
    "sends a megabyte of header": said("200 OK", COMMIT, f"X-More: {'x' * _MEGABYTE}"),
    "sends ten thousand headers": said("200 OK", COMMIT, *[f"X-{n}: {n}" for n in range(10_000)]),
    "sends a megabyte of body": said("200 OK", COMMIT + b" " * _MEGABYTE),
    "says a length that is not so": said("200 OK", COMMIT, "Content-Length: 3"),
    "says text": said("200 OK", b"commit", content_type="text/plain"),
    "says JSON as text": said("200 OK", COMMIT, content_type="text/plain"),
    "says something unknown": said("200 OK", b'{"decision":"COMMIT"}'),
    "says both": said("200 OK", b'{"decision":"rollback","decision":"commit"}'),
    "says a list": said("200 OK", b'["commit"]'),
    "says nothing": said("200 OK", b"{}"),
    "says it in UTF-16": said("200 OK", COMMIT.decode().encode("utf-16")),
    "says it ten thousand deep": said("200 OK", b"[" * 10_000 + COMMIT + b"]" * 10_000),
}


class HostileReceivers:
    """One server for each behaviour, each on an address of its own, so that each is a host of its
    own. A context manager.
    """

    def __init__(self, scratch: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.most_open: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self.urls: dict[str, str] = {}
        self.hosts: list[str] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*self_signed(scratch))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "HostileReceivers":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._servers = []
        for number, (name, behave) in enumerate(BEHAVIOURS.items()):
            await self._add(name, behave, f"127.0.1.{number + 1}", "http")
        await self._add("has a certificate of its own", said("200 OK"), "127.0.2.1", "https")
        await self._add("speaks no TLS", said("200 OK"), "127.0.2.2", "https", tls=False)

    async def _add(
        self, name: str, behave: Behave, host: str, scheme: str, *, tls: bool = True
    ) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open[name] += 1
            self.most_open[name] = max(self.most_open[name], self._open[name])
            try:
                await reader.readuntil(b"\r\n\r\n")
                self.asked[name] += 1
                await behave(reader, writer)
                await writer.drain()
            except (
                OSError,
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                asyncio.CancelledError,
            ):
                pass  # whoever asked has gone in the middle, or it is over
            finally:
                self._open[name] -= 1
                writer.close()

        context = self._tls if scheme == "https" and tls else None
        server = await asyncio.start_server(serve, host, 0, ssl=context)
        self._servers.append(server)
        self.urls[name] = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/mq/check"
        self.hosts.append(host)
