"""Consuming under leases over HTTP: what a consumer with curl does, and what survives the kill of
the service.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import httpx
import pytest

from tests.support.http import answers, assert_problem, at_once, ok, request, until
from tests.support.server import Server

LONG_MS = 30_000
_numbers = count(1)


class Group:
    """One group over HTTP."""

    def __init__(self, api: httpx.Client, topic: str, **rules: Any) -> None:
        self.api = api
        self.topic = topic
        self.name = f"group-{next(_numbers)}-of-{topic}"
        self.path = f"/v1/groups/{self.name}"
        ok(api.put(self.path, json={"topics": [{"topic": topic}], **rules}), 201)

    def send(self, *payloads: str, **fields: Any) -> list[str]:
        entries = [{"message": {"payload": payload, **fields}} for payload in payloads]
        results = ok(
            self.api.post(f"/v1/topics/{self.topic}/messages/batch", json={"entries": entries}), 201
        )["results"]
        return [result["receipt"]["message_id"] for result in results]

    def receive(self, **fields: Any) -> list[dict[str, Any]]:
        return ok(self.api.post(f"{self.path}/receive", json=fields))["messages"]

    def settle(
        self, verb: str, *messages: dict[str, Any], status: int = 200, **fields: Any
    ) -> list[dict[str, Any]]:
        return ok(self.settled(verb, *messages, **fields), status)["results"]

    def settled(self, verb: str, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        entries = [{"receipt_handle": message["receipt_handle"], **fields} for message in messages]
        return self.api.post(f"{self.path}/{verb}", json={"entries": entries})

    def lag(self) -> dict[str, Any]:
        return ok(self.api.get(f"{self.path}/lag"))

    def offsets(self) -> list[int]:
        return [item["offset"] for item in ok(self.api.get(f"{self.path}/offsets"))["items"]]


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [message["payload"] for message in messages]


def ended(api: httpx.Client, task_id: str) -> dict[str, Any] | None:
    task: dict[str, Any] = ok(api.get(f"/v1/tasks/{task_id}"))
    return None if task["state"] == "running" else task


@pytest.fixture
def group(api, topic) -> Group:
    return Group(api, topic)


@pytest.fixture
def own(tmp_path) -> Iterator[tuple[Server, httpx.Client]]:
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        yield server, api


def test_a_consumer_receives_extends_acknowledges_and_is_told_entry_by_entry(group):
    sent = group.send("a", "b", "c")

    first, second, third = group.receive(worker="billing-7f")

    assert [one["message_id"] for one in (first, second, third)] == sent
    assert [one["attempt"] for one in (first, second, third)] == [1, 1, 1]
    assert (first["topic"], first["queue_id"], first["queue_offset"]) == (group.topic, 0, 0)
    assert group.receive() == []
    (extended,) = group.settle("extend", first, lease_ms=60_000)
    assert extended["lease_expires_at"] > first["lease_expires_at"]
    assert [one["status"] for one in group.settle("ack", first, second)] == [200, 200]
    assert group.offsets() == [2]
    group.settle("nack", third, delay_ms=0)
    (again,) = group.receive()
    assert (again["message_id"], again["attempt"]) == (third["message_id"], 2)
    refused, taken = group.settle("ack", third, again, status=207)
    assert (refused["status"], refused["problem"]["code"], taken["status"]) == (
        409,
        "lease_expired",
        200,
    )


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "dead-letter"])
def test_a_batch_is_200_when_every_entry_was_accepted_and_207_also_when_all_are_rejected(
    group, verb
):
    group.send("a", "b", "c")
    first, second, third = group.receive()
    group.settle("nack", third, delay_ms=0)

    accepted = group.settled(verb, first)
    mixed = group.settled(verb, second, third)
    all_rejected = group.settled(verb, third, third)

    assert (accepted.status_code, mixed.status_code, all_rejected.status_code) == (200, 207, 207)
    assert [
        (body["accepted"], body["rejected"], [one["status"] for one in body["results"]])
        for body in (accepted.json(), mixed.json(), all_rejected.json())
    ] == [(1, 0, [200]), (1, 1, [200, 409]), (0, 2, [409, 409])]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "dead-letter"])
def test_a_handle_that_was_never_issued_is_not_said_to_have_expired(api, topic, group, verb):
    group.send("a", "b")
    first, _ = group.receive(max_messages=1), Group(api, topic)
    (issued,) = first
    group.settle("ack", issued)
    made_up = "lh_rJZHZGfSqG0AAAAAAAAAABZxB2cVYQAB"
    handles = ["lh_made_up", "receipt", made_up, issued["receipt_handle"]]
    if verb == "ack":  # one that was accepted is accepted again
        (ended,) = group.receive(max_messages=1)
        group.settle("nack", ended, delay_ms=0)
        handles[3] = ended["receipt_handle"]

    results = group.settle(verb, *({"receipt_handle": one} for one in handles), status=207)

    details = [one["problem"]["detail"] for one in results]
    assert {one["problem"]["code"] for one in results} == {"lease_expired"}
    assert (
        details[0]
        == details[1]
        == ("This service did not issue the receipt handle: it is malformed.")
    )
    assert "was not issued to this group" in details[2]
    assert "lease has ended" in details[3]


def test_two_groups_are_given_everything_each(api, topic, group):
    other = Group(api, topic)
    group.send("a", "b")

    assert payloads(group.receive()) == payloads(other.receive()) == ["a", "b"]


def test_a_group_that_does_not_exist_and_one_that_reads_nothing_are_told_apart(api, topic):
    assert_problem(api.post("/v1/groups/nobody/receive"), 404, "group_not_found")
    for verb in ("ack", "nack", "extend", "dead-letter"):
        body = {"entries": [{"receipt_handle": "lh_x"}]}
        assert_problem(api.post(f"/v1/groups/nobody/{verb}", json=body), 404, "group_not_found")
    name = f"/v1/groups/empty-of-{topic}"
    ok(api.put(name), 201)
    assert_problem(api.post(f"{name}/receive"), 422, "unsupported_combination")


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({"topics": [{"topic": "nowhere"}]}, 404, "topic_not_found", "/topics/0/topic"),
        ({"topics": [{"topic": "%RETRY%x"}]}, 422, "reserved_topic", "/topics/0/topic"),
        ({"lease_ms": 99}, 422, "validation_failed", "/lease_ms"),
        ({"max_attempts": 0}, 422, "validation_failed", "/max_attempts"),
        ({"backoff_ms": []}, 422, "validation_failed", "/backoff_ms"),
        ({"pushes": {"url": "https://example.org"}}, 422, "validation_failed", "/pushes"),
        ({"push": {"url": ""}}, 422, "validation_failed", "/push/url"),
        (
            {"push": {"url": "https://example.org", "format": "xml"}},
            422,
            "validation_failed",
            "/push/format",
        ),
        (
            {"push": {"url": "https://example.org", "concurrency": 0}},
            422,
            "validation_failed",
            "/push/concurrency",
        ),
        ({"start": "middle"}, 422, "validation_failed", "/start"),
        ({"skip_lag_over": 0}, 422, "validation_failed", "/skip_lag_over"),
        ({"skip_older_than_ms": None}, 422, "validation_failed", "/skip_older_than_ms"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_their_place_and_leave_no_group_behind(
    api, topic, body, status, code, pointer
):
    path = f"/v1/groups/refused-of-{topic}"

    assert_problem(api.put(path, json=body), status, code, pointer)

    assert_problem(api.get(path), 404, "group_not_found")


def test_a_filter_belongs_to_the_group_and_says_where_it_is_wrong(api, topic):
    path = f"/v1/groups/filtered-of-{topic}"
    wrong = {"topic": topic, "filter": {"kind": "sql92", "expression": "amount > "}}
    assert_problem(
        api.put(path, json={"topics": [wrong]}),
        422,
        "validation_failed",
        "/topics/0/filter/expression",
    )
    group = Group(api, topic)
    right = wrong | {"filter": {"kind": "sql92", "expression": "amount > 10"}}
    ok(api.put(group.path, json={"topics": [right]}, headers={"If-Match": '"1"'}))
    group.send("no", properties={"amount": "9"})
    group.send("yes", properties={"amount": "11"})

    assert payloads(group.receive()) == ["yes"]


def test_a_change_of_a_group_can_ask_for_the_revision_that_it_knows(api, topic, group):
    rules = {"topics": [{"topic": topic}], "lease_ms": 5_000}

    assert_problem(
        api.put(group.path, json=rules, headers={"If-Match": '"7"'}), 412, "revision_mismatch"
    )
    changed = api.put(group.path, json=rules, headers={"If-Match": '"1"'})

    assert (ok(changed)["revision"], changed.headers["etag"]) == (2, '"2"')
    assert ok(api.get(group.path))["lease_ms"] == 5_000


def test_of_changes_of_a_group_at_once_that_know_the_same_revision_one_is_made(api, topic, group):
    known = {"If-Match": '"1"'}
    rules = {"topics": [{"topic": topic}]}
    answers = at_once(
        [
            lambda n=n: api.put(group.path, json=rules | {"lease_ms": 5_000 + n}, headers=known)
            for n in range(8)
        ]
    )

    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    assert ok(api.get(group.path))["revision"] == 2
    assert_problem(api.delete(group.path, headers=known), 412, "revision_mismatch")


def test_a_message_that_is_refused_too_often_is_a_dead_letter_and_can_be_redriven(api, topic):
    group = Group(api, topic, max_attempts=2, backoff_ms=[100])
    (message_id,) = group.send("a", key="8812")
    group.settle("nack", *group.receive(), reason="db down")
    (again,) = group.receive(wait_ms=LONG_MS)
    assert (again["attempt"], again["message_id"], again["queue_offset"]) == (2, message_id, 0)
    group.settle("nack", again, reason="db still down")

    (dead,) = ok(api.get(f"{group.path}/dead-letters"))["items"]
    assert (dead["origin_topic"], dead["reason"], dead["attempts"]) == (topic, "db still down", 2)
    assert (dead["message"]["message_id"], dead["message"]["payload"], dead["message"]["key"]) == (
        message_id,
        "a",
        "8812",
    )
    begun = api.post(
        f"{group.path}/dead-letters/redrive", json={"select": "all", "max_per_second": 50}
    )
    assert ok(begun, 202)["total"] == 1
    assert begun.headers["location"] == f"/v1/tasks/{begun.json()['task_id']}"
    (redriven,) = group.receive(wait_ms=LONG_MS)
    assert (redriven["message_id"], redriven["attempt"], redriven["topic"]) == (
        message_id,
        1,
        topic,
    )
    task = until(lambda: ended(api, begun.json()["task_id"]), "the task has ended")
    assert (task["kind"], task["group"], task["state"]) == ("redrive", group.name, "done")
    assert (
        task["total"],
        task["done"],
        task["failed"],
        task["failures"],
        task["failures_omitted"],
    ) == (1, 1, 0, [], 0)
    assert {"task_id", "created_at", "ended_at"} < task.keys()
    assert "eta_ms" not in task
    assert ok(api.get(f"{group.path}/dead-letters"))["items"] == []
    assert ok(api.get(f"/v1/messages/{message_id}"))["topic"] == topic


def test_a_message_given_back_unprocessed_on_its_last_attempt_is_no_dead_letter(api, topic):
    group = Group(api, topic, max_attempts=1)
    (message_id,) = group.send("a")

    for _ in range(5):
        (one,) = group.receive()
        assert (one["message_id"], one["attempt"]) == (message_id, 1)
        (result,) = group.settle("nack", one, unprocessed=True, reason="the worker stops")
        assert result["status"] == 200
    (one,) = group.receive()
    assert one["attempt"] == 1
    group.settle("ack", one)

    assert group.receive() == []
    assert ok(api.get(f"{group.path}/dead-letters"))["items"] == []
    trace = ok(api.get(f"/v1/messages/{message_id}/trace"))["items"]
    of_group = [event for event in trace if event.get("group") == group.name]
    assert [event["event"] for event in of_group] == ["leased", "released"] * 5 + [
        "leased",
        "acked",
    ]
    assert {event["reason"] for event in of_group if event["event"] == "released"} == {
        "the worker stops"
    }


def test_a_message_given_back_with_a_delay_comes_after_it_for_the_same_attempt(api, topic):
    group = Group(api, topic, max_attempts=2, backoff_ms=[600_000])
    group.send("a")
    group.settle("nack", *group.receive(), delay_ms=0)
    (one,) = group.receive()

    group.settle("nack", one, unprocessed=True, delay_ms=300)

    assert group.receive() == []
    (again,) = group.receive(wait_ms=LONG_MS)
    assert (again["attempt"], again["message_id"]) == (2, one["message_id"])


def test_an_attempt_that_was_given_back_does_not_count_after_a_kill_either(own):
    server, api = own
    group = Group(api, "orders", max_attempts=1)
    group.send("a", "b")
    group.settle("nack", *group.receive(), unprocessed=True)
    server.kill()
    server.start()

    with server.client() as again:
        group.api = again
        received = group.receive()
        assert [one["attempt"] for one in received] == [1, 1]
        group.settle("nack", *received, unprocessed=False)
        assert group.receive() == []
        assert len(ok(again.get(f"{group.path}/dead-letters"))["items"]) == 2


def test_a_reset_to_where_the_group_is_says_what_it_ends_and_what_comes_again(api, topic, group):
    group.send("a", "b", "c")
    _, second, third = group.receive(lease_ms=60_000)
    group.settle("ack", third)
    group.settle("nack", second, delay_ms=60_000)
    reset = {"topic": topic, "to": "earliest"}

    planned = ok(api.post(f"{group.path}/offsets/reset", json=reset | {"dry_run": True}))
    done = ok(api.post(f"{group.path}/offsets/reset", json=reset))
    once_more = ok(api.post(f"{group.path}/offsets/reset", json=reset))

    assert (planned["messages_affected"], planned["already_acked"]) == (0, 2)
    assert (
        planned["note"]
        == "2 messages would be delivered again, 1 open lease would end, 1 retry would end"
    )
    assert done["note"] == "2 messages will be delivered again, 1 open lease ended, 1 retry ended"
    assert once_more["note"] == "nothing changes"
    assert payloads(group.receive()) == ["a", "b", "c"]


def test_a_redrive_by_id_names_the_ids_that_it_did_not_find_and_one_that_runs_says_how_long_it_takes(
    api, topic
):
    group = Group(api, topic)
    sent = group.send("a", "b")
    group.settle("dead-letter", *group.receive(), reason="db down")
    path = f"{group.path}/dead-letters/redrive"
    by_id = {"select": "ids", "message_ids": [sent[0], "msg_nobody"]}

    assert ok(api.post(path, json=by_id | {"dry_run": True})) == {
        "dry_run": True,
        "total": 2,
        "failed": 1,
    }
    task_id = ok(api.post(path, json=by_id), 202)["task_id"]
    task = until(lambda: ended(api, task_id), "the task has ended")
    assert (task["total"], task["done"], task["failed"], task["failures_omitted"]) == (2, 1, 1, 0)
    assert task["failures"] == [{"message_id": "msg_nobody", "code": "message_not_found"}]
    slow = {
        "select": "query",
        "reason_contains": "down",
        "from": "2020-01-01T00:00:00.000Z",
        "max_per_second": 1,
    }
    assert ok(api.post(path, json=slow | {"dry_run": True})) == {"dry_run": True, "total": 1}
    refused = api.post(
        path, json=slow | {"dry_run": True}, headers={"Idempotency-Key": "two words"}
    )
    assert_problem(refused, 422, "validation_failed")
    running = ok(api.post(path, json=slow), 202)
    assert (running["state"], running["total"], running["done"]) == ("running", 1, 0)
    assert 0 < running["eta_ms"] <= 1_000


def test_the_leases_of_a_group_are_listed_page_by_page_until_they_end(api, topic, group):
    sent = group.send("a", "b", "c", key="8812", ordering_key="customer-17")
    first, second, third = group.receive(lease_ms=60_000)
    path = f"{group.path}/leases"

    page = ok(api.get(path, params={"page_size": 2}))
    rest = ok(api.get(path, params={"page_size": 2, "page_token": page["next_page_token"]}))

    items = page["items"] + rest["items"]
    expires_at = [datetime.fromisoformat(item.pop("lease_expires_at")) for item in items]
    assert max(expires_at) - datetime.fromisoformat(first["lease_expires_at"]) < timedelta(
        milliseconds=10
    )
    place = {
        "topic": topic,
        "queue_id": first["queue_id"],
        "key": "8812",
        "ordering_key": "customer-17",
        "attempt": 1,
    }
    assert items == [
        place | {"message_id": one, "queue_offset": offset} for offset, one in enumerate(sent)
    ]
    assert "next_page_token" not in rest
    group.settle("ack", first)
    group.settle("nack", second, delay_ms=60_000)
    assert [one["message_id"] for one in ok(api.get(path))["items"]] == [third["message_id"]]
    assert_problem(api.get(path, params={"page_token": "bm9uZQ"}), 400, "invalid_page_token")
    assert_problem(api.get("/v1/groups/nobody/leases"), 404, "group_not_found")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/select"),
        ({"select": "some"}, "/select"),
        ({"select": "query"}, "/select"),
        ({"select": "query", "message_ids": ["msg_1"], "tag": "x"}, "/message_ids"),
        ({"select": "ids"}, "/message_ids"),
        ({"select": "ids", "message_ids": ["msg_1"], "reason_contains": "x"}, "/reason_contains"),
        ({"select": "all", "topic": "orders"}, "/topic"),
        ({"select": "query", "topic": "a b"}, "/topic"),
        ({"select": "all", "from": "2026-01-01T00:00:00.000Z"}, "/from"),
        ({"select": "query", "from": "yesterday"}, "/from"),
        ({"select": "query", "query": {"topic": "orders"}}, "/query"),
        ({"select": "all", "max_per_second": 0}, "/max_per_second"),
    ],
)
def test_a_redrive_says_which_fields_go_with_which_selection(api, topic, body, pointer):
    group = Group(api, topic)

    assert_problem(
        api.post(f"{group.path}/dead-letters/redrive", json=body), 422, "validation_failed", pointer
    )


def test_a_redrive_by_a_reserved_topic_is_refused(api, topic):
    group = Group(api, topic)
    body = {"select": "query", "topic": f"%RETRY%{group.name}", "dry_run": True}

    redriven = api.post(f"{group.path}/dead-letters/redrive", json=body)

    assert_problem(redriven, 422, "reserved_topic")


def test_a_reset_says_before_what_it_would_do_and_then_does_it(api, topic, group):
    group.send("a", "b", "c")
    first, second, third = group.receive()
    group.settle("ack", first, second)
    reset = {"topic": topic, "to": "earliest"}

    planned = ok(api.post(f"{group.path}/offsets/reset", json=reset | {"dry_run": True}))
    assert group.receive() == []
    done = ok(api.post(f"{group.path}/offsets/reset", json=reset))

    assert (planned["messages_affected"], planned["queues"]) == (
        2,
        [{"queue_id": 0, "from_offset": 2, "to_offset": 0}],
    )
    assert done["queues"] == planned["queues"]
    assert (planned["already_acked"], planned["note"]) == (
        2,
        "2 messages would be delivered again, 1 open lease would end",
    )
    assert (done["already_acked"], done["note"]) == (
        2,
        "2 messages will be delivered again, 1 open lease ended",
    )
    assert group.settle("ack", third, status=207)[0]["status"] == 409
    assert [(one["payload"], one["attempt"]) for one in group.receive()] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]
    for wrong, pointer in (
        ({"to": "time"}, "/at"),
        ({"to": "offset", "offset": 0}, "/queue_id"),
        ({"at": "x"}, "/at"),
    ):
        body = reset | wrong
        assert_problem(
            api.post(f"{group.path}/offsets/reset", json=body), 422, "validation_failed", pointer
        )


def test_a_reset_of_one_queue_leaves_the_retries_of_the_others(api, topic):
    ok(api.post("/v1/topics", json={"topic": f"{topic}-of-two", "queues": 2}), 201)
    group = Group(api, f"{topic}-of-two", lease_ms=LONG_MS)
    group.send("zero", queue_id=0)
    group.send("one", queue_id=1)
    group.settle("nack", *group.receive(), delay_ms=200)

    ok(
        api.post(
            f"{group.path}/offsets/reset",
            json={"topic": group.topic, "queue_id": 0, "to": "latest"},
        )
    )

    (again,) = group.receive(wait_ms=5_000)
    assert (again["payload"], again["attempt"]) == ("one", 2)
    group.settle("ack", again)
    assert group.lag()["messages_waiting"] == 0
    assert group.offsets() == [1, 1]


def test_nobody_who_receives_while_a_group_is_made_is_given_what_lies_before_its_start(api, topic):
    names = [f"late-{number}-of-{topic}" for number in range(20)]
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "old"}), 201)

    def receive_from(name: str) -> list[str]:
        for _ in range(20_000):
            response = api.post(f"/v1/groups/{name}/receive", json={})
            if response.status_code == 200:
                return payloads(response.json()["messages"])
        raise AssertionError("the group was never there")

    with ThreadPoolExecutor(2) as pool:
        for name in names:
            receiving = [pool.submit(receive_from, name) for _ in range(2)]
            ok(
                api.put(
                    f"/v1/groups/{name}", json={"topics": [{"topic": topic}], "start": "latest"}
                ),
                201,
            )
            assert [received.result() for received in receiving] == [[], []]


@pytest.mark.faults
def test_what_was_acknowledged_never_comes_again_and_what_was_not_does_whenever_the_service_is_killed(
    own,
):
    server, api = own
    group = Group(api, "orders", lease_ms=500)
    sent = group.send(*[str(number) for number in range(30)])
    acked: set[str] = set()
    for life in range(3):
        received = group.receive(max_messages=10, wait_ms=LONG_MS)
        group.settle("ack", *received[: 3 + life])
        acked |= {one["message_id"] for one in received[: 3 + life]}
        server.kill()
        server.start()

    while group.lag()["messages_ready"] or group.lag()["messages_leased"]:
        received = group.receive(wait_ms=1_000)
        assert not acked & {one["message_id"] for one in received}, (
            "an acknowledged message came again"
        )
        if received:
            group.settle("ack", *received)
            acked |= {one["message_id"] for one in received}

    assert acked == set(sent)
    assert group.offsets() == [30]


def test_what_a_group_has_no_time_for_is_passed_over_counted_and_told_and_stays_so_after_kill_9(
    own,
):
    server, api = own
    group = Group(api, "orders", skip_lag_over=2, skip_older_than_ms=86_400_000)
    rules = ok(api.get(group.path))
    assert (rules["skip_lag_over"], rules["skip_older_than_ms"]) == (2, 86_400_000)
    sent = group.send("a", "b", "c", "d", "e")

    received = group.receive()

    assert payloads(received) == ["d", "e"]
    server.kill()
    server.start()
    assert (group.lag()["messages_skipped"], group.lag()["queues"][-1]["messages_skipped"]) == (
        3,
        3,
    )
    assert group.offsets() == [3]
    assert "escrowmq_messages_skipped 3.0" in api.get("/metrics").text
    trace = ok(api.get(f"/v1/messages/{sent[0]}/trace"))["items"]
    assert [(one["event"], one["group"]) for one in trace if "group" in one] == [
        ("skipped", group.name)
    ]
    (line,) = [line for line in server.log().splitlines() if "messages_skipped" in line]
    assert all(word in line for word in (group.name, "orders/0", "lag"))
    group.settle("ack", *received)
    assert group.offsets() == [5]


def test_a_key_again_says_so_and_brings_nothing_back_though_its_message_was_acknowledged_or_purged(
    api, topic
):
    group = Group(api, topic, max_attempts=1)

    def send(key: str) -> dict[str, Any]:
        path, headers = f"/v1/topics/{topic}/messages", {"Idempotency-Key": key}
        return ok(api.post(path, json={"payload": key}, headers=headers), 201)

    first = {key: send(key) for key in ("done", "dead")}
    done, dead = group.receive()
    group.settle("ack", done)
    group.settle("nack", dead)
    assert api.delete(f"{group.path}/dead-letters").is_success

    again = {key: send(key) for key in first}

    assert {key: one["message_id"] for key, one in again.items()} == {
        key: one["message_id"] for key, one in first.items()
    }
    assert [one["deduplicated"] for one in again.values()] == [True, True]
    assert group.receive() == []


def test_a_receipt_is_good_after_kill_9_and_an_attempt_can_be_repeated(own):
    server, api = own
    group = Group(api, "orders", lease_ms=60_000)
    group.send("a", "b")
    received = group.receive(max_messages=1, attempt_id="try-1")
    server.kill()

    server.start()

    again = group.receive(max_messages=1, attempt_id="try-1")
    assert [one["receipt_handle"] for one in again] == [one["receipt_handle"] for one in received]
    assert again[0]["lease_expires_at"] == received[0]["lease_expires_at"]
    group.settle("ack", *received)
    assert payloads(group.receive()) == ["b"]


def test_a_stop_answers_those_who_wait(own):
    server, api = own
    group = Group(api, "orders")
    body = b'{"wait_ms":30000}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(
            request("POST", f"{group.path}/receive", "Content-Type: application/json", body=body)
        )
        until(lambda: "escrowmq_long_polls_open 1.0" in api.get("/metrics").text, "it is parked")

        assert server.terminate() == 0

        (answer,) = answers(connection.recv(65_536))
    assert answer.status == 200
    assert answer.body.endswith(b'"messages":[]}')


def test_a_deleted_group_answers_those_who_wait_and_begins_anew(api, topic, group):
    group.send("a")
    (held,) = group.receive()

    assert api.delete(group.path).status_code == 204

    assert_problem(api.get(group.path), 404, "group_not_found")
    assert_problem(
        api.post(f"{group.path}/ack", json={"entries": [{"receipt_handle": "lh_x"}]}),
        404,
        "group_not_found",
    )
    ok(api.put(group.path, json={"topics": [{"topic": topic}]}), 201)
    assert group.settle("ack", held, status=207)[0]["status"] == 409
    assert [(one["payload"], one["attempt"]) for one in group.receive()] == [("a", 1)]
