"""One request to a host that a client named, so that it reaches nothing but what it may reach.

The name is resolved here, every address of it is checked, and the connection goes to an address
that was checked: no name server can answer one thing to the check and another to the connection.
That is done again at each try, so connections are not kept. TLS and the Host header still speak of
the name. No redirect is followed, no proxy of the environment is asked, no encoding is offered or
undone, and at most so many bytes of the answer are read. The second line is the operator's: an
egress proxy, or a subnet of its own.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import httpcore
import httpx

from app.webhooks.addresses import parse_address
from app.webhooks.allowed import LISTED_HOSTS, Allowed, Reach
from app.webhooks.urls import Target

MAX_ANSWER_BYTES = 64 << 10
MOST_CONNECTIONS = 256  # at once, unless the settings say another number
_MOST_LOOKUPS = 32  # names that are looked up at once

Resolve = Callable[[str, int], Awaitable[list[str]]]
SocketOptions = Iterable[httpcore.SOCKET_OPTION]


class AddressRefused(Exception):
    """The name leads to a place where no check may go."""


class AnswerTooLong(Exception):
    """The response is longer than `MAX_ANSWER_BYTES`."""


class Answer(NamedTuple):
    """An HTTP response as it was received."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses only that hosts of this reach may have."""

    def __init__(
        self,
        resolve: Resolve,
        connector: httpcore.AsyncNetworkBackend,
        allowed: Allowed,
        reach: Reach,
    ) -> None:
        self._resolve = resolve
        self._connector = connector
        self._allowed = allowed
        self._reach = reach

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the interface of httpcore
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await find_addresses(self._resolve, host, port, self._allowed, self._reach)
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._connector.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  the interface of httpcore
        socket_options: SocketOptions | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("a socket of this machine")


async def find_addresses(
    resolve: Resolve, host: str, port: int, allowed: Allowed, reach: Reach
) -> list[str]:
    """The addresses of the host.

    Raises AddressRefused where one of them is closed to checks, OSError where there is none.
    """
    literal = parse_address(host)
    found = [host] if literal is not None else await resolve(host, port)
    if reach is not Reach.ANY:
        for text in found:
            address = parse_address(text)
            if address is None or not allowed.fits(address, reach):
                detail = f"{host} leads to an address outside of {reach.value}"
                raise AddressRefused(f"{detail}; {LISTED_HOSTS}")
    return found


class WebhookTransport:
    """Sends requests. Apart from every other client of the process."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        most: int = MOST_CONNECTIONS,
        resolve: Resolve | None = None,
        connector: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """`most`: connections at once; a request waits for one before its time begins."""
        self._room = asyncio.Semaphore(most)
        self._resolve = resolve or SystemResolver()
        self._allowed = allowed
        connector = connector or httpcore.AnyIOBackend()
        tls = httpx.create_ssl_context(trust_env=False)
        # A connection tells its backend neither the scheme nor the URL, so hosts of each reach have
        # a transport of their own.
        self._transports = {
            reach: _transport(CheckedBackend(self._resolve, connector, allowed, reach), tls)
            for reach in Reach
        }

    async def check(self, target: Target, *, timeout_ms: int) -> None:
        """Raises AddressRefused where the name now leads to a place where no check may go; one
        without an address is taken.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await find_addresses(
                    self._resolve, target.host, target.port, self._allowed, target.reach
                )

    async def post(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_ms: int
    ) -> Answer:
        """All of it within `timeout_ms`.

        Raises AddressRefused, AnswerTooLong, TimeoutError, OSError, httpx.HTTPError.
        """
        sent = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
            **headers,
        }
        async with self._room, asyncio.timeout(timeout_ms / 1000):
            request = httpx.Request("POST", target.url, headers=sent, content=body)
            response = await self._transports[target.reach].handle_async_request(request)
            try:
                received = bytearray()
                async for piece in response.aiter_raw():
                    received += piece
                    if len(received) > MAX_ANSWER_BYTES:
                        raise AnswerTooLong
            finally:
                await response.aclose()
        return Answer(
            response.status_code,
            {name.lower(): value for name, value in response.headers.items()},
            bytes(received),
        )

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()


def _transport(
    backend: httpcore.AsyncNetworkBackend, tls: ssl.SSLContext
) -> httpx.AsyncHTTPTransport:
    """The transport and no client: nothing follows redirects, keeps cookies or reads the
    environment.
    """
    transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False)
    # httpx has no public place for a network backend; a test sees that connections come through
    # ours.
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=tls, network_backend=backend, max_connections=None, max_keepalive_connections=0
    )
    return transport


class SystemResolver:
    """Looks names up as the machine does. Event loop only.

    On threads that are not awaited: a silent name server must not delay the stop. One lookup of a
    name serves all who ask meanwhile, and no more than so many are under way, since such a server
    keeps a thread for half a minute.
    """

    def __init__(
        self, *, most: int = _MOST_LOOKUPS, look_up: Callable[[str, int], list[str]] | None = None
    ) -> None:
        self._look_up = look_up or _look_up
        self._room = asyncio.Semaphore(most)
        self._under_way: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses of a name. Raises OSError where it has none."""
        name = host, port
        lookup = self._under_way.get(name)
        if lookup is None:
            lookup = self._under_way[name] = asyncio.create_task(
                self._find(host, port), name=f"resolve-{host}"
            )
            lookup.add_done_callback(lambda ended: self._ended(name, ended))
        return await asyncio.shield(lookup)

    def _ended(self, name: tuple[str, int], lookup: asyncio.Task[list[str]]) -> None:
        del self._under_way[name]
        if not lookup.cancelled():
            lookup.exception()  # the caller may have gone

    async def _find(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def give(addresses: list[str], error: OSError | None) -> None:
            if found.done():
                return
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(addresses)

        def run() -> None:
            addresses: list[str] = []
            failure: OSError | None = None
            try:
                addresses = self._look_up(host, port)
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(give, addresses, failure)

        async with self._room:
            threading.Thread(target=run, name="resolve", daemon=True).start()
            return await found


def _look_up(host: str, port: int) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError:  # an encoding that there is none of, a zero byte
        raise socket.gaierror(socket.EAI_NONAME, "no host name") from None
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
