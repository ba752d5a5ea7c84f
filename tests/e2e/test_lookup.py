"""Messages by their id and their key: as soon as they are answered, exactly, across kills; never
what nobody may see yet.
"""

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.broker_log import BrokerLog, inner_batch
from tests.support.http import assert_problem, ok
from tests.support.logs import BROKER_HOST
from tests.support.server import Server


def send(api: httpx.Client, topic: str, **message: Any) -> str:
    return ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", **message}), 201)[
        "message_id"
    ]


def ids(api: httpx.Client, topic: str, key: str, **query: Any) -> list[str]:
    page = ok(api.get("/v1/messages", params={"topic": topic, "key": key, **query}))
    return [message["message_id"] for message in page["items"]]


def test_a_message_is_found_by_its_id_and_key_as_soon_as_it_is_answered(api, topic):
    message_id = send(api, topic, key="8812", tag="created", properties={"a": "b"}, payload="väl")

    (pulled,) = ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]
    assert ok(api.get(f"/v1/messages/{message_id}")) == pulled
    assert ok(api.get("/v1/messages", params={"topic": topic, "key": "8812"})) == {
        "items": [pulled]
    }


def test_the_location_of_a_receipt_leads_to_the_message(api, topic):
    answer = api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"})

    assert ok(api.get(answer.headers["location"]))["message_id"] == answer.json()["message_id"]


def test_a_message_that_was_never_stored_is_404(api, topic):
    send(api, topic, key="msg_nobody")
    for path in (
        "/v1/messages/msg_nobody",
        "/v1/messages/msg_nobody/payload",
        "/v1/messages/msg_nobody/trace",
    ):
        assert_problem(api.get(path), 404, "message_not_found")
    assert_problem(
        api.get("/v1/messages/" + "x" * 300), 422, "validation_failed", "/path/message_id"
    )
    assert_problem(api.get("/v1/messages/a%00b"), 422, "validation_failed", "/path/message_id")


def test_the_messages_of_a_key_come_newest_first_page_by_page(api, make_topic):
    topic, other = make_topic(queues=3), make_topic()
    sent = [send(api, topic, key="same") for _ in range(7)]
    send(api, topic, key="same-not")
    send(api, other, key="same")

    found, token = [], {}
    while True:
        query = {"topic": topic, "key": "same", "page_size": 3, **token}
        page = ok(api.get("/v1/messages", params=query))
        found += [message["message_id"] for message in page["items"]]
        if "next_page_token" not in page:
            break
        assert len(page["items"]) == 3
        token = {"page_token": page["next_page_token"]}

    assert found == sent[::-1]


def test_a_page_of_large_messages_is_a_short_one_and_the_next_page_has_the_others(api, topic):
    group = f"/v1/groups/of-{topic}"
    ok(api.put(group, json={"topics": [{"topic": topic}]}), 201)
    bodies = [letter * 2_500_000 for letter in "abc"]
    for body in bodies:
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": body, "key": "large"}), 201)
    while received := ok(api.post(f"{group}/receive", json={}))["messages"]:
        entries = [{"receipt_handle": one["receipt_handle"]} for one in received]
        ok(api.post(f"{group}/dead-letter", json={"entries": entries}))

    for path, query, expected in (
        ("/v1/messages", {"topic": topic, "key": "large"}, bodies[::-1]),
        (f"{group}/dead-letters", {}, bodies),
    ):
        pages = []
        while not pages or "next_page_token" in pages[-1]:
            more = {"page_token": pages[-1]["next_page_token"]} if pages else {}
            pages.append(ok(api.get(path, params=query | more)))
        assert [
            [one.get("message", one)["payload"] for one in page["items"]] for page in pages
        ] == [[body] for body in expected]


def test_a_query_keeps_to_its_time_to_the_millisecond(api, topic):
    first = ok(api.get(f"/v1/messages/{send(api, topic, key='k')}"))
    at = first["stored_at"]

    assert ids(api, topic, "k", **{"from": at, "to": at}) == [first["message_id"]]
    assert ids(api, topic, "k", **{"from": "2999-01-01T00:00:00Z"}) == []
    assert ids(api, topic, "k", to="2020-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"key": "k"}, "/query/topic"),
        ({"topic": "t"}, "/query/key"),
        ({"topic": "t", "key": ""}, "/query/key"),
        ({"topic": "t", "key": "k", "page_size": "0"}, "/query/page_size"),
        ({"topic": "t", "key": "k", "since": "x"}, "/query/since"),
    ],
)
def test_a_wrong_query_is_told_by_its_parameter(api, query, pointer):
    assert_problem(api.get("/v1/messages", params=query), 422, "validation_failed", pointer)


