"""Which requests a service without API keys refuses because a web page of another origin may have
sent them.
"""

import pytest

from app.http.browsers import Authority, BrowserRules, parse_authority, request_host
from app.problems import Refusal

HERE = "127.0.0.1:8080"
RULES = BrowserRules(["mq.example.com", "[fd00::1]:8080", "localhost:3000"])


def code(method: str, host: str | None, rules: BrowserRules = RULES, **headers: str) -> str | None:
    """The code of the refusal of a request with these headers, where `sec_fetch_site` is
    Sec-Fetch-Site.
    """
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    authority = None if host is None else request_host({"host": host}, http_version="1.1")
    refusal = rules.refuse(method, given, authority)
    return refusal.code if refusal else None


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "localhost.", "localhost:", "127.0.0.1", "127.255.255.254:1",
    "[::1]", "[::1]:8080",
     "[0:0:0:0:0:0:0:1]", "mq.example.com", "MQ.Example.com:1", "mq.example.com.:443",
     "[fd00::1]:8080"],
)  # fmt: skip
def test_a_loopback_name_on_any_port_and_a_named_host_are_served(host):
    assert code("GET", host) is None
    assert code("POST", host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "", ":8080", "localhost.evil.example", "foo.localhost",
    "127.0.0.1.evil.example",
     "128.0.0.1", "0.0.0.0", "127.1", "2130706433", "0x7f.0.0.1", "127.0.0.01", "[::]", "[::2]",
     "[::ffff:127.0.0.1]",
     "[127.0.0.1]", "xmq.example.com", "[fd00::1]", "[fd00::1]:8081", "192.168.1.1", "127.0.0.1..",
     "localhost.."],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_any_other_host_is_refused_for_reads_too(method, host):
    assert code(method, host) == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["a b", "localhost, localhost", ", ", "user@localhost", "localhost:80:80",
    "localhost:x", "[::1", "::1", "[::1]x", "http://a",
             "localhost:123456", "a/b", "höst", "a" * 256]
)  # fmt: skip
def test_a_host_header_that_is_no_host_or_stands_twice_is_malformed_whether_keys_are_set_or_not(
    host,
):
    with pytest.raises(Refusal) as refused:
        request_host({"host": host}, http_version="1.1")

    assert refused.value.code == "malformed_request"


def test_only_http_1_0_may_have_no_host():
    assert request_host({}, http_version="1.0") is None
    assert request_host({"host": "localhost"}, http_version="1.0") == Authority("localhost", None)
    for version in ("1.1", "2"):
        with pytest.raises(Refusal):
            request_host({}, http_version=version)
    assert code("POST", None) is None
    assert code("POST", None, origin="http://localhost") == "origin_not_allowed"


FOREIGN = {
    "of another site": {"origin": "https://evil.example"},
    "of another site, and said so": {
        "origin": "https://evil.example",
        "sec_fetch_site": "cross-site",
    },
    "of another site, which says nothing of its origin": {"sec_fetch_site": "cross-site"},
    "in another case": {"sec_fetch_site": "Cross-Site"},
    "of no origin": {"origin": "null"},
    "of no origin, which pretends": {"origin": "null", "sec_fetch_site": "same-origin"},
    "of a file": {"origin": "file://"},
    "of an extension": {"origin": "chrome-extension://abc"},
    "of another port": {"origin": "http://127.0.0.1:9000"},
    "of another port, which is the same site": {
        "origin": "http://127.0.0.1:9000",
        "sec_fetch_site": "same-site",
    },
    "of another port without an origin": {"sec_fetch_site": "same-site"},
    "of the default port": {"origin": "http://127.0.0.1"},
    "of another name of this machine": {"origin": "http://localhost:8080"},
    "of this host by a redirect from elsewhere": {
        "origin": "http://127.0.0.1:8080",
        "sec_fetch_site": "cross-site",
    },
    "of a site that has our name in its own": {"origin": "http://127.0.0.1:8080.evil.example"},
    "of two origins": {"origin": "http://127.0.0.1:8080, https://evil.example"},
    "of a user": {"origin": "http://127.0.0.1:8080@evil.example"},
    "of a named host on another port": {"origin": "http://mq.example.com:9000"},
    "of nothing": {"origin": ""},
    "of an unknown word": {"sec_fetch_site": "same-universe"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_a_page_of_another_origin_changes_nothing_and_its_reads_are_the_browsers_business(headers):
    for method in ("POST", "PUT", "PATCH", "DELETE", "post", "FETCH"):
        assert code(method, HERE, **headers) == "origin_not_allowed"
    for method in ("GET", "HEAD", "OPTIONS"):
        assert code(method, HERE, **headers) is None


OWN = {
    "a program": (HERE, {}),
    "a page of the service": (HERE, {"origin": f"http://{HERE}", "sec_fetch_site": "same-origin"}),
    "a page of the service by an old browser": (HERE, {"origin": f"http://{HERE}"}),
    "a page of the service that says no origin": (HERE, {"sec_fetch_site": "same-origin"}),
    "a user": (HERE, {"sec_fetch_site": "none"}),
    "in another case": ("LOCALHOST:8080", {"origin": "HTTP://localhost:8080"}),
    "IPv6": ("[::1]:8080", {"origin": "http://[::1]:8080"}),
    "the default port": ("localhost", {"origin": "http://localhost:80"}),
    "behind a proxy with TLS": ("mq.example.com", {"origin": "https://mq.example.com"}),
    "behind a proxy that names its upstream": (
        HERE,
        {"origin": "https://mq.example.com", "sec_fetch_site": "same-origin"},
    ),
    "a named page of another port": (
        "localhost:8080",
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
    ),
    "a named page of another site": (
        HERE,
        {"origin": "http://localhost:3000", "sec_fetch_site": "cross-site"},
    ),
}


@pytest.mark.parametrize(("host", "headers"), OWN.values(), ids=OWN)
def test_programs_the_services_own_pages_and_named_origins_change_what_they_like(host, headers):
    assert code("POST", host, **headers) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "https://mq.example.com",
        "mq.example.com/",
        "a b",
        "*",
        "10.0.0.0/8",
        "mq.example.com:port",
        ":80",
    ],
)
def test_a_name_that_is_no_host_is_refused_when_the_rules_are_made(name):
    with pytest.raises(ValueError, match="allowed_hosts"):
        BrowserRules([name])


def test_a_host_is_compared_in_lower_case_and_without_the_dot_of_the_root():
    assert parse_authority("MQ.Example.COM.:08080") == Authority("mq.example.com", 8080)
