"""What a request may ask of the service's time and memory: the number of values, the ratio of gzip,
the bytes under way.
"""

import gzip
import json
import mmap
import os
import random
import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from app.encoding import codec
from tests.support.http import assert_problem, at_once, ok, request, speak, until
from tests.support.line_stream import LineStream
from tests.support.server import Server

JSON = {"Content-Type": "application/json"}
GZIP = {**JSON, "Content-Encoding": "gzip"}
MIB = 1 << 20
LISTS = b"[" + b"[]," * (codec.MAX_VALUES // 2) + b"[]]"
TOO_MANY_VALUES = {"limited": "values", "limit": str(codec.MAX_VALUES)}
BUDGET = 400_000
LARGE = BUDGET - BUDGET // 16  # what large bodies may have
ANSWERS = BUDGET * 3 // 4
HALF = 250_000  # two of it do not fit


@pytest.fixture(scope="module")
def tight(tmp_path_factory) -> Iterator[Server]:
    """A service with little memory for bodies, and little patience with them."""
    environment = {
        "ESCROWMQ_HTTP__MAX_BODIES_BYTES": str(BUDGET),
        "ESCROWMQ_HTTP__BODY_TIMEOUT_MS": "60000",
    }
    with Server(tmp_path_factory.mktemp("tight") / "data", environment=environment) as server:
        yield server


# --------------------------------------------------------------------------------------------------
# values


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/topics/{topic}/messages", b'{"json":LISTS}'),
        (
            "/v1/topics/{topic}/messages/batch",
            b'{"atomic":false,"entries":[{"message":{"json":LISTS}}]}',
        ),
        (
            "/v1/transactions",
            b'{"producer_group":"shop","messages":[{"topic":"{topic}","message":{"json":LISTS}}]}',
        ),
        ("/v1/topics/{topic}/requests", b'{"message":{"json":LISTS}}'),
        ("/v1/groups/workers/offsets", b'{"offsets":LISTS}'),
    ],
)
def test_json_of_too_many_values_is_refused_before_any_is_built(api, topic, path, body):
    path, body = (
        path.replace("{topic}", topic),
        body.replace(b"{topic}", topic.encode()).replace(b"LISTS", LISTS),
    )
    method = "PUT" if "offsets" in path else "POST"

    problem = assert_problem(
        api.request(method, path, content=body, headers=JSON), 413, "body_too_large"
    )
    compressed = assert_problem(
        api.request(method, path, content=gzip.compress(body), headers=GZIP), 413, "body_too_large"
    )

    assert problem["context"] == TOO_MANY_VALUES
    assert compressed["context"]["limited"] in ("values", "gzip_ratio")
    assert ok(api.get(f"/v1/topics/{topic}/stats"))["messages_ever"] == 0


def test_what_texts_hold_is_no_value_and_neither_are_the_bytes_of_a_raw_message(api, topic):
    text = '[{,\\"' * (MIB // 6)
    ok(api.post(f"/v1/topics/{topic}/messages", json={"json": text}), 201)
    ok(api.post(f"/v1/topics/{topic}/messages/raw", content=LISTS), 201)

    messages = ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params={"max_bytes": 4 * MIB}))[
        "messages"
    ]
    assert [message["payload"] for message in messages] == [json.dumps(text), LISTS.decode()]


# --------------------------------------------------------------------------------------------------
# topic's limit


@pytest.mark.parametrize(
    ("path", "length"), [("messages", MIB), ("messages/raw", 1_001), ("requests", MIB)]
)
def test_a_body_too_long_for_the_topic_is_refused_by_its_length_alone(
    server, make_topic, path, length
):
    topic = make_topic(max_message_bytes=1_000)
    head = request("POST", f"/v1/topics/{topic}/{path}", f"Content-Length: {length}", close=True)

    (answer,) = speak(server, head)

    assert (answer.status, json.loads(answer.body)["code"]) == (413, "message_too_large")
    assert json.loads(answer.body)["context"] == {"limit_bytes": "1000"}


def test_a_message_of_the_topics_limit_is_taken_however_it_is_written(api, make_topic):
    topic = make_topic(max_message_bytes=1_000)
    path = f"/v1/topics/{topic}/messages"
    own = {"a": "ü" * 8_000}  # as escapes

    ok(api.post(path, content=b'{"payload":"' + b"\\u0001" * 1_000 + b'"}', headers=JSON), 201)
    ok(api.post(f"{path}/raw", content=b"x" * 1_000), 201)
    ok(api.post(path, json={"payload": "\x01" * 1_000, "properties": own}), 201)
    assert_problem(api.post(path, json={"payload": "x" * 1_001}), 413, "message_too_large")
    assert_problem(
        api.post(f"{path}/raw", content=gzip.compress(b"x" * 1_001), headers=GZIP),
        413,
        "message_too_large",
    )


