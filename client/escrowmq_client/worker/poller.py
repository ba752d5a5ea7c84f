"""Clients whose call can be ended from outside: for receives that wait for messages.

`finish` closes the client's side of the connection. A service that waits closes its side then, and
has leased nothing; one that is answering sends the answer, so that no lease is lost. `cut` closes
both sides: what is leased meanwhile comes again when its lease ends.

The connections are the poller's own, and end with their client. Those of an `httpx.Client` of the
caller are not known, so that a call over them waits a second at most, and comes to its end.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from escrowmq_client.async_client import AsyncClient
from escrowmq_client.call import Call
from escrowmq_client.client import Client
from escrowmq_client.errors import ClientClosed, EscrowMQError, Unreachable
from escrowmq_client.worker.outage import Outage

T = TypeVar("T")

_LONGEST_WAIT_MS = 1_000  # over connections that cannot be shut down
_CONNECTING = (".connect_tcp.started", ".connect_unix_socket.started")
_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")


class Poller(Client):
    """Calls with the settings of a client, until `finish` or `cut`.

    All may be called from any thread, the two not in a signal handler; later calls are refused.
    """

    def __init__(self, client: Client, outage: Outage | None = None) -> None:
        """`outage`: notes what the service answers to."""
        self._outage = outage
        self._connection = client._connection
        self._retry = client._retry
        self._hooks = client._hooks
        self._is_own = client._is_own
        self._pool = client._pool.branch()
        self._is_finished = False

    def longest_wait_ms(self, wait_ms: int) -> int:
        """Return how long a call may wait if it is to wait for so long."""
        return wait_ms if self._is_own else min(wait_ms, _LONGEST_WAIT_MS)

    def finish(self) -> None:
        """Have calls return what the service is answering, or fail at once."""
        self._is_finished = True
        self._pool.shut_down(socket.SHUT_WR)

    def cut(self) -> None:
        """Have calls fail at once."""
        self._is_finished = True
        self._pool.shut_down(socket.SHUT_RDWR)

    def _try(self, request: Mapping[str, Any], call: Call[T]) -> T:
        outage = self._outage
        try:
            result = super()._try(request, call)
        except EscrowMQError as error:
            if outage is not None and not self._is_finished:
                outage.failed(error)
            raise
        if outage is not None:
            outage.answered()
        return result

    def _request(self, request: Mapping[str, Any]) -> httpx.Response:
        if self._is_finished:
            raise _stopped()
        try:
            return super()._request(request)
        except ClientClosed:
            if self._is_finished:
                raise _stopped() from None
            raise

    def _pause(self, wait_ms: float) -> None:
        try:
            super()._pause(wait_ms)
        except ClientClosed:
            if self._is_finished:
                raise _stopped() from None
            raise


class AsyncPoller(AsyncClient):
    """Calls of one task, with the settings of a client, until `finish`.

    A task is cut by cancelling it.
    """

    def __init__(self, client: AsyncClient, outage: Outage) -> None:
        self._outage = outage
        self._connection = client._connection
        self._retry = client._retry
        self._hooks = client._hooks
        self._is_own = client._is_own
        self._pool = client._pool.branch()
        self._is_finished = False
        self._is_calling = False
        self._socket: Any = None  # that of a transport, which has less than a `socket.socket`

    def longest_wait_ms(self, wait_ms: int) -> int:
        """Return how long a call may wait if it is to wait for so long."""
        return wait_ms if self._is_own else min(wait_ms, _LONGEST_WAIT_MS)

    def finish(self) -> None:
        """Have the call return what the service is answering, or fail at once."""
        self._is_finished = True
        self._pool.end_pauses()
        # The number of a socket between calls may be that of another connection by now.
        if self._is_calling:
            self._shut_down(socket.SHUT_WR)

    async def _try(self, request: Mapping[str, Any], call: Call[T]) -> T:
        try:
            result = await super()._try(request, call)
        except EscrowMQError as error:
            if not self._is_finished:
                self._outage.failed(error)
            raise
        self._outage.answered()
        return result

    async def _request(self, request: Mapping[str, Any]) -> httpx.Response:
        if self._is_finished:
            raise _stopped()
        self._is_calling = True
        try:
            return await super()._request({**request, "extensions": {"trace": self._trace}})
        except ClientClosed:
            if self._is_finished:
                raise _stopped() from None
            raise
        finally:
            self._is_calling = False

    async def _pause(self, wait_ms: float) -> None:
        if self._is_finished:
            raise _stopped()
        try:
            await super()._pause(wait_ms)
        except ClientClosed:
            if self._is_finished:
                raise _stopped() from None
            raise

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection; httpcore calls this."""
        if not self._is_own:
            return
        if event.endswith(_CONNECTING):
            self._socket = None
        elif event.endswith(_CONNECTED):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_finished:
                self._shut_down(socket.SHUT_RDWR)

    def _shut_down(self, how: int) -> None:
        if self._socket is not None:
            own = self._socket
            with suppress(OSError), socket.fromfd(own.fileno(), own.family, own.type) as copy:
                copy.shutdown(how)


def _stopped() -> Unreachable:
    return Unreachable("it was stopped", outcome_unknown=False)