def test_wrong_times_tokens_and_topics_are_refused(api, topic):
    good = {"topic": topic, "key": "k"}
    assert_problem(
        api.get("/v1/messages", params={**good, "from": "soon"}),
        422,
        "validation_failed",
        "/query/from",
    )
    assert_problem(
        api.get("/v1/messages", params={**good, "to": "2026-01-01T00:00"}),
        422,
        "validation_failed",
        "/query/to",
    )
    assert_problem(
        api.get("/v1/messages", params={**good, "page_token": "nonsense"}),
        400,
        "invalid_page_token",
    )
    assert_problem(
        api.get("/v1/messages", params={"topic": "nowhere", "key": "k"}), 404, "topic_not_found"
    )
    assert_problem(
        api.get("/v1/messages", params={"topic": "rmq_sys_x", "key": "k"}), 422, "reserved_topic"
    )


def test_the_messages_of_a_transaction_are_found_once_it_is_committed_and_not_before(api, topic):
    body = {
        "producer_group": "shop",
        "messages": [{"topic": topic, "message": {"payload": "x", "key": "8812"}}],
    }
    begun = [ok(api.post("/v1/transactions", json=body), 201) for _ in range(2)]
    committed, rolled_back = (transaction["messages"][0]["message_id"] for transaction in begun)
    for message_id in (committed, rolled_back):
        assert_problem(api.get(f"/v1/messages/{message_id}"), 404, "message_not_found")
        assert_problem(api.get(f"/v1/messages/{message_id}/trace"), 404, "message_not_found")
    assert ids(api, topic, "8812") == []

    ok(api.post(f"/v1/transactions/{begun[0]['transaction_id']}/commit"))
    ok(api.post(f"/v1/transactions/{begun[1]['transaction_id']}/rollback"))

    assert ok(api.get(f"/v1/messages/{committed}"))["message_id"] == committed
    assert_problem(api.get(f"/v1/messages/{rolled_back}"), 404, "message_not_found")
    assert ids(api, topic, "8812") == [committed]


def test_every_view_of_a_message_names_its_transaction_and_a_message_of_none_names_none(api, topic):
    body = {
        "producer_group": "shop",
        "messages": [
            {"topic": topic, "message": {"payload": "x", "key": "8812"}},
            {"topic": topic, "message": {"payload": "x", "key": "8812", "delay_ms": 3_600_000}},
        ],
    }
    begun = ok(api.post("/v1/transactions", json=body), 201)
    transaction_id = begun["transaction_id"]
    now, delayed = (message["message_id"] for message in begun["messages"])
    ok(api.post(f"/v1/transactions/{transaction_id}/commit"))
    alone = send(api, topic, key="8812")
    group = f"/v1/groups/of-{topic}"
    ok(api.put(group, json={"topics": [{"topic": topic}], "max_attempts": 2}), 201)

    def received(count: int) -> list[dict[str, Any]]:
        return ok(api.post(f"{group}/receive", json={"max_messages": count}))["messages"]

    def nack(message: dict[str, Any]) -> None:
        entries = [{"receipt_handle": message["receipt_handle"], "delay_ms": 0}]
        ok(api.post(f"{group}/nack", json={"entries": entries}))

    first, _ = received(2)
    nack(first)
    (again,) = received(1)
    nack(again)
    (dead_letter,) = ok(api.get(f"{group}/dead-letters"))["items"]
    views = [
        ok(api.get(f"/v1/messages/{now}")),
        ok(api.get(f"/v1/messages/{now}/trace")),
        ok(api.get(f"/v1/messages/{delayed}")),
        first,
        again,
        dead_letter["message"],
        *ok(api.get("/v1/messages", params={"topic": topic, "key": "8812"}))["items"],
        *ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"],
        *ok(api.get(f"/v1/topics/{topic}/queues/0/messages?payload=base64"))["messages"],
    ]

    found = [(view["message_id"], view.get("transaction_id")) for view in views]
    assert {one for one in found if one[0] != alone} == {
        (now, transaction_id),
        (delayed, transaction_id),
    }
    assert [one for one in found if one[0] == alone] == [(alone, None)] * 3


