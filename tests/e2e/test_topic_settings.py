"""Topics whose settings change while they are used, and topics that say what the JSON of their
messages must be.
"""

import pytest

from tests.support.http import assert_problem, ok
from tests.support.line_stream import LineStream
from tests.support.server import Server

ORDER = {
    "type": "object",
    "required": ["order_id"],
    "properties": {
        "order_id": {"type": "integer"},
        "code": {"type": "string", "pattern": "^(a+)+$"},
    },
}
GOOD, BAD = {"order_id": 1}, {"order_id": "one"}


def schema(json: object, **more: str) -> dict:
    return {"schema": {"kind": "json_schema", "json": json, **more}}


# --------------------------------------------------------------------------------------------------
# changes


def test_a_topic_is_changed_by_whoever_saw_it_last(api, topic):
    path = f"/v1/topics/{topic}"
    first = api.get(path)
    assert first.headers["etag"] == '"1"'

    changed = api.patch(
        path, json={"max_message_bytes": 5}, headers={"If-Match": first.headers["etag"]}
    )
    late = api.patch(
        path, json={"max_message_bytes": 6}, headers={"If-Match": first.headers["etag"]}
    )
    again = api.patch(path, json={"max_message_bytes": 5})

    assert ok(changed) == ok(first) | {"max_message_bytes": 5, "revision": 2}
    assert changed.headers["etag"] == '"2"'
    assert_problem(late, 412, "revision_mismatch")
    assert (again.headers["etag"], ok(again)) == ('"2"', ok(changed)), (
        "what changes nothing is no revision"
    )
    assert_problem(
        api.post(f"{path}/messages", json={"payload": "123456"}), 413, "message_too_large"
    )
    assert_problem(api.patch("/v1/topics/nobody-made-it", json={}), 404, "topic_not_found")


def test_queues_are_added_and_never_taken_away(api, topic):
    path = f"/v1/topics/{topic}"
    ok(api.put(f"/v1/groups/reads-{topic}", json={"topics": [{"topic": topic}]}), 201)
    sent = [ok(api.post(f"{path}/messages", json={"payload": "old"}), 201)]

    assert ok(api.patch(path, json={"queues": 3}))["queues"] == 3
    sent += [
        ok(api.post(f"{path}/messages", json={"payload": "x", "queue_id": number}), 201)
        for number in (1, 2)
    ]
    received = ok(api.post(f"/v1/groups/reads-{topic}/receive", json={"max_messages": 10}))[
        "messages"
    ]

    assert {one["message_id"] for one in received} == {one["message_id"] for one in sent}
    assert_problem(api.patch(path, json={"queues": 2}), 422, "validation_failed", "/queues")
    assert ok(api.get(f"{path}/stats")) == {
        "topic": topic, "queues": 3, "messages": 3, "messages_ever": 3, "groups": [f"reads-{topic}"]
    }  # fmt: skip


def test_what_was_changed_is_there_after_a_restart(tmp_path):
    with Server(tmp_path / "data", dev=False) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1, **schema(ORDER)}), 201)
        changed = ok(
            api.patch(
                "/v1/topics/orders",
                json={"queues": 2, "message_types": ["normal"], "max_delay_ms": 0},
            )
        )
        assert server.terminate() == 0
        server.start()

        assert ok(api.get("/v1/topics/orders")) == changed
        assert_problem(
            api.post("/v1/topics/orders/messages", json={"json": BAD}),
            422,
            "validation_failed",
            "/json/order_id",
        )


# --------------------------------------------------------------------------------------------------
# schemas


def test_the_schema_that_was_given_is_shown_and_the_same_call_again_makes_nothing(api, make_topic):
    name = make_topic(**schema(ORDER))
    body = {"topic": name, "queues": 1}

    assert ok(api.get(f"/v1/topics/{name}"))["schema"] == {
        "kind": "json_schema",
        "mode": "enforce",
        "json": ORDER,
    }
    ok(api.post("/v1/topics", json={**body, **schema(ORDER)}))
    assert_problem(
        api.post("/v1/topics", json={**body, **schema({"type": "object"})}), 409, "topic_exists"
    )
    assert_problem(api.post("/v1/topics", json=body), 409, "topic_exists")


