"""Messages that come by themselves, as server-sent events."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.browser import Browser, find_chromium
from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

_numbers = count(1)


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


class Events:
    """Events of one stream. `comments`: lines that begin with a colon."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments: list[str] = []
        self._lines = response.iter_lines()

    def next(self) -> Event:
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                if "event" in fields:
                    return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
                fields = {}
            elif line.startswith(":"):
                self.comments.append(line)
            else:
                name, _, value = line.partition(": ")
                fields[name] = value
        raise EOFError

    def take(self, number: int) -> list[Event]:
        return [self.next() for _ in range(number)]


@contextmanager
def streaming(api: httpx.Client, group: str, **query: Any) -> Iterator[Events]:
    path = f"/v1/groups/{group}/stream"
    with api.stream("GET", path, params=query, timeout=30) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


@contextmanager
def lost_stream(api: httpx.Client, group: str, **query: Any) -> Iterator[Events]:
    """A stream that is known to be lost after the block."""
    before = streams_open(api)
    with streaming(api, group, **query) as events:
        yield events
    until(lambda: streams_open(api) == before, "the service knows that the client has left")


def streams_open(api: httpx.Client) -> str:
    lines = api.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("escrowmq_long_polls_open "))


def bytes_in_progress(api: httpx.Client) -> float:
    lines = api.get("/metrics").text.splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("escrowmq_request_body_bytes ")
    )


@pytest.fixture
def group(api, topic) -> str:
    name = f"streamed-{next(_numbers)}"
    ok(api.put(f"/v1/groups/{name}", json={"topics": [{"topic": topic}]}), 201)
    return name


def send(api: httpx.Client, topic: str, *payloads: str) -> None:
    entries = [{"message": {"payload": payload}} for payload in payloads]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)


def ack(api: httpx.Client, group: str, *handles: str) -> None:
    entries = [{"receipt_handle": handle} for handle in handles]
    ok(api.post(f"/v1/groups/{group}/ack", json={"entries": entries}))


def payloads(events: list[Event]) -> list[str]:
    return [event.data["payload"] for event in events]


def test_messages_come_as_events_with_their_handles(api, topic, group):
    send(api, topic, "a")

    with streaming(api, group, lease_ms=30_000) as events:
        first = events.next()
        send(api, topic, "b")
        second = events.next()

    assert (first.kind, first.data["payload"], second.data["payload"]) == ("message", "a", "b")
    assert first.id == first.data["receipt_handle"]
    assert first.data["attempt"] == 1
    ack(api, group, first.id, second.id)
    (offset,) = ok(api.get(f"/v1/groups/{group}/offsets", params={"topic": topic}))["items"]
    assert offset["offset"] == 2


def test_no_more_come_than_the_credit_until_one_is_acknowledged(api, topic, group):
    send(api, topic, *"abcde")

    with streaming(api, group, credit=2) as events:
        first, second = events.take(2)
        leased = ok(api.get(f"/v1/groups/{group}/leases"))["items"]
        ack(api, group, second.id)
        third = events.next()
        ack(api, group, first.id, third.id)
        rest = events.take(2)

    assert len(leased) == 2
    assert payloads([first, second, third, *rest]) == list("abcde")


def test_the_next_stream_is_given_the_leases_of_one_that_was_lost(api, topic, group):
    send(api, topic, *"abc")
    with lost_stream(api, group, credit=3) as lost:
        before = lost.take(3)
    ack(api, group, before[0].id)
    send(api, topic, "d")

    with streaming(api, group, credit=3) as events:
        again = events.take(3)

    assert [event.id for event in again[:2]] == [event.id for event in before[1:]]
    assert payloads(again) == ["b", "c", "d"]
    assert [event.data["attempt"] for event in again] == [1, 1, 1]


def test_a_client_that_comes_back_before_its_loss_is_known_has_its_leases_then(api, topic, group):
    send(api, topic, "a", "b")
    with streaming(api, group) as lost:
        before = lost.take(2)
        with streaming(api, group) as events:
            lost.response.close()
            again = events.take(2)

    assert [event.id for event in again] == [event.id for event in before]


def test_a_stream_with_less_credit_is_given_no_more_at_once_of_what_another_held(api, topic, group):
    send(api, topic, *"abc")
    with lost_stream(api, group, credit=3) as lost:
        lost.take(3)

    with streaming(api, group, credit=1) as events:
        seen = []
        for _ in range(3):
            event = events.next()
            seen.append(event)
            ack(api, group, event.id)

    assert payloads(seen) == ["a", "b", "c"]