def test_a_payload_comes_as_it_was_sent_and_no_browser_runs_it(api, topic):
    page = b"<script>alert(1)</script>\x00\xff"
    sent = api.post(
        f"/v1/topics/{topic}/messages/raw",
        content=page,
        headers={"Content-Type": "text/html; charset=x"},
    )
    path = f"/v1/messages/{ok(sent, 201)['message_id']}/payload"

    answer = api.get(path)

    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
        200,
        page,
        "text/html; charset=x",
    )
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert api.head(path).headers["content-length"] == str(len(page))


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ("bytes=0-2", 206, "012"),
        ("bytes=7-", 206, "789"),
        ("bytes=7-1000", 206, "789"),
        ("bytes=-2", 206, "89"),
        ("bytes=-100", 206, "0123456789"),
        ("bytes=0-0", 206, "0"),
        ("bytes=3-" + "9" * 30, 206, "3456789"),
        ("Bytes=5-7", 206, "567"),
        ("bytes=5-2", 200, "0123456789"),
        ("bytes=0-1,3-4", 200, "0123456789"),
        ("lines=0-1", 200, "0123456789"),
        ("bytes=-", 200, "0123456789"),
    ],
)
def test_a_range_of_a_payload_comes_where_it_can_be_given_and_else_all_of_it(
    api, topic, asked, status, expected
):
    message_id = send(api, topic, payload="0123456789")

    answer = api.get(f"/v1/messages/{message_id}/payload", headers={"Range": asked})

    assert (answer.status_code, answer.text) == (status, expected)
    if status == 206:
        first = "0123456789".index(expected)
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(expected) - 1}/10"


def test_a_range_counts_for_get_alone_and_not_with_if_range(api, topic):
    """RFC 9110, 14.2 and 13.1.5: a payload has no ETag that could be the same."""
    path = f"/v1/messages/{send(api, topic, payload='0123456789')}/payload"
    part = {"Range": "bytes=0-2"}

    head = api.head(path, headers=part)
    assert (head.status_code, head.headers["content-length"]) == (200, "10")
    assert "content-range" not in head.headers
    for etag in ('"1"', "Sun, 29 Nov 2026 10:00:00 GMT"):
        answer = api.get(path, headers={**part, "If-Range": etag})
        assert (answer.status_code, answer.text) == (200, "0123456789")


@pytest.mark.parametrize(
    "asked", ["bytes=10-", "bytes=99999-", "bytes=10-20", "bytes=-0", "bytes=" + "9" * 30 + "-"]
)
def test_a_range_behind_the_end_of_a_payload_is_refused_with_its_length(api, topic, asked):
    message_id = send(api, topic, payload="0123456789")

    answer = api.get(f"/v1/messages/{message_id}/payload", headers={"Range": asked})

    assert_problem(answer, 416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */10"


def test_a_trace_says_what_happened_in_order(api, topic):
    receipt = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)

    trace = ok(api.get(f"/v1/messages/{receipt['message_id']}/trace"))

    assert (trace["message_id"], trace["topic"]) == (receipt["message_id"], topic)
    assert [item["event"] for item in trace["items"]] == ["born", "stored", "queued", "indexed"]
    assert trace["items"][1]["log_offset"] == receipt["log_offset"]
    assert (trace["items"][2]["queue_id"], trace["items"][2]["queue_offset"]) == (0, 0)


def test_a_trace_says_who_had_the_message_and_what_became_of_it(api, topic):
    message_id = send(api, topic, payload="x")
    group = f"traced-{topic}"
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": topic}]}), 201)
    (lent,) = ok(api.post(f"/v1/groups/{group}/receive", json={"worker": "billing-7f"}))["messages"]
    ok(
        api.post(
            f"/v1/groups/{group}/ack",
            json={"entries": [{"receipt_handle": lent["receipt_handle"]}]},
        )
    )

    trace = ok(api.get(f"/v1/messages/{message_id}/trace"))

    leased, acked = trace["items"][4:]
    assert "told_until" not in trace
    assert (leased.pop("at"), acked.pop("at")) > ("2020", "2020")
    assert leased == {"event": "leased", "group": group, "attempt": 1, "worker": "billing-7f"}
    assert acked == {"event": "acked", "group": group}


