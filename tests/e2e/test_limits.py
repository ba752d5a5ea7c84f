"""What clients create has limits: one more is 422, and nothing is created."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.http import assert_problem, ok
from tests.support.server import Server

LIMITS = {
    "ESCROWMQ_LIMIT__MAX_TOPICS": "3",
    "ESCROWMQ_LIMIT__MAX_QUEUES": "6",
    "ESCROWMQ_LIMIT__MAX_GROUPS": "1",
    "ESCROWMQ_LIMIT__MAX_PRODUCER_GROUPS": "1",
    "ESCROWMQ_SCHEDULE__MAX_CRON_PER_TOPIC": "1",
    "ESCROWMQ_DELIVERY__MAX_TASKS": "1",
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> Iterator[httpx.Client]:
    with (
        Server(tmp_path_factory.mktemp("limited") / "data", environment=LIMITS) as server,
        server.client() as api,
    ):
        ok(api.put("/v1/topics/a", json={"queues": 2}), 201)
        ok(api.put("/v1/topics/b", json={"queues": 2}), 201)
        yield api


def assert_limited(response: httpx.Response, pointer: str) -> None:
    problem = assert_problem(response, 422, "validation_failed", pointer)
    assert [error["code"] for error in problem["errors"]] == ["limit_reached"]
    assert problem["retryable"] is False


def test_topics_and_their_queues_in_all_have_limits_and_a_deletion_makes_room(limited):
    assert_limited(limited.put("/v1/topics/c", json={"queues": 3}), "/queues")
    assert_limited(limited.patch("/v1/topics/a", json={"queues": 5}), "/queues")
    ok(limited.put("/v1/topics/c", json={"queues": 1}), 201)
    assert_limited(limited.put("/v1/topics/d", json={"queues": 1}), "/path/topic")
    assert_limited(limited.post("/v1/topics", json={"topic": "d", "queues": 1}), "/topic")
    # created as it is used
    assert_limited(limited.post("/v1/topics/d/messages", json={"payload": "x"}), "/path/topic")

    assert limited.delete("/v1/topics/c").status_code == 204

    ok(limited.put("/v1/topics/d", json={"queues": 1}), 201)
    ok(limited.post("/v1/topics/d/messages", json={"payload": "x"}), 201)
    assert limited.delete("/v1/topics/d").status_code == 204
    # The end of its queue is remembered, so that no offset is used twice: there is room for one
    # more, and not for two.
    assert_limited(limited.put("/v1/topics/e", json={"queues": 2}), "/queues")
    ok(limited.put("/v1/topics/e", json={"queues": 1}), 201)


def test_groups_have_a_limit_however_they_are_created(limited):
    assert limited.put("/v1/groups/one").is_success
    ok(limited.put("/v1/groups/one"))

    assert_limited(limited.put("/v1/groups/two"), "/path/group")
    offsets = {"offsets": [{"topic": "a", "queue_id": 0, "offset": 0}]}
    assert_limited(limited.put("/v1/groups/two/offsets", json=offsets), "/path/group")
    ok(limited.put("/v1/groups/one/offsets", json=offsets))
    assert_problem(limited.get("/v1/groups/two"), 404, "group_not_found")


def test_producer_groups_have_a_limit_however_they_are_created(limited):
    ok(limited.put("/v1/producer-groups/one"), 201)

    assert_limited(limited.put("/v1/producer-groups/two"), "/path/producer_group")
    begin = {"producer_group": "two", "messages": [{"topic": "a", "message": {"json": 1}}]}
    assert_limited(limited.post("/v1/transactions", json=begin), "/producer_group")
    ok(limited.post("/v1/transactions", json=begin | {"producer_group": "one"}), 201)


def test_cron_schedules_of_a_topic_have_a_limit(limited):
    def make(topic: str) -> httpx.Response:
        cron = {"cron": "0 6 * * *", "time_zone": "UTC", "topic": topic, "message": {"json": {}}}
        return limited.post("/v1/schedules", json=cron)

    first = ok(make("a"), 201)
    assert_limited(make("a"), "/topic")
    ok(make("b"), 201)
    ok(limited.delete(f"/v1/schedules/{first['schedule_id']}"))
    ok(make("a"), 201)


def test_redrives_that_run_at_once_have_a_limit(limited):
    assert limited.put("/v1/groups/one", json={"topics": [{"topic": "b"}]}).is_success
    for _ in range(20):
        ok(limited.post("/v1/topics/b/messages", json={"payload": "x"}), 201)
    received = ok(limited.post("/v1/groups/one/receive", json={"max_messages": 20}))["messages"]
    entries = [{"receipt_handle": one["receipt_handle"]} for one in received]
    ok(limited.post("/v1/groups/one/dead-letter", json={"entries": entries}))
    redrive = {"select": "all", "max_per_second": 1}

    task = ok(limited.post("/v1/groups/one/dead-letters/redrive", json=redrive), 202)
    assert_limited(limited.post("/v1/groups/one/dead-letters/redrive", json=redrive), "/select")

    assert limited.delete(f"/v1/tasks/{task['task_id']}").is_success
    ok(limited.post("/v1/groups/one/dead-letters/redrive", json=redrive), 202)


def test_a_page_of_large_topics_or_groups_is_a_short_one(tmp_path):
    """4 MiB of a list are built at once, whatever page_size says: a hundred groups can be forty
    times as much.
    """
    with Server(tmp_path / "data") as server, server.client() as api:
        topics = [f"t{number:02}" for number in range(66)]
        for topic in topics:
            ok(
                api.put(
                    f"/v1/topics/{topic}",
                    json={"queues": 1, "schema": {"json": {"const": "x" * 65_000}}},
                ),
                201,
            )
        read = [
            {"topic": topic, "filter": {"kind": "sql92", "expression": f"a = '{'x' * 4_080}'"}}
            for topic in topics
        ]
        groups = [f"g{number:02}" for number in range(17)]
        for group in groups:
            ok(api.put(f"/v1/groups/{group}", json={"topics": read}), 201)

        for path, field, names in (
            ("/v1/topics", "topic", topics),
            ("/v1/groups", "group", groups),
        ):
            first = ok(api.get(path, params={"page_size": 1_000}))
            last = ok(
                api.get(path, params={"page_size": 1_000, "page_token": first["next_page_token"]})
            )
            assert [one[field] for one in first["items"] + last["items"]] == names
            assert "next_page_token" not in last
