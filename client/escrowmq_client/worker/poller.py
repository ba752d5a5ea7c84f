"""A client whose call another thread can end: for receives that wait for messages."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

from escrowmq_client.client import Client
from escrowmq_client.errors import Unreachable

_LONGEST_WAIT_MS = 1_000  # over connections that cannot be shut down
_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")


class Poller(Client):
    """Calls of one thread, with the settings of a client, until `cut`.

    The calls have a connection of their own, which `cut` shuts down: the service leases nothing to
    a client that is gone. The sockets of an `httpx.Client` of the caller are not known, so a call
    through it waits a second at most.
    """

    def __init__(self, client: Client) -> None:
        self._connection = client._connection
        self._retry = client._retry
        self._hooks = client._hooks
        self._is_own = client._is_own
        self._http = httpx.Client() if client._is_own else client._http
        self._is_cut = threading.Event()
        self._guard = threading.RLock()  # a signal handler may cut inside of it
        self._socket: socket.socket | None = None

    def longest_wait_ms(self, wait_ms: int) -> int:
        """Return how long a call may wait if it is to wait for so long."""
        return wait_ms if self._is_own else min(wait_ms, _LONGEST_WAIT_MS)

    def cut(self) -> None:
        """End the call at once, from any thread or signal handler, and refuse later ones."""
        with self._guard:
            self._is_cut.set()
            self._shut_down()

    def _request(self, request: Mapping[str, Any]) -> httpx.Response:
        if self._is_cut.is_set():
            raise _stopped()
        return self._http.request(**request, extensions={"trace": self._trace})

    def _pause(self, wait_ms: float) -> None:
        if self._is_cut.wait(wait_ms / 1_000):
            raise _stopped()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection; httpcore calls this."""
        if not self._is_own or not event.endswith(_CONNECTED):
            return
        with self._guard:
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_cut.is_set():
                self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is closed already
                # Not that of an SSLSocket, which takes the session from the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _stopped() -> Unreachable:
    return Unreachable("the worker was stopped", outcome_unknown=False)
