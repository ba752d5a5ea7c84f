"""Connections of a client over HTTP: a pool for each process that uses it, until it is closed.

A process that was forked has the sockets of the first one, and would take its answers: it gets
connections of its own, and leaves the others as they are. An `httpx.Client` of the caller cannot
be made a second time, so that its use in both processes is an error.

The limit of a try covers all of it. `AsyncPool` ends a try at its limit, and `Pool` each read and
each write of a connection that it has made. Of those of an `httpx.Client` of the caller `Pool`
knows the pieces of a body alone: it looks at the clock at each of them.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import httpx

from escrowmq_client.errors import ClientClosed
from escrowmq_client.transport import NOT_SENT

H = TypeVar("H", httpx.Client, httpx.AsyncClient)
P = TypeVar("P", bound="_Pools[Any]")
T = TypeVar("T")

# Calls that wait for messages must not keep others from a connection.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")
_MIB = 1 << 20
_SENT_AT_ONCE = 16 << 10


def new_http() -> httpx.Client:
    """Make the connections of a `Client`."""
    return httpx.Client(limits=_LIMITS)


def new_async_http() -> httpx.AsyncClient:
    """Make the connections of an `AsyncClient`."""
    return httpx.AsyncClient(limits=_LIMITS)


class Deadline:
    """End of one try: its limit, and the time of a call again for each MiB that is carried."""

    def __init__(self, request: Mapping[str, Any], now_s: float) -> None:
        """`request`: as `transport.Connection.request` makes it."""
        timeout: httpx.Timeout = request["timeout"]
        assert timeout.connect is not None
        assert timeout.read is not None
        self._each_s = timeout.connect
        sent_bytes = len(request["content"] or b"")
        self._limit_s = now_s + timeout.read + self._each_s * (sent_bytes // _MIB)
        self._received_bytes = 0

    @property
    def at_s(self) -> float:
        """When the try ends, by the clock of `now_s`."""
        return self._limit_s + self._each_s * (self._received_bytes // _MIB)

    def receive(self, count: int) -> None:
        """Count bytes of the answer."""
        self._received_bytes += count

    def check(self, now_s: float) -> None:
        """Raise httpx.ReadTimeout if the try is over."""
        if now_s >= self.at_s:
            raise httpx.ReadTimeout("the answer did not come to its end in time")


class _Try(threading.local):
    """Deadline of the try that a thread makes now."""

    deadline: Deadline | None = None


_try = _Try()


@contextmanager
def _until(deadline: Deadline) -> Generator[None, None, None]:
    """End reads and writes of this thread at the deadline."""
    before, _try.deadline = _try.deadline, deadline  # that of a call that a signal has interrupted
    try:
        yield
    finally:
        _try.deadline = before


def _limit(stream: Any) -> None:
    """Have the reads and writes of a connection of httpcore end at the deadline of their try."""
    read, write = stream.read, stream.write

    def read_until(max_bytes: int, timeout: float | None = None) -> bytes:
        received: bytes = read(max_bytes, _left_s(timeout))
        return received

    def write_until(content: bytes, timeout: float | None = None) -> None:
        # In pieces that one write of a socket takes: each of them waits for so long.
        for begin in range(0, len(content), _SENT_AT_ONCE):
            write(content[begin : begin + _SENT_AT_ONCE], _left_s(timeout))

    stream.read, stream.write = read_until, write_until


def _left_s(timeout: float | None) -> float | None:
    """Return the time that is left of the try, at most `timeout`. Raises httpx.ReadTimeout."""
    if (deadline := _try.deadline) is None:
        return timeout
    now_s = time.monotonic()
    deadline.check(now_s)
    left_s = deadline.at_s - now_s
    return left_s if timeout is None else min(timeout, left_s)


class _Pools(Generic[H]):
    """Connections by process, and whether they are closed."""

    def __init__(self, http: H, make: Callable[[], H], *, is_own: bool) -> None:
        """`is_own`: the pool may make others with `make`, and closes them."""
        self._branches: set[Any] = set()
        self._parent: _Pools[H] | None = None
        self._make: Callable[[], H] = make
        self._is_own = is_own
        # Those of a process before the fork are kept: what has their last reference closes them.
        self._by_process: dict[int, H] = {os.getpid(): http} if is_own else {}
        self._given: H = http
        self._is_closed = False

    @property
    def http(self) -> H:
        """The connections of this process. Raises ClientClosed."""
        if self._is_closed:
            raise closed(None)
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

    def branch(self: P) -> P:
        """Make a pool with connections of its own where this one has them, and closes it, too.

        Raises ClientClosed.
        """
        kind: Any = type(self)
        other: P = kind(self._make() if self._is_own else self._given, is_own=self._is_own)
        if self._is_own:
            other._parent = self
            self._branches.add(other)
        if self._is_closed:
            raise closed(None)
        return other

    def check_open(self) -> None:
        """Raise ClientClosed if a stream has ended because of a close."""
        if self._is_closed or (not self._is_own and self._given.is_closed):
            raise closed(None, outcome_unknown=True)

    def _leave(self) -> None:
        if self._parent is not None:
            self._parent._branches.discard(self)

    def _closed_by(self, http: H) -> bool:
        return self._is_closed or http.is_closed


class Pool(_Pools[httpx.Client]):
    """Connections of a `Client`. All may be called from any thread."""

    def __init__(self, http: httpx.Client, *, is_own: bool) -> None:
        super().__init__(http, new_http, is_own=is_own)
        self._ends: dict[int, _Ends] = {}  # by process: a lock may be held during a fork

    def request(self, request: Mapping[str, Any]) -> httpx.Response:
        """Send a request and read the whole answer. Raises ClientClosed."""
        http, deadline = self.http, Deadline(request, time.monotonic())
        try:
            with (
                _until(deadline),
                http.stream(**request, extensions=self._extensions()) as response,
            ):
                _read(response, deadline)
                return response
        except Exception as error:
            if self._closed_by(http):
                raise closed(error) from error
            raise

    @contextmanager
    def stream(self, request: Mapping[str, Any]) -> Generator[httpx.Response, None, None]:
        """Send a request whose answer is read as it comes, but for that of a failure.

        The limit covers the head, and a failure as a whole.
        """
        deadline, sending = Deadline(request, time.monotonic()), ExitStack()
        with sending:
            with _until(deadline):
                response = sending.enter_context(
                    self.http.stream(**request, extensions=self._extensions())
                )
                if not response.is_success:
                    _read(response, deadline)
            yield response

    def pause(self, wait_ms: float) -> None:
        """Wait before a repetition. Raises ClientClosed."""
        if self._end.closing.wait(wait_ms / 1_000):
            raise closed(None, outcome_unknown=True)

    def shut_down(self, how: int) -> None:
        """End the calls of this process, and those that begin later, as `socket.shutdown` does."""
        self._end.shut_down(how)

    def close(self) -> None:
        """End all calls of this process, and its connections."""
        self._is_closed = True
        for branch in tuple(self._branches):
            branch.close()
        self._leave()
        self.shut_down(socket.SHUT_RDWR)
        if (http := self._by_process.get(os.getpid())) is not None:
            http.close()

    @property
    def _end(self) -> "_Ends":
        process = os.getpid()
        return self._ends.get(process) or self._ends.setdefault(process, _Ends())

    def _extensions(self) -> dict[str, Any]:
        return {"trace": self._end.trace} if self._is_own else {}


class _Ends:
    """Reads of sockets, and pauses, in one process, which a close ends."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._guard = threading.RLock()  # a signal handler may close the client
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection, and limit it; httpcore calls this."""
        if event.endswith(_CONNECTED):
            stream = info["return_value"]
            _limit(stream)
            with self._guard:
                self._sockets.add(stream.get_extra_info("socket"))
                if self.closing.is_set():
                    self.shut_down(socket.SHUT_RDWR)

    def shut_down(self, how: int) -> None:
        """End what waits, and what begins to wait later."""
        with self._guard:
            self.closing.set()
            for one in self._sockets:
                with suppress(OSError):  # it is closed already
                    # Not that of an SSLSocket, which takes the session from the thread that reads.
                    socket.socket.shutdown(one, how)


class AsyncPool(_Pools[httpx.AsyncClient]):
    """Connections of an `AsyncClient`."""

    def __init__(self, http: httpx.AsyncClient, *, is_own: bool) -> None:
        super().__init__(http, new_async_http, is_own=is_own)
        self._calls: set[asyncio.Task[Any]] = set()
        self._pauses: set[asyncio.Future[None]] = set()

    async def request(self, request: Mapping[str, Any]) -> httpx.Response:
        """Send a request and read the whole answer. Raises ClientClosed."""
        http, deadline = self.http, Deadline(request, time.monotonic())
        return await self._within(deadline, http, _exchange(http, request, deadline))

    @asynccontextmanager
    async def stream(self, request: Mapping[str, Any]) -> AsyncIterator[httpx.Response]:
        """Send a request whose answer is read as it comes, but for that of a failure.

        The limit covers the head, and a failure as a whole.
        """
        http, deadline = self.http, Deadline(request, time.monotonic())
        async with AsyncExitStack() as sending:
            yield await self._within(deadline, http, _begin(http, request, deadline, sending))

    async def _within(
        self, deadline: Deadline, http: httpx.AsyncClient, work: Coroutine[Any, Any, T]
    ) -> T:
        """Do the work, which is cancelled at the deadline. Raises ClientClosed."""
        # A task of its own: a cancellation by the limit is not one by the caller.
        call = asyncio.ensure_future(work)
        self._calls.add(call)
        try:
            while not call.done() and (left_s := deadline.at_s - time.monotonic()) > 0:
                await asyncio.wait({call}, timeout=left_s)
        finally:
            self._calls.discard(call)
            await _ended(call)
        try:
            return call.result()
        except asyncio.CancelledError:
            if self._closed_by(http):
                raise closed(None, outcome_unknown=True) from None
            deadline.check(time.monotonic())
            raise
        except Exception as error:
            if self._closed_by(http):
                raise closed(error) from error
            raise

    async def pause(self, wait_ms: float) -> None:
        """Wait before a repetition. Raises ClientClosed."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses.add(end)
        try:
            await asyncio.wait({end}, timeout=wait_ms / 1_000)
        finally:
            self._pauses.discard(end)
        if end.done():
            raise closed(None, outcome_unknown=True)

    def end_pauses(self) -> None:
        """Have what waits before a repetition raise ClientClosed."""
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def close(self) -> None:
        """End all calls of this process, and its connections."""
        self._is_closed = True
        for branch in tuple(self._branches):
            await branch.close()
        self._leave()
        for call in list(self._calls):
            call.cancel()
        self.end_pauses()
        if (http := self._by_process.get(os.getpid())) is not None:
            await http.aclose()


