"""DELETE of a topic: what it refuses, what it ends, and that the topic stays deleted."""

import sqlite3
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, at_once, ok, until
from tests.support.server import Server

FAR_MS = 86_400_000


def numbers(topic: str, **given: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "queues": 1,
        "messages": 0,
        "groups": 0,
        "open_transactions": 0,
        "schedules": 0,
    } | given


def dry_run(api: httpx.Client, topic: str) -> dict[str, Any]:
    return ok(api.delete(f"/v1/topics/{topic}", params={"dry_run": "true"}))


def delete(api: httpx.Client, topic: str, **query: Any) -> None:
    ok_status = api.delete(f"/v1/topics/{topic}", params=query)
    assert ok_status.status_code == 204, ok_status.text
    assert ok_status.content == b""


def send(api: httpx.Client, topic: str, **message: Any) -> dict[str, Any]:
    return ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", **message}), 201)


def group_of(api: httpx.Client, topic: str, *more: str, **rules: Any) -> str:
    path = f"/v1/groups/group-of-{topic}"
    ok(api.put(path, json={"topics": [{"topic": name} for name in (topic, *more)], **rules}), 201)
    return path


def receive(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    return ok(api.post(f"{path}/receive", json={"max_messages": 10}))["messages"]


def use_it(api: httpx.Client, topic: str, other: str) -> dict[str, Any]:
    """Everything that can name a topic, once; where it can be looked at."""
    path = group_of(api, topic, other, backoff_ms=[FAR_MS], max_attempts=9)
    first, second, third = [send(api, topic, key="k") for _ in range(3)]
    leased = {message["message_id"]: message["receipt_handle"] for message in receive(api, path)}
    ok(
        api.post(
            f"{path}/nack", json={"entries": [{"receipt_handle": leased[first["message_id"]]}]}
        )
    )
    ok(
        api.post(
            f"{path}/dead-letter",
            json={"entries": [{"receipt_handle": leased[second["message_id"]]}]},
        )
    )
    body = {"producer_group": "shop", "messages": [{"topic": topic, "message": {"json": 1}}]}
    transaction = ok(api.post("/v1/transactions", json=body), 201)
    delayed = send(api, topic, delay_ms=FAR_MS)
    cron = {"cron": "0 6 * * *", "time_zone": "UTC", "topic": topic, "message": {"json": {}}}
    return {
        "group": path,
        "handle": leased[third["message_id"]],
        "message": f"/v1/messages/{first['message_id']}",
        "transaction": f"/v1/transactions/{transaction['transaction_id']}",
        "delayed": f"/v1/schedules/{delayed['schedule_id']}",
        "cron": f"/v1/schedules/{ok(api.post('/v1/schedules', json=cron), 201)['schedule_id']}",
    }


def check_ended(api: httpx.Client, topic: str, other: str, used: dict[str, Any]) -> None:
    path = used["group"]
    assert_problem(api.get(f"/v1/topics/{topic}"), 404, "topic_not_found")
    assert_problem(api.get(f"/v1/topics/{topic}/queues/0/messages"), 404, "topic_not_found")
    assert_problem(
        api.get("/v1/messages", params={"topic": topic, "key": "k"}), 404, "topic_not_found"
    )
    assert_problem(api.get(used["message"]), 404, "message_not_found")
    transaction = ok(api.get(used["transaction"]))
    assert (transaction["state"], transaction["resolved_by"]) == ("rolled_back", "operator")
    assert [ok(api.get(used[kind]))["state"] for kind in ("delayed", "cron")] == [
        "cancelled",
        "cancelled",
    ]
    assert [one["topic"] for one in ok(api.get(path))["topics"]] == [other]
    assert ok(api.get(f"{path}/dead-letters"))["items"] == []
    assert ok(api.get(f"{path}/leases"))["items"] == []
    lag = ok(api.get(f"{path}/lag"))
    assert (lag["messages_ready"], lag["messages_leased"], lag["messages_waiting"]) == (0, 0, 0)
    (entry,) = ok(
        api.post(f"{path}/ack", json={"entries": [{"receipt_handle": used["handle"]}]}), 207
    )["results"]
    assert entry["problem"]["code"] == "lease_expired"


def check_created_again(api: httpx.Client, topic: str, used: dict[str, Any]) -> None:
    """Nothing of before comes back, and no queue offset is used twice."""
    ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
    assert ok(api.get(f"/v1/topics/{topic}/queues"))["items"] == [
        {"queue_id": 0, "min_offset": 3, "max_offset": 3}
    ]
    assert_problem(api.get(f"/v1/topics/{topic}/queues/0/messages?offset=0"), 410, "offset_expired")
    assert_problem(api.get(used["message"]), 404, "message_not_found")
    assert ok(api.get("/v1/messages", params={"topic": topic, "key": "k"}))["items"] == []
    assert ok(api.get(f"{used['group']}/offsets", params={"topic": topic}))["items"] == []
    sent = send(api, topic)
    assert sent["queue_offset"] == 3
    ok(
        api.put(
            used["group"],
            json={"topics": [*ok(api.get(used["group"]))["topics"], {"topic": topic}]},
        )
    )
    assert [one["message_id"] for one in receive(api, used["group"])] == [sent["message_id"]]


def test_a_topic_that_nothing_names_goes_with_its_messages(api, topic):
    send(api, topic)
    assert dry_run(api, topic) == numbers(topic, messages=1)
    assert ok(api.get(f"/v1/topics/{topic}"))

    delete(api, topic)

    assert_problem(api.delete(f"/v1/topics/{topic}"), 404, "topic_not_found")
    assert topic not in [
        one["topic"] for one in ok(api.get("/v1/topics", params={"page_size": 1_000}))["items"]
    ]
    assert_problem(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 404, "topic_not_found"
    )


def test_a_deletion_can_ask_for_the_revision_that_it_knows(api, topic):
    path = f"/v1/topics/{topic}"
    assert_problem(api.delete(path, headers={"If-Match": '"7"'}), 412, "revision_mismatch")
    assert api.delete(path, headers={"If-Match": '"1"'}).status_code == 204


@pytest.mark.parametrize("path", ["/v1/topics/rmq_sys_x", "/v1/topics/%25RETRY%25x"])
def test_a_reserved_topic_is_not_deleted(api, path):
    assert_problem(api.delete(path), 422, "reserved_topic")
    assert_problem(api.delete(path, params={"force": "true"}), 422, "reserved_topic")


def test_a_topic_in_use_is_refused_with_the_numbers_of_what_names_it(api, make_topic):
    topic, other = make_topic(), make_topic()
    used = use_it(api, topic, other)
    expected = numbers(topic, messages=3, groups=1, open_transactions=1, schedules=2)

    assert dry_run(api, topic) == expected
    problem = assert_problem(api.delete(f"/v1/topics/{topic}"), 409, "topic_in_use")

    assert problem["context"] == {name: str(value) for name, value in expected.items()}
    assert ok(api.get(used["transaction"]))["state"] == "prepared"
    assert dry_run(api, topic) == expected


def test_with_force_all_that_names_the_topic_ends_and_nothing_of_it_comes_back(api, make_topic):
    topic, other = make_topic(), make_topic()
    used = use_it(api, topic, other)

    delete(api, topic, force="true")

    check_ended(api, topic, other, used)
    check_created_again(api, topic, used)


def test_a_group_that_starts_at_the_end_does_so_in_a_topic_that_was_created_again(
    api, topic, make_topic
):
    path = group_of(api, topic, start="latest")
    send(api, topic)
    assert len(receive(api, path)) == 1

    delete(api, topic, force="true")
    ok(api.put(f"/v1/topics/{topic}", json={"queues": 1}), 201)
    send(api, topic)
    ok(api.put(path, json={"topics": [{"topic": topic}]}))
    later = send(api, topic)

    assert [one["message_id"] for one in receive(api, path)] == [later["message_id"]]


def test_a_deletion_without_force_and_a_transaction_begun_beside_it_never_both_succeed(api, topic):
    path, body = (
        f"/v1/topics/{topic}",
        {"producer_group": "shop", "messages": [{"topic": topic, "message": {"json": 1}}]},
    )
    for _ in range(20):
        api.put(path, json={"queues": 1})
        *begun, deleted = at_once(
            [*[lambda: api.post("/v1/transactions", json=body)] * 3, lambda: api.delete(path)]
        )
        if deleted.status_code == 204:
            assert [one.status_code for one in begun] == [404, 404, 404]
        else:
            assert_problem(deleted, 409, "topic_in_use")
            delete(api, topic, force="true")


def test_what_was_committed_to_a_deleted_topic_is_no_finding(api, topic):
    body = {"producer_group": "shop", "messages": [{"topic": topic, "message": {"json": 1}}]}
    transaction_id = ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]
    ok(api.post(f"/v1/transactions/{transaction_id}/commit"))

    delete(api, topic)

    proof = ok(api.get(f"/v1/audit/transactions/{transaction_id}"))
    assert (proof["verdict"], proof["is_finding"]) == ("committed_once", False)


