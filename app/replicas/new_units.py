"""Sends new units to a replica that has all earlier ones, as they are written: the disks of both
machines then sync them at the same time.
"""

import asyncio

from app.replicas import frames
from app.replicas.frames import Data
from app.replicas.replicated_log import ReplicatedLog

_MOST_BYTES = 1 << 18  # of a frame, and of what the connection has not taken yet
# how long a new safe end waits for units to go with; readers of the replica wait for it, no sender
_SAFE_PAUSE_S = 0.005


class NewUnits:
    """Sends the log from `sent_end` on. Event loop only."""

    def __init__(
        self,
        store: ReplicatedLog,
        writer: asyncio.StreamWriter,
        sent_end: int,
        *,
        sent_safe_end: int,
    ) -> None:
        self._store = store
        self._writer = writer
        self.sent_end = sent_end
        self._sent_safe_end = sent_safe_end
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._safe_timer: asyncio.TimerHandle | None = None

    async def send(self, most_s: float) -> None:
        """Send for so long, or until the log or the connection must be waited for."""
        timer = asyncio.get_running_loop().call_later(most_s, self._end)
        self._store.watch(self._moved)
        try:
            self._moved()
            await self._over
        finally:
            self._store.end_watch(self._moved)
            timer.cancel()
            if self._safe_timer is not None:
                self._safe_timer.cancel()

    def _moved(self) -> None:
        """The log has more, or more of it is safe."""
        if self._over.done() or self._writer.is_closing():
            return
        begin, end = self.sent_end, self._store.copyable_end()
        if begin < end:
            data = self._store.read_log_now(begin, min(end, begin + _MOST_BYTES))
            if data:
                self._write(data)
            if self.sent_end < end or self._is_slow():
                self._end()
        elif self._safe_timer is None and self._has_more_safe():
            loop = asyncio.get_running_loop()
            self._safe_timer = loop.call_later(_SAFE_PAUSE_S, self._send_safe_end)

    def _is_slow(self) -> bool:
        return self._writer.transport.get_write_buffer_size() > _MOST_BYTES

    def _has_more_safe(self) -> bool:
        return self._store.synced_offset() > self._sent_safe_end

    def _send_safe_end(self) -> None:
        self._safe_timer = None
        if self._has_more_safe() and not self._writer.is_closing():
            self._write(b"")

    def _write(self, data: bytes) -> None:
        self._sent_safe_end = self._store.synced_offset()
        frame = Data(self.sent_end, self._sent_safe_end, self._store.first_offset, data)
        self._writer.write(frames.encode_data(frame))
        self.sent_end += len(data)

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
