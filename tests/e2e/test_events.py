"""CloudEvents 1.0 over HTTP: as JSON, as a batch, and in binary mode.

The events of the examples are those of the specification (its JSON format and HTTP binding).
"""

import base64
import json
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, at_once, ok
from tests.support.server import Server

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "source": "/mycontext",
    "subject": None,
    "id": "C234-1234-1234",
    "time": "2018-04-05T17:31:00Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "datacontenttype": "application/json",
    "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True},
}


def publish(
    api: httpx.Client, topic: str, event: Any, media_type: str = STRUCTURED
) -> httpx.Response:
    return api.post(
        f"/v1/topics/{topic}/events",
        content=event if isinstance(event, bytes) else json.dumps(event),
        headers={"Content-Type": media_type},
    )


def binary(
    api: httpx.Client, topic: str, data: bytes, content_type: str | None = None, **attributes: str
) -> httpx.Response:
    given = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"} | attributes
    headers = {f"ce-{name}": text for name, text in given.items() if text}
    headers |= {} if content_type is None else {"Content-Type": content_type}
    return api.post(f"/v1/topics/{topic}/events", content=data, headers=headers)


def pulled(api: httpx.Client, topic: str) -> list[dict[str, Any]]:
    return ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]


def test_an_event_becomes_a_message_with_its_attributes_as_properties(api, topic):
    (result,) = ok(publish(api, topic, EVENT), 201)["results"]

    (message,) = pulled(api, topic)
    assert (result["status"], result["receipt"]["message_id"]) == (201, message["message_id"])
    assert (message["key"], message["tag"]) == ("C234-1234-1234", "com.example.someevent")
    assert message["content_type"] == "application/json"
    assert json.loads(message["payload"]) == EVENT["data"]
    assert message["properties"] == {
        "ce_specversion": "1.0",
        "ce_type": "com.example.someevent",
        "ce_source": "/mycontext",
        "ce_id": "C234-1234-1234",
        "ce_time": "2018-04-05T17:31:00Z",
        "ce_comexampleextension1": "value",
        "ce_comexampleothervalue": "5",
    }


@pytest.mark.parametrize(
    ("fields", "body", "content_type"),
    [
        ({"datacontenttype": "application/xml", "data": "<much wow=\"xml\"/>"}, b"<much wow=\"xml\"/>", "application/xml"),
        ({"datacontenttype": "application/vnd.apache.thrift.binary", "data_base64": base64.b64encode(b"\x00\xff").decode()}, b"\x00\xff", "application/vnd.apache.thrift.binary"),
        ({"data": {"a": 1.50}}, b'{"a":1.5}', "application/json"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"datacontenttype": "text/json; charset=utf-8", "data": None}, b"null", "text/json; charset=utf-8"),
        ({"datacontenttype": "application/geo+json", "data": [1]}, b"[1]", "application/geo+json"),
        ({"datacontenttype": "text/plain", "data": "\u00fc"}, "\u00fc".encode(), "text/plain"),
        ({}, b"", None),
    ],
)  # fmt: skip
def test_data_is_stored_as_its_content_type_says(api, topic, fields, body, content_type):
    event = {name: value for name, value in EVENT.items() if not name.startswith("data")}

    ok(publish(api, topic, event | fields), 201)

    (message,) = ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params={"payload": "base64"}))[
        "messages"
    ]
    assert base64.b64decode(message["payload"]) == body
    assert message.get("content_type") == content_type


def test_in_binary_mode_attributes_are_headers_and_the_body_is_the_data(api, topic):
    answer = binary(
        api,
        topic,
        b"\x89\xff",
        "image/png",
        subject="Euro%20%E2%82%AC%20%F0%9F%98%80",
        quoted='"a \\"b\\""',
        partitionkey="customer-7",
    )

    ok(answer, 201)
    (message,) = pulled(api, topic)
    assert message["properties"]["ce_subject"] == "Euro \u20ac \U0001f600"
    assert message["properties"]["ce_quoted"] == 'a "b"'
    assert message["ordering_key"] == "customer-7"
    assert message["content_type"] == "image/png"
    assert base64.b64decode(message["payload"]) == b"\x89\xff"


def test_a_batch_takes_each_event_as_it_can(api, topic):
    wrong = {**EVENT, "id": ""}
    events = [{**EVENT, "id": "a"}, wrong, {**EVENT, "id": "b"}, {**EVENT, "id": "a"}, 7]

    answer = ok(publish(api, topic, events, BATCH), 207)

    assert [one["status"] for one in answer["results"]] == [201, 422, 201, 201, 422]
    assert (answer["accepted"], answer["rejected"]) == (3, 2)
    assert answer["results"][1]["problem"]["errors"][0]["pointer"] == "/1/id"
    first, _, _, twin, _ = answer["results"]
    assert twin["receipt"]["message_id"] == first["receipt"]["message_id"]
    assert twin["receipt"]["deduplicated"]
    assert [message["key"] for message in pulled(api, topic)] == ["a", "b"]
    whole = ok(publish(api, topic, [{**EVENT, "id": str(n)} for n in range(1_000)], BATCH), 201)
    assert whole["accepted"] == 1_000


