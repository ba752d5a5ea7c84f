"""The log of a master of RocketMQ, as its slaves get it.

A slave sends the end of its log, 8 bytes, at first and again and again. The master sends blocks
from there on: a log offset, a length, and as many bytes; an empty one is a heartbeat. Of an offset
that it does not have it says nothing, and any report is true to it.

Source: DefaultHAConnection of RocketMQ 5.3.3.
"""

import asyncio
import struct
from typing import NamedTuple

from app.rocketmq.connection import Connection

# a master's setting haTransferBatchSize, 32 KiB unless set
_MAX_BLOCK_BYTES = 1 << 26
_SILENCE_S = 20.0  # after which both sides give the connection up
_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")


class BadBlock(Exception):
    """The bytes are not a block of a log, or do not join the previous block."""


class Block(NamedTuple):
    """Bytes of the log from this log offset on; none: a heartbeat."""

    offset: int
    data: bytes


class LogStream(Connection):
    """A connection to a master."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        super().__init__(host, port, timeout_s=timeout_s)
        self._header: tuple[int, int] | None = None  # of a block that is not here yet
        self._heard_s = asyncio.get_running_loop().time()

    def report(self, end: int) -> None:
        """Report that the log is here up to this offset; the first time, where it continues."""
        self._writer.write(_REPORT.pack(end))

    async def block(self, *, wait_s: float) -> Block | None:
        """The next block; None where none has come within this time.

        Raises BadBlock, OSError, EOFError, TimeoutError.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(wait_s):
                block = await self._read()
        except TimeoutError:
            if loop.time() - self._heard_s > _SILENCE_S:
                raise TimeoutError(f"the master was silent for {_SILENCE_S:.0f} s") from None
            return None
        self._heard_s = loop.time()
        return block

    async def _read(self) -> Block:
        """Safe to be cancelled: nothing that has come is lost."""
        if self._header is None:
            self._header = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
        offset, size = self._header
        if offset < 0 or not 0 <= size <= _MAX_BLOCK_BYTES:
            raise BadBlock(f"a block of {size} bytes at {offset}")
        data = await self._reader.readexactly(size)
        self._header = None
        return Block(offset, data)
