"""A master of RocketMQ, as far as one that follows it sees: settings, state, records, and its log.

It runs in the event loop of the test, which changes its log as it likes.
"""

import asyncio
import json
import struct
from collections.abc import Callable
from types import TracebackType

_REPORT = struct.Struct(">q")
_BLOCK = struct.Struct(">qi")
CONFIG = {
    21: b'{"topicConfigTable":{}}',
    43: b'{"offsetTable":{}}',
    45: b'{"offsetTable":{}}',
    201: b'{"subscriptionGroupTable":{}}',
}


class ScriptedMaster:
    """Listens on two loopback ports. Use as an asynchronous context manager."""

    def __init__(self, log: bytes = b"", *, begin: int = 0, segment_bytes: int = 4_096) -> None:
        self.log = log  # from `begin` on
        self.begin = begin
        self.segment_bytes = segment_bytes
        self.block_bytes = 1_000
        self.most = 1 << 60  # it sends nothing behind this log offset
        self.settings: dict[str, str] = {}  # further ones
        self.refusals: dict[int, int] = {}  # code of a request -> of its answer
        self.reports: list[int] = []
        self.asked: list[int] = []  # codes of requests
        self.on_ask: Callable[[int], None] = lambda code: None
        self._changed = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "ScriptedMaster":
        self._remoting = await asyncio.start_server(self._answer_all, "127.0.0.1", 0)
        self._ha = await asyncio.start_server(self._send_log, "127.0.0.1", 0)
        self.port = int(self._remoting.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, *_: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        self._remoting.close()
        self._ha.close()
        self.drop_connections()

    @property
    def end(self) -> int:
        return self.begin + len(self.log)

    def append(self, data: bytes) -> None:
        self.log += data
        self._wake()

    def send_up_to(self, most: int) -> None:
        self.most = most
        self._wake()

    def drop_connections(self) -> None:
        for writer in self._connections:
            writer.close()
        self._connections.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                (total,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(total)
                (length,) = struct.unpack_from(">i", frame)
                request = json.loads(frame[4 : 4 + length])
                body = self._answer(request["code"], request["extFields"])
                refusal = self.refusals.get(request["code"], 0)
                code = 1 if body is None else refusal
                answer = {"code": code, "opaque": request["opaque"]}
                header, body = json.dumps(answer).encode(), body or b""
                writer.write(struct.pack(">ii", 4 + len(header) + len(body), len(header)))
                writer.write(header + body)
        except asyncio.IncompleteReadError:
            writer.close()

    def _answer(self, code: int, fields: dict[str, str]) -> bytes | None:
        self.asked.append(code)
        self.on_ask(code)
        if code == 26:
            settings = {
                "brokerClusterName": "cluster",
                "brokerName": "broker",
                "mappedFileSizeCommitLog": self.segment_bytes,
                "haListenPort": self._ha.sockets[0].getsockname()[1],
                **self.settings,
            }
            return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        if code == 28:
            begin = self.begin if self.log else -1
            table = {"commitLogMinOffset": str(begin), "commitLogMaxOffset": str(self.end)}
            return json.dumps({"table": table}).encode()
        if code == 33:
            at = int(fields["offset"]) - self.begin
            size = int.from_bytes(self.log[at : at + 4], "big")
            return self.log[at : at + size] if at >= 0 and size > 0 else None
        return CONFIG[code]

    async def _send_log(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            (at,) = _REPORT.unpack(await reader.readexactly(8))
            self.reports.append(at)
            hearing = asyncio.ensure_future(self._hear(reader))
            while writer in self._connections:
                changed = self._changed
                segment_end = at - at % self.segment_bytes + self.segment_bytes
                end = min(at + self.block_bytes, segment_end, self.end, self.most)
                if self.begin <= at < end:
                    data = self.log[at - self.begin : end - self.begin]
                    writer.write(_BLOCK.pack(at, len(data)) + data)
                    await writer.drain()
                    at = end
                else:
                    writer.write(_BLOCK.pack(at, 0))
                    await changed.wait()
            hearing.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        while report := await reader.read(8):
            self.reports.append(*_REPORT.unpack(report))