def test_a_trace_says_what_the_message_is_for_each_group_that_reads_its_topic(api, topic):
    subscription = {"topic": topic}
    message_id = send(api, topic, tag="a")
    for name, rules in {
        "takes": {"topics": [subscription]},
        "filters": {
            "topics": [{**subscription, "filter": {"kind": "tag", "expression": "b || c"}}]
        },
        "later": {"topics": [subscription], "start": "latest"},
    }.items():
        ok(api.put(f"/v1/groups/{name}-{topic}", json=rules), 201)
    path = f"/v1/groups/takes-{topic}"
    (leased,) = ok(api.post(f"{path}/receive", json={"lease_ms": 600_000}))["messages"]

    def groups() -> dict[str, dict[str, Any]]:
        found = ok(api.get(f"/v1/messages/{message_id}/trace"))["groups"]
        return {one.pop("group").removesuffix(f"-{topic}"): one for one in found}

    now = groups()
    until, expires_at = (
        datetime.fromisoformat(text)
        for text in (now["takes"].pop("until"), leased["lease_expires_at"])
    )
    assert abs(until - expires_at) < timedelta(seconds=1)
    assert now == {
        "takes": {"status": "leased"},
        "filters": {"status": "filtered", "filter": "b || c"},
        "later": {"status": "before_start"},
    }
    entries = [{"receipt_handle": leased["receipt_handle"], "reason": "bad schema"}]
    ok(api.post(f"{path}/dead-letter", json={"entries": entries}))
    assert groups()["takes"] == {"status": "dead_lettered"}
    last = ok(api.get(f"/v1/messages/{message_id}/trace"))["items"][-1]
    assert (last["event"], last["reason"]) == ("dead_lettered", "bad schema")


def test_a_trace_of_a_delayed_message_and_of_one_of_a_transaction_says_what_it_waits_for(
    api, topic
):
    ok(api.put(f"/v1/groups/of-{topic}", json={"topics": [{"topic": topic}]}), 201)
    sent = {"payload": "x", "delay_ms": 3_600_000}
    delayed = ok(api.post(f"/v1/topics/{topic}/messages", json=sent), 201)
    body = {"producer_group": "shop", "messages": [{"topic": topic, "message": {"payload": "x"}}]}
    begun = ok(api.post("/v1/transactions", json=body), 201)
    transaction_id, message_id = begun["transaction_id"], begun["messages"][0]["message_id"]

    trace = ok(api.get(f"/v1/messages/{delayed['message_id']}/trace"))
    refused = api.get(f"/v1/messages/{message_id}/trace")
    ok(api.post(f"/v1/transactions/{transaction_id}/rollback"))
    refused_then = api.get(f"/v1/messages/{message_id}/trace")

    assert (trace["topic"], trace["deliver_at"]) == (topic, delayed["deliver_at"])
    assert trace["schedule_id"] == delayed["schedule_id"]
    assert [item["event"] for item in trace["items"]] == ["born", "stored"]
    assert trace["groups"] == [{"group": f"of-{topic}", "status": "delayed"}]
    for answer, state in ((refused, "prepared"), (refused_then, "rolled_back")):
        problem = assert_problem(answer, 404, "message_not_found")
        assert problem["context"] == {"transaction_id": transaction_id, "state": state}


def test_everything_is_found_after_kill_9_and_after_the_index_is_gone(tmp_path):
    # Files so small that the keys go through many of them.
    environment = {"ESCROWMQ_LOCAL__INDEX_SLOTS": "7", "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": "50"}
    with Server(tmp_path / "data", environment=environment) as server:
        sent: list[str] = []

        def all_is_found() -> None:
            with server.client() as api:
                sent.extend(
                    send(api, "orders", key=f"k{len(sent) // 10}", queue_id=0) for _ in range(100)
                )
                found = [
                    message_id
                    for n in reversed(range(len(sent) // 10))
                    for message_id in ids(api, "orders", f"k{n}")
                ]
                assert len(found) == len(sent)
                assert all(
                    ok(api.get(f"/v1/messages/{one}"))["message_id"] == one for one in sent[::17]
                )

        all_is_found()
        server.kill()
        server.start()
        all_is_found()
        assert server.terminate() == 0
        for file in (tmp_path / "data" / "store" / "index").iterdir():
            file.unlink()
        server.start()
        all_is_found()


# --------------------------------------------------------------------------------------------------
# by log offset


def at_offset(api: httpx.Client, log_offset: int, **query: Any) -> httpx.Response:
    return api.get("/v1/messages", params={"log_offset": log_offset, **query})


def test_a_message_is_found_by_the_log_offset_of_its_receipt(api, topic):
    receipt = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "väl", "key": "k"}), 201)
    expected = ok(api.get(f"/v1/messages/{receipt['message_id']}"))

    assert ok(at_offset(api, receipt["log_offset"])) == {"items": [expected]}
    (without,) = ok(at_offset(api, receipt["log_offset"], payload="omit"))["items"]
    assert without == {
        name: value for name, value in expected.items() if not name.startswith("payload")
    }
    place = receipt["log_offset"].to_bytes(8, "big").hex()
    for of_broker in (f"7f454d5100002a9f{place}", f"7F454D5100002A9F{place.upper()}"):
        assert ok(api.get(f"/v1/messages/{of_broker}")) == expected
        assert api.get(f"/v1/messages/{of_broker}/payload").text == "väl"


