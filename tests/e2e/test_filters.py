"""A group's filter over HTTP: what it lets pass, and what is said of one that cannot be
understood.
"""

from itertools import count
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok

_numbers = count(1)
ORDERS: list[dict[str, Any]] = [
    {"payload": "0", "tag": "paid", "properties": {"amount": "150", "region": "eu"}},
    {"payload": "1", "tag": "paid", "properties": {"amount": "50", "region": "uk"}},
    {"payload": "2", "tag": "created", "properties": {"amount": "200"}},
    {"payload": "3", "properties": {"amount": "many", "region": "us"}},
    {"payload": "4"},
]


def put_group(api: httpx.Client, topic: str, kind: str, expression: str) -> httpx.Response:
    subscription = {"topic": topic, "filter": {"kind": kind, "expression": expression}}
    return api.put(f"/v1/groups/filtered-{next(_numbers)}", json={"topics": [subscription]})


@pytest.mark.parametrize(
    ("kind", "expression", "passed"),
    [
        ("tag", "*", "01234"),
        ("tag", "paid", "01"),
        ("tag", "created || paid", "012"),
        ("tag", "none", ""),
        ("sql92", "amount > 100", "02"),
        ("sql92", "(amount > 100 OR region IN ('uk')) AND TAGS = 'paid'", "01"),
        ("sql92", "NOT region = 'eu'", "13"),
        ("sql92", "region <> 'eu' OR region IS NULL", "1234"),
        ("sql92", "amount BETWEEN 50 AND 150 AND region STARTSWITH 'e'", "0"),
        ("sql92", "TRUE", "01234"),
    ],
)
def test_a_group_is_handed_what_its_filter_lets_pass_and_the_rest_is_done_with(
    api, topic, kind, expression, passed
):
    entries = [{"message": order} for order in ORDERS]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)
    group = ok(put_group(api, topic, kind, expression), 201)["group"]

    received = ok(api.post(f"/v1/groups/{group}/receive", json={"max_messages": 100}))["messages"]

    pull = f"/v1/topics/{topic}/queues/0/messages"
    pulled = ok(api.get(pull, params={"group": group}))

    assert "".join(one["payload"] for one in received) == passed
    assert "".join(one["payload"] for one in pulled["messages"]) == passed
    assert pulled["next_offset"] == len(ORDERS)
    handles = [{"receipt_handle": one["receipt_handle"]} for one in received]
    if handles:
        ok(api.post(f"/v1/groups/{group}/ack", json={"entries": handles}))
        (offset,) = ok(api.get(f"/v1/groups/{group}/offsets", params={"topic": topic}))["items"]
        assert offset["offset"] == len(ORDERS)


@pytest.mark.parametrize(
    ("kind", "expression", "position"),
    [
        ("sql92", "amount > ", "10"),
        ("sql92", "region LIKE 'e%'", "8"),
        ("sql92", "amount > 'a'", "10"),
        ("sql92", "(" * 129 + "a" + ")" * 129, "130"),
        ("sql92", "", "1"),
        ("tag", "a | b", "1"),
        ("tag", "x" * 4_097, None),
    ],
)
def test_a_filter_that_cannot_be_is_refused_at_its_place(api, topic, kind, expression, position):
    problem = assert_problem(
        put_group(api, topic, kind, expression),
        422,
        "validation_failed",
        "/topics/0/filter/expression",
    )

    assert problem["context"].get("position") == position


def test_a_kind_that_nobody_knows_is_refused(api, topic):
    assert_problem(
        put_group(api, topic, "regex", "a.*"), 422, "validation_failed", "/topics/0/filter/kind"
    )


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"group": "no-such-group"}, 404, "group_not_found"),
        ({"group": "reads-another-topic"}, 422, "validation_failed"),
        ({"group": "reads-another-topic", "tag": "paid"}, 422, "validation_failed"),
    ],
)
def test_a_pull_for_a_group_that_does_not_read_the_topic_is_refused(
    api, topic, query, status, code
):
    api.put("/v1/groups/reads-another-topic")

    refused = api.get(f"/v1/topics/{topic}/queues/0/messages", params=query)

    assert_problem(refused, status, code)
