"""Request and reply over HTTP: asked by one, replied to by another, fetched by anybody; through
kills and restarts too.
"""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.http import answers, assert_problem, ok, until
from tests.support.http import request as http_request
from tests.support.server import Server

LONG_MS = 30_000
SOON_MS = 50


@pytest.fixture
def group(api, topic) -> str:
    """A group of workers that reads the topic; its name."""
    name = f"workers-{topic}"
    ok(api.put(f"/v1/groups/{name}", json={"topics": [{"topic": topic}]}), 201)
    return name


@pytest.fixture
def beside():
    """Runs what waits, beside the test."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def ask(api: httpx.Client, topic: str, *, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"message": {"json": {"sku": "A1"}}, "timeout_ms": LONG_MS, **fields}
    return api.post(f"/v1/topics/{topic}/requests", json=body, headers=headers)


def asked(api: httpx.Client, topic: str, **fields: Any) -> str:
    return ok(ask(api, topic, **fields), 202)["request_id"]


def receive(api: httpx.Client, group: str, **fields: Any) -> list[dict[str, Any]]:
    return ok(api.post(f"/v1/groups/{group}/receive", json={"wait_ms": 10_000, **fields}))[
        "messages"
    ]


def reply(api: httpx.Client, request_id: str, **fields: Any) -> httpx.Response:
    return api.post(f"/v1/requests/{request_id}/reply", json={"json": {"price": "4.20"}, **fields})


def look(api: httpx.Client, request_id: str, **query: Any) -> dict[str, Any]:
    return ok(api.get(f"/v1/requests/{request_id}", params=query))


# --------------------------------------------------------------------------------------------------
# the whole way


def test_a_request_waits_for_its_reply_and_the_reply_settles_its_message(api, topic, group, beside):
    waiting = beside(ask, api, topic, wait_ms=LONG_MS)
    (message,) = receive(api, group)
    answer = ok(reply(api, message["request_id"], receipt_handle=message["receipt_handle"]))
    request = ok(waiting.result())

    assert answer == {
        "request_id": message["request_id"], "message_id": request["reply"]["message_id"],
        "state": "replied", "late": False,
        "settled": True,
    }  # fmt: skip
    assert message["payload"] == '{"sku":"A1"}'
    assert (request["request_id"], request["state"], request["topic"]) == (
        message["request_id"],
        "replied",
        topic,
    )
    assert (request["message_id"], request["expires_at"]) == (
        message["message_id"],
        message["reply_by"],
    )
    assert (request["reply"]["payload"], request["reply"]["payload_encoding"]) == (
        '{"price":"4.20"}',
        "utf8",
    )
    assert request["reply"]["content_type"] == "application/json"
    assert 0 <= request["latency_ms"] < LONG_MS
    acked = ok(
        api.post(
            f"/v1/groups/{group}/ack",
            json={"entries": [{"receipt_handle": message["receipt_handle"]}]},
        )
    )
    assert acked["accepted"] == 1, "it is acknowledged already, which is no error"
    (queue,) = [
        one
        for one in ok(api.get(f"/v1/groups/{group}/offsets", params={"topic": topic}))["items"]
        if one["queue_id"] == 0
    ]
    assert queue["offset"] == 1


def test_without_waiting_the_answer_says_where_to_look(api, topic, group):
    answer = ask(api, topic)
    request = ok(answer, 202)

    assert answer.headers["location"] == f"/v1/requests/{request['request_id']}"
    assert float(answer.headers["store-pressure"]) >= 0
    assert request["request_id"].startswith("req_")
    assert request["state"] == "pending"
    assert not {"reply", "latency_ms", "late_reply_at", "closed_at"} & set(request)
    assert look(api, request["request_id"]) == request


def test_a_reply_can_be_anything_that_a_message_can(api, topic):
    request_id = asked(api, topic)
    body = {
        "payload": "/w==",
        "payload_encoding": "base64",
        "content_type": "image/png",
        "properties": {"by": "größe"},
    }
    ok(api.post(f"/v1/requests/{request_id}/reply", json=body))

    found = look(api, request_id)["reply"]
    assert (found["payload"], found["payload_encoding"]) == ("/w==", "base64")
    assert (found["content_type"], found["properties"]) == ("image/png", {"by": "größe"})
    assert "payload" not in look(api, request_id, payload="omit")["reply"]


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": ""},
        {"payload": 'é\t"', "content_type": "text/plain; charset=utf-8"},
        {"payload": "gA==", "payload_encoding": "base64"},
        {"json": {"b": 1, "a": None}, "properties": {"z": "1", "empty": "", "a": "ü", "m": "3"}},
        {"payload": "x" * 100_000},
    ],
)
def test_a_waiting_client_is_answered_as_one_that_looks_later(api, topic, group, beside, fields):
    waiting = beside(ask, api, topic, wait_ms=LONG_MS)
    (message,) = receive(api, group)
    path = f"/v1/requests/{message['request_id']}"
    until(lambda: "escrowmq_long_polls_open 1.0" in api.get("/metrics").text, "it waits")
    ok(api.post(f"{path}/reply", json={**fields, "receipt_handle": message["receipt_handle"]}))

    first = waiting.result()

    assert first.status_code == 200
    assert first.content == api.get(path).content == api.get(path).content
    assert first.json()["reply"]["properties"] == fields.get("properties", {})


def test_who_looks_can_wait_too_and_so_can_prefer(api, topic, beside):
    request_id = asked(api, topic)
    looking = beside(look, api, request_id, wait_ms=LONG_MS)
    preferring = beside(
        api.post,
        f"/v1/topics/{topic}/requests",
        json={"message": {"payload": "x"}},
        headers={"Prefer": "respond-async, wait=20"},
    )
    found = until(
        lambda: [one for one in pulled(api, topic) if one["payload"] == "x"],
        "the second request is stored",
    )
    ok(reply(api, request_id))

    assert looking.result()["state"] == "replied"
    assert found
    assert not preferring.done()
    group = f"late-{topic}"
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": topic}]}), 201)
    for message in receive(api, group):
        if message["payload"] == "x":
            ok(reply(api, message["request_id"]))
    assert ok(preferring.result())["state"] == "replied"


def pulled(api: httpx.Client, topic: str) -> list[dict[str, Any]]:
    return ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]


def test_a_request_that_was_taken_and_acknowledged_without_a_reply_is_pending_and_then_timed_out(
    api, topic, group
):
    """Sent, taken and replied to are three things; nobody is told of one that it was another."""
    request_id = asked(api, topic, timeout_ms=2_000)
    (taken,) = receive(api, group)
    assert taken["request_id"] == request_id
    entries = [{"receipt_handle": taken["receipt_handle"]}]
    ok(api.post(f"/v1/groups/{group}/ack", json={"entries": entries}))

    states = [
        ok(api.get(f"/v1/requests/{request_id}", params={"wait_ms": wait_ms}))["state"]
        for wait_ms in (0, 10_000)
    ]

    assert states in (["pending", "timed_out"], ["timed_out", "timed_out"])


def test_a_pulled_request_is_a_message_like_any_other(api, topic):
    asked(api, topic, message={"payload": "x", "key": "k", "properties": {"own": "1"}})

    (message,) = pulled(api, topic)
    assert (message["payload"], message["key"], message["properties"]) == ("x", "k", {"own": "1"})


# --------------------------------------------------------------------------------------------------
# deadlines, cancels


def test_a_deadline_that_passes_while_waiting_is_504_and_names_the_request(api, topic, group):
    begun = time.monotonic()
    problem = assert_problem(
        ask(api, topic, timeout_ms=SOON_MS, wait_ms=LONG_MS), 504, "reply_timeout"
    )

    assert time.monotonic() - begun < LONG_MS / 1000 / 2
    assert not problem["retryable"], "the call repeated would be a new request"
    request = look(api, problem["context"]["request_id"])
    assert (request["state"], "reply" in request) == ("timed_out", False)
    (message,) = receive(api, group)
    assert message["request_id"] == request["request_id"], "it is handed out all the same"
    late = ok(reply(api, request["request_id"], receipt_handle=message["receipt_handle"]))
    assert (late["state"], late["late"], late["settled"]) == ("timed_out", True, True)
    request = look(api, request["request_id"])
    assert (request["state"], request["reply"]["replied_at"]) == (
        "timed_out",
        request["late_reply_at"],
    )
    assert_problem(reply(api, request["request_id"]), 409, "request_closed")


def test_a_cancelled_request_is_not_handed_out_and_takes_no_reply(api, topic, group, beside):
    cancelled, kept = asked(api, topic), asked(api, topic)
    looking = beside(look, api, cancelled, wait_ms=LONG_MS)
    first = ok(api.delete(f"/v1/requests/{cancelled}"))

    assert first["state"] == "cancelled"
    assert ok(api.delete(f"/v1/requests/{cancelled}")) == first == looking.result()
    assert assert_problem(reply(api, cancelled), 409, "request_closed")["context"] == {
        "state": "cancelled"
    }
    assert [message["request_id"] for message in receive(api, group)] == [kept]
    ok(reply(api, kept))
    assert assert_problem(api.delete(f"/v1/requests/{kept}"), 409, "request_closed")["context"] == {
        "state": "replied"
    }


# --------------------------------------------------------------------------------------------------
# repeated


def test_a_request_again_with_its_key_is_answered_as_it_is_now(api, topic, group):
    first = ask(api, topic, key="q-55")
    again = ask(api, topic, key="q-55")
    request_id = ok(first, 202)["request_id"]
    ok(reply(api, request_id))
    later = ask(api, topic, key="q-55")

    assert ok(again, 202)["request_id"] == ok(later, 200)["request_id"] == request_id
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (
        False,
        "true",
    )
    assert len(receive(api, group)) == 1
    assert_problem(ask(api, topic, key="q-55", wait_ms=1), 422, "idempotency_key_reused")


def test_after_a_504_the_same_key_tells_of_a_late_reply(api, topic):
    first = assert_problem(
        ask(api, topic, key="slow", timeout_ms=SOON_MS, wait_ms=LONG_MS), 504, "reply_timeout"
    )
    request_id = first["context"]["request_id"]
    again = assert_problem(
        ask(api, topic, key="slow", timeout_ms=SOON_MS, wait_ms=LONG_MS), 504, "reply_timeout"
    )
    ok(reply(api, request_id))

    assert again["context"]["request_id"] == request_id
    request = ok(ask(api, topic, key="slow", timeout_ms=SOON_MS, wait_ms=LONG_MS))
    assert (request["state"], "late_reply_at" in request) == ("timed_out", True)


def test_a_reply_again_with_its_key_is_no_second_one(api, topic):
    request_id = asked(api, topic)
    body, headers = {"json": 1}, {"Idempotency-Key": "r-1"}
    first = api.post(f"/v1/requests/{request_id}/reply", json=body, headers=headers)
    again = api.post(f"/v1/requests/{request_id}/reply", json=body, headers=headers)

    assert ok(again) == ok(first)
    assert again.headers["idempotency-replayed"] == "true"
    assert_problem(reply(api, request_id), 409, "request_closed")


# --------------------------------------------------------------------------------------------------
# bad input


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({}, 422, "validation_failed", "/message"),
        ({"message": {}}, 422, "validation_failed", "/message/payload"),
        ({"message": {"payload": "x", "key": "a b"}}, 422, "validation_failed", "/message/key"),
        ({"message": {"payload": "x"}, "timeout_ms": 0}, 422, "validation_failed", "/timeout_ms"),
        ({"message": {"payload": "x"}, "timeout_ms": 604_800_001}, 422, "validation_failed",
        "/timeout_ms"),
        ({"message": {"payload": "x"}, "wait_ms": 30_001}, 422, "validation_failed", "/wait_ms"),
        ({"message": {"payload": "x", "properties": {"TTL": "1"}}}, 422, "validation_failed",
        "/message/properties/TTL"),
        ({"message": {"payload": "x", "queue_id": 7}}, 404, "queue_not_found", None),
        ({"message": {"payload": "x", "delay_ms": 5}}, 422, "unsupported_combination", None),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_is_refused_and_stores_nothing(
    api, topic, body, status, code, pointer
):
    answer = api.post(f"/v1/topics/{topic}/requests", json=body)

    assert_problem(answer, status, code, *([pointer] if pointer else []))
    assert pulled(api, topic) == []


def test_what_does_not_exist_is_not_found(api):
    for answer in (
        api.get("/v1/requests/req_nobody"), api.delete("/v1/requests/req_nobody"),
        reply(api, "req_nobody"),
    ):  # fmt: skip
        assert_problem(answer, 404, "request_not_found")
    assert_problem(ask(api, "nowhere"), 404, "topic_not_found")


def test_a_reply_that_cannot_be_is_refused_and_the_request_stays_open(api, make_topic):
    request_id = asked(api, make_topic(max_message_bytes=100), message={"payload": "x"})

    assert_problem(
        api.post(f"/v1/requests/{request_id}/reply", json={}), 422, "validation_failed", "/payload"
    )
    assert_problem(reply(api, request_id, key="x"), 422, "validation_failed", "/key")
    assert_problem(reply(api, request_id, json="x" * 101), 413, "message_too_large")
    assert_problem(
        reply(api, request_id, properties={"__x": ""}), 422, "validation_failed", "/properties/__x"
    )
    assert look(api, request_id)["state"] == "pending"


# --------------------------------------------------------------------------------------------------
# restarts


def test_requests_replies_and_what_they_settle_survive_kill_9(tmp_path):
    with Server(tmp_path / "data") as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "quotes", "queues": 1}), 201)
            ok(api.put("/v1/groups/workers", json={"topics": [{"topic": "quotes"}]}), 201)
            replied, pending = asked(api, "quotes", key="first"), asked(api, "quotes")
            cancelled, timed_out = asked(api, "quotes"), asked(api, "quotes", timeout_ms=SOON_MS)
            ok(api.delete(f"/v1/requests/{cancelled}"))
            messages = {one["request_id"]: one for one in receive(api, "workers")}
            ok(reply(api, replied, receipt_handle=messages[replied]["receipt_handle"]))
            assert look(api, timed_out, wait_ms=LONG_MS)["state"] == "timed_out"
        server.kill()
        server.start()
        with server.client() as api:
            states = [look(api, one)["state"] for one in (replied, pending, cancelled, timed_out)]
            assert states == ["replied", "pending", "cancelled", "timed_out"]
            assert look(api, replied)["reply"]["payload"] == '{"price":"4.20"}'
            assert ok(ask(api, "quotes", key="first"))["request_id"] == replied
            # The lease lives on too: the reply that follows the restart settles what was received
            # before it.
            assert (
                ok(reply(api, pending, receipt_handle=messages[pending]["receipt_handle"]))[
                    "settled"
                ]
                is True
            )
            assert ok(reply(api, timed_out))["late"] is True
            lag = ok(api.get("/v1/groups/workers/lag"))
            assert lag["messages_leased"] == 1, (
                "that of the request that was replied to without its receipt"
            )


def test_a_stop_answers_those_who_wait_at_once(tmp_path, beside):
    with Server(tmp_path / "data") as server, server.client() as api:
        waiting = [beside(ask, api, "quotes", wait_ms=LONG_MS) for _ in range(4)]
        until(lambda: "escrowmq_long_polls_open 4.0" in api.get("/metrics").text, "four wait")

        assert server.terminate() == 0

        assert {ok(one.result(), 202)["state"] for one in waiting} == {"pending"}


def test_a_thousand_who_wait_for_one_reply_all_get_it(server, api, topic):
    request_id = asked(api, topic)
    waiting = []
    for _ in range(1_000):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=LONG_MS / 1000)
        connection.sendall(
            http_request("GET", f"/v1/requests/{request_id}?wait_ms={LONG_MS}", close=True)
        )
        waiting.append(connection)
    until(lambda: "escrowmq_long_polls_open 1000.0" in api.get("/metrics").text, "a thousand wait")

    ok(reply(api, request_id))

    for connection in waiting:
        with connection, connection.makefile("rb") as received:
            (answer,) = answers(received.read())
            assert json.loads(answer.body)["state"] == "replied"
