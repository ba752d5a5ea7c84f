"""Push over real HTTP: messages of a group are sent to a receiver on loopback, whose answers settle
them.
"""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import httpx
import pytest

from escrowmq_client.webhooks import new_secret, verify
from tests.support.http import assert_problem, ok, until
from tests.support.receiver import Receiver, Request, Said
from tests.support.server import Server

LISTED = {"ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["127.0.0.1"]'}
TAKEN = Said(status=204)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service") / "data", environment=LISTED) as running:
        yield running


@pytest.fixture(scope="module")
def api(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


class Billing:
    """A group whose messages are pushed to a receiver, and its topic."""

    def __init__(self, api: httpx.Client, receiver: Receiver, name: str) -> None:
        self.api = api
        self.receiver = receiver
        self.name = self.topic = name
        self.path = f"/v1/groups/{name}"

    def put(self, status: int = 201, *, push: Any = None, **fields: Any) -> dict[str, Any]:
        push = {"url": self.receiver.url} | (push or {})
        body = {"topics": [{"topic": self.topic}], "push": push} | fields
        return ok(self.api.put(self.path, json=body), status)

    def send(self, text: str, **fields: Any) -> str:
        body = {"payload": text} | fields
        sent = self.api.post(f"/v1/topics/{self.topic}/messages", json=body)
        return ok(sent, 201)["message_id"]

    def lag(self) -> dict[str, Any]:
        return ok(self.api.get(f"{self.path}/lag"))

    def wait_until_settled(self) -> None:
        def is_settled() -> bool:
            lag = self.lag()
            return not (lag["messages_ready"] + lag["messages_leased"] + lag["messages_waiting"])

        until(is_settled, "all messages are settled")


@pytest.fixture
def billing(api, request) -> Iterator[Billing]:
    with Receiver(lambda _: TAKEN) as receiver:
        name = re.sub(r"[^a-z0-9_]+", "-", request.node.name)[-100:]
        ok(api.put(f"/v1/topics/{name}"), 201)
        billing = Billing(api, receiver, name)
        yield billing
        api.delete(billing.path)


def payloads(requests: list[Request]) -> list[str]:
    return [json.loads(one.body)["message"]["payload"] for one in requests]


def test_a_message_is_pushed_signed_and_settled_by_the_answer(billing):
    secret = billing.put()["signing_secret"]
    message_id = billing.send("order 8812", key="8812")

    (request,) = billing.receiver.wait_for(1)

    assert verify([secret], request.headers, request.body, now=time.time()) == message_id
    body = json.loads(request.body)
    assert (body["kind"], body["group"]) == ("message.delivery", billing.name)
    message = body["message"]
    assert (message["message_id"], message["topic"]) == (message_id, billing.topic)
    assert (message["payload"], message["key"], message["attempt"]) == ("order 8812", "8812", 1)
    billing.wait_until_settled()
    assert len(billing.receiver.requests) == 1


def test_the_secret_is_in_the_first_answer_alone_and_replaced_with_an_overlap(billing, api):
    first = billing.put()["signing_secret"]
    assert "signing_secret" not in billing.put(200)
    assert "signing_secret" not in ok(api.get(billing.path))
    rotated = ok(api.post(f"{billing.path}/rotate-secret"))
    assert rotated["signing_secret"] != first
    assert "previous_secret_expires_at" in ok(api.get(billing.path))

    billing.send("order 1")
    (request,) = billing.receiver.wait_for(1)

    for secret in (first, rotated["signing_secret"]):
        verify([secret], request.headers, request.body, now=time.time())


def test_a_secret_of_the_user_signs_and_is_in_no_answer(billing):
    secret = new_secret()
    assert "signing_secret" not in billing.put(signing_secret=secret)

    billing.send("order 1")
    (request,) = billing.receiver.wait_for(1)

    verify([secret], request.headers, request.body, now=time.time())


def test_a_refused_message_comes_again_by_the_rules_of_the_group_until_it_is_a_dead_letter(billing):
    billing.put(max_attempts=3, backoff_ms=[0])
    billing.receiver.answering = lambda _: Said(status=500)
    message_id = billing.send("order 1")

    requests = billing.receiver.wait_for(3)

    assert {one.headers["webhook-id"] for one in requests} == {message_id}
    assert [json.loads(one.body)["message"]["attempt"] for one in requests] == [1, 2, 3]
    letters = f"{billing.path}/dead-letters"
    until(lambda: ok(billing.api.get(letters))["items"], "a dead letter")
    (letter,) = ok(billing.api.get(letters))["items"]
    assert (letter["message"]["message_id"], letter["reason"]) == (message_id, "status 500")


@pytest.mark.parametrize("is_date", [False, True])
def test_a_busy_endpoint_is_left_alone_for_as_long_as_it_asks_and_no_attempt_counts(
    billing, is_date
):
    def busy_once(request: Request) -> Said:
        if len(billing.receiver.requests) > 1:
            return TAKEN
        wait = formatdate(time.time() + 2, usegmt=True) if is_date else "1"
        return Said(status=429, headers={"Retry-After": wait})

    billing.put(push={"concurrency": 1}, max_attempts=1)
    billing.receiver.answering = busy_once
    for number in range(3):
        billing.send(f"order {number}")

    requests = billing.receiver.wait_for(4)

    assert requests[1].at - requests[0].at > 0.9
    assert {json.loads(one.body)["message"]["attempt"] for one in requests} == {1}
    billing.wait_until_settled()
    assert billing.lag()["dead_letters"] == 0


def test_an_endpoint_that_is_busy_and_asks_for_no_time_is_left_alone_for_a_second(billing):
    billing.put(push={"concurrency": 1}, max_attempts=1)
    billing.receiver.answering = lambda _: (
        Said(status=429, headers={"Retry-After": "0"})
        if len(billing.receiver.requests) < 3
        else TAKEN
    )
    billing.send("order 1")

    requests = billing.receiver.wait_for(3)

    assert all(later.at - one.at > 0.9 for one, later in pairwise(requests))
    billing.wait_until_settled()


def test_retry_after_makes_no_wait_shorter_than_that_of_the_group(billing):
    billing.put(backoff_ms=[1_000], max_attempts=2)
    billing.receiver.answering = lambda _: Said(status=500, headers={"Retry-After": "0"})
    billing.send("order 1")

    first, second = billing.receiver.wait_for(2)

    assert second.at - first.at > 0.9


def test_an_endpoint_that_fails_again_and_again_is_left_alone_and_gets_what_waited_afterwards(
    billing,
):
    billing.put(push={"concurrency": 2}, backoff_ms=[0], max_attempts=100)
    billing.receiver.answering = lambda _: Said(status=503)
    for number in range(20):
        billing.send(f"order {number}")
    requests = billing.receiver.wait_for(13)
    billing.receiver.answering = lambda _: TAKEN
    failed = len(requests)

    billing.wait_until_settled()

    # ten failures, and one that was under way then; the next comes after a second
    assert max(later.at - one.at for one, later in pairwise(requests[9:])) > 0.9
    taken = billing.receiver.requests[failed:]
    assert sorted(set(payloads(taken))) == sorted(f"order {number}" for number in range(20))


def test_no_more_messages_are_under_way_than_the_group_allows(billing):
    billing.put(push={"concurrency": 3})
    may_answer = threading.Event()
    billing.receiver.answering = lambda _: TAKEN if may_answer.wait(30) else Said(status=500)
    for number in range(30):
        billing.send(f"order {number}")
    billing.receiver.wait_under_way(3)
    assert billing.lag()["messages_leased"] == 3

    may_answer.set()
    billing.receiver.wait_for(30)

    assert billing.receiver.most_under_way == 3
    billing.wait_until_settled()


def test_messages_under_way_take_a_part_of_the_memory_for_all_groups(billing):
    billing.put(push={"concurrency": 100})
    may_answer = threading.Event()
    billing.receiver.answering = lambda _: TAKEN if may_answer.wait(30) else Said(status=500)
    for _ in range(20):
        billing.send("x" * 4_000_000)
    # with one more, it would have more than the half of 64 MiB
    billing.receiver.wait_under_way(8)
    assert billing.lag()["messages_leased"] == 8

    may_answer.set()
    billing.receiver.wait_for(20)

    assert billing.receiver.most_under_way == 8
    billing.wait_until_settled()


def test_messages_of_an_ordering_key_are_pushed_one_after_another_in_their_order(billing):
    billing.put(push={"concurrency": 8}, ordered=True, backoff_ms=[0])
    failed: set[str] = set()

    def fail_each_once(request: Request) -> Said:
        (payload,) = payloads([request])
        if payload in failed:
            return TAKEN
        failed.add(payload)
        return Said(status=409)

    billing.receiver.answering = fail_each_once
    for number in range(10):
        billing.send(f"order {number}", ordering_key="8812")

    requests = billing.receiver.wait_for(20)

    assert payloads(requests) == [f"order {number // 2}" for number in range(20)]
    assert billing.receiver.most_under_way == 1


def test_an_endpoint_that_is_gone_gets_nothing_until_it_is_named_again(billing, api):
    billing.put(max_attempts=1)
    billing.receiver.answering = lambda _: Said(status=410)
    billing.send("order 1")
    until(lambda: "disabled_at" in ok(api.get(billing.path))["push"], "it is disabled")
    assert billing.lag()["dead_letters"] == 0
    assert_problem(api.post(f"{billing.path}/receive"), 409, "group_active")

    billing.receiver.answering = lambda _: TAKEN
    assert "disabled_at" not in billing.put(200)["push"]

    billing.wait_until_settled()
    assert len(billing.receiver.requests) == 2


def test_an_endpoint_that_is_gone_while_the_registry_is_away_costs_no_message_an_attempt(tmp_path):
    file, elsewhere = tmp_path / "data" / "registry.db", tmp_path / "elsewhere.db"
    with (
        Server(tmp_path / "data", environment=LISTED) as server,
        server.client() as api,
        Receiver(lambda _: Said(status=410)) as receiver,
    ):
        billing = Billing(api, receiver, "billing")
        ok(api.put("/v1/topics/billing"), 201)
        billing.put(max_attempts=1, push={"concurrency": 1})
        file.rename(elsewhere)
        billing.send("order 1")

        receiver.wait_for(2)
        assert "disabled_at" not in ok(api.get(billing.path))["push"]
        elsewhere.rename(file)

        until(lambda: "disabled_at" in ok(api.get(billing.path))["push"], "it is disabled")
        receiver.answering = lambda _: TAKEN
        billing.put(200)
        billing.wait_until_settled()
        assert billing.lag()["dead_letters"] == 0


def test_nothing_else_receives_the_messages_of_a_pushed_group(billing, api):
    billing.put()
    for path in ("receive", "members"):
        body = {"client_id": "a", "topics": [{"topic": billing.topic}]} if path == "members" else {}
        assert_problem(api.post(f"{billing.path}/{path}", json=body), 409, "group_active")
    assert_problem(api.get(f"{billing.path}/stream"), 409, "group_active")


def test_a_group_with_members_takes_no_push(billing, api):
    join = {"client_id": "a", "topics": [{"topic": billing.topic}]}
    ok(api.post(f"{billing.path}/members", json=join), 201)

    answer = api.put(billing.path, json={"push": {"url": billing.receiver.url}})

    assert_problem(answer, 409, "group_active")
    assert "push" not in ok(api.get(billing.path))


def test_without_push_in_a_put_with_if_match_the_messages_are_received_again(billing, api):
    billing.put()
    revision = api.get(billing.path).headers["etag"]
    topics = {"topics": [{"topic": billing.topic}]}

    assert "push" not in ok(api.put(billing.path, json=topics, headers={"If-Match": revision}))

    billing.send("order 1")
    (message,) = ok(api.post(f"{billing.path}/receive", json={"wait_ms": 10_000}))["messages"]
    assert message["payload"] == "order 1"
    assert billing.receiver.requests == []


def test_a_put_without_if_match_keeps_the_url(billing, api):
    billing.put()
    other = {"push": {"url": billing.receiver.url + "&other=1"}}
    assert_problem(api.put(billing.path, json=other), 409, "check_conflict", "/push/url")
    assert ok(api.put(billing.path, json={"lease_ms": 1_000}))["push"]["url"] == (
        billing.receiver.url
    )


def test_fields_of_push_that_a_put_omits_keep_their_value(billing, api):
    fields = {"timeout_ms": 3_000, "concurrency": 16, "format": "cloudevents"}
    billing.put(push=fields)

    push = billing.put(200, push={"concurrency": 8})["push"]

    assert push == {"url": billing.receiver.url} | fields | {"concurrency": 8}
    body = {"push": {"url": billing.receiver.url}}
    replaced = ok(api.put(billing.path, json=body, headers={"If-Match": "*"}))["push"]
    assert (replaced["timeout_ms"], replaced["concurrency"]) == (15_000, 4)
    assert replaced["format"] == "message"


@pytest.mark.parametrize(
    "url",
    ["http://192.168.1.1/in", "https://10.0.0.1/in", "ftp://shop.example/", "https://a@b.de/"],
)
def test_a_url_where_nothing_may_be_sent_is_refused(billing, api, url):
    answer = api.put(billing.path, json={"push": {"url": url}})

    assert_problem(answer, 422, "check_url_refused", "/push/url")
    assert_problem(api.get(billing.path), 404, "group_not_found")


def test_a_secret_needs_push_and_has_the_form_of_one(billing, api):
    secret = {"signing_secret": new_secret()}
    assert_problem(api.put(billing.path, json=secret), 422, "validation_failed", "/signing_secret")
    short = {"signing_secret": "whsec_" + base64.b64encode(b"short").decode()}
    push = {"push": {"url": billing.receiver.url}}
    assert_problem(
        api.put(billing.path, json=push | short), 422, "validation_failed", "/signing_secret"
    )
    assert_problem(api.post(f"{billing.path}/rotate-secret"), 404, "group_not_found")
    ok(api.put(billing.path, json={}), 201)
    assert_problem(api.post(f"{billing.path}/rotate-secret"), 422, "unsupported_combination")


def test_the_filter_of_the_group_chooses_what_is_pushed(billing):
    tag = {"kind": "tag", "expression": "paid"}
    billing.put(topics=[{"topic": billing.topic, "filter": tag}])
    billing.send("order 1", tag="created")
    billing.send("order 2", tag="paid")

    billing.wait_until_settled()

    assert payloads(billing.receiver.requests) == ["order 2"]


def test_after_a_kill_what_was_under_way_is_pushed_again_at_once_in_the_same_lease(tmp_path):
    with Receiver(lambda _: TAKEN) as receiver:
        data = tmp_path / "data"
        with Server(data, environment=LISTED) as server, server.client() as api:
            billing = Billing(api, receiver, "billing")
            ok(api.put("/v1/topics/billing"), 201)
            billing.put(lease_ms=3_600_000)
            is_killed = threading.Event()
            receiver.answering = lambda _: TAKEN if is_killed.wait(30) else Said(status=500)
            billing.send("order 1")
            receiver.wait_for(1)
            server.kill()
            is_killed.set()
        receiver.answering = lambda _: TAKEN
        with Server(data, environment=LISTED) as server, server.client() as api:
            first, second = receiver.wait_for(2)
            billing = Billing(api, receiver, "billing")
            billing.wait_until_settled()

    handles = [json.loads(one.body)["message"]["receipt_handle"] for one in (first, second)]
    assert handles[0] == handles[1]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


def test_a_secret_does_not_reach_the_log(billing, server):
    secret = billing.put()["signing_secret"]
    billing.send("order 1")
    billing.receiver.wait_for(1)
    assert secret not in server.log()


def test_a_group_can_have_its_messages_as_cloud_events_in_json(billing):
    billing.put(push={"format": "cloudevents"})
    message_id = billing.send("text", key="8812")

    (request,) = billing.receiver.wait_for(1)

    event = json.loads(request.body)
    assert request.headers["content-type"].startswith("application/cloudevents+json")
    assert (event["id"], event["subject"], event["data"]) == (message_id, "8812", "text")
    billing.wait_until_settled()


def test_a_cloud_event_that_came_in_goes_out_in_binary_mode_as_it_came(billing, api):
    secret = billing.put(push={"format": "cloudevents_binary"})["signing_secret"]
    came = {
        "ce-specversion": "1.0",
        "ce-id": "A234",
        "ce-source": "/shop?eu",
        "ce-type": "order.paid",
        "ce-subject": "K%C3%A4se",
        "content-type": "application/json",
    }
    ok(api.post(f"/v1/topics/{billing.topic}/events", content=b'{"a":1}', headers=came), 201)

    (request,) = billing.receiver.wait_for(1)

    assert {name: request.headers[name] for name in came} == came
    assert (request.headers["ce-attempt"], request.body) == ("1", b'{"a":1}')
    verify([secret], request.headers, request.body, now=time.time())
    billing.wait_until_settled()


def test_an_endpoint_that_hangs_leaves_connections_to_others(tmp_path):
    few = LISTED | {"ESCROWMQ_WEBHOOK__MAX_CONNECTIONS": "8"}  # four of them for messages
    may_answer = threading.Event()
    with (
        Receiver(lambda _: TAKEN if may_answer.wait(30) else Said(status=500)) as hanging,
        Receiver(lambda _: TAKEN) as healthy,
        Server(tmp_path / "data", environment=few) as server,
        server.client() as api,
    ):
        ok(api.put("/v1/topics/orders"), 201)
        for name, receiver in (("hung", hanging), ("paid", healthy)):
            push = {"url": receiver.url, "concurrency": 100}
            body = {"topics": [{"topic": "orders"}], "push": push}
            ok(api.put(f"/v1/groups/{name}", json=body), 201)
        entries = [{"message": {"payload": f"order {number}"}} for number in range(20)]
        ok(api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201)

        healthy.wait_for(20)

        assert hanging.most_under_way == 2
        may_answer.set()
        hanging.wait_for(20)
