"""Time and faults in the hand of a test: what falls due is done at its time and in its order, and
faults do what they say.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest

from escrowmq_client.webhooks import verify
from pytest_escrowmq.service import EscrowMQ, ProducerGroup
from tests.support.http import assert_problem, ok
from tests.support.receiver import Receiver, Said, ask_no_more, decide
from tests.support.server import Server

COMMIT = "commitTransaction"


@pytest.fixture(scope="module")
def escrowmq_service(tmp_path_factory) -> Iterator[EscrowMQ]:
    """One for all tests here: each has a topic and a group of its own."""
    with EscrowMQ(tmp_path_factory.mktemp("escrowmq")) as service:
        yield service


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(lambda _: decide("commit")) as running:
        yield running


@pytest.fixture
def topic(escrowmq) -> str:
    return escrowmq.topic()


@pytest.fixture
def polled(escrowmq) -> ProducerGroup:
    return escrowmq.producer_group()


@pytest.fixture
def asked(escrowmq, receiver) -> Iterator[ProducerGroup]:
    group = escrowmq.producer_group(check_url=receiver.url)
    yield group
    ask_no_more(escrowmq.client, group.name)


def begin(escrowmq: EscrowMQ, group: ProducerGroup, topic: str, **fields: Any) -> str:
    body = {
        "producer_group": group.name,
        "messages": [{"topic": topic, "message": {"json": 1}}],
        **fields,
    }
    return ok(escrowmq.client.post("/v1/transactions", json=body), 201)["transaction_id"]


def send(
    escrowmq: EscrowMQ,
    topic: str,
    payload: str,
    status: int = 201,
    headers: dict[str, str] | None = None,
    **fields: Any,
):
    path = f"/v1/topics/{topic}/messages"
    return ok(
        escrowmq.client.post(path, json={"payload": payload, **fields}, headers=headers), status
    )


def payloads(escrowmq: EscrowMQ, topic: str) -> list[str]:
    return [message["payload"] for message in escrowmq.messages(topic)]


def receive(escrowmq: EscrowMQ, group: ProducerGroup, **fields: Any) -> list[dict[str, Any]]:
    return ok(
        escrowmq.client.post(f"/v1/producer-groups/{group.name}/checks/receive", json=fields)
    )["checks"]


# --------------------------------------------------------------------------------------------------
# time


def test_a_delayed_message_comes_at_its_time_and_not_before(escrowmq, topic):
    send(escrowmq, topic, "in two hours", delay_ms=7_200_000)
    send(escrowmq, topic, "in one hour", delay_ms=3_600_000)

    escrowmq.advance(minutes=59)
    assert payloads(escrowmq, topic) == []
    escrowmq.advance(minutes=1)
    assert payloads(escrowmq, topic) == ["in one hour"]
    escrowmq.advance(hours=1)
    assert payloads(escrowmq, topic) == ["in one hour", "in two hours"]


def test_what_falls_due_in_a_day_is_there_at_once_and_in_its_order(escrowmq, topic):
    minutes = [(number * 577) % 1_440 for number in range(300)]
    entries = [
        {"id": str(at), "message": {"payload": str(at), "delay_ms": at * 60_000 + 30_000}}
        for at in dict.fromkeys(minutes)
    ]
    ok(escrowmq.client.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)

    escrowmq.advance(days=1)

    assert payloads(escrowmq, topic) == [str(at) for at in sorted(minutes)]


def test_a_cron_line_fires_at_each_of_its_times(escrowmq, topic):
    line = {"cron": "0 * * * *", "time_zone": "UTC", "topic": topic, "message": {"payload": "x"}}
    ok(escrowmq.client.post("/v1/schedules", json=line), 201)

    escrowmq.advance(days=1)

    hours = [message["stored_at"][11:16] for message in escrowmq.messages(topic)]
    assert sorted(hours) == [f"{hour:02}:00" for hour in range(24)]


def test_a_producer_is_asked_at_each_time_that_it_would_have_been_asked_at(
    escrowmq, topic, receiver, asked
):
    receiver.answering = lambda _: decide("unknown")
    transaction_id = begin(escrowmq, asked, topic)

    escrowmq.advance(minutes=10)

    # the clock goes on while they are asked
    ages = [round(request.check["age_ms"], -4) for request in receiver.requests]
    assert ages == [10_000 + number * 30_000 for number in range(15)]
    assert escrowmq.transaction(transaction_id)["hold_reason"] == "answers_exhausted"


def test_what_got_no_answer_is_asked_again_after_its_waits(escrowmq, topic, receiver, asked):
    receiver.answering = lambda _: Said(404)
    transaction_id = begin(
        escrowmq, asked, topic, check={"first_after_ms": 1_000, "interval_ms": 1_000}
    )

    escrowmq.advance(minutes=3)
    receiver.answering = lambda _: decide("commit")
    escrowmq.advance(seconds=30)

    ages = [request.check["age_ms"] for request in receiver.requests]
    waits = [later - earlier for earlier, later in pairwise(ages)]
    for wait, longest in zip(
        waits, (1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000), strict=False
    ):
        assert 0.9 * longest <= wait <= longest + 500
    assert escrowmq.transaction(transaction_id)["state"] == "committed"


def test_a_host_that_is_left_alone_is_asked_again_when_that_time_is_over(
    escrowmq, topic, receiver, asked
):
    receiver.answering = lambda _: Said(503)
    transaction_id = begin(
        escrowmq, asked, topic, check={"first_after_ms": 1_000, "interval_ms": 10}
    )

    escrowmq.advance(hours=1)
    assert 100 <= len(receiver.requests) <= 140, "every thirty seconds"
    receiver.answering = lambda _: decide("commit")
    escrowmq.advance(minutes=1)

    assert escrowmq.transaction(transaction_id)["state"] == "committed"


def test_a_check_that_was_taken_comes_again_when_its_lease_is_over(escrowmq, topic, polled):
    begin(escrowmq, polled, topic)
    escrowmq.advance(seconds=10)
    (check,) = receive(escrowmq, polled, lease_ms=15_000)

    escrowmq.advance(seconds=14)
    assert receive(escrowmq, polled) == []
    escrowmq.advance(seconds=1)
    (again,) = receive(escrowmq, polled)

    assert again["check_id"] == check["check_id"]


def test_a_message_comes_again_when_its_lease_is_over_as_often_as_it_may(escrowmq, topic):
    group = escrowmq.consumer_group(topic, lease_ms=30_000, max_attempts=2)
    send(escrowmq, topic, "x")

    attempts = [message["attempt"] for message in escrowmq.receive(group)]
    escrowmq.advance(seconds=29)
    attempts += [message["attempt"] for message in escrowmq.receive(group)]
    escrowmq.advance(seconds=1)
    attempts += [message["attempt"] for message in escrowmq.receive(group)]
    escrowmq.advance(days=1)

    assert attempts == [1, 2]
    assert escrowmq.receive(group) == []


def test_a_message_that_was_refused_comes_again_after_its_wait(escrowmq, topic):
    group = escrowmq.consumer_group(topic)
    send(escrowmq, topic, "x")
    (message,) = escrowmq.receive(group)
    entry = {"receipt_handle": message["receipt_handle"], "delay_ms": 3_600_000}
    ok(escrowmq.client.post(f"/v1/groups/{group}/nack", json={"entries": [entry]}))

    escrowmq.advance(minutes=59)
    assert escrowmq.receive(group) == []
    escrowmq.advance(minutes=1)

    assert [message["attempt"] for message in escrowmq.receive(group)] == [2]


def test_who_waits_for_a_check_gets_it_when_time_is_moved(escrowmq, topic, polled):
    with ThreadPoolExecutor(1) as pool:
        transaction_id = begin(escrowmq, polled, topic, check={"first_after_ms": 3_600_000})
        waiting = pool.submit(receive, escrowmq, polled, wait_ms=20_000)
        while not waiting.done():
            escrowmq.advance(hours=1)

    assert [check["transaction_id"] for check in waiting.result()] == [transaction_id]


def test_who_is_asked_sees_a_signature_of_the_real_time(escrowmq, topic, receiver, asked):
    escrowmq.advance(days=30)
    begin(escrowmq, asked, topic)

    escrowmq.advance(minutes=1)

    (request,) = receiver.requests
    assert asked.signing_secret is not None
    verify([asked.signing_secret], request.headers, request.body, now=time.time())


def test_an_idempotency_key_is_forgotten_after_its_window(escrowmq, topic):
    key = {"Idempotency-Key": f"key-{topic}"}
    first = send(escrowmq, topic, "x", headers=key)

    escrowmq.advance(hours=23)
    assert send(escrowmq, topic, "x", headers=key)["message_id"] == first["message_id"]
    escrowmq.advance(hours=2)
    assert send(escrowmq, topic, "x", headers=key)["message_id"] != first["message_id"]

    assert payloads(escrowmq, topic) == ["x", "x"]


def test_time_that_is_moved_is_in_every_answer(escrowmq, topic):
    before = escrowmq.now
    escrowmq.advance(days=1, hours=1, minutes=1, seconds=1, ms=1)
    after = escrowmq.now

    moved_ms = (after - before).total_seconds() * 1_000
    assert 90_061_001 <= moved_ms < 90_061_001 + 60_000
    assert send(escrowmq, topic, "x")["stored_at"] >= after.strftime("%Y-%m-%dT%H:%M:%S")


# --------------------------------------------------------------------------------------------------
# faults


def test_a_commit_that_is_lost_on_its_way_changes_nothing_and_the_next_one_arrives(
    escrowmq, topic, polled
):
    transaction_id = begin(escrowmq, polled, topic)
    path = f"/v1/transactions/{transaction_id}/commit"
    struck = escrowmq.struck
    escrowmq.drop_commit()

    with pytest.raises(httpx.TransportError):
        escrowmq.client.post(path)

    assert escrowmq.struck == struck + 1
    assert escrowmq.transaction(transaction_id)["state"] == "prepared"
    assert ok(escrowmq.client.post(path))["replayed"] is False


def test_a_commit_whose_answer_is_lost_is_done(escrowmq, topic, polled):
    transaction_id = begin(escrowmq, polled, topic)
    path = f"/v1/transactions/{transaction_id}/commit"
    escrowmq.drop_commit(answer=True)

    with pytest.raises(httpx.TransportError):
        escrowmq.client.post(path)

    assert escrowmq.transaction(transaction_id)["state"] == "committed"
    assert ok(escrowmq.client.post(path))["replayed"] is True
    assert len(escrowmq.messages(topic)) == 1


def test_a_fault_strikes_its_operation_as_often_as_it_should_and_no_other(escrowmq, topic):
    escrowmq.drop("sendMessage", times=2)

    for _ in range(2):
        assert escrowmq.client.get(f"/v1/topics/{topic}").status_code == 200
        with pytest.raises(httpx.TransportError):
            send(escrowmq, topic, "lost")
    send(escrowmq, topic, "arrives")

    assert payloads(escrowmq, topic) == ["arrives"]


def test_a_crash_before_a_commit_leaves_it_undone_and_one_after_it_done(escrowmq, topic, polled):
    first, second = begin(escrowmq, polled, topic), begin(escrowmq, polled, topic)

    escrowmq.crash_before_op()
    with pytest.raises(httpx.TransportError):
        escrowmq.client.post(f"/v1/transactions/{first}/commit")
    escrowmq.restart()
    escrowmq.crash(COMMIT, after=True)
    with pytest.raises(httpx.TransportError):
        escrowmq.client.post(f"/v1/transactions/{second}/commit")
    escrowmq.restart()

    assert escrowmq.transaction(first)["state"] == "prepared"
    assert escrowmq.transaction(second)["state"] == "committed"


def test_a_slow_answer_comes_too_late_for_what_was_decided_meanwhile(
    escrowmq, topic, receiver, asked
):
    transaction_id = begin(escrowmq, asked, topic)
    escrowmq.slow_check(2)

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(escrowmq.advance, seconds=11)
        receiver.wait_for(1)
        moving.result()
    assert escrowmq.transaction(transaction_id)["state"] == "prepared"
    ok(escrowmq.client.post(f"/v1/transactions/{transaction_id}/rollback"))
    escrowmq.advance(seconds=5)

    assert escrowmq.transaction(transaction_id)["resolved_by"] == "producer"
    assert escrowmq.messages(topic) == []


def test_an_answer_that_is_slower_than_it_may_be_is_none(escrowmq, topic, receiver):
    group = escrowmq.producer_group(check_url=receiver.url, timeout_ms=3_000)
    transaction_id = begin(escrowmq, group, topic)
    escrowmq.slow_check(3)

    escrowmq.advance(seconds=20)
    assert (
        escrowmq.transaction(transaction_id)["last_failure"]
        == "unreachable: no answer within 3000 ms"
    )
    escrowmq.slow_check(0)
    escrowmq.advance(minutes=1)

    assert escrowmq.transaction(transaction_id)["state"] == "committed"


# --------------------------------------------------------------------------------------------------
# the surface


def test_the_controls_are_in_no_document(escrowmq):
    paths = ok(escrowmq.client.get("/openapi.json"))["paths"]

    assert not [path for path in paths if path.startswith("/v1/dev")]


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "back in time": ("clock/advance", {"by_ms": -1}, "/by_ms"),
    "too far": ("clock/advance", {"by_ms": 367 * 86_400_000}, "/by_ms"),
    "nothing said": ("clock/advance", {}, "/by_ms"),
    "no such fault": ("faults", {"fault": "fire", "operation": COMMIT}, "/fault"),
    "no such operation": ("faults", {"fault": "drop_request", "operation": "commit"}, "/operation"),
    "no operation": ("faults", {"fault": "drop_request"}, "/operation"),
    "never": ("faults", {"fault": "drop_request", "operation": COMMIT, "times": 0}, "/times"),
    "not how slow": ("faults", {"fault": "slow_check"}, "/ms"),
    "slow for one": ("faults", {"fault": "slow_check", "ms": 1, "operation": COMMIT}, "/operation"),
    "lost for a while": ("faults", {"fault": "drop_request", "operation": COMMIT, "ms": 1}, "/ms"),
    "unknown field": ("faults", {"fault": "drop_request", "operation": COMMIT, "x": 1}, "/x"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_refused_with_its_field(escrowmq, what):
    path, body, pointer = BAD[what]

    assert_problem(
        escrowmq.client.post(f"/v1/dev/{path}", json=body), 422, "validation_failed", pointer
    )


def test_faults_can_be_looked_at_and_switched_off(escrowmq):
    escrowmq.drop(COMMIT, times=3)
    escrowmq.slow_check(1.5)

    shown = ok(escrowmq.client.get("/v1/dev/faults"))
    assert shown["items"] == [{"fault": "drop_request", "operation": COMMIT, "left": 3}]
    assert shown["slow_check_ms"] == 1_500
    cleared = ok(escrowmq.client.delete("/v1/dev/faults"))

    assert (cleared["items"], cleared["slow_check_ms"]) == ([], 0)
    assert_problem(escrowmq.client.get("/v1/dev/faults?x=1"), 422, "validation_failed", "/query")
    assert_problem(escrowmq.client.put("/v1/dev/faults"), 405, "method_not_allowed")


def test_dev_alone_does_not_turn_the_controls_on(tmp_path):
    keys = {"ESCROWMQ_API_KEYS": '["a-key"]'}
    with (
        Server(tmp_path / "data", "--host", "0.0.0.0", environment=keys) as server,
        server.client() as client,
    ):
        client.headers["Authorization"] = "Bearer a-key"
        for path in ("clock/advance", "faults"):
            assert_problem(
                client.post(f"/v1/dev/{path}", json={"by_ms": 1}), 404, "route_not_found"
            )
        assert "controls_for_tests_are_on" not in server.log()


def test_where_the_controls_are_on_the_log_says_so_and_keys_are_asked_for(tmp_path):
    environment = {"ESCROWMQ_API_KEYS": '["a-key"]', "ESCROWMQ_TESTING__ENABLED": "true"}
    with (
        Server(tmp_path / "data", dev=False, environment=environment) as server,
        server.client() as client,
    ):
        assert_problem(
            client.post("/v1/dev/clock/advance", json={"by_ms": 1}), 401, "unauthenticated"
        )
        client.headers["Authorization"] = "Bearer a-key"
        assert ok(client.post("/v1/dev/clock/advance", json={"by_ms": 1}))["ahead_ms"] == 1
        warned = [
            json.loads(line)
            for line in server.log().splitlines()
            if "controls_for_tests_are_on" in line
        ]

    assert [line["level"] for line in warned] == ["warning"]
