"""Every exception of httpx and of aiohttp as the error of the client that stands for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import aiohttp
import httpx
import pytest
import yarl
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

from escrowmq_client import (
    AsyncClient,
    CannotConnect,
    Client,
    InvalidAnswer,
    PoolExhausted,
    ProblemError,
    Retry,
    Unreachable,
)
from escrowmq_client.aiohttp import connections
from tests.client.test_calls import QUICK, VERSION, Played, first_of_async_stream, first_of_stream
from tests.client.test_connections import ONCE
from tests.client.test_event_stream import lines_of
from tests.support.http import reached

URL = "http://service:1"


class Expected(NamedTuple):
    """Error of the client; `outcome_unknown` of an Unreachable; whether a safe call is repeated."""

    error: type[Exception]
    outcome_unknown: bool | None = None
    is_repeated: bool = False


LOST = Expected(Unreachable, outcome_unknown=True, is_repeated=True)
NOT_SENT = Expected(Unreachable, outcome_unknown=False, is_repeated=True)
DISTRUSTED = Expected(CannotConnect, outcome_unknown=False)
NO_ANSWER_OF_THE_SERVICE = Expected(InvalidAnswer)
MISTAKE = Expected(ValueError)

OF_HTTPX: dict[type[Exception], Expected] = {
    httpx.HTTPError: LOST,
    httpx.RequestError: LOST,
    httpx.TransportError: LOST,
    httpx.TimeoutException: LOST,
    httpx.ConnectTimeout: NOT_SENT,
    httpx.ReadTimeout: LOST,
    httpx.WriteTimeout: LOST,
    httpx.PoolTimeout: Expected(PoolExhausted, outcome_unknown=False, is_repeated=True),
    httpx.NetworkError: LOST,
    httpx.ReadError: LOST,
    httpx.WriteError: LOST,
    httpx.ConnectError: NOT_SENT,
    httpx.CloseError: LOST,
    httpx.ProxyError: NOT_SENT,
    httpx.UnsupportedProtocol: MISTAKE,
    httpx.ProtocolError: LOST,
    httpx.LocalProtocolError: LOST,  # unless h11 raised it
    httpx.RemoteProtocolError: LOST,
    httpx.DecodingError: NO_ANSWER_OF_THE_SERVICE,
    httpx.TooManyRedirects: NO_ANSWER_OF_THE_SERVICE,
    httpx.HTTPStatusError: Expected(ProblemError),
    httpx.InvalidURL: MISTAKE,
}
# Mistakes of a program that reads an answer of httpx twice, for example. No request raises them.
MISTAKES_WITH_HTTPX = {
    httpx.CookieConflict,
    httpx.StreamError,
    httpx.StreamConsumed,
    httpx.StreamClosed,
    httpx.ResponseNotRead,
    httpx.RequestNotRead,
}

OF_AIOHTTP: dict[type[Exception], Expected] = {
    aiohttp.ClientError: LOST,
    aiohttp.ClientResponseError: LOST,
    aiohttp.ContentTypeError: LOST,
    aiohttp.WSServerHandshakeError: LOST,
    aiohttp.ClientHttpProxyError: NOT_SENT,
    aiohttp.TooManyRedirects: NO_ANSWER_OF_THE_SERVICE,
    aiohttp.ClientConnectionError: LOST,
    aiohttp.ClientConnectionResetError: LOST,
    aiohttp.ClientOSError: LOST,
    aiohttp.ClientConnectorError: NOT_SENT,
    aiohttp.ClientConnectorDNSError: NOT_SENT,
    aiohttp.ClientProxyConnectionError: NOT_SENT,
    UnixClientConnectorError: NOT_SENT,
    aiohttp.ClientSSLError: NOT_SENT,
    aiohttp.ClientConnectorSSLError: NOT_SENT,
    aiohttp.ClientConnectorCertificateError: DISTRUSTED,
    aiohttp.ServerConnectionError: LOST,
    aiohttp.ServerDisconnectedError: LOST,
    aiohttp.ServerTimeoutError: LOST,
    aiohttp.ConnectionTimeoutError: NOT_SENT,
    aiohttp.SocketTimeoutError: LOST,
    aiohttp.ServerFingerprintMismatch: NOT_SENT,
    aiohttp.ClientPayloadError: LOST,
    aiohttp.UploadAbortedError: LOST,
    aiohttp.InvalidURL: MISTAKE,
    aiohttp.InvalidUrlClientError: MISTAKE,
    aiohttp.NonHttpUrlClientError: MISTAKE,
    aiohttp.RedirectClientError: NO_ANSWER_OF_THE_SERVICE,
    aiohttp.InvalidUrlRedirectClientError: NO_ANSWER_OF_THE_SERVICE,
    aiohttp.NonHttpUrlRedirectClientError: NO_ANSWER_OF_THE_SERVICE,
    TimeoutError: LOST,
    OSError: LOST,
    HttpProcessingError: LOST,
}


def subclasses(kind: type[Exception], package: str) -> Iterator[type[Exception]]:
    """Yield a class and all classes of the package beneath it."""
    if kind.__module__.partition(".")[0] == package:
        yield kind
    for one in kind.__subclasses__():
        yield from subclasses(one, package)


def test_no_exception_of_httpx_is_unknown():
    exported = {getattr(httpx, name) for name in httpx.__all__}
    found = {one for one in exported if isinstance(one, type) and issubclass(one, Exception)}
    found |= set(subclasses(httpx.HTTPError, "httpx"))

    assert found == OF_HTTPX.keys() | MISTAKES_WITH_HTTPX


def test_no_exception_of_aiohttp_is_unknown():
    beneath = set(subclasses(HttpProcessingError, "aiohttp"))  # all of them are one to the client

    found = set(subclasses(aiohttp.ClientError, "aiohttp")) | beneath

    assert found == OF_AIOHTTP.keys() - {TimeoutError, OSError} | beneath


def name_of(kind: object) -> str | None:
    return kind.__name__ if isinstance(kind, type) else None


def of_httpx(kind: type[Exception]) -> Exception:
    if issubclass(kind, httpx.HTTPStatusError):
        request = httpx.Request("GET", URL)
        return kind("refused", request=request, response=httpx.Response(403, request=request))
    return kind("a text")


def of_aiohttp(kind: type[Exception]) -> Exception:
    make: Any = kind
    key = ConnectionKey("service", 1, False, True, None, None, None)
    if issubclass(kind, aiohttp.ClientResponseError):
        url = yarl.URL(URL)
        asked = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict[str]()), url)
        return make(asked, (), status=502, message="Bad Gateway")
    if kind is aiohttp.ClientConnectorCertificateError:
        return make(key, ssl.SSLCertVerificationError("not trusted"))
    if kind is UnixClientConnectorError:
        return make("/a/socket", key, OSError(2, "No such file"))
    if issubclass(kind, aiohttp.ClientConnectorError):
        return make(key, OSError(111, "Connection refused"))
    if kind is aiohttp.ServerFingerprintMismatch:
        return make(b"a", b"b", "service", 1)
    if issubclass(kind, HttpProcessingError):
        return make(message="Bad Request")
    return make("a text")


Execute = Callable[..., Any]


def in_threads(played: Played, retry: Retry, method: str, *args: Any) -> Any:
    http = httpx.Client(transport=httpx.MockTransport(played))
    return getattr(Client(URL, retry=retry, http=http), method)(*args)


def in_tasks(played: Played, retry: Retry, method: str, *args: Any) -> Any:
    async def run() -> Any:
        http = httpx.AsyncClient(transport=httpx.MockTransport(played))
        return await getattr(AsyncClient(URL, retry=retry, http=http), method)(*args)

    return asyncio.run(run())


def events() -> httpx.Response:
    headers = {"Content-Type": "text/event-stream"}
    return httpx.Response(200, headers=headers, text="\n".join([*lines_of("lh_1"), ""]))


@pytest.mark.parametrize("kind", OF_HTTPX, ids=name_of)
@pytest.mark.parametrize("execute", [in_threads, in_tasks])
def test_a_failure_of_httpx_is_the_error_that_stands_for_it(execute, kind):
    expected = OF_HTTPX[kind]

    with pytest.raises(expected.error) as ended:
        execute(Played(of_httpx(kind)), ONCE, "get_version")

    assert type(ended.value) is expected.error
    assert getattr(ended.value, "outcome_unknown", None) is expected.outcome_unknown


@pytest.mark.parametrize("kind", OF_HTTPX, ids=name_of)
@pytest.mark.parametrize("execute", [in_threads, in_tasks])
def test_a_call_is_repeated_where_it_may_have_another_end(execute, kind):
    expected = OF_HTTPX[kind]
    played = Played(of_httpx(kind), httpx.Response(200, json=VERSION))

    if expected.is_repeated:
        assert execute(played, QUICK, "get_version").name == "EscrowMQ"
    else:
        with pytest.raises(expected.error):
            execute(played, QUICK, "get_version")
    assert len(played.requests) == 1 + expected.is_repeated


@pytest.mark.parametrize("kind", OF_HTTPX, ids=name_of)
@pytest.mark.parametrize("first", [first_of_stream, first_of_async_stream])
def test_a_stream_goes_on_where_it_may_have_another_end(first, kind):
    expected = OF_HTTPX[kind]
    played = Played(of_httpx(kind), events())

    if expected.is_repeated:
        assert first(played, QUICK).receipt_handle == "lh_1"
    else:
        with pytest.raises(expected.error):
            first(played, QUICK)
    assert len(played.requests) == 1 + expected.is_repeated


@pytest.mark.parametrize("kind", OF_AIOHTTP, ids=name_of)
async def test_a_failure_of_aiohttp_is_the_error_that_stands_for_it(monkeypatch, kind):
    expected, tries = OF_AIOHTTP[kind], 0

    def fail(*_: Any, **__: Any) -> None:
        nonlocal tries
        tries += 1
        raise of_aiohttp(kind)

    monkeypatch.setattr(aiohttp.ClientSession, "request", fail)
    retry = Retry(total_ms=60_000, first_ms=1, longest_ms=1)
    async with connections(trust_env=False) as http:
        call = asyncio.ensure_future(AsyncClient(URL, http=http, retry=retry).get_version())
        await reached(lambda: tries > 1 or call.done(), "it is sent again, or fails")
        is_repeated = not call.done()
        call.cancel()
        await asyncio.wait({call})
        with pytest.raises(expected.error) as ended:
            await AsyncClient(URL, http=http, retry=ONCE).get_version()

    assert type(ended.value) is expected.error
    assert getattr(ended.value, "outcome_unknown", None) is expected.outcome_unknown
    assert is_repeated is expected.is_repeated


@pytest.fixture
async def refusing() -> AsyncIterator[str]:
    """The address of a server that redirects each request, to itself or to an odd place."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        place = b"ftp://elsewhere/" if path.endswith(b"/ftp") else path
        head = b"HTTP/1.1 307 Temporary Redirect\r\ncontent-length: 0\r\nconnection: close\r\n"
        writer.write(head + b"location: %b\r\n\r\n" % place)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("topic", "reason"), [("itself", "TooManyRedirects"), ("ftp", "UnsupportedProtocol")]
)
async def test_redirects_that_lead_nowhere_are_no_answer_of_the_service(refusing, topic, reason):
    http = httpx.Client(follow_redirects=True, trust_env=False)
    with http, pytest.raises(InvalidAnswer, match=reason):
        await asyncio.to_thread(Client(refusing, http=http).get_topic, topic)
    of_tasks = httpx.AsyncClient(follow_redirects=True, trust_env=False)
    async with of_tasks:
        with pytest.raises(InvalidAnswer, match=reason):
            await AsyncClient(refusing, http=of_tasks).get_topic(topic)


