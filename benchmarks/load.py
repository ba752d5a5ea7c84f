"""A small, quick HTTP client for load: keep-alive connections that each send the next request when the answer is there.

Runs in a process of its own, on a core of its own, so that it does not compete with the service it measures.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from time import perf_counter
from typing import NamedTuple

import uvloop

SERVER_CORE = 0
CLIENT_CORE = 1


class Load(NamedTuple):
    """What a run saw: requests answered with the expected status, seconds, and latencies in seconds, sorted."""

    count: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


Plan = Callable[[int], Iterator[bytes]]
"""Requests of one connection, by its number; what an answer says is sent back into the iterator (its body)."""


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], end: float, latencies: list[float], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._end = end
        self._latencies = latencies
        self._done = done
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        at = head.index(b"content-length: ") + 16
        length = int(head[at : head.find(b"\r\n", at) if head.find(b"\r\n", at) > 0 else None])
        body = self._buffer[head_end + 4 :]
        if len(body) < length:
            return
        if not head.startswith(b"http/1.1 2"):
            self._done.set_exception(RuntimeError(f"{head!r} {body[:500]!r}"))
            return
        now = perf_counter()
        self._latencies.append(now - self._sent)
        self._buffer = b""
        if now < self._end:
            self._send(body)
        else:
            self._transport.close()
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the service closed the connection"))

    def _send(self, body: bytes | None) -> None:
        request = self._requests.send(body)  # type: ignore[attr-defined]
        self._sent = perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    elif method != "GET":
        head += "Content-Length: 0\r\n"
    return head.encode() + b"\r\n" + body


def run_load(port: int, plan: Plan, *, connections: int, seconds: float) -> Load:
    """So many connections for so long, after half a second that does not count."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        os.sched_setaffinity(0, {CLIENT_CORE % (os.cpu_count() or 1)})
        uvloop.run(drive(port, plan, connections, 0.5))
        sender.send(uvloop.run(drive(port, plan, connections, seconds)))

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


async def drive(port: int, plan: Plan, connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    begun = perf_counter()
    ends = []
    for number in range(connections):
        done = loop.create_future()
        ends.append(done)
        connection = _Connection(plan(number), begun + seconds, latencies, done)
        await loop.create_connection(partial(_itself, connection), "127.0.0.1", port)
    await asyncio.gather(*ends)
    taken = perf_counter() - begun
    return Load(len(latencies), taken, sorted(latencies))


def _itself(connection: _Connection) -> _Connection:
    return connection
