"""One slave of RocketMQ that follows this service, by the protocol of RocketMQ's own masters.

A slave sends the end of its log, 8 bytes, and again when that has moved, every five seconds at the
latest. It is sent blocks: a log offset, a length, and as many bytes; an empty one is a heartbeat.

It gives no name and no proof, and what it reports is in its page cache. So it is no copy that
counts, and it gets what is safe without it: nothing that could be cut from this log.

Source: DefaultHAConnection, DefaultHAClient of RocketMQ 5.3.3.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Final

from app.http.duplex import until_one_ends
from app.replicas.replicated_log import ReplicatedLog
from storage.clock import Clock

BLOCK_BYTES: Final = 1 << 20  # a slave takes 4 MiB at once
REPORT_BYTES: Final = 8
_HEARTBEAT_S = 5.0
_SILENCE_S = 20.0  # after which both sides give the connection up
_REPORT = struct.Struct(">q")
_BLOCK = struct.Struct(">qi")


class SlaveRefused(Exception):
    """The slave cannot follow."""


def is_report(first_bytes: bytes) -> bool:
    """Is this the log offset of a slave, and not our greeting?"""
    return len(first_bytes) == REPORT_BYTES and _REPORT.unpack(first_bytes)[0] >= 0


class SlaveSender:
    """One slave, until the end of its connection. Event loop only."""

    def __init__(self, store: ReplicatedLog, clock: Clock, *, address: str) -> None:
        """`address`: of the slave, with its port."""
        self._store = store
        self._clock = clock
        self._sent_end = 0
        self.address = address
        self.stored_end = 0  # of the slave's log, in its page cache
        self.heard_ms = clock.monotonic_ms()

    @property
    def behind_bytes(self) -> int:
        return max(0, self._store.synced_offset() - self.stored_end)

    def begin(self, first_report: bytes) -> None:
        """Go on where the log of the slave ends. Raises SlaveRefused."""
        (end,) = _REPORT.unpack(first_report)
        first, safe_end = self._store.first_offset, self._store.synced_offset()
        if 0 < end < first:
            raise SlaveRefused(
                f"its log ends at {end}, this one begins at {first}: empty its store"
            )
        if end > safe_end:
            raise SlaveRefused(
                f"its log ends at {end}, this one at {safe_end}: it is no copy of this one, empty "
                "its store"
            )
        self.stored_end = end
        # an empty slave takes any offset for its first; a master of RocketMQ sends its last file
        self._sent_end = end or first

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Return when the slave has gone. Raises SlaveRefused, OSError, TimeoutError."""
        await until_one_ends(self._send(writer), self._hear(reader))

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """Raises OSError, OffsetExpired."""
        store = self._store
        while True:
            at = self._sent_end
            data = await store.read_log(at, min(at + BLOCK_BYTES, store.synced_offset()))
            # before it is written: the slave may report it at once
            self._sent_end += len(data)
            writer.write(_BLOCK.pack(at, len(data)) + data)
            await writer.drain()
            if self._sent_end >= store.synced_offset():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT_S):
                        while self._sent_end >= store.synced_offset():
                            await store.wait_progress()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Return at the end of the connection. Raises SlaveRefused, OSError, TimeoutError."""
        while True:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    report = await reader.readexactly(REPORT_BYTES)
            except asyncio.IncompleteReadError:
                return
            (end,) = _REPORT.unpack(report)
            if not self.stored_end <= end <= self._sent_end:
                raise SlaveRefused(f"it reports {end}, and was sent the log up to {self._sent_end}")
            self.stored_end = end
            self.heard_ms = self._clock.monotonic_ms()