async def test_a_header_of_the_connections_that_http_cannot_carry_is_a_mistake_and_is_not_shown(
    refusing,
):
    headers = {"Cookie": "secret\n"}
    http = httpx.Client(headers=headers, trust_env=False)
    with http, pytest.raises(ValueError, match="getVersion: the connections") as in_thread:
        await asyncio.to_thread(Client(refusing, http=http).get_version)
    async with httpx.AsyncClient(headers=headers, trust_env=False) as of_tasks:
        with pytest.raises(ValueError, match="getVersion: the connections") as in_task:
            await AsyncClient(refusing, http=of_tasks).get_version()

    for ended in (in_thread.value, in_task.value):
        assert "secret" not in str(ended)
        assert ended.__suppress_context__


@pytest.mark.parametrize(
    ("status", "error"), [(403, ProblemError), (302, ProblemError), (503, Unreachable)]
)
def test_a_status_that_a_hook_of_the_connections_raises_is_a_refusal(status, error):
    hooks = {"response": [httpx.Response.raise_for_status]}
    played = Played(httpx.Response(status, stream=httpx.ByteStream(b"{}")))
    http = httpx.Client(transport=httpx.MockTransport(played), event_hooks=hooks)

    with pytest.raises(error, match=str(status)):
        Client(URL, http=http, retry=ONCE).get_version()


@pytest.mark.parametrize("first", [first_of_stream, first_of_async_stream])
def test_events_are_read_as_utf_8_whatever_their_encoding_is_said_to_be(first):
    odd = events()
    odd.headers["Content-Type"] = "text/event-stream; charset=hex"

    assert first(Played(odd), QUICK).receipt_handle == "lh_1"


async def test_a_damaged_answer_is_lost_over_aiohttp_too():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n")
        await writer.drain()
        writer.close()

    service = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with service, connections(trust_env=False) as http:
        url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        with pytest.raises(Unreachable) as ended:
            await AsyncClient(url, http=http, retry=ONCE).get_version()

    assert ended.value.outcome_unknown
