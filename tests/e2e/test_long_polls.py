"""Long polls: answered early by what they wait for, and by the end of the service; else when their
time is up; always 200.
"""

import json
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.http import answers, assert_problem, ok, request, speak, until
from tests.support.server import Server

LONG_MS = 30_000  # the longest there is; no test waits it out
SHORT_MS = 50


def parked(api: httpx.Client) -> int:
    """How many long polls wait right now."""
    for line in api.get("/metrics").text.splitlines():
        if line.startswith("escrowmq_long_polls_open "):
            return int(float(line.split()[1]))
    return 0


def begin(api: httpx.Client, topic: str, **check: Any) -> str:
    messages = [{"topic": topic, "message": {"payload": "x"}}]
    body = {
        "producer_group": f"polls-{topic}",
        "messages": messages,
        "check": {"first_after_ms": LONG_MS, **check},
    }
    return ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]


def pull(api: httpx.Client, topic: str, **query: Any) -> dict[str, Any]:
    return ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params=query))


def known_pull(api: httpx.Client, topic: str, *, offset: int = 0) -> str:
    """The path of a pull that waits, with a head that the service knows from now on: it holds such
    a request as its bytes.
    """
    path = f"/v1/topics/{topic}/queues/0/messages?offset={offset}&wait_ms="
    ok(api.get(f"{path}1"))
    return f"{path}{LONG_MS}"


def receive(api: httpx.Client, topic: str, **fields: Any) -> dict[str, Any]:
    return ok(api.post(f"/v1/producer-groups/polls-{topic}/checks/receive", json=fields))