def test_an_event_is_stored_once_in_whatever_mode_it_is_repeated(api, topic):
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"n": 1}}
    ok(publish(api, topic, event), 201)

    answers = [
        publish(api, topic, event),
        publish(api, topic, [event], BATCH),
        binary(api, topic, b'{"n":1}', "application/json"),
    ]

    for answer in answers:
        assert ok(answer, 201)["results"][0]["receipt"]["deduplicated"]
    assert_problem(publish(api, topic, {**event, "data": 2}), 422, "idempotency_key_reused")
    ok(publish(api, topic, {**event, "source": "/other"}), 201)
    assert len(pulled(api, topic)) == 2


def test_of_an_event_that_is_published_many_times_at_once_one_message_comes(api, topic):
    answers = at_once([lambda: publish(api, topic, EVENT)] * 8)

    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len(pulled(api, topic)) == 1


def test_an_event_is_known_again_after_a_kill(tmp_path):
    with Server(tmp_path / "data") as server:
        with server.client() as api:
            ok(publish(api, "orders", EVENT), 201)
        server.kill()
        server.start()
        with server.client() as api:
            (again,) = ok(publish(api, "orders", EVENT), 201)["results"]
    assert again["receipt"]["deduplicated"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"specversion": "0.3"}, "/specversion"),
        ({"specversion": None}, "/specversion"),
        ({"id": ""}, "/id"),
        ({"id": 7.5}, "/id"),
        ({"source": "not a uri"}, "/source"),
        ({"type": None}, "/type"),
        ({"time": "yesterday"}, "/time"),
        ({"subject": ""}, "/subject"),
        ({"dataschema": "/relative"}, "/dataschema"),
        ({"datacontenttype": "json"}, "/datacontenttype"),
        ({"datacontenttype": "text/plain"}, "/data"),
        ({"data_base64": "AA=="}, "/data"),
        ({"Upper": "x"}, "/Upper"),
        ({"with-dash": "x"}, "/with-dash"),
        ({"big": 1 << 31}, "/big"),
        ({"nested": {"a": 1}}, "/nested"),
        ({"partitionkey": "\u00fc" * 128}, "/partitionkey"),
        ({"control": "a\u0000b"}, "/control"),
    ],
)
def test_an_event_that_is_wrong_is_refused_by_the_name_of_its_attribute(
    api, topic, fields, pointer
):
    event = {name: value for name, value in (EVENT | fields).items() if value is not None}

    assert_problem(publish(api, topic, event), 422, "validation_failed", pointer)
    assert pulled(api, topic) == []


@pytest.mark.parametrize(
    ("attributes", "pointer"),
    [
        ({"specversion": ""}, "/headers/ce-specversion"),
        ({"id": ""}, "/headers/ce-id"),
        ({"subject": "%ff"}, "/headers/ce-subject"),
        ({"bad_name": "x"}, "/headers/ce-bad_name"),
        ({"datacontenttype": "text/plain"}, "/headers/ce-datacontenttype"),
    ],
)
def test_a_wrong_header_of_an_event_is_named(api, topic, attributes, pointer):
    refused = binary(api, topic, b"x", "text/plain", **attributes)

    assert_problem(refused, 422, "validation_failed", pointer)


def test_what_is_no_event_at_all_is_refused(api, topic):
    assert_problem(publish(api, topic, b"{", STRUCTURED), 400, "malformed_request")
    assert_problem(publish(api, topic, b'[{"id":1},', BATCH), 400, "malformed_request")
    assert_problem(publish(api, topic, [], BATCH), 422, "validation_failed")
    assert_problem(publish(api, topic, [EVENT] * 1_001, BATCH), 422, "validation_failed")
    assert_problem(publish(api, topic, EVENT, BATCH), 422, "validation_failed")
    xml = publish(api, topic, b"<a/>", "application/cloudevents+xml")
    assert_problem(xml, 415, "unsupported_media_type")
    deep = b'{"specversion":"1.0","data":' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    assert_problem(publish(api, topic, deep), 400, "malformed_request")
    assert_problem(publish(api, "no-such-topic", EVENT), 404, "topic_not_found")
    assert pulled(api, topic) == []


def test_messages_are_received_as_events_and_acknowledged_by_their_lease_handle(api):
    topic, group = "events-out", "/v1/groups/events-out"
    ok(api.put(group, json={"topics": []}), 201)
    ok(api.put(f"/v1/topics/{topic}"), 201)
    ok(api.put(group, json={"topics": [{"topic": topic}]}))
    for number in range(2):
        message = {"json": {"order": number}, "key": f"k{number}", "ordering_key": "c-1"}
        ok(api.post(f"/v1/topics/{topic}/messages", json=message), 201)

    answer = ok(api.post(f"{group}/receive", json={"format": "cloudevents"}))

    events = answer["events"]
    assert answer["messages"] == []
    assert [(one["subject"], one["data"], one["attempt"]) for one in events] == [
        ("k0", {"order": 0}, 1),
        ("k1", {"order": 1}, 1),
    ]
    entries = [{"receipt_handle": one["leasehandle"]} for one in events]
    ok(api.post(f"{group}/ack", json={"entries": entries}))
    assert ok(api.post(f"{group}/receive", json={"format": "cloudevents"}))["events"] == []
