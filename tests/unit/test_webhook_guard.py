"""Where a check may go: URLs, addresses, names that lead elsewhere, what is read of an answer.

On a network that is none.
"""

import asyncio
import socket
import ssl
import threading
from ipaddress import ip_address

import httpx
import pytest

from app.webhooks.addresses import is_public
from app.webhooks.allowed import Allowed, Reach, read_allowed
from app.webhooks.kept import KeptConnections
from app.webhooks.options import WebhookOptions
from app.webhooks.posting import load_tls
from app.webhooks.received import MAX_ANSWER_BYTES, AnswerTooLong, PostFailed
from app.webhooks.resolver import AddressRefused, SystemResolver
from app.webhooks.transport import WebhookTransport
from app.webhooks.urls import UrlRefused, parse_url
from tests.support.wire import Wire

NOTHING = Allowed()
SHOP = parse_url("https://shop.example/", NOTHING)
PUBLIC = "93.184.215.14"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Names:
    """A resolver: each lookup of any name gives the next of these lists, the last one again and
    again.
    """

    def __init__(self, *lists: list[str]) -> None:
        self.lists = list(lists)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]


def transport_over(wire: Wire, names, *, allowed=NOTHING, most: int = 4) -> WebhookTransport:
    return WebhookTransport(
        allowed, most=most, resolve=names, tls=wire.trusted, make_socket=wire.make_socket
    )


async def post(
    url: str, wire: Wire, names: Names, *, allowed=NOTHING, headers=None, timeout_ms: int = 5_000
):
    transport = transport_over(wire, names, allowed=allowed)
    try:
        return await transport.post(
            parse_url(url, allowed), headers or {}, b"{}", timeout_ms=timeout_ms
        )
    finally:
        await transport.aclose()


# --------------------------------------------------------------------------------------------------
# addresses


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1",
        "127.255.255.254", "169.254.169.254",
        "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1",
        "192.168.1.1", "198.18.0.1",
        "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8", "100::1",
        "2001::1",
        "2001:0:4136:e378::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1",
        "2002:7f00:1::", "2002:808:808::1",
        "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1",
        "ff02::1", "ff0e::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_out_in_the_open_is_refused(text):
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["1.1.1.1", "8.8.8.8", PUBLIC, "100.63.255.255", "100.128.0.1", "172.32.0.1", "192.0.1.1",
    "223.255.255.255",
     "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)  # fmt: skip
def test_a_public_address_is_taken(text):
    assert is_public(ip_address(text))


# --------------------------------------------------------------------------------------------------
# URLs


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/", "ftp://a.example/", "file:///etc/passwd", "//a.example/", "a.example",
        "", "https://", "https:///x",
        "https://a.example:444/", "https://a.example:0/", "https://a.example:99999/",
        "https://a.example:x/",
        "https://user@a.example/", "https://user:pass@a.example/", "https://@a.example/",
        "https://a.example@b.example/",
        "https://a.example/#fragment", "https://a.example/#", "https://a.example/ x",
        "https://a.example\\@b.example/",
        "https://a.example/\r\nX: y", "https://a.example/\t", "https://a.example/\x00",
        "https://localhost/", "https://LOCALHOST/", "https://localhost./", "https://a.localhost/",
        "https://x.localdomain/",
        "https://127.0.0.1/", "https://127.1/", "https://127.0.0.1./", "https://0x7f.1/",
        "https://2130706433/", "https://0/",
        "https://0x7f000001/", "https://017700000001/", "https://010.8.8.8/", "https://a.0x7f/",
        "https://a.1/",
        "https://[::1]/", "https://[::]/", "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/", "https://[fe80::1%25eth0]/",
        "https://169.254.169.254/latest/meta-data/", "https://192.168.0.1/", "https://①②⑦.⓪.⓪.①/",
        "https://ex%61mple.com/",
        "https://a..b/", "https://.a/", "https://*.example/", "https://" + "a." * 130 + "example/",
    ],
)  # fmt: skip
def test_a_url_that_no_check_may_go_to_is_refused_before_anything_is_looked_up(url):
    with pytest.raises(UrlRefused):
        parse_url(url, NOTHING)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://shop.internal.example/mq/check", "shop.internal.example"),
        ("https://SHOP.Example:443/?token=1&x=%20", "shop.example"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://a_b.example/", "a_b.example"),
        ("https://8.8.8.8/", "8.8.8.8"),
        ("https://[2606:4700::1111]/", "2606:4700::1111"),
        ("https://a.example/@user", "a.example"),
    ],
)
def test_a_url_of_a_public_host_is_taken(url, host):
    target = parse_url(url, NOTHING)

    assert (target.host, target.port, target.reach) == (host, 443, Reach.PUBLIC)


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://127.0.0.1:8080/check", 8080), ("http://127.0.0.1/", 80), ("https://127.0.0.1/", 443),
    ("https://LocalHost:9/", 9),
     ("http://[::1]:7000/", 7000), ("http://shop.internal/", 80)],
)  # fmt: skip
def test_a_listed_host_may_be_local_plain_and_on_any_port(url, port):
    allowed = read_allowed(["127.0.0.1", "LOCALHOST", "[::1]", "shop.internal"])

    target = parse_url(url, allowed)

    assert (target.port, target.reach) == (port, Reach.ANY)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.2/",
        "http://[::2]/",
        "http://a.shop.internal/",
        "http://shop.internal.example/",
    ],
)
def test_what_is_only_like_a_listed_host_is_not_listed(url):
    with pytest.raises(UrlRefused):
        parse_url(url, read_allowed(["127.0.0.1", "::1", "shop.internal"]))