@pytest.fixture
def beside():
    """Runs what waits, beside the test."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def wait_until_parked(api: httpx.Client, count: int) -> None:
    """Within a time that is much shorter than what they asked for."""
    until(
        lambda: parked(api) == count, f"{count} long polls are parked", seconds=LONG_MS / 1000 / 2
    )


def answer_of(waiting: Future[dict[str, Any]]) -> dict[str, Any]:
    """Within a time that is much shorter than what was asked for."""
    return waiting.result(timeout=LONG_MS / 1000 / 2)


def test_a_pull_is_answered_by_the_arrival_of_a_message(api, topic, beside):
    waiting = beside(pull, api, topic, wait_ms=LONG_MS)
    wait_until_parked(api, 1)

    sent = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)

    page = answer_of(waiting)
    assert [message["message_id"] for message in page["messages"]] == [sent["message_id"]]
    assert (page["result"], page["next_offset"]) == ("found", 1)


def test_a_pull_is_answered_by_a_commit_and_not_by_a_begin(api, topic, beside):
    waiting = beside(pull, api, topic, wait_ms=LONG_MS)
    wait_until_parked(api, 1)
    transaction_id = begin(api, topic)
    assert not waiting.done()
    assert parked(api) == 1

    ok(api.post(f"/v1/transactions/{transaction_id}/commit"))

    assert len(answer_of(waiting)["messages"]) == 1


def test_a_pull_with_a_tag_waits_for_that_tag(api, topic, beside):
    waiting = beside(pull, api, topic, wait_ms=LONG_MS, tag="paid")
    wait_until_parked(api, 1)
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "other", "tag": "created"}), 201)

    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "mine", "tag": "paid"}), 201)

    assert [message["payload"] for message in answer_of(waiting)["messages"]] == ["mine"]


def test_a_known_pull_is_answered_by_the_arrival_of_a_message_or_else_when_its_time_is_up(
    api, topic, beside
):
    path = known_pull(api, topic)
    assert ok(api.get(path.replace(str(LONG_MS), str(SHORT_MS))))["result"] == "no_new_message"
    waiting = [beside(lambda: ok(api.get(path))) for _ in range(3)]
    wait_until_parked(api, 3)

    sent = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)

    for one in waiting:
        page = answer_of(one)
        assert [message["message_id"] for message in page["messages"]] == [sent["message_id"]]
        assert (page["result"], page["next_offset"]) == ("found", 1)
    wait_until_parked(api, 0)


def test_a_known_pull_is_answered_by_a_message_that_only_the_handler_shows(api, topic, beside):
    path = known_pull(api, topic)
    waiting = beside(lambda: ok(api.get(path)))
    wait_until_parked(api, 1)

    ok(
        api.post(
            f"/v1/topics/{topic}/messages", json={"payload": "x", "properties": {"own": 'a "b"'}}
        ),
        201,
    )

    assert [message["properties"] for message in answer_of(waiting)["messages"]] == [
        {"own": 'a "b"'}
    ]


def test_a_known_pull_is_answered_by_the_end_of_its_topic(api, beside):
    ok(api.post("/v1/topics", json={"topic": "ending", "queues": 1}), 201)
    path = known_pull(api, "ending")
    waiting = beside(lambda: api.get(path))
    wait_until_parked(api, 1)

    assert api.delete("/v1/topics/ending").status_code in (200, 204)

    assert_problem(waiting.result(timeout=LONG_MS / 1000 / 2), 404, "topic_not_found")


def test_a_request_behind_a_known_pull_that_waits_is_answered_behind_it(server, api, topic):
    raw = request("GET", f"/v1/topics/{topic}/queues/0/messages?offset=0&wait_ms={LONG_MS}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(raw.replace(str(LONG_MS).encode(), b"1"))
        (first,) = answers(connection.recv(65_536))
        connection.sendall(raw)
        wait_until_parked(api, 1)
        connection.sendall(request("GET", "/livez"))

        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)

        received = b""
        while received.count(b"HTTP/1.1 200") < 2 or not received.endswith(b"}"):
            received += connection.recv(65_536)
    found, alive = answers(received)
    assert (first.status, found.body.count(b"message_id"), alive.status) == (200, 1, 200)


@pytest.mark.parametrize(
    "behind", [b"", request("GET", "/livez")], ids=["", "with another request behind it"]
)
def test_who_leaves_a_known_pull_is_no_longer_waited_for(server, api, topic, behind):
    raw = request("GET", f"/v1/topics/{topic}/queues/0/messages?offset=0&wait_ms={LONG_MS}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(raw.replace(str(LONG_MS).encode(), b"1"))
        connection.recv(65_536)
        connection.sendall(raw)
        wait_until_parked(api, 1)
        connection.sendall(behind)

    wait_until_parked(api, 0)


def test_a_pull_whose_time_is_up_is_200_and_empty(api, topic):
    begun = time.monotonic()

    page = pull(api, topic, wait_ms=SHORT_MS)

    assert time.monotonic() - begun >= SHORT_MS / 1000
    assert page == {
        "messages": [],
        "next_offset": 0,
        "min_offset": 0,
        "max_offset": 0,
        "result": "no_new_message",
    }


def test_a_pull_that_saw_only_other_tags_says_so_and_where_to_go_on(api, topic):
    for _ in range(3):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "tag": "created"}), 201)

    page = pull(api, topic, wait_ms=SHORT_MS, tag="paid")

    assert (page["messages"], page["next_offset"], page["result"]) == ([], 3, "no_matched_message")


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_look_at_a_transaction_is_answered_by_its_decision(api, topic, beside, verb):
    transaction_id = begin(api, topic)
    waiting = [
        beside(
            lambda: ok(api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": LONG_MS}))
        )
        for _ in range(3)
    ]
    wait_until_parked(api, 3)

    decided = ok(api.post(f"/v1/transactions/{transaction_id}/{verb}"))

    assert {answer_of(one)["state"] for one in waiting} == {decided["state"]}
    # Decided already: there is nothing to wait for.
    assert (
        ok(api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": LONG_MS}))["state"]
        == decided["state"]
    )


def test_a_look_at_a_transaction_is_answered_when_it_is_held(api, topic, beside):
    transaction_id = begin(api, topic, first_after_ms=10, max_answers=1)
    (check,) = receive(api, topic, wait_ms=LONG_MS)["checks"]
    waiting = beside(
        lambda: ok(api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": LONG_MS}))
    )
    wait_until_parked(api, 1)

    answer = {"answers": [{"check_id": check["check_id"], "decision": "unknown"}]}
    ok(api.post(f"/v1/producer-groups/polls-{topic}/checks/answer", json=answer))

    assert answer_of(waiting)["state"] == "held"


def test_a_look_at_a_transaction_whose_time_is_up_shows_it_as_it_is(api, topic):
    transaction_id = begin(api, topic)

    assert (
        ok(api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": SHORT_MS}))["state"]
        == "prepared"
    )


def test_a_wait_for_checks_is_answered_when_one_is_due(api, topic, beside):
    waiting = beside(receive, api, topic, wait_ms=LONG_MS)
    wait_until_parked(api, 1)

    transaction_id = begin(api, topic, first_after_ms=10)

    assert [check["transaction_id"] for check in answer_of(waiting)["checks"]] == [transaction_id]


def test_a_wait_for_checks_whose_time_is_up_is_200_and_empty(api, topic):
    assert receive(api, topic, wait_ms=SHORT_MS) == {"checks": []}


def test_who_leaves_is_no_longer_waited_for(server, topic):
    with server.client() as api:
        with pytest.raises(httpx.ReadTimeout):
            api.get(
                f"/v1/topics/{topic}/queues/0/messages", params={"wait_ms": LONG_MS}, timeout=0.2
            )

        wait_until_parked(api, 0)


def test_who_leaves_with_another_request_behind_the_long_poll_is_no_longer_waited_for_either(
    server, api, topic
):
    waiting = request("GET", f"/v1/topics/{topic}/queues/0/messages?wait_ms={LONG_MS}")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(waiting + request("GET", "/livez"))
        wait_until_parked(api, 1)

    wait_until_parked(api, 0)
    assert "request_failed" not in server.log()


def test_a_client_that_sends_nothing_more_is_not_waited_with(server, api, topic):
    group = f"group-{topic}"
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": topic}]}), 201)
    body = json.dumps({"wait_ms": LONG_MS}).encode()
    waiting = request("POST", f"/v1/groups/{group}/receive", body=body)

    assert speak(server, waiting, timeout=LONG_MS / 2_000, half_close=True) == []
    wait_until_parked(api, 0)


def test_a_client_that_sends_nothing_more_gets_what_is_there(server, api, topic):
    ok(api.post(f"/v1/topics/{topic}/messages", json={"json": 1, "queue_id": 0}), 201)
    pull = request("GET", f"/v1/topics/{topic}/queues/0/messages")

    (answer,) = speak(server, pull, half_close=True)

    assert [one["payload"] for one in json.loads(answer.body)["messages"]] == ["1"]


def test_who_leaves_takes_no_check_with_him(server, api, topic):
    with server.client() as leaving:
        with pytest.raises(httpx.ReadTimeout):
            leaving.post(
                f"/v1/producer-groups/polls-{topic}/checks/receive",
                json={"wait_ms": LONG_MS},
                timeout=0.2,
            )
        wait_until_parked(api, 0)

    transaction_id = begin(api, topic, first_after_ms=10)

    checks = receive(api, topic, wait_ms=LONG_MS // 6)["checks"]
    assert [check["transaction_id"] for check in checks] == [transaction_id]


def test_the_end_of_the_service_answers_every_long_poll(tmp_path, beside):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        transaction_id = begin(api, "orders")
        pulling = beside(pull, api, "orders", wait_ms=LONG_MS)
        path = known_pull(api, "orders")
        known = beside(lambda: ok(api.get(path)))
        looking = beside(
            lambda: ok(api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": LONG_MS}))
        )
        asking = beside(receive, api, "orders", wait_ms=LONG_MS)
        wait_until_parked(api, 4)

        begun = time.monotonic()
        status = server.terminate()

        assert status == 0, server.log()
        assert time.monotonic() - begun < 10
        assert answer_of(pulling)["messages"] == []
        assert answer_of(known)["messages"] == []
        assert answer_of(looking)["state"] == "prepared"
        assert answer_of(asking)["checks"] == []


def test_more_long_polls_than_are_allowed_are_told_to_come_back(tmp_path, beside):
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_HTTP__MAX_WAITING": "2"}) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        ok(api.post("/v1/topics", json={"topic": "others", "queues": 1}), 201)
        transaction_id = begin(api, "orders")
        known_pull(api, "orders")
        waiting = [beside(pull, api, "orders", wait_ms=LONG_MS) for _ in range(2)]
        wait_until_parked(api, 2)

        for answer in (
            api.get(
                "/v1/topics/orders/queues/0/messages", params={"offset": 0, "wait_ms": LONG_MS}
            ),
            api.get("/v1/topics/orders/queues/0/messages", params={"wait_ms": LONG_MS}),
            api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": LONG_MS}),
            api.post("/v1/producer-groups/shop/checks/receive", json={"wait_ms": LONG_MS}),
        ):
            assert_problem(answer, 429, "too_many_waiting")
        asked = {"message": {"payload": "x"}, "wait_ms": LONG_MS}
        refused = api.post("/v1/topics/others/requests", json=asked)
        assert_problem(refused, 429, "too_many_waiting")
        assert "store-pressure" in refused.headers
        assert pull(api, "others")["messages"] == [], "nothing is stored that was refused"

        assert pull(api, "orders")["messages"] == []  # who does not wait is answered all the same
        ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        assert [len(answer_of(one)["messages"]) for one in waiting] == [1, 1]


def test_a_request_that_may_not_wait_for_its_reply_is_stored_and_pending_or_refused(
    tmp_path, beside
):
    """Refused as well as stored it would be sent a second time. All of them may wait when they
    come.
    """
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_HTTP__MAX_WAITING": "1"}) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        body = {"message": {"payload": "x"}, "wait_ms": LONG_MS, "timeout_ms": LONG_MS}
        asked = [beside(api.post, "/v1/topics/orders/requests", json=body) for _ in range(8)]

        until(lambda: sum(one.done() for one in asked) == 7, "all but one are answered")
        statuses = sorted(one.result().status_code for one in asked if one.done())
        stored = len(pull(api, "orders", max_messages=32)["messages"])
        assert (stored, {*statuses} - {202, 429}) == (1 + statuses.count(202), set())
        assert server.terminate() == 0
        assert [one.result().status_code for one in asked].count(202) == stored