@pytest.mark.parametrize(
    "message",
    [
        {"json": GOOD},
        {"payload": '{"order_id": 1}'},
        {"payload": "eyJvcmRlcl9pZCI6MX0=", "payload_encoding": "base64"},
    ],
)
def test_what_the_schema_allows_is_taken_however_it_is_sent(api, make_topic, message):
    name = make_topic(**schema(ORDER))

    ok(api.post(f"/v1/topics/{name}/messages", json=message), 201)


def test_what_breaks_the_schema_is_refused_at_its_place_by_every_way_in_and_stores_nothing(
    api, server, make_topic
):
    name = make_topic(**schema(ORDER))
    path = f"/v1/topics/{name}"
    one = {"topic": name, "message": {"json": BAD}}

    for body, pointer in (
        ({"json": BAD}, "/json/order_id"),
        ({"json": {}}, "/json"),
        ({"payload": '{"order_id":null}'}, "/payload/order_id"),
        ({"payload": "no JSON"}, "/payload"),
        ({"payload": "[" * 1_000}, "/payload"),
        # no time is lost on such a pattern
        ({"json": {"order_id": 1, "code": "a" * 60 + "b"}}, "/json/code"),
    ):
        problem = assert_problem(
            api.post(f"{path}/messages", json=body), 422, "validation_failed", pointer
        )
        assert "one" not in problem["detail"], "what was sent is not told"
    raw = api.post(
        f"{path}/messages/raw",
        content=b'{"order_id":"one"}',
        headers={"Content-Type": "application/json"},
    )
    assert_problem(raw, 422, "validation_failed", "/body/order_id")
    batch = api.post(
        f"{path}/messages/batch",
        json={"entries": [{"message": {"json": GOOD}}, {"message": {"json": BAD}}]},
    )
    assert_problem(batch, 422, "validation_failed", "/entries/1/message/json/order_id")
    begun = api.post("/v1/transactions", json={"producer_group": "shop", "messages": [one]})
    assert_problem(begun, 422, "validation_failed", "/messages/0/message/json/order_id")
    asked = api.post(f"{path}/requests", json={"message": {"json": BAD}})
    assert_problem(asked, 422, "validation_failed", "/message/json/order_id")
    with LineStream(server, name) as stream:
        stream.send({"message": {"json": BAD}})
        stream.end()
        assert stream.rest()[0]["problem"]["errors"][0]["pointer"] == "/message/json/order_id"

    assert ok(api.get(f"{path}/stats"))["messages_ever"] == 0


def test_a_schema_can_be_put_off_and_on_again(api, topic):
    path = f"/v1/topics/{topic}"
    ok(api.patch(path, json=schema(ORDER)))
    assert_problem(
        api.post(f"{path}/messages", json={"json": BAD}), 422, "validation_failed", "/json/order_id"
    )

    assert ok(api.patch(path, json=schema(ORDER, mode="off")))["schema"]["mode"] == "off"

    ok(api.post(f"{path}/messages", json={"json": BAD}), 201)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "nothing"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/nothing"},
        {"$schema": "http://127.0.0.1:9/meta"},
        {"pattern": "(?=a)b"},
        {"pattern": "a{1000}{1000}{1000}"},
        {"description": "x" * 70_000},
        [],
        "object",
        1,
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_what_is_no_schema_or_reaches_outside_of_itself_is_refused(api, topic, bad):
    created = api.post("/v1/topics", json={"topic": f"{topic}-with-a-schema", **schema(bad)})
    changed = api.patch(f"/v1/topics/{topic}", json=schema(bad))

    assert_problem(created, 422, "validation_failed", "/schema/json")
    assert_problem(changed, 422, "validation_failed", "/schema/json")
    assert_problem(api.get(f"/v1/topics/{topic}-with-a-schema"), 404, "topic_not_found")
    assert ok(api.get(f"/v1/topics/{topic}"))["revision"] == 1