def test_a_listed_host_may_still_not_hold_a_password_or_a_fragment():
    for url in (
        "http://me@127.0.0.1/",
        "http://127.0.0.1/#x",
        "ftp://127.0.0.1/",
        "http://127.0.0.1:0/",
    ):
        with pytest.raises(UrlRefused):
            parse_url(url, read_allowed(["127.0.0.1"]))


# --------------------------------------------------------------------------------------------------
# networks

INSIDE = read_allowed(["10.20.0.0/16", "fd00:20::/32"])


@pytest.mark.parametrize(
    "url", ["http://10.20.0.7:8080/check", "https://10.20.255.255/", "http://[fd00:20::7]:9/"]
)
def test_an_address_in_a_listed_network_may_be_plain_and_on_any_port(url):
    assert parse_url(url, INSIDE).reach is Reach.ANY


@pytest.mark.parametrize(
    "url", ["http://10.21.0.7/", "https://10.19.255.255/", "https://127.0.0.1/",
    "https://[fd00:21::1]/", "http://8.8.8.8/",
            "https://8.8.8.8:444/", "https://[64:ff9b::10.20.0.7]/", "https://[2002:a14:7::]/",
            "https://[::10.20.0.7]/"]
)  # fmt: skip
def test_an_address_beside_a_listed_network_is_judged_as_ever(url):
    with pytest.raises(UrlRefused):
        parse_url(url, INSIDE)


@pytest.mark.parametrize("text", ["10.20.0.1/16", "10.20.0.0/33", "shop/16", "/", "10.0.0.0/8/8"])
def test_what_is_no_network_is_no_setting(text):
    with pytest.raises(ValueError, match="is no network"):
        WebhookOptions(allowed_hosts=(text,))


@pytest.mark.parametrize("address", ["10.20.0.7", "::ffff:10.20.0.7", "fd00:20::7"])
@pytest.mark.parametrize(
    "url", ["http://shop.internal:8080/", "https://shop.internal/", "http://localhost/"]
)
async def test_a_name_that_leads_into_a_listed_network_is_connected_to_however_it_is_asked(
    url, address
):
    wire = Wire(OK)

    await post(url, wire, Names([address]), allowed=INSIDE)

    assert [host for host, _ in wire.connected] == [address]


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "127.0.0.1", "10.21.0.7", "::ffff:127.0.0.1", "64:ff9b::10.20.0.7", "nonsense"],
)
@pytest.mark.parametrize(
    "url", ["http://shop.internal/", "https://shop.internal:8443/", "http://shop.internal:443/"]
)
async def test_a_name_in_plain_http_or_on_another_port_must_lead_into_a_listed_network_with_every_address(
    url, address
):
    wire = Wire(OK)

    with pytest.raises(AddressRefused):
        await post(url, wire, Names(["10.20.0.7", address]), allowed=INSIDE)

    assert wire.connected == []


