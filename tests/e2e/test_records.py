"""Pulls as records: what the reader of the Python client makes of them is what the JSON says."""

import base64
import subprocess
import sys
from datetime import datetime
from typing import Any

import httpx
import pytest
from msgspec import structs

from app.messages.frames import MEDIA_TYPE
from escrowmq_client import Client, InvalidAnswer, Record, records
from escrowmq_client.models.messages import MessagePage
from examples import read_records
from storage.formats import properties
from tests.support.http import assert_problem, ok

RECORDS = {"Accept": MEDIA_TYPE}
SENT: list[dict[str, Any]] = [
    {"payload": "plain", "key": "order-1", "tag": "paid"},
    {"payload": base64.b64encode(bytes(range(256))).decode(), "payload_encoding": "base64"},
    {
        "json": {"äöü": ["\u2028", 1.5]},
        "key": "schlüssel",
        "tag": "bezahlt-ü",
        "ordering_key": "kunde",
    },
    {"payload": "", "properties": {"own": "wert ü", "empty": "", "a.b": "c"}, "tag": "paid"},
    {"payload": "x" * 300_000, "tag": "paid"},
    {"payload": "several", "keys": ["order-1", "schlüssel"]},
]


def pulled(api: httpx.Client, topic: str, **query: Any) -> MessagePage:
    answer = api.get(f"/v1/topics/{topic}/queues/0/messages", params=query, headers=RECORDS)
    assert (answer.status_code, answer.headers["content-type"], answer.headers["vary"]) == (
        200,
        MEDIA_TYPE,
        "Accept",
    )
    return records.read_page(answer.content)


def as_json(page: MessagePage) -> dict[str, Any]:
    """What a page of JSON would say."""
    messages = [
        {
            "message_id": one.message_id,
            "topic": one.topic,
            "queue_id": one.queue_id,
            "queue_offset": one.queue_offset,
            **({"key": one.key} if one.key else {}),
            **({"keys": one.keys} if one.keys else {}),
            **({"tag": one.tag} if one.tag else {}),
            **({"ordering_key": one.ordering_key} if one.ordering_key else {}),
            **({"content_type": one.content_type} if one.content_type else {}),
            **({"transaction_id": one.transaction_id} if one.transaction_id else {}),
            "payload": base64.b64encode(one.body).decode(),
            "payload_encoding": "base64",
            "properties": one.properties,
            "born_at": time(one.born_at),
            "stored_at": time(one.stored_at),
        }
        for one in page.messages
    ]
    return {**structs.asdict(page), "messages": messages}


def time(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def filled(api, make_topic) -> str:
    topic = make_topic(queues=1)
    for message in SENT:
        ok(api.post(f"/v1/topics/{topic}/messages", json=message), 201)
    begun = {
        "producer_group": "records",
        "messages": [{"topic": topic, "message": {"payload": "final", "key": "k"}}],
    }
    api.put("/v1/producer-groups/records", json={"check_mode": "poll"})
    transaction = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]
    ok(api.post(f"/v1/transactions/{transaction}/commit"))
    return topic


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"offset": 1, "max_messages": 2},
        {"max_bytes": 300},
        {"tag": "paid"},
        {"tag": "bezahlt-ü || nothing"},
        {"tag": "nothing"},
        {"offset": 7},
    ],
)
def test_records_are_the_messages_that_json_shows(api, filled, query):
    shown = ok(
        api.get(f"/v1/topics/{filled}/queues/0/messages", params={**query, "payload": "base64"})
    )

    assert as_json(pulled(api, filled, **query)) == shown


def test_the_reader_goes_through_a_queue_to_its_end(api, filled, server):
    with Client(server.url) as client:
        found = list(read_records.read_queue(client, filled, 0))

    assert [one.queue_offset for one in found] == list(range(len(SENT) + 1))
    assert found[-1].body == b"final"
    offsets = [one.log_offset for one in found if isinstance(one, Record)]
    assert offsets == sorted(offsets)
    assert len(offsets) == len(found)
    assert properties.ROCKETMQ_RESERVED == records._RESERVED


def test_a_body_that_was_changed_on_its_way_is_noticed_by_the_reader(api, filled):
    answer = api.get(
        f"/v1/topics/{filled}/queues/0/messages", params={"max_messages": 1}, headers=RECORDS
    )

    with pytest.raises(InvalidAnswer, match="damaged"):
        records.read_page(answer.content.replace(b"plain", b"plane"))


def test_a_pull_that_waits_for_records_gets_the_next_one(api, make_topic):
    topic = make_topic(queues=1)

    assert as_json(pulled(api, topic, wait_ms=1)) == {
        "messages": [], "next_offset": 0, "min_offset": 0, "max_offset": 0,
        "result": "no_new_message"
    }  # fmt: skip
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "a"}), 201)
    assert pulled(api, topic, wait_ms=1_000).messages[0].body == b"a"


def test_problems_are_problem_documents_whatever_was_accepted(api, topic):
    answer = api.get(
        f"/v1/topics/{topic}/queues/0/messages", params={"offset": 99}, headers=RECORDS
    )

    assert_problem(answer, 400, "offset_beyond_end")


def test_json_comes_where_it_is_liked_as_much(api, filled):
    accept = {"Accept": f"{MEDIA_TYPE}, application/json"}

    answer = api.get(f"/v1/topics/{filled}/queues/0/messages", headers=accept)

    assert (answer.headers["content-type"], answer.headers["vary"]) == (
        "application/json",
        "Accept, Accept-Encoding",
    )


def test_of_two_tags_with_one_hash_a_pull_gets_the_one_that_was_asked_for(api, make_topic):
    topic = make_topic(queues=1)
    for tag in ("AaAa", "BBBB", "AaBB"):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": tag, "tag": tag}), 201)

    shown = ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params={"tag": "BBBB"}))

    assert [one["payload"] for one in shown["messages"]] == ["BBBB"]
    assert [one.body for one in pulled(api, topic, tag="BBBB").messages] == [b"BBBB"]


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, read_records.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_lists_a_queue_and_shows_how_it_is_called(server, api, topic):
    ok(api.post(f"/v1/topics/{topic}/messages", json=SENT[0]), 201)

    listed = run_example(server.url, topic, "0")
    assert (listed.returncode, listed.stdout.count("\n")) == (0, 1), listed.stderr
    assert "order-1 paid 5 bytes" in listed.stdout
    for wrong in ((), (server.url, topic), (server.url, topic, "first")):
        refused = run_example(*wrong)
        assert refused.returncode == 2
        assert refused.stderr.startswith("usage: read_records.py ")
