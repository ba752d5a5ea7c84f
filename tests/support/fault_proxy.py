"""A network that is not to be trusted: a TCP proxy before the service that loses, cuts, delays and
withholds what it carries.

An *exchange* is a request and its answer, one after another on a connection. For each a fault is
dealt from a shuffled deck, so that every hundred exchanges meet each fault; the counter says which
came about.
"""

import asyncio
import re
import socket
import struct
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from random import Random
from types import TracebackType

_PIECE = 1 << 16
_DELAY_SECONDS = 0.3
_ENDS_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


class Fault(StrEnum):
    NONE = "none"
    # it is done, and the client's connection is reset before a byte of the answer
    LOST_REPLY = "lost reply"
    RESET_MID_ANSWER = "reset mid answer"
    RESET_MID_REQUEST = "reset mid request"  # the service is given a part of it
    LOST_REQUEST = "lost request"  # the service is given nothing, and the client is told nothing
    BLACK_HOLE = "black hole"  # it is done, and the client is told nothing
    SLOW = "slow"  # 300 ms each way
    HALF_OPEN = "half open"  # the client is gone, and nobody tells the service
    IN_SPLINTERS = "in splinters"  # a few bytes at a time, both ways


# how many of a hundred exchanges meet it
DECK = {
    Fault.NONE: 60,
    Fault.LOST_REPLY: 8,
    Fault.RESET_MID_ANSWER: 6,
    Fault.RESET_MID_REQUEST: 6,
    Fault.LOST_REQUEST: 2,
    Fault.BLACK_HOLE: 3,
    Fault.SLOW: 5,
    Fault.HALF_OPEN: 4,
    Fault.IN_SPLINTERS: 6,
}


class _Broken(Exception):
    """The client's connection ends here."""


class FaultProxy:
    """Use as an async context manager; `port` is where clients connect.

    Half-open connections stay open until the end.
    """

    def __init__(self, target_port: int, randomness: Random) -> None:
        self._target_port = target_port
        self._random = randomness
        self._deck: list[Fault] = []
        self.counts: Counter[Fault] = Counter()
        self._left_open: list[asyncio.StreamWriter] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FaultProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, *_: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        for writer in self._left_open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the test
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            service, to_service = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return
        is_left_open = False
        try:
            while request := await _read_message(client):
                fault = self._draw()
                self.counts[fault] += 1
                is_left_open = fault in (Fault.HALF_OPEN, Fault.BLACK_HOLE)
                await self._exchange(fault, request, client, to_client, service, to_service)
        except (_Broken, ConnectionError):
            pass
        finally:
            if is_left_open:
                self._left_open.append(to_service)
            else:
                _reset(to_service)

    def _draw(self) -> Fault:
        if not self._deck:
            self._deck = list(Counter(DECK).elements())
            self._random.shuffle(self._deck)
        return self._deck.pop()

    async def _exchange(
        self,
        fault: Fault,
        request: bytes,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        service: asyncio.StreamReader,
        to_service: asyncio.StreamWriter,
    ) -> None:
        if fault is Fault.LOST_REQUEST:
            await _until_gone(client)
        if fault is Fault.RESET_MID_REQUEST:
            await _write(to_service, request[: self._random.randrange(1, len(request))])
            raise _Broken
        if fault is Fault.SLOW:
            await asyncio.sleep(_DELAY_SECONDS)
        await self._write_as(fault, to_service, request)
        answer = await _answer(client, service)
        if fault in (Fault.LOST_REPLY, Fault.HALF_OPEN):
            raise _Broken
        if fault is Fault.BLACK_HOLE:
            await _until_gone(client)
        if fault is Fault.RESET_MID_ANSWER:
            await _write(to_client, answer[: self._random.randrange(1, len(answer))])
            raise _Broken
        if fault is Fault.SLOW:
            await asyncio.sleep(_DELAY_SECONDS)
        await self._write_as(fault, to_client, answer)

    async def _write_as(self, fault: Fault, writer: asyncio.StreamWriter, data: bytes) -> None:
        if fault is not Fault.IN_SPLINTERS:
            await _write(writer, data)
            return
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = 0
        while at < len(data):
            size = self._random.randrange(1, 80)
            await _write(writer, data[at : at + size])
            await asyncio.sleep(0)
            at += size


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """A whole request or answer, with a Content-Length or without a body. Empty at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        return head if length is None else head + await reader.readexactly(int(length[1]))
    except asyncio.IncompleteReadError:
        return b""


async def _answer(client: asyncio.StreamReader, service: asyncio.StreamReader) -> bytes:
    """What the service says; it is told at once when the client has gone."""
    said, gone = (
        asyncio.ensure_future(_read_message(service)),
        asyncio.ensure_future(client.read(1)),
    )
    await asyncio.wait({said, gone}, return_when=asyncio.FIRST_COMPLETED)
    is_gone = not gone.cancel()
    if is_gone:
        said.cancel()
    await asyncio.gather(said, gone, return_exceptions=True)
    if is_gone or not (answer := said.result()):
        raise _Broken
    return answer


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _until_gone(client: asyncio.StreamReader) -> None:
    """It is told nothing, until it gives up."""
    while await client.read(_PIECE):
        pass
    raise _Broken


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _ENDS_AT_ONCE
        )
    writer.transport.abort()
