"""Connections of aiohttp for an `AsyncClient`: its calls take a part of the processor time.

    async with connections() as http:
        client = AsyncClient("http://127.0.0.1:8080", http=http)

`pip install escrowmq-client[aiohttp]` brings aiohttp.
"""

import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import yarl
from aiohttp.http_exceptions import HttpProcessingError

_KEEP_ALIVE_S = 5.0  # as httpx: shorter than what servers and proxies keep

# The first that an error is an instance of counts. What may have reached the service is none of
# the errors of connecting: a call is repeated only where that is safe.
_ERRORS: tuple[tuple[type[Exception], type[httpx.RequestError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ClientHttpProxyError, httpx.ProxyError),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerFingerprintMismatch, httpx.ConnectError),
    (TimeoutError, httpx.ReadTimeout),
    (aiohttp.TooManyRedirects, httpx.TooManyRedirects),
    (aiohttp.RedirectClientError, httpx.TooManyRedirects),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx.UnsupportedProtocol),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientResponseError, httpx.RemoteProtocolError),
    (aiohttp.ClientPayloadError, httpx.RemoteProtocolError),
    (aiohttp.ClientError, httpx.ReadError),
    (HttpProcessingError, httpx.RemoteProtocolError),
    (OSError, httpx.ReadError),
)


def connections(*, trust_env: bool = True) -> httpx.AsyncClient:
    """Make connections without a limit of their number, to be closed by the caller.

    `trust_env`: proxies and certificates of the environment are used. A process that forks makes
    others there.
    """
    return httpx.AsyncClient(transport=_Transport(trust_env=trust_env), trust_env=trust_env)


class _Transport(httpx.AsyncBaseTransport):
    """Sends requests of httpx over a session of aiohttp. One event loop only."""

    def __init__(self, *, trust_env: bool) -> None:
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None  # made for the first request that needs it
        # By scheme and host. aiohttp would read the environment, and .netrc in a thread, for each
        # request: a third of its time.
        self._proxies: dict[tuple[str, str], str | None] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer is read as it comes. Raises httpx.RequestError."""
        session = self._opened()
        limits = request.extensions.get("timeout", {})
        with _as_of_httpx(request):
            response = await session.request(
                request.method,
                yarl.URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                allow_redirects=False,
                proxy=self._proxy_for(request),
                ssl=self._trusted() if request.url.scheme == "https" else True,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=limits.get("connect"), sock_read=limits.get("read")
                ),
            )
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Body(request, response),
            extensions={"reason_phrase": (response.reason or "").encode("ascii", "replace")},
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _proxy_for(self, request: httpx.Request) -> str | None:
        """Raises httpx.UnsupportedProtocol for a proxy that aiohttp would take for one of HTTP."""
        url = request.url
        place = (url.scheme, url.host)
        if place not in self._proxies:
            known = getproxies() if self._trust_env and not proxy_bypass(url.host) else {}
            proxy = known.get(url.scheme) or known.get("all")
            if proxy is not None and "://" not in proxy:
                proxy = f"http://{proxy}"
            if proxy is not None and not proxy.startswith(("http://", "https://")):
                scheme = proxy.partition("://")[0]
                raise httpx.UnsupportedProtocol(
                    f"the connections of aiohttp take proxies of http and https, not of {scheme}",
                    request=request,
                )
            self._proxies[place] = proxy
        return self._proxies[place]

    def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=self._trust_env)
        return self._tls

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
            # It sends some requests again whose answer was lost, which is for the client to judge.
            # There is no public way to say so.
            self._session._retry_connection = False
        return self._session


class _Body(httpx.AsyncByteStream):
    """Body of an answer, as it comes."""

    def __init__(self, request: httpx.Request, response: aiohttp.ClientResponse) -> None:
        self._request = request
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_of_httpx(self._request):
            async for piece in self._response.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        """Keep the connection for other requests if all of the answer was read."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@contextmanager
def _as_of_httpx(request: httpx.Request) -> Generator[None, None, None]:
    """Raise errors of aiohttp as what httpx calls them."""
    try:
        yield
    except Exception as error:
        for kind, of_httpx in _ERRORS:
            if isinstance(error, kind):
                raise of_httpx(_text(error), request=request) from error
        raise


def _text(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{error.status} {error.message}"  # as httpx says it
    return str(error) or type(error).__name__