def test_a_send_is_repeatable_though_its_topic_was_deleted_and_created_again(api, topic):
    once = {"Idempotency-Key": "once"}
    first = ok(
        api.post(
            f"/v1/topics/{topic}/messages", json={"payload": "x", "queue_id": 0}, headers=once
        ),
        201,
    )
    delete(api, topic)
    ok(api.put(f"/v1/topics/{topic}", json={"queues": 1}), 201)

    again = ok(
        api.post(
            f"/v1/topics/{topic}/messages", json={"payload": "x", "queue_id": 0}, headers=once
        ),
        201,
    )

    assert again == first | {"deduplicated": True}
    assert dry_run(api, topic) == numbers(topic)


def test_a_deletion_survives_a_kill_and_one_that_was_cut_off_is_finished_by_the_next_start(
    tmp_path,
):
    """Cut off behind its first step, and before its last: the registry is put back to where a kill
    there would leave it.
    """
    data_dir = tmp_path / "data"
    registry = data_dir / "registry.db"
    with Server(data_dir, dev=False) as server:
        with server.client() as api:
            for topic in ("orders", "other"):
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
            used = use_it(api, "orders", "other")
        server.kill()
        with sqlite3.connect(registry) as database:
            database.execute("UPDATE topics SET is_being_deleted = 1 WHERE topic = 'orders'")
            (row,) = database.execute("SELECT * FROM topics WHERE topic = 'orders'")
        server.start()
        with server.client() as api:
            check_ended(api, "orders", "other", used)
        server.kill()
        with sqlite3.connect(registry) as database:
            assert list(database.execute("SELECT topic FROM topics")) == [("other",)]
            database.execute(f"INSERT INTO topics VALUES ({', '.join('?' * len(row))})", row)
        server.start()
        with server.client() as api:
            check_ended(api, "orders", "other", used)
        server.kill()
        server.start()
        with server.client() as api:
            check_ended(api, "orders", "other", used)
            check_created_again(api, "orders", used)


def test_a_topic_whose_row_cannot_go_keeps_no_service_from_its_start_and_goes_as_soon_as_it_can(
    tmp_path,
):
    data_dir = tmp_path / "data"
    registry = data_dir / "registry.db"
    with Server(data_dir, dev=False) as server:
        with server.client() as api:
            for topic in ("bills", "orders"):
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
        server.kill()
        with sqlite3.connect(registry) as database:
            database.execute("UPDATE topics SET is_being_deleted = 1")
            database.execute(
                "CREATE TRIGGER refusal BEFORE DELETE ON topics WHEN old.topic = 'bills' "
                "BEGIN SELECT raise(ABORT, 'it has to stay'); END"
            )
        server.start()
        with sqlite3.connect(registry) as database:
            assert list(database.execute("SELECT topic FROM topics")) == [("bills",)]
            assert server.log().count("topic_not_deleted_yet") == 1
            database.execute("DROP TRIGGER refusal")

        until(lambda: server.log().count("topic_deleted") == 2, "it is deleted")
        assert server.log().count("topic_not_deleted_yet") == 1
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "bills", "queues": 1}), 201)