# --------------------------------------------------------------------------------------------------
# gzip


def test_a_gzip_body_of_too_high_a_ratio_is_refused_and_a_short_one_is_not(api, topic):
    path = f"/v1/topics/{topic}/messages"
    high, short = (
        gzip.compress(b'{"payload":"' + b"x" * count + b'"}') for count in (MIB, MIB // 8)
    )

    problem = assert_problem(api.post(path, content=high, headers=GZIP), 413, "body_too_large")

    assert problem["context"] == {"limited": "gzip_ratio", "limit": "100"}
    ok(api.post(path, content=short, headers=GZIP), 201)


# --------------------------------------------------------------------------------------------------
# streams


def test_a_line_of_too_many_values_is_answered_and_ends_nothing(server, api, topic):
    with LineStream(server, topic) as stream:
        stream.write(
            b'{"id":"1","message":{"json":' + LISTS + b"}}\n" + b'{"id":"2","message":{"json":1}}\n'
        )
        stream.end()
        answers = stream.rest()

    assert [answer["status"] for answer in answers] == [413, 201]
    assert answers[0]["problem"]["context"] == TOO_MANY_VALUES


def test_blank_lines_by_the_million_as_gzip_are_refused(api, topic):
    blank = gzip.compress(b"\n" * (4 * MIB))

    problem = assert_problem(
        api.post(
            f"/v1/topics/{topic}/messages/stream",
            content=blank,
            headers={"Content-Encoding": "gzip"},
        ),
        413,
        "body_too_large",
    )

    assert problem["context"]["limited"] == "gzip_ratio"


def test_a_stream_that_cannot_be_read_on_answers_what_came_and_then_why(api, topic):
    body = gzip.compress(b'{"message":{"payload":"1"}}\n' + b"\n" * (4 * MIB))

    streamed = api.post(
        f"/v1/topics/{topic}/messages/stream", content=body, headers={"Content-Encoding": "gzip"}
    )

    first, last = map(json.loads, streamed.text.splitlines())
    assert first["status"] == 201
    assert (last["status"], last["problem"]["code"]) == (413, "body_too_large")


def test_a_long_stream_holds_memory_for_what_is_not_answered_only(tight):
    line = json.dumps({"message": {"payload": "x" * 50_000}}).encode() + b"\n"
    with LineStream(tight, "orders") as stream:
        for _ in range(20):  # more than the budget in all
            stream.write(line + b"\n" * 100_000)
            answer = stream.read()
            assert answer is not None
            assert answer["status"] == 201
    until(lambda: _held_bytes(tight) == 0, "the memory of the stream is given back")


# --------------------------------------------------------------------------------------------------
# budget


def test_bodies_beyond_the_common_budget_are_refused_until_there_is_room_again(tight):
    body = b"x" * HALF
    with tight.client() as api, _half_sent(tight) as first:
        problem = assert_problem(
            api.post("/v1/topics/orders/messages/raw", content=body), 503, "overloaded"
        )
        assert problem["retryable"]
        ok(api.post("/v1/topics/orders/messages/raw", content=b"small"), 201)

        first.sendall(b"x")
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 201")
        until(lambda: _held_bytes(tight) == 0, "the memory of the body is given back")
        ok(api.post("/v1/topics/orders/messages/raw", content=body), 201)


EIGHTH = ANSWERS // 8  # what one answer may take of a budget that is free


def test_pages_of_messages_end_at_their_bytes_and_lead_to_all_of_them(tight):
    bodies = [character * (EIGHTH // 2 + 1_000) for character in "abcd"]
    with tight.client() as api:
        for body in bodies:
            ok(
                api.post(
                    "/v1/topics/paged/messages", json={"payload": body, "key": "k", "queue_id": 0}
                ),
                201,
            )
        group = {"topics": [{"topic": "paged"}], "max_attempts": 1}
        ok(api.put("/v1/groups/pager", json=group), 201)
        received = []
        while len(received) < len(bodies):
            (one,) = ok(api.post("/v1/groups/pager/receive", json={"max_messages": 10}))["messages"]
            received.append(one["payload"])
            ok(
                api.post(
                    "/v1/groups/pager/dead-letter",
                    json={"entries": [{"receipt_handle": one["receipt_handle"]}]},
                )
            )
        pulled, offset = [], 0
        while offset < len(bodies):
            page = ok(
                api.get(
                    "/v1/topics/paged/queues/0/messages",
                    params={"offset": offset, "max_messages": 10},
                )
            )
            pulled.append([one["payload"] for one in page["messages"]])
            offset = page["next_offset"]
        found = _pages(api, "/v1/messages", topic="paged", key="k")
        dead = _pages(api, "/v1/groups/pager/dead-letters")

    assert received == bodies
    assert pulled == [[body] for body in bodies]
    assert [[one["payload"] for one in page] for page in found] == [
        [body] for body in reversed(bodies)
    ]
    assert [[one["message"]["payload"] for one in page] for page in dead] == [
        [body] for body in bodies
    ]


def _pages(api: httpx.Client, path: str, **parameters: str) -> list[list[dict]]:
    pages, token = [], {}
    while not pages or token:
        page = ok(api.get(path, params={**parameters, **token}))
        pages.append(page["items"])
        token = {"page_token": page["next_page_token"]} if "next_page_token" in page else {}
    return pages


def test_a_message_larger_than_a_page_comes_alone(tight):
    body = "x" * (2 * EIGHTH)
    with tight.client() as api:
        message_id = ok(
            api.post("/v1/topics/alone/messages", json={"payload": body, "key": "k"}), 201
        )["message_id"]

        assert [
            [one["payload"] for one in page]
            for page in _pages(api, "/v1/messages", topic="alone", key="k")
        ] == [[body]]
        assert ok(api.get(f"/v1/messages/{message_id}"))["payload"] == body


def test_an_answer_with_messages_waits_for_its_share_of_the_common_budget(tight):
    with tight.client() as api, socket.create_connection(("127.0.0.1", tight.port)) as filling:
        message_id = ok(
            api.post("/v1/topics/held/messages", json={"payload": "x", "key": "k", "queue_id": 0}),
            201,
        )["message_id"]
        ok(api.put("/v1/groups/holder", json={"topics": [{"topic": "held"}]}), 201)
        head = (
            "POST /v1/topics/held/messages/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            f"{LARGE + 1}\r\n\r\n"
        )
        filling.sendall(head.encode() + b"x" * LARGE)
        until(lambda: _held_bytes(tight) == LARGE, "the budget is used up")
        for path in (
            "/v1/topics/held/queues/0/messages",
            "/v1/messages?topic=held&key=k",
            f"/v1/messages/{message_id}",
            f"/v1/messages/{message_id}/payload",
            "/v1/groups/holder/dead-letters",
        ):
            assert_problem(api.get(path), 503, "overloaded")
        assert_problem(api.post("/v1/groups/holder/receive"), 503, "overloaded")
        filling.close()
        until(lambda: _held_bytes(tight) == 0, "the memory of the body is given back")

        assert [
            one["payload"] for one in ok(api.post("/v1/groups/holder/receive"))["messages"]
        ] == ["x"], "nothing was leased"


def test_small_bodies_and_decisions_have_room_when_large_bodies_have_taken_theirs(tight):
    message = {"topic": "orders", "message": {"payload": "1"}}
    with tight.client() as api, socket.create_connection(("127.0.0.1", tight.port)) as filling:
        begun = [
            ok(
                api.post("/v1/transactions", json={"producer_group": "p", "messages": [message]}),
                201,
            )["transaction_id"]
            for _ in range(2)
        ]
        length = f"Content-Length: {LARGE + 1}"
        sent = request("POST", "/v1/topics/orders/messages/raw", length)
        filling.sendall(sent + b"x" * LARGE)
        until(lambda: _held_bytes(tight) == LARGE, "large bodies have taken theirs")

        assert_problem(
            api.post("/v1/topics/orders/messages/raw", content=b"x" * 5_000), 503, "overloaded"
        )
        ok(api.post("/v1/topics/orders/messages/raw", content=b"x" * 4_000), 201)
        ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        ok(api.post(f"/v1/transactions/{begun[0]}/commit"))
        ok(api.post(f"/v1/transactions/{begun[1]}/rollback"))


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_memory_of_a_body_whose_client_leaves_is_given_back(tight, encoding):
    with _half_sent(tight, encoding):
        pass

    until(lambda: _held_bytes(tight) == 0, "the memory of the body is given back")


def test_the_memory_of_a_refused_body_is_given_back(tight):
    with tight.client() as api:
        assert_problem(
            api.post("/v1/topics/orders/messages", content=b" " * HALF, headers=JSON),
            400,
            "malformed_request",
        )
        assert_problem(api.post("/v1/nowhere", content=b"x" * HALF), 404, "route_not_found")

    assert _held_bytes(tight) == 0


def test_the_memory_of_unfinished_gzip_bodies_is_bounded_and_goes_back_to_the_system(tmp_path):
    budget = 64 * MIB
    words = random.Random(1).choices(
        [b"order %d is paid; " % number for number in range(4)], k=8 * MIB // 17
    )
    body = gzip.compress(b"".join(words))
    sent = request(
        "POST",
        "/v1/topics/orders/messages/batch",
        *[f"{name}: {GZIP[name]}" for name in GZIP],
        body=body,
    )[:-1]
    environment = {"ESCROWMQ_HTTP__MAX_BODIES_BYTES": str(budget)}
    with Server(tmp_path / "data", environment=environment) as server:
        idle = _resident_bytes(server)
        with ExitStack() as connections:
            for _ in range(40):
                connections.enter_context(_connected(server)).sendall(sent)
            until(lambda: _held_bytes(server) > budget // 2, "bodies are under way")
            assert _resident_bytes(server) - idle < 2 * budget
        until(lambda: _held_bytes(server) == 0, "the memory of the bodies is given back")

        until(lambda: _resident_bytes(server) - idle < budget // 3, "the process has given it back")


# --------------------------------------------------------------------------------------------------
# the loop


def test_others_are_answered_while_a_large_request_is_looked_at(server, topic):
    entries = [
        {"message": {"json": {"text": "x\n" * 4_000, "n": number}}} for number in range(1_000)
    ]
    # refused at the end, so that nothing waits for the disk
    entries[-1]["message"]["delay_ms"] = -1
    body = json.dumps({"entries": entries}).encode()
    large = request("POST", f"/v1/topics/{topic}/messages/batch", body=body)

    with (
        _connected(server) as first,
        server.client() as others,
        selectors.DefaultSelector() as answered,
    ):
        answered.register(first, selectors.EVENT_READ)
        first.sendall(large[:-1])
        until(
            lambda: _held_bytes(server) == len(body) - 1, "the body has come but for its last byte"
        )
        first.sendall(large[-1:])
        meanwhile = 0
        while not answered.select(0):
            ok(others.get("/livez"))
            meanwhile += 1
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 422")

    # A loop that is held answers what came with the request, and what came while it was held.
    assert meanwhile > 4


@pytest.mark.parametrize("path", ["messages", "messages/raw", "messages/batch"])
def test_large_requests_of_one_key_at_once_store_one_message(api, topic, path):
    payload = "x\n" * MIB
    bodies = {
        "messages": json.dumps({"payload": payload}).encode(),
        "messages/raw": payload.encode(),
        "messages/batch": json.dumps({"entries": [{"message": {"payload": payload}}]}).encode(),
    }

    def send() -> httpx.Response:
        headers = {**JSON, "Idempotency-Key": "once"}
        return api.post(f"/v1/topics/{topic}/{path}", content=bodies[path], headers=headers)

    answers = at_once([send] * 6)

    assert {answer.status_code for answer in answers} <= {201, 409}
    assert ok(api.get(f"/v1/topics/{topic}/stats"))["messages_ever"] == 1


# ------------------------------------------------------------------------------------------------
# the process for large ones


def test_a_large_body_is_taken_though_the_process_that_decodes_them_was_killed(tmp_path):
    large = json.dumps({"payload": "x" * MIB}).encode()
    environment = {"ESCROWMQ_LOG_FORMAT": "json"}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ok(api.post("/v1/topics/orders/messages", content=large, headers=JSON), 201)
        for process_id in _body_processes(server):
            os.kill(process_id, signal.SIGKILL)

        ok(api.post("/v1/topics/orders/messages", content=large, headers=JSON), 201)

        assert len(_body_processes(server)) == 2


# --------------------------------------------------------------------------------------------------
# helpers


def _body_processes(server: Server) -> list[int]:
    """Their ids, of all that were started, as the log says."""
    lines = map(json.loads, server.log_path.read_text("utf-8").splitlines())
    return [line["process_id"] for line in lines if line["event"] == "body_process_started"]


@contextmanager
def _connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


@contextmanager
def _half_sent(server: Server, encoding: str = "identity") -> Iterator[socket.socket]:
    """A request whose body has come but for its last byte, and is counted."""
    body = (
        gzip.compress(bytes(range(256)) * (HALF // 256), 0) if encoding == "gzip" else b"x" * HALF
    )
    with _connected(server) as connection:
        sent = request(
            "POST", "/v1/topics/orders/messages/raw", f"Content-Encoding: {encoding}", body=body
        )
        connection.sendall(sent[:-1])
        until(lambda: _held_bytes(server) >= HALF - 1_000, "the body has come")
        yield connection


def _resident_bytes(server: Server) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def _held_bytes(server: Server) -> int:
    with server.client() as api:
        lines = api.get("/metrics").text.splitlines()
    (value,) = [
        line.split()[1] for line in lines if line.startswith("escrowmq_request_body_bytes ")
    ]
    return int(float(value))
