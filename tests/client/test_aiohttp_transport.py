"""`AsyncClient` over the connections of aiohttp, which `docs/python-client.md` offers as the faster
ones.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from escrowmq_client import (
    AsyncClient,
    CannotConnect,
    Client,
    ClientClosed,
    MessageInput,
    Retry,
    Unreachable,
)
from escrowmq_client.aiohttp import connections
from escrowmq_client.call import Call, nothing
from tests.client.test_connections import MANY, ONCE, PATIENCE_S, VERSION, Service
from tests.support.certificates import self_signed
from tests.support.http import reached
from tests.support.server import Server


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with connections(trust_env=False) as opened:
        yield opened


@pytest.fixture
def service():
    running = Service()
    yield running
    running.close()


async def test_what_many_tasks_send_is_received_and_acknowledged(server: Server, http):
    client = AsyncClient(server.url, http=http)
    await client.put_topic("sent-by-many", queues=1)
    await client.put_group("reads-many", topics=["sent-by-many"])

    receipts = await asyncio.gather(
        *(client.send_message("sent-by-many", MessageInput(json=one)) for one in range(MANY))
    )

    received = await client.receive_messages("reads-many", max_messages=MANY)
    assert sorted(message.json() for message in received.messages) == list(range(MANY))
    assert {one.message_id for one in receipts} == {one.message_id for one in received.messages}
    handles = [message.receipt_handle for message in received.messages]
    await client.ack_messages("reads-many", handles)


async def test_a_call_that_waits_is_answered_when_a_message_comes(server: Server, http):
    client = AsyncClient(server.url, http=http)
    await client.put_topic("waited-for", queues=1)
    await client.put_group("waits", topics=["waited-for"])
    waiting = asyncio.ensure_future(client.receive_messages("waits", wait_ms=PATIENCE_S * 500))

    await client.send_message("waited-for", MessageInput(json="at last"))

    assert [one.json() for one in (await waiting).messages] == ["at last"]


async def test_messages_of_a_stream_come_one_by_one(server: Server, http):
    client = AsyncClient(server.url, http=http)
    await client.put_topic("streamed", queues=1)
    await client.put_group("streams", topics=["streamed"])
    messages = client.stream_messages("streams")
    for number in range(3):
        await client.send_message("streamed", MessageInput(json=number))
        assert (await anext(messages)).json() == number
    await messages.aclose()


async def test_a_service_that_was_started_again_is_reached_over_new_connections(tmp_path, http):
    with Server(tmp_path / "data") as server:
        client = AsyncClient(server.url, http=http, retry=Retry(total_ms=PATIENCE_S * 1_000))
        await client.put_topic("orders")
        server.kill()
        call = asyncio.ensure_future(client.get_topic("orders"))
        await asyncio.to_thread(server.start)

        assert (await call).topic == "orders"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_a_request_whose_answer_is_lost_is_not_sent_again_beneath_the_client(http, method):
    """Not over a connection that was used before, either: only the client knows what may be."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not received:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    service = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with service:
        url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        await http.request("GET", url)
        client = AsyncClient(url, http=http, retry=ONCE)

        with pytest.raises(Unreachable) as ended:
            await client.call(Call("anything", method, "/", nothing))

        assert ended.value.outcome_unknown
        assert len(received) == 2


@pytest.mark.parametrize("part", ["head", "body"])
async def test_an_answer_that_comes_byte_by_byte_is_given_up(service, http, part):
    client = AsyncClient(service.url, http=http, retry=ONCE, timeout_ms=500)
    with pytest.raises(Unreachable, match="ReadTimeout") as ended:
        await client.get_topic(f"slow-{part}")

    assert ended.value.outcome_unknown
    assert not service.has_answered_slowly
    assert (await client.get_version()).name == "EscrowMQ"


async def test_a_service_that_is_not_there_was_not_reached(http):
    with pytest.raises(Unreachable, match="ConnectError") as ended:
        await AsyncClient("http://127.0.0.1:1", http=http, retry=ONCE).get_version()

    assert not ended.value.outcome_unknown


async def test_a_proxy_of_the_environment_is_used_but_for_the_hosts_without_one(monkeypatch):
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(VERSION) + VERSION)
        writer.close()

    service = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with service:
        url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with connections() as http, connections(trust_env=False) as straight:
            await AsyncClient("http://shop.invalid:8080", http=http).get_version()
            await AsyncClient(url, http=http).get_version()
            with pytest.raises(Unreachable):
                await AsyncClient("http://shop.invalid", http=straight, retry=ONCE).get_version()

    assert asked == [
        b"GET http://shop.invalid:8080/v1/version HTTP/1.1",
        b"GET /v1/version HTTP/1.1",
    ]


