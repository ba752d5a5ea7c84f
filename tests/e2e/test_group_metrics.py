"""Metrics of consumer groups: what an operator alerts on, dead letters and lag."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.http import ok, until
from tests.support.server import Server

Metrics = dict[str, float]


@pytest.fixture
def own(tmp_path) -> Iterator[tuple[Server, httpx.Client]]:
    environment = {"ESCROWMQ_DELIVERY__MAX_METRIC_GROUPS": "2"}
    with (
        Server(tmp_path / "data", dev=False, environment=environment) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 2}), 201)
        yield server, api


def metrics(api: httpx.Client) -> Metrics:
    lines = [line for line in api.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of(group: str, found: Metrics) -> Metrics:
    """The metrics of a group, without what their names have in common."""
    label = f'{{group="{group}"'
    found_of = {}
    for name, value in found.items():
        before, is_its, rest = name.partition(label)
        if is_its:
            reason = rest.strip('}",').replace('reason="', " ")
            found_of[before.removeprefix("escrowmq_group_") + reason] = value
    return found_of


def put_group(api: httpx.Client, group: str, **fields: Any) -> None:
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": "orders"}], **fields}), 201)


def send(api: httpx.Client, count: int) -> list[str]:
    return [
        ok(api.post("/v1/topics/orders/messages", json={"payload": "secret"}), 201)["message_id"]
        for _ in range(count)
    ]


def settle(
    api: httpx.Client, group: str, verb: str, count: int, *, lease_ms: int = 60_000, **fields: Any
) -> None:
    body = {"max_messages": count, "lease_ms": lease_ms}
    received = ok(api.post(f"/v1/groups/{group}/receive", json=body))["messages"]
    entries = [{"receipt_handle": one["receipt_handle"], **fields} for one in received]
    assert len(received) == count
    if verb != "receive":
        ok(api.post(f"/v1/groups/{group}/{verb}", json={"entries": entries}))


def events(server: Server, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def test_dead_letters_and_lag_of_a_group_can_be_alerted_on(own):
    server, api = own
    put_group(api, "billing", max_attempts=1)
    sent = send(api, 5)
    found = of("billing", metrics(api))
    found.pop("oldest_ready_age_seconds", None)  # it may not have been read yet
    assert found == {
        "messages_ready": 5,
        "messages_leased": 0,
        "messages_waiting": 0,
        "keys_held": 0,
        "dead_letters": 0,
        "messages_discarded_total": 0,
        "messages_rejected_total": 0,
        "leases_expired_total": 0,
        "messages_dead_lettered_total exhausted": 0,
        "messages_dead_lettered_total requested": 0,
        "messages_dead_lettered_total damaged": 0,
    }

    settle(api, "billing", "nack", 2)
    settle(api, "billing", "dead-letter", 1)
    settle(api, "billing", "receive", 1)

    found = of("billing", metrics(api))
    assert found["messages_dead_lettered_total exhausted"] == 2
    assert found["messages_dead_lettered_total requested"] == 1
    assert (found["dead_letters"], found["messages_ready"], found["messages_leased"]) == (3, 1, 1)
    lag = ok(api.get("/v1/groups/billing/lag"))
    assert (lag["dead_letters"], lag["messages_ready"], lag["messages_leased"]) == (3, 1, 1)
    lines = events(server, "message_dead_lettered")
    assert sorted((one["reason"], one["level"]) for one in lines) == [
        ("exhausted", "warning"),
        ("exhausted", "warning"),
        ("requested", "info"),
    ]
    assert {one["message_id"] for one in lines} < set(sent)
    for line in lines:
        assert (line["group"], line["topic"], line["attempts"]) == ("billing", "orders", 1)
    assert "secret" not in server.log()

    server.kill()
    server.start()

    found = of("billing", metrics(api))
    assert found["messages_dead_lettered_total exhausted"] == 0
    assert (found["dead_letters"], found["messages_ready"], found["messages_leased"]) == (3, 1, 1)
    assert len(events(server, "message_dead_lettered")) == 3, "a replay logs nothing again"


def test_a_handler_that_fails_and_one_that_hangs_can_be_alerted_on_before_there_are_dead_letters(
    own,
):
    _, api = own
    put_group(api, "billing")
    send(api, 9)

    settle(api, "billing", "nack", 3)
    settle(api, "billing", "nack", 1, unprocessed=True, delay_ms=60_000)
    settle(api, "billing", "dead-letter", 1)
    settle(api, "billing", "ack", 2)
    settle(api, "billing", "receive", 2, lease_ms=1_000)

    def expired() -> float:
        return of("billing", metrics(api))["leases_expired_total"]

    assert until(expired, "the leases end") == 2
    found = of("billing", metrics(api))
    assert found["messages_rejected_total"] == 3
    assert found["messages_dead_lettered_total exhausted"] == 0


def test_the_age_of_the_oldest_ready_message_is_known_soon_and_after_a_restart(own):
    server, api = own
    put_group(api, "billing")
    assert of("billing", metrics(api))["oldest_ready_age_seconds"] == 0
    send(api, 1)

    def age() -> float:
        return of("billing", metrics(api)).get("oldest_ready_age_seconds", 0)

    before = until(age, "it is read from the log")
    server.kill()
    server.start()
    after = until(age, "it is read from the log")

    assert 0 < before < after
    settle(api, "billing", "ack", 1)
    assert age() == 0


def test_more_groups_than_the_limit_are_counted_and_those_made_first_are_shown(own):
    server, api = own
    for group in ("third", "second", "first"):
        put_group(api, group)

    def shown() -> tuple[list[str], float]:
        found = metrics(api)
        names = [name for name in ("first", "second", "third") if of(name, found)]
        return names, found["escrowmq_groups_without_metrics"]

    assert shown() == (["second", "third"], 1)
    server.kill()
    server.start()
    assert shown() == (["second", "third"], 1)
    assert api.delete("/v1/groups/third").status_code == 204
    assert shown() == (["first", "second"], 0)


def test_the_metrics_of_groups_follow_the_text_format(own):
    _, api = own
    put_group(api, "billing")
    types: dict[str, str] = {}
    for line in api.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "a metric is described once"
            types[name] = kind
        elif not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert name.startswith("escrowmq_group_") <= (name in types), line

    for name, kind in types.items():
        if name.startswith("escrowmq_group_"):
            assert (kind == "counter") == name.endswith("_total"), name
