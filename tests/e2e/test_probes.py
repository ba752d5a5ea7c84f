"""What the service says about itself, and what every answer has in common: probes, metrics, pages,
ids, times.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.problems import PROBLEMS
from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
MESSAGE = {"payload": "x", "tag": "paid"}


def begin(api: httpx.Client, topic: str, **fields: Any) -> dict[str, Any]:
    body = {
        "producer_group": f"by-{topic}",
        "messages": [{"topic": topic, "message": MESSAGE}],
        **fields,
    }
    return ok(api.post("/v1/transactions", json=body), 201)


def metrics(api: httpx.Client) -> dict[str, float]:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_service_that_serves_is_alive_and_ready_and_says_what_that_means(api):
    assert ok(api.get("/livez")) == {"live": True}
    checks = (
        "store_writable",
        "store_intact",
        "dispatch_lag",
        "scheduler",
        "requests",
        "leases",
        "checker",
    )
    assert ok(api.get("/readyz")) == {"ready": True, "checks": dict.fromkeys(checks, "ok")}


def test_metrics_count_what_was_done(tmp_path):
    with Server(tmp_path / "data", dev=False) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        before = metrics(api)
        ok(api.post("/v1/topics/orders/messages", json=MESSAGE), 201)
        ok(
            api.post(
                "/v1/topics/orders/messages/batch", json={"entries": [{"message": MESSAGE}] * 4}
            ),
            201,
        )
        decided, rolled_back, again, _ = [begin(api, "orders")["transaction_id"] for _ in range(4)]
        for transaction_id in (decided, again):  # the second one takes the short way
            ok(api.post(f"/v1/transactions/{transaction_id}/commit"))
        ok(api.post(f"/v1/transactions/{rolled_back}/rollback"))
        assert_problem(
            api.post(f"/v1/transactions/{decided}/rollback"), 409, "transaction_already_resolved"
        )
        pulled = ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]
        after = metrics(api)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("escrowmq_messages_in_total") == 7, "two of them by commits"
    assert grown("escrowmq_messages_out_total") == len(pulled) == 7
    assert grown("escrowmq_transactions_begun_total") == 4
    assert (
        grown('escrowmq_transactions_decided_total{resolved_by="producer",state="committed"}') == 2
    )
    assert (
        grown('escrowmq_transactions_decided_total{resolved_by="producer",state="rolled_back"}')
        == 1
    )
    assert grown("escrowmq_transaction_conflicts_total") == 1
    assert grown('escrowmq_http_requests_total{operation="sendMessage",status="201"}') == 1
    assert grown('escrowmq_http_requests_total{operation="rollbackTransaction",status="409"}') == 1
    assert (after["escrowmq_transactions_open"], after["escrowmq_transactions_held"]) == (1, 0)
    assert before["escrowmq_log_written_offset"] < after["escrowmq_log_written_offset"]
    assert (
        after["escrowmq_log_written_offset"]
        == after["escrowmq_log_synced_offset"]
        == after["escrowmq_log_visible_offset"]
    )


def test_no_name_of_a_topic_or_a_transaction_becomes_a_label(api, topic):
    ok(api.post(f"/v1/topics/{topic}/messages", json=MESSAGE), 201)
    begin(api, topic, transaction_id=f"id-of-{topic}")
    assert_problem(api.get(f"/v1/nowhere/{topic}"), 404, "route_not_found")

    assert topic not in api.get("/metrics").text


def test_the_page_of_operations_needs_nothing_from_another_machine(api):
    page = api.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    found = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(found) >= 3
    for place in found:
        answer = api.get(place)
        assert (answer.status_code, bool(answer.content)) == (200, True), place
    assert "/docs/openapi.json" in page.text


def test_what_is_tried_on_the_page_of_operations_goes_to_the_service_that_serves_it(api):
    document = api.get("/docs/openapi.json").json()

    assert document.pop("servers") == [{"url": "/"}]
    published = api.get("/openapi.json").json()
    del published["servers"]
    assert document == published


def test_a_problem_leads_to_the_page_that_explains_it(api):
    problem = assert_problem(api.get("/v1/topics/nobody-made-it"), 404, "topic_not_found")

    page = api.get(problem["type"])

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert PROBLEMS["topic_not_found"].title in page.text
    index = api.get("/problems").text
    assert all(f'"/problems/{code}"' in index for code in PROBLEMS)


def next_millisecond() -> None:
    """Ids of one millisecond have no order."""
    begun_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == begun_ms:
        pass


def test_ids_have_a_prefix_and_sort_by_their_time(api, topic):
    messages, ids = [], []
    for _ in range(20):
        sent = ok(api.post(f"/v1/topics/{topic}/messages", json=MESSAGE), 201)
        messages.append(sent["message_id"])
        ids.append(begin(api, topic)["transaction_id"])
        next_millisecond()

    assert messages == sorted(messages)
    assert ids == sorted(ids)
    assert all(message_id.startswith("msg_") for message_id in messages)
    assert all(transaction_id.startswith("txn_") for transaction_id in ids)
    assert len({*messages, *ids}) == 40


def test_every_time_is_utc_with_milliseconds_and_nothing_is_null(api, topic):
    transaction = begin(api, topic, check={"first_after_ms": 10}, business_key="8812")
    path = f"/v1/transactions/{transaction['transaction_id']}"
    received = ok(
        api.post(f"/v1/producer-groups/by-{topic}/checks/receive", json={"wait_ms": 10_000})
    )
    answers = [
        transaction,
        received,
        ok(api.post(f"/v1/topics/{topic}/messages", json=MESSAGE), 201),
        ok(api.get(path)),
        ok(api.get("/v1/transactions", params={"producer_group": f"by-{topic}"})),
        ok(api.post(f"{path}/commit")),
        ok(api.get(path)),
        ok(api.get("/v1/transactions", params={"producer_group": f"by-{topic}"})),
        ok(api.get(f"/v1/topics/{topic}")),
        ok(api.get(f"/v1/topics/{topic}/queues/0/messages")),
        ok(
            api.get(
                f"/v1/topics/{topic}/queues/0/offset", params={"at": "2020-01-01T00:00:00.000Z"}
            )
        ),
        ok(api.get(f"/v1/producer-groups/by-{topic}")),
    ]

    times = [value for answer in answers for name, value in fields(answer) if name.endswith("_at")]

    assert received["checks"]
    assert len(times) > 15
    assert [time for time in times if not TIME.fullmatch(time)] == []
    assert [name for answer in answers for name, value in fields(answer) if value is None] == []


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Every named value, however deep."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name, item
            yield from fields(item)


def test_a_get_changes_nothing(api, topic):
    transaction_id = begin(api, topic)["transaction_id"]
    ok(api.post(f"/v1/topics/{topic}/messages", json=MESSAGE), 201)
    written = metrics(api)["escrowmq_log_written_offset"]
    paths = [
        f"/v1/topics/{topic}",
        f"/v1/topics/{topic}/queues",
        f"/v1/topics/{topic}/queues/0/messages",
        "/v1/transactions",
        f"/v1/transactions/{transaction_id}",
        f"/v1/producer-groups/by-{topic}",
    ]
    before = [ok(api.get(path)) for path in paths[:3] + paths[4:]]

    again = [ok(api.get(path)) for _ in range(3) for path in paths[:3] + paths[4:]]

    assert again == before * 3
    assert_problem(api.get(f"/v1/groups/never-{topic}/offsets"), 404, "group_not_found")
    assert_problem(api.get(f"/v1/producer-groups/never-{topic}"), 404, "producer_group_not_found")
    assert metrics(api)["escrowmq_log_written_offset"] == written


def test_more_open_transactions_than_are_allowed_are_told_to_come_back(tmp_path):
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_TXN__MAX_OPEN": "2"}) as server,
        server.client() as api,
    ):
        first, _ = [begin(api, "orders")["transaction_id"] for _ in range(2)]
        body = {"producer_group": "shop", "messages": [{"topic": "orders", "message": MESSAGE}]}

        problem = assert_problem(
            api.post("/v1/transactions", json=body), 429, "too_many_open_transactions"
        )

        assert problem["retryable"]
        ok(api.post(f"/v1/transactions/{first}/rollback"))
        begin(api, "orders")


@pytest.mark.parametrize("form", ["utf8", "base64"])
def test_a_damaged_message_is_never_served_and_the_rest_of_its_queue_is(tmp_path, form):
    with Server(tmp_path / "data", dev=False) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [
                ok(api.post("/v1/topics/orders/messages", json={"payload": f"number-{n}"}), 201)
                for n in range(3)
            ]
        assert server.terminate() == 0
        segment = min((tmp_path / "data" / "store" / "commitlog").iterdir())
        segment.write_bytes(segment.read_bytes().replace(b"number-1", b"number-7"))
        server.start()

        with server.client() as api:
            path = f"/v1/topics/orders/queues/0/messages?payload={form}"
            first = ok(api.get(f"{path}&offset=0&max_messages=1"))["messages"]
            problem = assert_problem(api.get(f"{path}&offset=1"), 500, "record_corrupt")
            last = ok(api.get(f"{path}&offset={problem['context']['next_offset']}"))["messages"]
            ready = api.get("/readyz")
            ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
            received = [
                ok(api.post("/v1/groups/billing/receive", json={"max_messages": 10}))["messages"]
                for _ in range(2)
            ]
            (stub,) = ok(api.get("/v1/groups/billing/dead-letters"))["items"]
            found = ok(api.get(f"/v1/groups/billing/dead-letters/{stub['message']['message_id']}"))
            lag = ok(api.get("/v1/groups/billing/lag"))
            counted = metrics(api)["escrowmq_messages_damaged"]
            redrive = {"select": "ids", "message_ids": [stub["message"]["message_id"]]}
            task = ok(api.post("/v1/groups/billing/dead-letters/redrive", json=redrive), 202)
            ended = until(
                lambda: (
                    (now := ok(api.get(f"/v1/tasks/{task['task_id']}")))["state"] == "done" and now
                ),
                "it ends",
            )

    assert [message["message_id"] for message in first + last] == [
        sent[0]["message_id"],
        sent[2]["message_id"],
    ]
    assert problem["context"]["offset"] == "1"
    assert str(tmp_path) not in problem["detail"]
    assert ready.status_code == 200
    assert [one["message_id"] for some in received for one in some] == [
        sent[0]["message_id"],
        sent[2]["message_id"],
    ]
    assert found == stub
    assert stub | {"reason": "", "dead_lettered_at": "", "message": {}} == {
        "message": {}, "origin_topic": "orders", "reason": "", "attempts": 0,
        "dead_lettered_at": "", "damaged": True,
        "log_offset": sent[1]["log_offset"],
    }  # fmt: skip
    assert "damaged" in stub["reason"]
    assert str(tmp_path) not in stub["reason"]
    place = {name: stub["message"][name] for name in ("topic", "queue_id", "queue_offset")}
    assert place == {"topic": "orders", "queue_id": 0, "queue_offset": 1}
    assert "payload" not in stub["message"]
    assert (lag["messages_damaged"], counted) == (1, 1)
    assert ended["failures"] == [
        {"message_id": stub["message"]["message_id"], "code": "record_corrupt"}
    ]
