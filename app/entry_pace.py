"""How slowly a client may send an entry of a stream: what has arrived of it is in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import structlog

from app.http.exchange import ClientGone
from app.observability.metrics import Metrics

log = structlog.get_logger()


class Holder(Protocol):
    """Cuts a body into entries."""

    @property
    def held_bytes(self) -> int:
        """The length of an entry whose end has not arrived, in bytes."""


class EntryPace:
    """A minimum of bytes of an entry that arrive within a period.

    Only the time counts in which the service waits for the client.
    """

    def __init__(self, period_ms: int, least_bytes: int, metrics: Metrics) -> None:
        self._period = period_ms / 1_000
        self._least_bytes = least_bytes
        self._metrics = metrics

    async def keep(self, chunks: AsyncIterator[bytes], splitter: Holder) -> AsyncIterator[bytes]:
        """The chunks of a body, which the caller gives to the splitter.

        Raises ClientGone where an entry has begun and neither ends nor goes on as fast as it has
        to: the connection is to be closed.
        """
        loop = asyncio.get_running_loop()
        left, arrived_bytes = self._period, 0
        while True:
            held_bytes, begun = splitter.held_bytes, loop.time()
            try:
                async with asyncio.timeout(left if held_bytes else None):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                log.warning(
                    "client_sends_too_slowly",
                    held_bytes=held_bytes,
                    sent_bytes=arrived_bytes,
                    within_ms=round(self._period * 1_000),
                )
                self._metrics.slow_senders.inc()
                raise ClientGone from None
            if chunk is None:
                return
            left -= loop.time() - begun
            yield chunk
            arrived_bytes += len(chunk)
            has_ended = splitter.held_bytes < held_bytes + len(chunk)  # this entry, or others
            if has_ended or not held_bytes or arrived_bytes >= self._least_bytes:
                left, arrived_bytes = self._period, 0
