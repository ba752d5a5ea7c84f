"""Connections of a client over HTTP: a pool for each process that uses it.

A process that was forked has the sockets of the first one, and would take its answers: it gets
connections of its own, and leaves the others as they are. An `httpx.Client` of the caller cannot
be made a second time, so that its use in both processes is an error.
"""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

import httpx

from escrowmq_client.errors import ClientClosed

H = TypeVar("H", httpx.Client, httpx.AsyncClient)

# Calls that wait for messages must not keep others from a connection.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)


def new_http() -> httpx.Client:
    """Make the connections of a `Client`."""
    return httpx.Client(limits=_LIMITS)


def new_async_http() -> httpx.AsyncClient:
    """Make the connections of an `AsyncClient`."""
    return httpx.AsyncClient(limits=_LIMITS)


class _Pools(Generic[H]):
    """Connections by process."""

    def __init__(self, http: H, make: Callable[[], H], *, is_own: bool) -> None:
        """`is_own`: the pool may make others with `make`, and closes them."""
        self._make: Callable[[], H] = make
        self._is_own = is_own
        # Those of a process before the fork are kept: what has their last reference closes them.
        self._by_process: dict[int, H] = {os.getpid(): http} if is_own else {}
        self._given: H = http

    @property
    def http(self) -> H:
        """The connections of this process. Raises ClientClosed."""
        process = os.getpid()
        found = self._by_process.get(process)
        if found is None:
            if not self._is_own and self._by_process:
                raise ClientClosed(
                    f"its {type(self._given).__name__} was used by process "
                    f"{next(iter(self._by_process))} before a fork: make one in each process",
                    outcome_unknown=False,
                )
            found = self._by_process.setdefault(
                process, self._make() if self._is_own else self._given
            )
        return found

    @property
    def _of_this_process(self) -> H | None:
        return self._by_process.get(os.getpid())


class Pool(_Pools[httpx.Client]):
    """Connections of a `Client`. All may be called from any thread."""

    def __init__(self, http: httpx.Client, *, is_own: bool) -> None:
        super().__init__(http, new_http, is_own=is_own)

    def close(self) -> None:
        """Close the connections of this process."""
        if (http := self._of_this_process) is not None:
            http.close()


class AsyncPool(_Pools[httpx.AsyncClient]):
    """Connections of an `AsyncClient`."""

    def __init__(self, http: httpx.AsyncClient, *, is_own: bool) -> None:
        super().__init__(http, new_async_http, is_own=is_own)

    async def close(self) -> None:
        """Close the connections of this process."""
        if (http := self._of_this_process) is not None:
            await http.aclose()


class OneProcess:
    """Process that has begun a stream; another one must not read from its connection."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check(self) -> None:
        """Raise ClientClosed behind a fork."""
        if os.getpid() != self._process:
            raise ClientClosed(
                f"the stream is that of process {self._process}, which has forked: "
                "begin another one",
                outcome_unknown=False,
            )