async def test_over_https_a_name_may_have_public_addresses_and_some_in_a_listed_network_but_no_others():
    wire = Wire(OK, refusing=["10.20.0.7"])

    await post("https://shop.example/", wire, Names(["10.20.0.7", PUBLIC]), allowed=INSIDE)
    with pytest.raises(AddressRefused):
        await post("https://shop.example/", wire, Names(["10.20.0.7", "10.21.0.7"]), allowed=INSIDE)

    assert wire.connected == [("10.20.0.7", 443), (PUBLIC, 443)]


async def test_a_name_that_leaves_the_listed_network_is_refused_at_the_next_try():
    wire, names = Wire(OK), Names(["10.20.0.7"], ["127.0.0.1"])
    transport = transport_over(wire, names, allowed=INSIDE)
    target = parse_url("http://shop.internal/", INSIDE)

    await transport.post(target, {}, b"{}", timeout_ms=5_000)
    with pytest.raises(AddressRefused):
        await transport.post(target, {}, b"{}", timeout_ms=5_000)

    assert wire.connected == [("10.20.0.7", 80)]
    await transport.aclose()


# --------------------------------------------------------------------------------------------------
# connections


async def test_the_connection_goes_to_the_checked_address_while_tls_and_host_speak_of_the_name():
    wire, names = Wire(OK), Names([PUBLIC])

    answer = await post(
        "https://shop.example/mq/check?a=b", wire, names, headers={"webhook-id": "chk_1_a"}
    )

    assert (answer.status, answer.body) == (200, b"{}")
    assert (wire.connected, wire.server_names) == ([(PUBLIC, 443)], ["shop.example"])
    head = wire.written[0].lower()
    assert head.startswith(b"post /mq/check?a=b http/1.1\r\n")
    for line in (
        b"host: shop.example",
        b"accept-encoding: identity",
        b"webhook-id: chk_1_a",
    ):
        assert b"\r\n" + line + b"\r\n" in head
    assert head.endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize(
    "bad",
    [
        "127.0.0.1",
        "10.0.0.7",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "fe80::1%lo",
        "nonsense",
    ],
)
@pytest.mark.parametrize("first", [True, False])
async def test_one_address_that_is_not_public_refuses_the_name_and_nothing_is_connected_to(
    bad, first
):
    wire = Wire(OK)

    with pytest.raises(AddressRefused):
        await post("https://shop.example/", wire, Names([bad, PUBLIC] if first else [PUBLIC, bad]))

    assert wire.connected == []


async def test_a_name_that_changes_its_answer_is_asked_once_a_connection_and_refused_at_the_next():
    wire, names = Wire(OK), Names([PUBLIC], ["127.0.0.1"])
    transport = transport_over(wire, names)
    target = parse_url("https://shop.example/", NOTHING)

    await transport.post(target, {}, b"{}", timeout_ms=5_000)
    with pytest.raises(AddressRefused):
        await transport.post(target, {}, b"{}", timeout_ms=5_000)

    assert wire.connected == [(PUBLIC, 443)]
    assert names.asked == [("shop.example", 443)] * 2
    await transport.aclose()


async def test_an_address_where_nobody_listens_is_followed_by_the_next_one():
    wire = Wire(OK, refusing=["1.1.1.1"])

    answer = await post("https://shop.example/", wire, Names(["1.1.1.1", PUBLIC]))

    assert answer.status == 200
    assert wire.connected == [("1.1.1.1", 443), (PUBLIC, 443)]


async def test_where_nobody_listens_at_all_the_try_fails():
    with pytest.raises(PostFailed, match="does not accept the connection"):
        await post("https://shop.example/", Wire(OK, refusing=[PUBLIC]), Names([PUBLIC]))


async def test_a_host_that_is_an_address_is_not_looked_up():
    wire, names = Wire(OK), Names([])

    await post(f"https://{PUBLIC}/", wire, names)

    assert (wire.connected, names.asked) == ([(PUBLIC, 443)], [])


async def test_an_address_in_place_of_a_name_is_checked_as_those_of_names_are():
    wire = Wire(OK)
    transport = transport_over(wire, Names([]))
    target = SHOP._replace(url=httpx.URL("https://127.0.0.1/"), host="127.0.0.1")

    with pytest.raises(AddressRefused):
        await transport.post(target, {}, b"{}", timeout_ms=5_000)

    assert wire.connected == []
    await transport.aclose()