def test_what_was_acknowledged_meanwhile_is_not_given_again(api, topic, group):
    send(api, topic, *"abc")
    with lost_stream(api, group, credit=3) as lost:
        before = lost.take(3)

    with streaming(api, group, credit=1) as events:
        first = events.next()
        ack(api, group, before[1].id)
        ack(api, group, first.id)
        second = events.next()

    assert payloads([first, second]) == ["a", "c"]


def test_a_group_that_is_made_again_has_a_stream_of_its_own(api, topic, group):
    send(api, topic, "a", "b")
    with streaming(api, group) as events:
        events.take(2)
    assert api.delete(f"/v1/groups/{group}").status_code == 204
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": topic}]}), 201)

    with streaming(api, group) as events:
        again = events.take(2)

    assert [(event.data["payload"], event.data["attempt"]) for event in again] == [
        ("a", 1),
        ("b", 1),
    ]


def test_two_streams_share_the_messages_and_take_none_of_each_other(api, topic, group):
    with streaming(api, group, credit=1) as one, streaming(api, group, credit=1) as other:
        send(api, topic, "a", "b")
        first, second = one.next(), other.next()

    assert sorted(payloads([first, second])) == ["a", "b"]


def test_a_stream_goes_on_with_its_leases_after_the_service_was_killed(tmp_path):
    with Server(tmp_path / "data", dev=False) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
            send(api, "orders", "a", "b")
            with streaming(api, "g") as events:
                before = events.take(2)
                ack(api, "g", before[0].id)
                server.kill()
        server.start()
        with server.client() as api:
            send(api, "orders", "c")
            with streaming(api, "g") as events:
                after = events.take(2)

    assert after[0].id == before[1].id
    assert payloads(after) == ["b", "c"]


def test_a_stream_is_told_why_it_ends(tmp_path):
    with Server(tmp_path / "data", dev=False) as server, server.client() as api:
        for number in range(3):
            ok(api.post("/v1/topics", json={"topic": f"t{number}", "queues": 1}), 201)
            topics = [{"topic": f"t{number}"}]
            ok(api.put(f"/v1/groups/g{number}", json={"topics": topics}), 201)
        with (
            streaming(api, "g0") as first,
            streaming(api, "g1") as second,
            streaming(api, "g2") as third,
        ):
            assert api.delete("/v1/groups/g0").status_code == 204
            member = {"client_id": "a", "topics": [{"topic": "t1"}]}
            ok(api.post("/v1/groups/g1/members", json=member), 201)
            send(api, "t1", "x")
            ended = [first.next(), second.next()]
            server.terminate()
            ended.append(third.next())

    assert [event.kind for event in ended] == ["closing"] * 3
    codes = [event.data["code"] for event in ended]
    assert codes == ["group_not_found", "group_active", "shutting_down"]


def test_a_browser_is_told_of_what_passes_by_an_event_as_it_would_give_up_otherwise(tmp_path):
    environment = {"ESCROWMQ_HTTP__MAX_WAITING": "1"}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ok(api.put("/v1/topics/orders"), 201)
        ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
        browser = {"Accept": "text/event-stream"}
        with streaming(api, "g"):
            refused = api.get("/v1/groups/g/stream")
            told = api.get("/v1/groups/g/stream", headers=browser)
        missing = api.get("/v1/groups/none/stream", headers=browser)

    assert_problem(refused, 429, "too_many_waiting")
    assert told.status_code == 200
    kind, data = told.text.splitlines()[1:3]
    assert (kind, json.loads(data.removeprefix("data: "))["code"]) == (
        "event: closing",
        "too_many_waiting",
    )
    assert_problem(missing, 404, "group_not_found")


def test_a_stream_in_which_nothing_happens_is_kept_alive(tmp_path):
    environment = {"ESCROWMQ_HTTP__KEEP_ALIVE_MS": "50"}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ok(api.put("/v1/topics/orders"), 201)
        ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
        with streaming(api, "g") as events:
            lines = events.response.iter_lines()
            comment = next(line for line in lines if line.startswith(":"))

    assert comment == ": keep-alive"


def test_the_leases_of_a_stream_end_as_others_do(api, topic, group):
    send(api, topic, "a")

    with streaming(api, group, lease_ms=100) as events:
        first, again = events.next(), events.next()

    assert (first.data["attempt"], again.data["attempt"]) == (1, 2)
    assert first.id != again.id


def test_a_client_that_leaves_holds_no_place_of_a_long_poll(api, topic, group):
    before = streams_open(api)
    with lost_stream(api, group):
        until(lambda: streams_open(api) != before, "the stream counts as a long poll")


def test_the_head_of_a_stream_is_answered_at_once(api, group):
    answer = api.head(f"/v1/groups/{group}/stream")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream"


