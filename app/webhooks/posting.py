"""Requests of webhooks over aiohttp.

Imported with the first request: it takes a tenth of a second, which a service without webhooks
need not spend at its start.
"""

import asyncio
import io
import select
import socket
import ssl
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from app.webhooks.addresses import parse_address
from app.webhooks.allowed import Allowed, Reach
from app.webhooks.kept import KeptConnections
from app.webhooks.received import MAX_ANSWER_BYTES, Answer, AnswerTooLong, PostFailed
from app.webhooks.resolver import MakeSocket, Resolve, find_addresses
from app.webhooks.urls import Target

# Uvicorn and Node close what was idle for five seconds: a request must not meet that.
KEEP_S = 4.0
_WRITE_BYTES = 1 << 20  # a longer body is written piece by piece
# What becomes of a request over a kept connection that the endpoint closes at that moment.
_CUT = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)


def load_tls() -> ssl.SSLContext:
    """Make a context that trusts the usual authorities, whatever the environment names."""
    return httpx.create_ssl_context(trust_env=False)


class _Checked(AbstractResolver):
    """Gives addresses only that hosts of this reach may have."""

    def __init__(self, resolve: Resolve, allowed: Allowed, reach: Reach) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._reach = reach

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await find_addresses(self._resolve, host, port, self._allowed, self._reach)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Keep the resolver, which serves others, too."""


class _Connector(aiohttp.TCPConnector):
    """Passes over kept connections that nothing may be sent on any more.

    What came without being asked for would be read as the answer to the next request: it might
    decide another transaction, or acknowledge another message.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used = WeakSet[object]()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  the interface of aiohttp
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol not in self._used:
                self._used.add(connection.protocol)
                return connection
            if not _has_unread(connection):
                return connection
            connection.close()


class _Use:
    """Says whether a request goes over a connection that was kept."""

    def __init__(self) -> None:
        self.is_again = False


class Poster:
    """Posts over connections of its own. Event loop only."""

    def __init__(
        self,
        allowed: Allowed,
        resolve: Resolve,
        tls: ssl.SSLContext,
        *,
        most_kept: int,
        make_socket: MakeSocket | None,
    ) -> None:
        """`most_kept`: connections that are kept, or may be, at once; others close with their
        answer.
        """
        self._allowed = allowed
        self._resolve = resolve
        self._tls = tls
        self._make_socket = make_socket
        loop = asyncio.get_running_loop()
        self._kept = KeptConnections(most_kept, keep_s=KEEP_S, now=loop.time)
        # A resolver knows neither the scheme nor the URL, so hosts of each reach have their own.
        self._keeping = {reach: self._session(reach, keeps=True) for reach in Reach}
        self._closing = {reach: self._session(reach, keeps=False) for reach in Reach}

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises AddressRefused, AnswerTooLong, PostFailed."""
        try:
            # An address in the place of a name is not looked up, so no resolver sees it.
            if parse_address(target.host) is not None:
                await find_addresses(
                    self._resolve, target.host, target.port, self._allowed, target.reach
                )
            if not self._kept.take():
                return await _exchange(self._closing[target.reach], target, headers, body, _Use())
            try:
                return await self._post_over_kept(target, headers, body)
            finally:
                self._kept.give_back()
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise PostFailed(_reason(error)) from error

    async def _post_over_kept(
        self, target: Target, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Post over a connection that was kept, or a new one where there is none.

        An endpoint may close a connection just as it is used again. Then the request is sent once
        more: it has the same webhook-id, as every further try.
        """
        while True:
            use = _Use()
            try:
                return await _exchange(self._keeping[target.reach], target, headers, body, use)
            except _CUT:
                if not use.is_again:
                    raise
            finally:
                if use.is_again:
                    self._kept.note_used_again()

    async def aclose(self) -> None:
        for session in (*self._keeping.values(), *self._closing.values()):
            await session.close()

    def _session(self, reach: Reach, *, keeps: bool) -> aiohttp.ClientSession:
        """A session that follows nothing, keeps no cookie and reads nothing of the environment."""
        connector = _Connector(
            resolver=_Checked(self._resolve, self._allowed, reach),
            use_dns_cache=False,
            ssl=self._tls,
            limit=0,
            socket_factory=self._make_socket,
            **({"keepalive_timeout": KEEP_S} if keeps else {"force_close": True}),
        )
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_kept)
        tracing.on_connection_create_end.append(_note_new)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            trace_configs=[tracing] if keeps else [],
        )


async def _exchange(
    session: aiohttp.ClientSession,
    target: Target,
    headers: Mapping[str, str],
    body: bytes,
    use: _Use,
) -> Answer:
    received = bytearray()
    async with session.post(
        URL(str(target.url), encoded=True),
        headers=headers,
        data=body if len(body) <= _WRITE_BYTES else io.BytesIO(body),
        allow_redirects=False,
        trace_request_ctx=use,
    ) as response:
        async for piece in response.content.iter_any():
            received += piece
            if len(received) > MAX_ANSWER_BYTES:
                raise AnswerTooLong
    names = {name.lower(): name for name in response.headers}
    return Answer(
        response.status,
        {lower: ", ".join(response.headers.getall(name)) for lower, name in names.items()},
        bytes(received),
    )


async def _note_kept(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.is_again = True


async def _note_new(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionCreateEndParams,
) -> None:
    context.trace_request_ctx.is_again = False  # the kept one was passed over


def _has_unread(connection: Connection) -> bool:
    """Has something come since the last answer, or has the endpoint closed it?"""
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or protocol.should_close or transport is None:
        return True
    unread = select.poll()
    unread.register(transport.get_extra_info("socket"), select.POLLIN)
    return bool(unread.poll(0))


def _reason(error: Exception) -> str:
    """Reason of a failure, without internal addresses."""
    match error:
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError() as refusal
        ):
            return f"its certificate does not hold: {refusal.verify_message}"
        case aiohttp.ClientConnectorDNSError():
            return "its name has no address"
        case aiohttp.ClientConnectorError():
            return "the host does not accept the connection"
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError():
            return "it does not speak HTTP"
        case aiohttp.ClientPayloadError() | aiohttp.ClientConnectionError():
            return "the connection was cut"
    return type(error).__name__