async def test_a_listed_name_may_lead_to_this_machine_in_plain_http():
    wire = Wire(OK)

    await post(
        "http://shop.internal:8080/",
        wire,
        Names(["127.0.0.1"]),
        allowed=read_allowed(["shop.internal"]),
    )

    assert (wire.connected, wire.server_names) == ([("127.0.0.1", 8080)], [])
    assert b"host: shop.internal:8080\r\n" in wire.written[0].lower()


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    wire = Wire(OK)

    await post("https://shop.example/", wire, Names([PUBLIC]))

    assert wire.connected == [(PUBLIC, 443)]


def test_certificates_are_checked_by_the_usual_authorities_and_not_by_those_of_the_environment(
    monkeypatch,
):
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    context = load_tls()

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) > 50


@pytest.mark.parametrize("url", ["https://other.example/", "https://8.8.8.8/"])
async def test_a_certificate_that_speaks_of_another_name_fails_the_try(url):
    wire = Wire(OK)

    with pytest.raises(PostFailed, match="its certificate does not hold"):
        await post(url, wire, Names([PUBLIC]))

    assert wire.written == []


async def test_a_redirect_is_an_answer_like_any_other_and_is_not_followed():
    wire = Wire(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://127.0.0.1/\r\nContent-Length: "
        b"0\r\n\r\n"
    )

    answer = await post("https://shop.example/", wire, Names([PUBLIC]))

    assert (answer.status, answer.headers["location"]) == (307, "https://127.0.0.1/")
    assert len(wire.connected) == 1


async def test_cookies_are_not_kept():
    wire = Wire(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b; Path=/\r\n\r\n"), keeps=True)
    transport = transport_over(wire, Names([PUBLIC]))

    for _ in range(2):
        await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)

    assert b"cookie" not in wire.written[1].lower()
    await transport.aclose()


@pytest.mark.parametrize("extra", [0, 1])
async def test_an_answer_of_64_kib_is_read_and_a_longer_one_is_not(extra):
    body = b"x" * (MAX_ANSWER_BYTES + extra)
    length = b"Content-Length: %d\r\n" % len(body)
    chunked = b"Transfer-Encoding: chunked\r\n"
    for head, sent in ((length, body), (chunked, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))):
        wire = Wire(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + sent)
        if extra:
            with pytest.raises(AnswerTooLong):
                await post("https://shop.example/", wire, Names([PUBLIC]))
        else:
            assert (await post("https://shop.example/", wire, Names([PUBLIC]))).body == body


async def test_a_compressed_answer_is_handed_on_as_it_came():
    wire = Wire(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"
    )

    answer = await post("https://shop.example/", wire, Names([PUBLIC]))

    assert (answer.body, answer.headers["content-encoding"]) == (b"\x1f\x8b\x08", "gzip")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n{}",
    ],
)
async def test_what_is_no_http_fails_the_try(answer):
    with pytest.raises(PostFailed):
        await post("https://shop.example/", Wire(answer), Names([PUBLIC]))


async def test_the_deadline_is_for_all_of_a_try_and_the_lookup_is_part_of_it():
    async def silent(host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await post("https://shop.example/", Wire(OK), silent, timeout_ms=10)


# --------------------------------------------------------------------------------------------------
# connections that are kept


async def test_a_connection_is_used_again_and_its_name_is_not_looked_up_for_that():
    wire, names = Wire(OK, keeps=True), Names([PUBLIC], ["127.0.0.1"])
    transport = transport_over(wire, names)

    for _ in range(3):
        assert (await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)).status == 200

    assert wire.connected == [(PUBLIC, 443)]
    assert names.asked == [("shop.example", 443)]
    assert len(wire.written) == 3
    await transport.aclose()
    await wire.until_open(0)


async def test_hosts_have_connections_of_their_own():
    wire = Wire(OK, keeps=True)
    transport = transport_over(wire, Names([PUBLIC]), allowed=read_allowed(["shop.internal"]))

    for url in ("https://shop.example/", "https://shop.internal/", "http://shop.internal/"):
        target = parse_url(url, read_allowed(["shop.internal"]))
        await transport.post(target, {}, b"{}", timeout_ms=5_000)

    assert wire.connected == [(PUBLIC, 443), (PUBLIC, 443), (PUBLIC, 80)]
    await transport.aclose()


