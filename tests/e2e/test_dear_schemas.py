"""Schemas that make a check dear: refused when they are set, checked beside the event loop, and
never in the way of a start.
"""

import json
import sqlite3

import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.line_stream import LineStream
from tests.support.server import Server

# Judged twice at each level: only beside the event loop may a document of 20 levels be checked.
TWICE = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}


def schema(wanted: object) -> dict:
    return {"schema": {"kind": "json_schema", "json": wanted}}


def doubled(levels: int) -> dict:
    """Two references to the level before, at each level."""
    found: dict = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        found[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": found, "$ref": f"#/$defs/a{levels}"}


def nested(levels: int, leaf: str = "") -> object:
    return json.loads("[" * levels + leaf + "]" * levels)


GOOD = nested(20)


@pytest.fixture
def judged_twice(make_topic) -> str:
    return make_topic(**schema(TWICE))


def test_a_schema_that_unfolds_beyond_the_limit_is_refused_wherever_it_is_set(api, topic):
    for answer in (
        api.post("/v1/topics", json={"topic": f"{topic}-posted", **schema(doubled(40))}),
        api.put(f"/v1/topics/{topic}-put", json=schema(doubled(40))),
        api.patch(f"/v1/topics/{topic}", json=schema(doubled(40))),
    ):
        problem = assert_problem(answer, 422, "validation_failed", "/schema/json")
        assert problem["errors"][0]["code"] == "limit_reached"


def test_a_document_that_is_checked_beside_the_loop_is_taken_by_every_way_in(
    api, server, judged_twice
):
    path = f"/v1/topics/{judged_twice}"
    message = {"json": GOOD}

    key = {"Idempotency-Key": "once"}
    first = ok(api.post(f"{path}/messages", json=message, headers=key), 201)
    again = ok(api.post(f"{path}/messages", json=message, headers=key), 201)
    assert (again["message_id"], again["deduplicated"]) == (first["message_id"], True)
    ok(
        api.post(
            f"{path}/messages/raw",
            content=json.dumps(GOOD),
            headers={"Content-Type": "application/json"},
        ),
        201,
    )
    entries = [{"message": {"json": nested(20 + number)}} for number in range(20)]
    ok(api.post(f"{path}/messages/batch", json={"entries": entries}), 201)
    begun = {
        "producer_group": "shop",
        "messages": [{"topic": judged_twice, "message": message}] * 2,
    }
    ok(api.post("/v1/transactions", json=begun), 201)
    ok(api.post(f"{path}/requests", json={"message": message}), 202)
    ok(
        api.post(
            "/v1/schedules", json={"cron": "0 6 * * *", "topic": judged_twice, "message": message}
        ),
        201,
    )
    for headers in ((), ("Idempotency-Key: stream",)):
        with LineStream(server, judged_twice, *headers) as stream:
            for number in range(3):
                stream.send({"id": str(number), "message": {"json": nested(30 - number)}})
            stream.end()
            assert [line["status"] for line in stream.rest()] == [201] * 3

    messages = ok(api.get(f"{path}/queues/0/messages", params={"max_messages": 100}))["messages"]
    assert [len(one["payload"]) // 2 for one in messages[-6:]] == [30, 29, 28] * 2, (
        "lines keep their order"
    )


def test_a_check_over_its_limit_is_a_clear_refusal_and_the_service_goes_on(api, judged_twice):
    path = f"/v1/topics/{judged_twice}/messages"

    problem = assert_problem(
        api.post(path, json={"json": nested(60, "1")}), 422, "validation_failed", "/json"
    )

    assert problem["errors"][0]["code"] == "limit_reached"
    assert "CPU time" in problem["detail"]
    ok(api.post(path, json={"json": GOOD}), 201)


def test_a_start_goes_past_a_stored_schema_over_the_limit_and_its_occurrences_are_set_aside(
    tmp_path,
):
    with Server(tmp_path / "data", dev=False) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", **schema({})}), 201)
        body = {"cron": "* * * * * *", "topic": "orders", "message": {"json": 1}}
        schedule = ok(api.post("/v1/schedules", json=body), 201)["schedule_id"]
        assert server.terminate() == 0
        stored = {"kind": "json_schema", "mode": "enforce", "json": json.dumps(doubled(40))}
        # as a release without the limit left it
        with sqlite3.connect(server.data_dir / "registry.db") as registry:
            registry.execute("UPDATE topics SET schema = ?", (json.dumps(stored),))
        registry.close()

        server.start()

        refused = api.post("/v1/topics/orders/messages", json={"json": 1})
        problem = assert_problem(refused, 422, "validation_failed", "/json")
        assert problem["errors"][0]["code"] == "limit_reached"

        def set_aside() -> list[dict]:
            firings = ok(api.get(f"/v1/schedules/{schedule}"))["recent_firings"]
            return [one for one in firings if "must be changed" in one.get("reason", "")]

        until(set_aside, "an occurrence is set aside with the reason")
        assert "topic_schema_refused" in server.log()
        ok(api.patch("/v1/topics/orders", json=schema({"type": "integer"})))
        ok(api.post("/v1/topics/orders/messages", json={"json": 1}), 201)
        assert server.terminate() == 0
