"""Requests of web pages to a service without API keys: what another origin sends is refused, the
service's own pages work.

The first half sends what browsers send; the second asks a real Chromium, where one is installed.
"""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.support.browser import Browser, find_chromium
from tests.support.http import assert_problem, ok, request, speak
from tests.support.server import Server

EVIL = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


def codes(
    server: Server, target: str, *, host: str = "localhost", method: str = "GET"
) -> tuple[int, str | None]:
    """Status and code of the answer to a request whose target is written like this."""
    sent = request(method, target, close=True).replace(b"Host: localhost", f"Host: {host}".encode())
    (answer,) = speak(server, sent)
    return answer.status, json.loads(answer.body).get("code") if answer.body else None


@pytest.fixture
def undecided(api, topic) -> str:
    """A transaction that is not decided; its id is its topic's name."""
    message = {"topic": topic, "message": {"json": "secret"}}
    body = {"transaction_id": topic, "producer_group": "shop", "messages": [message]}
    ok(api.post("/v1/transactions", json=body), 201)
    return topic


def test_a_request_that_a_foreign_page_sends_changes_nothing(api, undecided):
    for method, path in [("POST", "commit"), ("POST", "rollback")]:
        refused = api.request(method, f"/v1/transactions/{undecided}/{path}", headers=EVIL)
        assert_problem(refused, 403, "origin_not_allowed")
    assert_problem(
        api.post(f"/v1/topics/{undecided}/messages", content=b'{"json":1}', headers=EVIL),
        403,
        "origin_not_allowed",
    )
    assert_problem(
        api.patch(f"/v1/topics/{undecided}", json={"queues": 2}, headers=EVIL),
        403,
        "origin_not_allowed",
    )
    assert_problem(api.delete("/v1/groups/any", headers=EVIL), 403, "origin_not_allowed")

    assert ok(api.get(f"/v1/transactions/{undecided}", headers=EVIL))["state"] == "prepared"
    ok(
        api.post(
            f"/v1/transactions/{undecided}/commit",
            headers={"Origin": str(api.base_url).rstrip("/")},
        )
    )


@pytest.mark.parametrize("path", ["/v1/topics", "/livez", "/docs", "/ui/", "/metrics", "/nothing"])
def test_no_path_is_served_to_a_foreign_host(api, path):
    assert_problem(api.get(path, headers={"Host": "evil.example:8080"}), 421, "host_not_allowed")


def test_the_host_of_an_absolute_target_is_judged_in_place_of_the_header(server):
    assert codes(server, "http://evil.example/livez") == (421, "host_not_allowed")
    assert codes(server, "http://localhost@evil.example/livez") == (421, "host_not_allowed")
    assert codes(server, "http://[fd00::1]:80/livez") == (421, "host_not_allowed")
    assert codes(server, "http://localhost:8080/livez", host="evil.example") == (200, None)
    assert codes(server, "http://[::1]/livez", host="evil.example") == (200, None)
    assert codes(server, "//evil.example/livez") == (404, "route_not_found")


def test_no_page_of_the_service_may_be_framed(api):
    pages = ("/docs", "/problems", "/problems/host_not_allowed")
    for path in pages:
        answer = api.get(path)
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert answer.headers["x-frame-options"] == "DENY"


def test_named_hosts_are_served_and_with_a_key_any_host_is(tmp_path):
    named = {"ESCROWMQ_HTTP__ALLOWED_HOSTS": '["mq.example.com"]'}
    with Server(tmp_path / "named", environment=named) as server, server.client() as api:
        own = {"Host": "mq.example.com", "Origin": "https://mq.example.com"}
        ok(api.post("/v1/topics", json={"topic": "one"}, headers=own), 201)
        assert_problem(
            api.get("/v1/topics", headers={"Host": "evil.example"}), 421, "host_not_allowed"
        )
    with (
        Server(tmp_path / "keys", environment={"ESCROWMQ_API_KEYS": '["first-key"]'}) as server,
        server.client() as api,
    ):
        key = {"Authorization": "Bearer first-key", "Host": "evil.example"}
        ok(api.post("/v1/topics", json={"topic": "one"}, headers=key | EVIL), 201)
        assert_problem(
            api.post("/v1/topics", json={"topic": "two"}, headers=EVIL), 401, "unauthenticated"
        )
        assert codes(server, "/livez", host="local host") == (400, "malformed_request")


# --------------------------------------------------------------------------------------------------
# Chromium


class _Nothing(BaseHTTPRequestHandler):
    """An empty page at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """The port of a web server that has nothing to do with the service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with Browser(program, hosts=("evil.example",)) as running:
        yield running