async def test_a_request_over_a_kept_connection_that_is_closed_at_that_moment_goes_over_a_new_one():
    wire = Wire(OK, keeps=True)
    transport = transport_over(wire, Names([PUBLIC]))
    await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)
    wire.hangs_up = 1

    answer = await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)

    assert answer.status == 200
    assert len(wire.connected) == 2
    await transport.aclose()


async def test_a_request_over_a_new_connection_that_is_closed_fails_the_try():
    wire = Wire(OK, keeps=True)
    wire.hangs_up = 1
    transport = transport_over(wire, Names([PUBLIC]))

    with pytest.raises(PostFailed, match="was cut"):
        await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)

    assert len(wire.connected) == 1
    await transport.aclose()


@pytest.mark.parametrize("when", ["with the answer", "later"])
async def test_what_an_endpoint_says_without_being_asked_is_never_an_answer(when):
    """To another check it might be a decision."""
    wire = Wire(OK, keeps=True)
    transport = transport_over(wire, Names([PUBLIC]))
    unasked = OK.replace(b"200 OK", b"201 Created")
    if when == "with the answer":
        wire.answers = [OK + unasked, OK]
    await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)
    if when == "later":
        wire.transports[0].write(unasked)

    assert (await transport.post(SHOP, {}, b"{}", timeout_ms=5_000)).status == 200
    assert len(wire.connected) == 2
    await transport.aclose()


async def test_no_more_connections_are_kept_than_half_of_the_requests_that_there_may_be():
    wire = Wire(OK, keeps=True)
    hosts = [f"host{number}.internal" for number in range(6)]
    allowed = read_allowed(hosts)
    transport = transport_over(wire, Names([PUBLIC]), allowed=allowed, most=8)

    for host in hosts:
        await transport.post(parse_url(f"http://{host}/", allowed), {}, b"{}", timeout_ms=5_000)

    closing = [b"connection: close" in head.lower() for head in wire.written]
    assert closing == [False] * 4 + [True] * 2
    await wire.until_open(4)
    await transport.aclose()
    await wire.until_open(0)


def test_a_connection_that_is_idle_counts_until_it_is_used_again_or_surely_closed():
    now = [0.0]
    kept = KeptConnections(2, keep_s=4.0, now=lambda: now[0])
    assert kept.take()
    assert kept.take()
    assert not kept.take(), "two are in use"
    kept.give_back()
    assert not kept.take(), "one is in use, one idle"
    kept.note_used_again()
    assert kept.take()
    kept.give_back()
    kept.give_back()
    now[0] = 7.9
    assert not kept.take()
    now[0] = 8.0
    assert kept.take()


async def test_the_lookup_of_the_system_knows_this_machine_and_says_where_there_is_no_such_name():
    resolve = SystemResolver()

    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]
    for name in ("a" * 64, "a\0b"):
        with pytest.raises(socket.gaierror):
            await resolve(name, 80)


async def test_one_lookup_of_a_name_serves_all_who_ask_meanwhile_and_few_are_under_way_at_once():
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    begun: asyncio.Queue[str] = asyncio.Queue()
    under_way: set[str] = set()
    most = 0

    def look_up(host: str, port: int) -> list[str]:
        nonlocal most
        under_way.add(host)
        most = max(most, len(under_way))
        loop.call_soon_threadsafe(begun.put_nowait, host)
        go_on.wait(20)
        under_way.discard(host)
        return [f"{host}:{port}"]

    resolve = SystemResolver(most=2, look_up=look_up)
    names = ["a", "a", "b", "c", "d", "a", "c"]
    asking = [asyncio.ensure_future(resolve(name, 443)) for name in names]
    first = [await begun.get(), await begun.get()]
    asking[0].cancel()
    go_on.set()

    answers = await asyncio.gather(*asking[1:])

    assert answers == [[f"{name}:443"] for name in names[1:]]
    assert sorted([*first, await begun.get(), await begun.get()]) == ["a", "b", "c", "d"]
    assert begun.empty()
    assert most == 2
    assert await resolve("a", 443) == ["a:443"]
    assert await begun.get() == "a", (
        "what was found is not kept: a name may lead elsewhere by the next try"
    )


async def test_a_name_that_is_not_found_makes_room_for_the_next():
    def look_up(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, host)

    resolve = SystemResolver(most=1, look_up=look_up)

    found = await asyncio.gather(
        *[resolve(str(number), 443) for number in range(5)], return_exceptions=True
    )

    assert [type(one) for one in found] == [socket.gaierror] * 5