class Tunnels:
    """A proxy that connects its clients with one place, whatever they ask for, or refuses to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[bytes] = []
        self.refusal = b""
        self.serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        if self.refusal:
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % self.refusal)
            await _close(writer)
            return
        behind, to_it = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, to_it), _pump(behind, writer))


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await source.read(1 << 16):
            to.write(piece)
    await _close(to)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
async def tunnels(tmp_path, monkeypatch) -> AsyncIterator[Tunnels]:
    """A proxy, to a service with TLS whose certificate is trusted: `https://shop.test`."""
    certificate, key = self_signed(tmp_path, names=["shop.test"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.serving.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(VERSION)
                writer.write(head + VERSION)
        await _close(writer)

    service = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    made = Tunnels(service.sockets[0].getsockname()[1])
    proxy = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    async with service, proxy:
        yield made
        await asyncio.gather(*filter(None, made.serving))


@pytest.fixture(params=[connections, httpx.AsyncClient], ids=["aiohttp", "httpx"])
async def by_proxy(request, tunnels) -> AsyncIterator[httpx.AsyncClient]:
    async with request.param() as opened:
        yield opened


async def test_a_service_with_tls_is_reached_through_a_proxy(tunnels, by_proxy):
    client = AsyncClient("https://shop.test", api_key="secret", http=by_proxy)
    for _ in range(3):
        assert (await client.get_version()).name == "EscrowMQ"

    (asked,) = tunnels.asked
    assert asked.startswith(b"CONNECT shop.test:443 HTTP/1.1\r\n")
    assert b"secret" not in asked


async def test_what_a_proxy_refuses_to_connect_was_not_sent_and_is_sent_again(tunnels, by_proxy):
    tunnels.refusal = b"502 Bad Gateway"
    client = AsyncClient("https://shop.test", http=by_proxy)
    unsafe = Call("anything", "POST", "/", lambda answer: answer.body, repeatable=False)
    call = asyncio.ensure_future(client.call(unsafe))
    await reached(lambda: len(tunnels.asked) > 1 or call.done(), "it is sent again")
    tunnels.refusal = b""

    assert await asyncio.wait_for(call, PATIENCE_S) == VERSION


@pytest.mark.parametrize("refusal", [b"407 Proxy Authentication Required", b"403 No"])
async def test_what_a_proxy_refuses_for_good_is_an_error_at_once(tunnels, by_proxy, refusal):
    tunnels.refusal = refusal
    client = AsyncClient("https://shop.test", http=by_proxy)
    with pytest.raises(CannotConnect, match=f"shop.test: .*proxy.*{refusal.decode()}") as ended:
        await client.get_version()

    assert not ended.value.outcome_unknown
    assert len(tunnels.asked) == 1


async def test_what_a_proxy_refuses_for_good_is_an_error_at_once_in_threads(tunnels):
    tunnels.refusal = b"407 Proxy Authentication Required"
    with Client("https://shop.test") as client:
        for call in (client.get_version, lambda: next(client.stream_messages("billing"))):
            with pytest.raises(CannotConnect, match=r"proxy.*407 Proxy Authentication Required"):
                await asyncio.to_thread(call)

    assert len(tunnels.asked) == 2


async def test_a_proxy_that_is_busy_is_asked_again(tunnels, by_proxy):
    tunnels.refusal = b"429 Too Many Requests"
    client = AsyncClient("https://shop.test", http=by_proxy)
    call = asyncio.ensure_future(client.get_version())
    await reached(lambda: len(tunnels.asked) > 1 or call.done(), "it is sent again")
    tunnels.refusal = b""

    assert (await asyncio.wait_for(call, PATIENCE_S)).name == "EscrowMQ"


async def test_a_proxy_that_is_not_there_was_not_reached(tunnels, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with connections() as http:
        with pytest.raises(Unreachable, match="ConnectError") as ended:
            await AsyncClient("https://shop.test", http=http, retry=ONCE).get_version()

    assert not ended.value.outcome_unknown


async def test_a_proxy_of_socks_is_refused_by_its_name(tunnels, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:1080")
    async with connections() as http:
        with pytest.raises(ValueError, match=r"getVersion: .* not of socks5"):
            await AsyncClient("https://shop.test", http=http, retry=ONCE).get_version()
        with pytest.raises(ValueError, match=r"streamMessages: .* not of socks5"):
            await anext(AsyncClient("https://shop.test", http=http).stream_messages("billing"))


@pytest.mark.parametrize("kind", [connections, httpx.AsyncClient], ids=["aiohttp", "httpx"])
async def test_a_certificate_that_nobody_signed_is_an_error_at_once(tmp_path, kind):
    certificate, key = self_signed(tmp_path, names=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    service = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with service, kind(trust_env=False) as http:
        url = f"https://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        with pytest.raises(CannotConnect, match="certificate") as ended:
            await AsyncClient(url, http=http).get_version()
        with Client(url) as client, pytest.raises(CannotConnect, match="certificate"):
            await asyncio.to_thread(client.get_version)

    assert not ended.value.outcome_unknown


async def test_a_close_of_the_connections_ends_a_call_that_waits(service, http):
    client = AsyncClient(service.url, http=http, timeout_ms=PATIENCE_S * 10_000)
    call = asyncio.ensure_future(client.get_topic("orders"))
    await reached(lambda: service.brought_by, "the call waits")

    await http.aclose()

    with pytest.raises(ClientClosed):
        await asyncio.wait_for(call, PATIENCE_S)