# Everything that a page can send without asking first, and what it must ask for. What can be read
# of the answers is returned.
ATTACK = """
const at = %s, topic = %s, seen = [];
const send = async (path, options) => {
  try { const answer = await fetch(at + path, options); seen.push(await answer.text()); } catch (error) { seen.push(""); }
};
const message = (type) => new Blob(['{"json":"planted"}'], type ? {type} : {});
await send(`/v1/transactions/${topic}/commit`, {method: "POST", mode: "no-cors"});
await send(`/v1/transactions/${topic}/commit`, {method: "POST", mode: "no-cors", referrerPolicy: "no-referrer"});
await send(`/v1/transactions/${topic}/commit`, {method: "POST"});
await send(`/v1/topics/${topic}/messages`, {method: "POST", mode: "no-cors", body: message()});
await send(`/v1/topics/${topic}/messages/raw`, {method: "POST", mode: "no-cors", body: message("text/plain")});
await send(`/v1/topics/${topic}/messages`, {method: "POST", body: message("application/json")});
await send(`/v1/topics/${topic}`, {method: "PATCH", body: '{"queues":9}'});
navigator.sendBeacon(at + `/v1/transactions/${topic}/commit`, new Blob([]));
const frame = document.createElement("iframe");
frame.name = "hidden";
document.body.append(frame);
const form = document.createElement("form");
Object.assign(form, {method: "POST", enctype: "text/plain", target: "hidden", action: at + `/v1/topics/${topic}/messages/raw`});
document.body.append(form);
const answered = new Promise((done) => { frame.onload = done; });
form.submit();
await answered;
await send("/v1/topics", {});
await send("/v1/topics", {mode: "no-cors"});
await send(`/v1/topics/${topic}/queues/0/messages`, {});
return seen;
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "foo.localhost", "evil.example"])
def test_in_chromium_a_page_of_another_origin_can_neither_commit_nor_send_nor_read(
    server, api, browser, other_port, undecided, host
):
    page = browser.open(f"http://{host}:{other_port}/")

    seen = page.run(ATTACK % (json.dumps(server.url), json.dumps(undecided)))

    assert seen == [""] * 10
    assert ok(api.get(f"/v1/transactions/{undecided}"))["state"] == "prepared"
    assert ok(api.get(f"/v1/topics/{undecided}/queues/0/messages"))["messages"] == []
    assert ok(api.get(f"/v1/topics/{undecided}"))["queues"] == 1


def test_in_chromium_a_name_that_was_made_to_resolve_to_loopback_reads_and_changes_nothing(
    server, api, browser, undecided
):
    at = f"http://evil.example:{server.port}"
    # its scripts have the origin of what it asks, as after DNS rebinding
    page = browser.open(f"{at}/v1/topics")

    assert page.run("return document.body.innerText").count("host_not_allowed") > 0
    seen = page.run(ATTACK % (json.dumps(at), json.dumps(undecided)))

    assert [text and json.loads(text)["code"] for text in seen] == ["host_not_allowed"] * 10
    assert ok(api.get(f"/v1/transactions/{undecided}"))["state"] == "prepared"
    assert ok(api.get(f"/v1/topics/{undecided}/queues/0/messages"))["messages"] == []


def test_in_chromium_the_services_own_pages_work_and_none_can_be_framed(server, browser, undecided):
    page = browser.open(f"{server.url}/docs")

    framed = """
        const frame = document.createElement("iframe");
        const loaded = new Promise((done) => { frame.onload = done; });
        frame.src = "/problems";
        document.body.append(frame);
        await loaded;
        return frame.contentDocument === null;
    """
    assert page.run("return document.title") == "EscrowMQ API"
    assert (
        page.run(
            f'return (await fetch("/v1/transactions/{undecided}/commit", {{method: '
            f'"POST"}})).status'
        )
        == 200
    )
    assert undecided in page.run('return await (await fetch("/v1/topics?page_size=1000")).text()')
    assert page.run(framed) is True


TRY_FIRST_OPERATION = """
const find = async (selector) => {
  for (;;) {
    const found = document.querySelector(selector);
    if (found) return found;
    await new Promise((done) => requestAnimationFrame(done));
  }
};
(await find("#operations-topics-listTopics button.opblock-summary-control")).click();
(await find("#operations-topics-listTopics button.try-out__btn")).click();
(await find("#operations-topics-listTopics button.execute")).click();
return (await find("#operations-topics-listTopics .live-responses-table tr.response"))
  .textContent;
"""


def test_in_chromium_an_operation_that_is_tried_on_the_page_reaches_this_service(
    server, browser, undecided
):
    page = browser.open(f"{server.url}/docs")

    assert undecided in page.run(TRY_FIRST_OPERATION)