async def _exchange(
    http: httpx.AsyncClient, request: Mapping[str, Any], deadline: Deadline
) -> httpx.Response:
    async with http.stream(**request) as response:
        await _read_async(response, deadline)
        return response


async def _begin(
    http: httpx.AsyncClient,
    request: Mapping[str, Any],
    deadline: Deadline,
    sending: AsyncExitStack,
) -> httpx.Response:
    response = await sending.enter_async_context(http.stream(**request))
    if not response.is_success:
        await _read_async(response, deadline)
    return response


async def _read_async(response: httpx.Response, deadline: Deadline) -> None:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _AsyncLimited(response.stream, deadline)
    await response.aread()


async def _ended(call: asyncio.Task[Any]) -> None:
    """Cancel a call that is under way, and return once its connection is free or closed."""
    if not call.done():
        call.cancel()
        await asyncio.wait({call})
    if not call.cancelled():
        call.exception()  # or asyncio reports that nothing took it


def _read(response: httpx.Response, deadline: Deadline) -> None:
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _Limited(response.stream, deadline)
    response.read()


class _Limited(httpx.SyncByteStream):
    """Body of an answer, until the deadline."""

    def __init__(self, stream: httpx.SyncByteStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._deadline.receive(len(piece))
            self._deadline.check(time.monotonic())
            yield piece

    def close(self) -> None:
        self._stream.close()


class _AsyncLimited(httpx.AsyncByteStream):
    """Body of an answer, whose pieces move the deadline."""

    def __init__(self, stream: httpx.AsyncByteStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._deadline.receive(len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


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


def closed(error: Exception | None, *, outcome_unknown: bool | None = None) -> ClientClosed:
    """Make the error of a call that failed with `error` as its client was closed, or before."""
    if outcome_unknown is None:
        never_sent = (*NOT_SENT, httpx.PoolTimeout, RuntimeError)
        outcome_unknown = error is not None and not isinstance(error, never_sent)
    return ClientClosed(
        "the client was closed during the call" if outcome_unknown else "the client is closed",
        outcome_unknown=outcome_unknown,
    )