def test_a_stream_that_is_not_read_leases_what_fits_into_the_connection(server, api, topic, group):
    """Everything else waits in the log, whatever the credit."""
    count_of_messages, payload = 400, "x" * 100_000
    for _ in range(count_of_messages // 50):
        send(api, topic, *[payload] * 50)
    readings: list[int] = []

    def is_at_rest() -> bool:
        leased = ok(api.get(f"/v1/groups/{group}/lag"))["messages_leased"]
        readings.append(leased)
        return leased > 0 and len(readings) > 20 and len(set(readings[-20:])) == 1

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", server.port))
        head = f"GET /v1/groups/{group}/stream?credit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(head.encode())
        until(is_at_rest, "no more is leased")

    assert readings[-1] < count_of_messages // 2


def test_an_event_that_the_client_has_not_taken_counts_as_a_body_in_progress(
    server, api, topic, group
):
    """Several hundred clients that do not read would otherwise take memory without a limit."""
    payload = '"' * (3 << 20)  # as JSON it is too long for what the kernel keeps of a connection
    send(api, topic, payload)
    before = bytes_in_progress(api)

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.connect(("127.0.0.1", server.port))
        head = f"GET /v1/groups/{group}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(head.encode())
        until(
            lambda: bytes_in_progress(api) - before >= 3 * len(payload),
            "the message and its event are counted",
        )

    until(lambda: bytes_in_progress(api) == before, "nothing is counted of a client that has left")


def test_a_stream_to_http_1_0_has_no_chunks(server, api, topic, group):
    """A proxy in front of the service often speaks it."""
    send(api, topic, "a")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        head = f"GET /v1/groups/{group}/stream HTTP/1.0\r\nHost: localhost\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while b"event: message" not in answer:
            answer += connection.recv(4_096)

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"retry: 1000\n\nid: lh_")


PAGE = """
window.seen = []
window.acked = 0
const source = new EventSource("/v1/groups/g/stream?credit=5")
source.addEventListener("message", async event => {
    const message = JSON.parse(event.data)
    const entries = [{receipt_handle: event.lastEventId}]
    const body = JSON.stringify({entries})
    const headers = {"Content-Type": "application/json"}
    if (!window.seen.some(one => one.id === event.lastEventId))
        window.seen.push({id: event.lastEventId, payload: message.payload})
    while (true) {
        try {
            const answer = await fetch("/v1/groups/g/ack", {method: "POST", headers, body})
            if (answer.ok) break
        } catch { }
        await new Promise(resolve => setTimeout(resolve, 20))
    }
    window.acked += 1
})
"""


def test_a_browser_reads_on_after_a_restart_without_a_gap_or_a_double(tmp_path):
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    count_of_messages = 300
    with Server(tmp_path / "data", dev=False) as server, Browser(program) as browser:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
            send(api, "orders", *map(str, range(count_of_messages)))
        page = browser.open(f"{server.url}/problems")
        page.run(PAGE)
        until(lambda: page.run("return window.seen.length") > 20, "messages have come")
        server.kill()
        server.start()
        until(
            lambda: (
                len(page.run("return window.seen.map(one => one.payload)")) >= count_of_messages
            ),
            "all have come",
        )

        seen = page.run("return window.seen.map(one => one.payload)")

    assert seen == [str(number) for number in range(count_of_messages)]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_page_of_another_origin_leases_nothing(api, topic, group, headers):
    """An `EventSource` of it could not read the messages, and would keep them from others."""
    send(api, topic, "a")

    for method in ("GET", "HEAD"):
        refused = api.request(method, f"/v1/groups/{group}/stream", headers=headers)
        assert refused.status_code == 403

    assert ok(api.get(f"/v1/groups/{group}/lag"))["messages_ready"] == 1


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"credit": 0}, "/query/credit"),
        ({"credit": 1_001}, "/query/credit"),
        ({"lease_ms": 99}, "/query/lease_ms"),
        ({"worker": "a\u0000"}, "/query/worker"),
        ({"color": "red"}, "/query/color"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(api, group, query, pointer):
    refused = api.get(f"/v1/groups/{group}/stream", params=query)
    assert_problem(refused, 422, "validation_failed", pointer)


def test_a_stream_of_a_group_that_has_members_or_reads_nothing_is_refused(api, topic, group):
    assert_problem(api.get("/v1/groups/no-such-group/stream"), 404, "group_not_found")
    ok(api.put("/v1/groups/reads-nothing"), 201)
    nothing = api.get("/v1/groups/reads-nothing/stream")
    assert_problem(nothing, 422, "unsupported_combination")
    member = {"client_id": "a", "topics": [{"topic": topic}]}
    ok(api.post(f"/v1/groups/{group}/members", json=member), 201)
    assert_problem(api.get(f"/v1/groups/{group}/stream"), 409, "group_active")