def test_a_log_offset_where_no_message_begins_is_404_with_the_bounds_of_the_log(api, topic):
    receipt = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x" * 500}), 201)
    log = ok(api.get("/v1/admin/store"))["log"]

    for log_offset in (receipt["log_offset"] + 1, receipt["log_offset"] + 200, 1 << 50):
        problem = assert_problem(at_offset(api, log_offset), 404, "message_not_found")
        assert int(problem["context"]["min_offset"]) == log["min_offset"]
        assert int(problem["context"]["max_offset"]) >= log["max_offset"]
        place = log_offset.to_bytes(8, "big").hex()
        assert_problem(api.get(f"/v1/messages/7f454d5100002a9f{place}"), 404, "message_not_found")
    there = receipt["log_offset"].to_bytes(8, "big").hex()
    for host in ("0a00000100002a9f", "7f454d5100002a9e", "00" * 12 + "7f454d5100002a9f"):
        assert_problem(api.get(f"/v1/messages/{host}{there}"), 404, "message_not_found")


def test_the_log_offset_of_a_half_message_names_its_transaction_and_not_the_message(api, topic):
    begun = ok(
        api.post(
            "/v1/transactions",
            json={
                "producer_group": "shop",
                "messages": [{"topic": topic, "message": {"payload": "secret"}}],
            },
        ),
        201,
    )
    proof = ok(api.get(f"/v1/audit/transactions/{begun['transaction_id']}"))
    offsets = [one["log_offset"] for one in proof["records"] if one["kind"] == "half"]

    for log_offset in offsets:
        problem = assert_problem(at_offset(api, log_offset), 404, "message_not_found")
        assert problem["context"]["transaction_id"] == begun["transaction_id"]
    assert offsets


def test_the_log_offset_of_a_delayed_message_names_the_message(api, topic):
    receipt = ok(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 3_600_000}), 201
    )

    problem = assert_problem(at_offset(api, receipt["log_offset"]), 404, "message_not_found")
    assert problem["context"] == {"message_id": receipt["message_id"]}
    place = receipt["log_offset"].to_bytes(8, "big").hex()
    found = ok(api.get(f"/v1/messages/7f454d5100002a9f{place}"))
    assert (found["message_id"], found["schedule_id"]) == (
        receipt["message_id"],
        receipt["schedule_id"],
    )


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"topic": "t"}, "/query/topic"),
        ({"key": "k"}, "/query/key"),
        ({"from": "2020-01-01T00:00:00Z"}, "/query/from"),
        ({"to": "2020-01-01T00:00:00Z"}, "/query/to"),
        ({"log_offset": "-1"}, "/query/log_offset"),
        ({"log_offset": str(1 << 63)}, "/query/log_offset"),
        ({"log_offset": "x"}, "/query/log_offset"),
    ],
)
def test_a_log_offset_names_one_place_without_any_other_condition(api, query, pointer):
    answer = api.get("/v1/messages", params={"log_offset": "0", **query})
    assert_problem(answer, 422, "validation_failed", pointer)


def test_the_messages_of_a_batch_of_a_broker_come_page_by_page(tmp_path):
    log = BrokerLog(tmp_path / "data" / "store", segment_bytes=1 << 24)
    log.append("orders", b"before", {})
    batch = inner_batch(log, "orders", [(b"%d" % number, "red") for number in range(5)])
    log.close()

    with Server(tmp_path / "data") as server, server.client() as api:
        found, token = [], {}
        while token is not None:
            page = ok(at_offset(api, batch.log_offset, page_size=2, **token))
            found.append([one["payload"] for one in page["items"]])
            token = ("next_page_token" in page and {"page_token": page["next_page_token"]}) or None
        place = batch.log_offset.to_bytes(8, "big").hex()
        problem = assert_problem(
            api.get(f"/v1/messages/{BROKER_HOST.hex()}{place}"), 404, "message_not_found"
        )
        first = ok(api.get(f"/v1/messages/{BROKER_HOST.hex()}{0:016x}"))

    assert found == [["0", "1"], ["2", "3"], ["4"]]
    assert problem["context"] == {"log_offset": str(batch.log_offset)}
    assert first["payload"] == "before"
