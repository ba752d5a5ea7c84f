"""A connection to a broker of RocketMQ."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Connection:
    """Use as an asynchronous context manager."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        """`timeout_s`: of the connection."""
        self._host, self._port = host, port
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        """Raises OSError, TimeoutError."""
        async with asyncio.timeout(self._timeout_s):
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self, *_: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
