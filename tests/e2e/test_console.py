"""The console: its files, and what a real Chromium shows, where one is installed."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.browser import Browser, Page, find_chromium
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, of, promote
from tests.support.server import Server

STATIC = Path(__file__).parents[2] / "console" / "static"
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.*"))
MARKUP = '<img/src="x"onerror="document.title=1"><script>document.title=1</script>'
PATH = re.compile(r"""["`](/v1/[^"`?]*|/readyz)""")


def test_every_file_is_served_with_rules_that_let_no_foreign_code_in(api):
    for name in ("", *FILES):
        answer = api.get(f"/ui/{name}")

        assert answer.status_code == 200, name
        rules = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= {*rules}
        assert {"frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} <= {*rules}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
    assert api.get("/ui/").text == (STATIC / "index.html").read_text("utf-8")


def test_the_address_without_a_slash_leads_to_the_console(api):
    answer = api.get("/ui", follow_redirects=False)

    # Relative: below a path of a proxy it leads to the console, too.
    assert (answer.status_code, answer.headers["location"]) == (307, "ui/")


def test_an_unchanged_file_is_not_sent_again(api):
    known = api.get("/ui/main.js").headers["etag"]

    again = api.get("/ui/main.js", headers={"If-None-Match": known})

    assert (again.status_code, again.content) == (304, b"")


def test_the_page_needs_nothing_from_another_machine_and_has_no_script_of_its_own(api):
    page = api.get("/ui/").text

    for place in re.findall(r"""(?:src|href)="([^"#]+)\"""", page):
        assert "//" not in place
        assert api.get(f"/ui/{place}").status_code == 200, place
    assert re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", page) is None


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_script_makes_markup_or_code_of_what_it_reads(name):
    script = (STATIC / name).read_text("utf-8")

    made = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|srcdoc|DOMParser|document\.write|\beval\b"
        r"|new Function|javascript:|https?://",
        script,
    )
    assert made == []


def test_every_path_that_the_console_names_is_one_of_the_document(api):
    known = {re.sub(r"\{\w+\}", "{}", path) for path in api.get("/openapi.json").json()["paths"]}
    named = {
        re.sub(r"\$\{[^}]*\}", "{}", path)
        for script in STATIC.rglob("*.js")
        for path in PATH.findall(script.read_text("utf-8"))
    }

    assert len(named) > 25
    assert {path for path in named if not path.endswith("/")} - known - {"/readyz"} == set()
    # The rest of these is a word for what is done with it.
    assert {path for path in named if path.endswith("/")} == {"/v1/transactions/{}/"}


# --------------------------------------------------------------------------------------------------
# Chromium


class Forwarding(BaseHTTPRequestHandler):
    """A request to a Proxy."""

    server: "Proxy"

    def do_GET(self) -> None:
        if self.server.has_service:
            answer = httpx.get(self.server.behind + self.path)
            status, kind = answer.status_code, answer.headers["content-type"]
            body = answer.content
        else:
            status, kind, body = 502, "application/json", b'{"message":"no upstream"}'
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Proxy(ThreadingHTTPServer):
    """A reverse proxy before the service at `behind`; without a service it answers 502, in JSON of
    its own.
    """

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Forwarding)
        self.behind = behind
        self.has_service = True
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with Browser(program) as running:
        yield running


@pytest.fixture
def page(browser, server) -> Page:
    """A new tab with the console's overview."""
    return browser.open(f"{server.url}/ui/")


def shown(page: Page, address: str, words: str) -> str:
    """The text of the page at `address`, once it has `words`."""
    # Emptied first: the page before it may have the words, too, until it is replaced.
    page.run(
        "document.getElementById('page').replaceChildren();"
        f"const address = new URL({json.dumps('#/' + address)}, location).hash;"
        "if (location.hash === address) dispatchEvent(new HashChangeEvent('hashchange'));"
        "else location.hash = address;"
    )

    def text() -> str | None:
        found: str = page.run("return document.getElementById('page').innerText")
        return found if words in found else None

    return until(text, f"a page with {words!r}")


@pytest.fixture
def undecided(api, topic) -> str:
    """A transaction whose names and message contain markup; its topic is the fixture's."""
    name = f"{topic} 'or' \"{MARKUP}"
    message = {"topic": topic, "message": {"payload": MARKUP, "key": MARKUP, "tag": "created"}}
    body = {
        "transaction_id": f"of-{topic}",
        "producer_group": topic,
        "business_key": name[:255],
        "messages": [message],
    }
    ok(api.post("/v1/transactions", json=body), 201)
    return f"of-{topic}"


def test_the_overview_shows_that_the_service_is_ready_and_what_waits(page, undecided):
    text = shown(page, "", "Ready: every check passes.")

    assert "transactions prepared" in text
    assert "takes new messages" in text


def test_every_page_of_the_menu_is_shown_without_a_problem(page):
    addresses = page.run(
        "return [...document.querySelectorAll('nav a')].map((link) => link.hash.slice(2))"
    )

    assert len(addresses) == 8
    for address in addresses:
        assert "The console changes nothing." in shown(page, address, "The same with curl")
        assert page.run("return document.querySelectorAll('.problem').length") == 0, address
        current = page.run("return document.querySelector('nav a[aria-current]').hash")
        assert current == f"#/{address}"


def test_an_undecided_transaction_is_listed_explained_and_can_be_decided_with_its_command(
    page, api, topic, undecided
):
    assert undecided in shown(page, f"transactions?producer_group={topic}", undecided)
    assert undecided not in shown(page, f"transactions?state=held&producer_group={topic}", "match")
    text = shown(page, f"transactions/{undecided}", "Commit or roll back")
    assert f"Transaction {undecided} is prepared" in text
    assert "half stored" in text

    ok(api.post(f"/v1/transactions/{undecided}/commit"))

    # It is read again by itself.
    text = shown(page, f"transactions/{undecided}", "was committed by its producer")
    assert "Commit or roll back" not in text


def test_names_and_bodies_with_markup_are_shown_as_text(page, api, topic, undecided):
    (message,) = ok(api.post(f"/v1/transactions/{undecided}/commit"))["messages"]
    found = f"messages?topic={topic}&key={quote(MARKUP, safe='')}"
    for address, words in (
        (f"transactions?state=committed&producer_group={topic}", MARKUP),
        (f"transactions/{undecided}", MARKUP),
        (f"topics/{topic}/{message['queue_id']}", MARKUP),
        (f"messages/{message['message_id']}", MARKUP),
        (found, message["message_id"]),
        ("transactions/%3Cimg%3E", "transaction <img> does not exist"),
    ):
        shown(page, address, words)
        assert page.run("return document.querySelectorAll('#page img, #page script').length") == 0
    assert page.run("return document.title") != "1"


def test_a_script_that_gets_into_the_page_is_not_run(page):
    page.run(
        "const script = document.createElement('script');"
        "script.textContent = 'globalThis.planted = 1';"
        "document.body.append(script);"
    )

    assert page.run("return globalThis.planted === undefined") is True


def test_a_group_shows_its_lag_its_leases_and_its_dead_letters(page, api, topic):
    ok(api.put(f"/v1/groups/{topic}", json={"topics": [{"topic": topic}], "max_attempts": 1}), 201)
    for n in range(3):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"json": n, "key": f"key-{n}"}), 201)
    received = ok(api.post(f"/v1/groups/{topic}/receive", json={"max_messages": 2}))["messages"]
    entry = {"receipt_handle": received[0]["receipt_handle"]}
    ok(api.post(f"/v1/groups/{topic}/nack", json={"entries": [entry]}))

    text = shown(page, f"groups/{topic}", "redrive")

    assert "1\nready\n" in text
    assert "1\nleased\n" in text
    assert "1\ndead letters\n" in text
    assert received[0]["message_id"] in text
    assert received[1]["message_id"] in text


def test_the_groups_that_are_furthest_behind_come_first(page, api, make_topic):
    for sent in (1, 3):
        name = make_topic()
        for n in range(sent):
            ok(api.post(f"/v1/topics/{name}/messages", json={"json": n}), 201)
        ok(api.put(f"/v1/groups/{name}", json={"topics": [{"topic": name}]}), 201)

    text = shown(page, "groups", name)

    first = text.split("Dead letters\n", 1)[1].split("\n", 1)[0]
    assert first.split("\t")[:2] == [name, "3"]


def test_a_group_with_the_name_of_what_every_object_has_changes_no_figure_of_others(
    page, api, topic
):
    ok(api.post(f"/v1/topics/{topic}/messages", json={"json": 1}), 201)
    names = ("__proto__", "constructor")
    for name in names:
        ok(api.put(f"/v1/groups/{name}", json={"topics": [{"topic": topic}]}), 201)

    text = shown(page, "groups", "All, by name")

    furthest, by_name = text.split("All, by name")
    for name in names:
        assert f"{name}\t1\t" in furthest
        assert f"{name}\t{topic}\t1\t" in by_name
    assert page.run("return Object.keys(Object.prototype).length + ('messages_ready' in {})") == 0
    for name in names:
        assert api.delete(f"/v1/groups/{name}").status_code == 204


def test_every_command_that_is_shown_works_or_waits_for_a_word_of_the_operator(
    page, api, topic, undecided
):
    ok(api.put(f"/v1/groups/{topic}", json={"topics": [{"topic": topic}], "max_attempts": 1}), 201)
    ok(api.post(f"/v1/topics/{topic}/messages", json={"json": 1, "key": "it's"}), 201)
    (received,) = ok(api.post(f"/v1/groups/{topic}/receive", json={"wait_ms": 20_000}))["messages"]
    entry = {"receipt_handle": received["receipt_handle"]}
    ok(api.post(f"/v1/groups/{topic}/nack", json={"entries": [entry]}))
    must_be_edited = 0
    for address, words in (
        ("", "Ready"),
        (f"transactions/{undecided}", "Commit or roll back"),
        (f"topics/{topic}/{received['queue_id']}", received["message_id"]),
        (f"groups/{topic}", "redrive"),
        (f"messages?topic={topic}&key=it's", received["message_id"]),
        ("schedules", "Cancel it"),
    ):
        shown(page, address, words)
        page.run("document.querySelector('footer details').open = true")
        texts = page.run("return [...document.querySelectorAll('pre')].map((pre) => pre.innerText)")
        lines = [line for text in texts for line in text.splitlines() if line.startswith("curl")]
        assert lines, address
        for line in lines:
            script = f"{line} --silent --output /dev/null --write-out '%{{http_code}}'"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
            edited = "SCHEDULE_ID" in line or "commit or rollback" in line
            must_be_edited += edited
            assert done.stdout[0] == ("4" if edited else "2"), line

    assert must_be_edited == 2
    assert ok(api.get(f"/v1/transactions/{undecided}"))["state"] == "prepared"


def test_a_queue_with_large_bodies_lists_its_newest_messages_without_them(page, api, topic):
    for n in range(8):
        body = {"payload": f"{n}" * 200_000, "queue_id": 0}
        ok(api.post(f"/v1/topics/{topic}/messages", json=body), 201)

    text = shown(page, f"topics/{topic}/0", "large")

    assert [line.split("\t")[0] for line in text.splitlines() if "msg_" in line] == [*"01234567"]


def test_a_filter_that_is_refused_keeps_its_form(page, topic):
    shown(page, f"topics/{topic}/0?offset=999", "offset_beyond_end")

    assert page.run("return document.querySelector('[name=offset]').value") == "999"


def test_a_search_by_topic_alone_says_what_else_it_needs(page, topic):
    shown(page, f"messages?topic={topic}", "Give a topic and a key, or a message id.")


def test_an_address_that_cannot_be_read_is_no_page(page):
    for address in ("nothing", "topics/%E0%A4%A", "topics/a/b/c"):
        shown(page, "", "Overview")
        shown(page, address, "There is no such page.")


def test_the_longest_names_make_no_page_wider_than_its_window(page, api):
    longest = {"topic": "t" * 127, "queues": 1}
    ok(api.post("/v1/topics", json=longest), 201)
    sent = ok(
        api.post(
            f"/v1/topics/{longest['topic']}/messages",
            json={"payload": "x" * 9_000, "key": "k" * 255, "properties": {"p" * 127: "v" * 9_000}},
        ),
        201,
    )
    group = "g" * 127
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": longest["topic"]}]}), 201)
    begun = {
        "transaction_id": "x" * 127,
        "producer_group": "p" * 127,
        "business_key": "b" * 255,
        "messages": [{"topic": longest["topic"], "message": {"payload": "x"}}],
    }
    ok(api.post("/v1/transactions", json=begun), 201)
    for address, words in (
        ("topics", longest["topic"]),
        (f"topics/{longest['topic']}", "Size"),
        (f"topics/{longest['topic']}/0", sent["message_id"]),
        ("groups", group),
        (f"groups/{group}", "Dead letters"),
        (f"messages/{sent['message_id']}", "What became of it"),
        (f"transactions/{begun['transaction_id']}", "Decide it"),
        (f"transactions/{'y' * 127}", "does not exist"),
    ):
        shown(page, address, words)
        widths = page.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1], address
    ok(api.post(f"/v1/transactions/{begun['transaction_id']}/rollback"))
    assert api.delete(f"/v1/groups/{group}").status_code == 204


def test_a_filter_leads_to_an_address_of_its_own(page, topic, undecided):
    shown(page, "transactions", "Producer group")
    page.run(
        f"document.querySelector('[name=producer_group]').value = '{topic}';"
        "document.querySelector('form button').click();"
    )

    until(lambda: f"producer_group={topic}" in page.run("return location.hash"), "the address")
    assert undecided in shown(page, f"transactions?producer_group={topic}", undecided)


def test_a_page_without_the_service_says_so_and_comes_back_with_it(browser, tmp_path):
    with Server(tmp_path / "data") as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, "topics", "There is no topic yet.")
        server.terminate()
        shown(page, "groups", "The service cannot be reached")

        server.start()

        shown(page, "groups", "There is no consumer group yet.")


def test_a_search_that_met_no_service_is_made_again_once_there_is_one(browser, tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        page = browser.open(f"{server.url}/ui/")
        shown(page, "messages", "and key")
        server.terminate()
        shown(page, "messages?topic=orders&key=8812", "The service cannot be reached")

        server.start()

        shown(page, "messages?topic=orders&key=8812", "No message has this key.")


def test_a_page_behind_a_proxy_without_its_service_says_so_and_comes_back_with_it(
    browser, server, topic
):
    with Proxy(server.url) as proxy:
        page = browser.open(f"{proxy.url}/ui/")
        shown(page, "topics", topic)
        proxy.has_service = False
        shown(page, f"topics/{topic}", "Status 502")

        proxy.has_service = True

        shown(page, f"topics/{topic}", "Message types")


def test_a_replica_claims_nothing_of_groups_and_schedules_and_shows_them_once_it_is_the_service(
    browser, tmp_path
):
    with (
        Primary(tmp_path / "a") as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
        primary.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
        ok(api.post("/v1/topics/orders/messages", json={"json": 1}), 201)
        primary.wait_until_copied()
        replica.wait_until_registry_is(primary)
        page, of_group = (browser.open(f"{replica.url}/ui/") for _ in range(2))

        text = shown(page, "groups", "All, by name")
        of_schedules = shown(page, "schedules", "Not the primary")
        shown(of_group, "groups/billing", "Not the primary")

        assert text.count("Not the primary") == 2
        assert "No group has a message" not in text
        assert "Cancel it" not in of_schedules  # a command for this address would be refused

        primary.kill()
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with replica.service():
            # The page that is shown; the browser reads none that is hidden behind it.
            shown(of_group, "groups/billing", "ready")


def test_what_is_typed_while_a_page_is_read_again_stays(browser, tmp_path):
    with Server(tmp_path / "data") as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, "transactions", "No transaction matches.")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            until(lambda: page.run("return document.querySelector('[aria-busy]') !== null"), "it")
            page.run(
                "const field = document.querySelector('[name=producer_group]');"
                "field.focus(); field.value = 'sh';"
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        until(lambda: page.run("return document.querySelector('[aria-busy]') === null"), "the page")

        assert page.run("return document.activeElement.value") == "sh"


@pytest.mark.parametrize(
    "change",
    [
        "document.querySelector('[name=producer_group]').value = 'shop';",
        "document.querySelector('[name=older_than_ms]').selectedIndex = 1;",
    ],
)
def test_a_filter_that_was_changed_stays_when_it_has_lost_the_focus(browser, tmp_path, change):
    with Server(tmp_path / "data") as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, "transactions", "No transaction matches.")
        page.run(f"{COUNT_TIMERS} {change}")
        before = page.run(FILLED_IN)

        until(lambda: page.run("return window.timers > 0"), "a refresh, and the next one")

        assert page.run(FILLED_IN) == before


@pytest.mark.parametrize("query", ["", "?older_than_ms=5", "?producer_group=a%0Ab"])
def test_a_page_with_filters_that_no_one_has_changed_is_read_again(browser, tmp_path, query):
    with Server(tmp_path / "data") as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, f"transactions{query}", "Producer group")
        page.run("document.querySelector('#page h1').className = 'old';")

        until(lambda: page.run("return document.querySelector('h1:not(.old)') !== null"), "it")


FILLED_IN = "return [...new FormData(document.querySelector('#page form'))]"
# Each refresh sets a timer for the next one, whether it draws the page or not.
COUNT_TIMERS = """
    const set = window.setTimeout;
    window.timers = 0;
    window.setTimeout = (call, ms) => set(() => { window.timers += 1; call(); }, ms);
"""


def test_a_service_that_hangs_is_not_shown_as_ready(browser, tmp_path):
    with Server(tmp_path / "data") as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, "", "Ready: every check passes.")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            text = shown(page, "", "No answer in 15 s.")
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert "Ready" not in text
        shown(page, "", "Ready: every check passes.")


SIGN_IN = (
    "document.querySelector('#page input').value = %s;"
    "document.querySelector('#page form button').click();"
)


def test_a_key_without_a_scope_shows_what_it_may_and_says_which_scope_the_rest_needs(
    browser, tmp_path
):
    operator = {"name": "operator", "key": "operator-key", "scopes": ["operate"]}
    keys = {"ESCROWMQ_SCOPED_KEYS": json.dumps([operator])}
    with Server(tmp_path / "data", environment=keys) as server:
        page = browser.open(f"{server.url}/ui/")
        shown(page, "", "needs an API key")

        page.run(SIGN_IN % "'operator-key'")

        text = shown(page, "", "the key lacks the scope admin")
        assert "Ready: every check passes." in text
        shown(page, "audit", "the key lacks the scope audit")
        shown(page, "transactions", "No transaction matches.")
        assert page.run("return document.querySelectorAll('.problem').length") == 0


def test_with_api_keys_the_page_asks_for_one_and_forgets_it_on_request(browser, tmp_path):
    keys = {"ESCROWMQ_API_KEYS": '["first-key", "zweiter-schlüssel"]'}
    with Server(tmp_path / "data", environment=keys) as server, server.client() as api:
        assert api.get("/ui/").status_code == 200
        assert_problem(api.get("/v1/transactions"), 401, "unauthenticated")
        page = browser.open(f"{server.url}/ui/")
        shown(page, "topics", "needs an API key")

        page.run(SIGN_IN % "'wrong-key'")
        shown(page, "topics", "does not know this API key")
        page.run(SIGN_IN % "'zweiter-schlüssel'")
        text = shown(page, "topics", "There is no topic yet.")

        assert "zweiter" not in page.run("return document.documentElement.outerHTML")
        assert "The same with curl" in text
        page.run("document.getElementById('sign-out').click()")
        shown(page, "topics", "needs an API key")
        assert page.run("return sessionStorage.length + localStorage.length") == 0
