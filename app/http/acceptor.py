"""Accepts connections, and stops where no more may be open: they wait in the kernel instead of
taking the store's files.

uvloop's own server accepts all that wait before any of them is counted.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

from app.http.connections import IDLE_SECONDS, Connections

_AT_ONCE = 64  # connections accepted in one turn of the loop
_RETRY_SECONDS = 1.0
_HAS_LEFT = (errno.ECONNABORTED, errno.EINTR, errno.EAGAIN, errno.EPROTO)

log = structlog.get_logger()


class Acceptor:
    """Accepts connections from `start` to `stop`. Event loop only."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        backlog: int,
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make_protocol = make_protocol
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()  # accepted, and not counted yet
        self._is_listening = False
        self._is_stopped = False
        connections.on_lost = self._resume

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(self._backlog)
        self._resume()

    def stop(self) -> None:
        self._is_stopped = True
        self._pause()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if len(self._connections) + len(self._opening) >= self._connections.most:
                self._connections.close_one()
                self._pause()  # until one is lost, or has been idle for long enough
                self._loop.call_later(IDLE_SECONDS, self._resume)
                return
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in _HAS_LEFT:
                    log.warning("not_accepted", error=str(error), open=len(self._connections))
                    self._pause()
                    self._loop.call_later(_RETRY_SECONDS, self._resume)
                return
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:  # the client has left meanwhile
            accepted.close()

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._listener)

    def _resume(self) -> None:
        if not self._is_listening and not self._is_stopped:
            self._is_listening = True
            self._loop.add_reader(self._listener, self._accept)
