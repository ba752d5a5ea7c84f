"""Delayed messages over HTTP: when they come, how they are looked at, moved and cancelled, and what
a kill does to them.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

HOUR_MS = 3_600_000


def send(
    api: httpx.Client,
    topic: str,
    *,
    status: int = 201,
    headers: dict[str, str] | None = None,
    **message: Any,
) -> Any:
    return ok(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", **message}, headers=headers),
        status,
    )


def bodies(api: httpx.Client, topic: str, queue: int = 0) -> list[str]:
    return [one["payload"] for one in pulled(api, topic, queue)]


def pulled(api: httpx.Client, topic: str, queue: int = 0, **query: Any) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/queues/{queue}/messages"
    return ok(api.get(path, params={"max_messages": 1_000, **query}))["messages"]


def look(api: httpx.Client, receipt: dict[str, Any]) -> dict[str, Any]:
    return ok(api.get(f"/v1/schedules/{receipt['schedule_id']}"))


def listed(api: httpx.Client, **query: Any) -> list[str]:
    return [one["schedule_id"] for one in ok(api.get("/v1/schedules", params=query))["items"]]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_now(**delta: float) -> str:
    return written(datetime.now(UTC) + timedelta(**delta))


# --------------------------------------------------------------------------------------------------
# send


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [({"delay_ms": 300}, 300), ({"delay_ms": 1_000}, 1_000), ({"delay_level": 1}, 1_000)],
)
def test_a_delayed_message_comes_at_its_time_with_its_own_id_and_not_before(
    api, topic, delay, delay_ms
):
    asked = at(from_now())
    receipt = send(
        api, topic, payload="later", key="8812", tag="paid", properties={"a": "b"}, **delay
    )
    assert {"queue_id", "queue_offset"} & set(receipt) == set()
    assert receipt["topic"] == topic
    assert (
        asked
        <= at(receipt["deliver_at"]) - timedelta(milliseconds=delay_ms)
        <= at(receipt["stored_at"])
    )
    assert look(api, receipt) == {
        "schedule_id": receipt["schedule_id"],
        "kind": "message",
        "message_id": receipt["message_id"],
        "topic": topic,
        "deliver_at": receipt["deliver_at"],
        "state": "scheduled",
        "revision": 1,
    }

    (message,) = pulled(api, topic, offset=0, wait_ms=10_000)

    assert (
        at(receipt["deliver_at"])
        <= at(message["stored_at"])
        <= at(receipt["deliver_at"]) + timedelta(seconds=1)
    )
    assert message["message_id"] == receipt["message_id"]
    assert (message["payload"], message["key"], message["tag"], message["properties"]) == (
        "later",
        "8812",
        "paid",
        {"a": "b"},
    )
    assert (look(api, receipt)["state"], look(api, receipt)["revision"]) == ("delivered", 2)
    assert (
        ok(api.get(f"/v1/messages/{receipt['message_id']}"))["queue_offset"]
        == message["queue_offset"]
    )


def test_a_time_is_kept_whatever_its_offset_and_the_named_queue_too(api, make_topic):
    topic = make_topic(queues=3)
    moment = (datetime.now(UTC) + timedelta(milliseconds=400)).isoformat(timespec="milliseconds")

    receipt = send(api, topic, deliver_at=moment, queue_id=2)

    assert at(receipt["deliver_at"]) == at(moment)
    (message,) = pulled(api, topic, 2, offset=0, wait_ms=10_000)
    assert at(message["stored_at"]) >= at(moment)


def test_a_waiting_message_is_in_no_queue_and_under_no_key_and_is_shown_where_the_answer_to_its_send_says(
    api, topic
):
    sent = api.post(
        f"/v1/topics/{topic}/messages", json={"payload": "x", "key": "waits", "delay_ms": HOUR_MS}
    )
    receipt = ok(sent, 201)

    assert bodies(api, topic) == []
    assert ok(api.get("/v1/messages", params={"topic": topic, "key": "waits"}))["items"] == []
    shown = ok(api.get(sent.headers["location"]))
    assert {"queue_id", "queue_offset"} & set(shown) == set()
    same = ("message_id", "topic", "schedule_id", "deliver_at", "stored_at")
    assert {name: shown[name] for name in same} == {name: receipt[name] for name in same}
    assert (shown["payload"], shown["key"], shown["properties"]) == ("x", "waits", {})
    assert api.get(f"{sent.headers['location']}/payload").content == b"x"

    ok(api.delete(f"/v1/schedules/{receipt['schedule_id']}"))
    assert_problem(api.get(sent.headers["location"]), 404, "message_not_found")


def test_a_batch_may_hold_delayed_and_other_messages(api, topic):
    entries = [
        {"id": "now", "message": {"payload": "now"}},
        {"id": "later", "message": {"payload": "later", "delay_ms": 200}},
        {"id": "level", "message": {"payload": "level", "delay_level": 1}},
    ]

    answer = ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)

    now, later, level = (result["receipt"] for result in answer["results"])
    assert (now["queue_offset"], "schedule_id" in now) == (0, False)
    assert later["schedule_id"] != level["schedule_id"]
    assert until(lambda: len(found := bodies(api, topic)) == 3 and found, "all of the batch") == [
        "now",
        "later",
        "level",
    ]


def test_a_raw_message_may_be_delayed(api, topic):
    headers = {"Message-Delay-Ms": "200", "Content-Type": "text/plain"}

    receipt = ok(
        api.post(f"/v1/topics/{topic}/messages/raw", content=b"\x00raw", headers=headers), 201
    )

    (message,) = pulled(api, topic, offset=0, wait_ms=10_000, payload="base64")
    assert (message["message_id"], message["payload"]) == (receipt["message_id"], "AHJhdw==")


def test_a_delayed_send_again_with_its_key_is_the_same_schedule_before_and_after_its_delivery(
    api, topic
):
    headers = {"Idempotency-Key": f"once-{topic}"}
    first = send(api, topic, delay_ms=400, headers=headers)

    before = send(api, topic, delay_ms=400, headers=headers)
    pulled(api, topic, offset=0, wait_ms=10_000)
    after = send(api, topic, delay_ms=400, headers=headers)

    assert before == after == first | {"deduplicated": True}
    assert len(bodies(api, topic)) == 1


@pytest.mark.parametrize(
    "delay", [{"delay_ms": 5_001}, {"delay_level": 3}, {"deliver_at": "2999-01-01T00:00:00.000Z"}]
)
def test_a_delay_beyond_the_limit_of_the_topic_is_refused_with_the_limit(api, make_topic, delay):
    topic = make_topic(max_delay_ms=5_000)

    problem = assert_problem(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", **delay}),
        422,
        "validation_failed",
        f"/{next(iter(delay))}",
    )

    assert "5000" in problem["errors"][0]["detail"]
    assert problem["context"] == {"max_delay_ms": "5000"}
    send(api, topic, delay_ms=5_000)


def test_a_topic_without_a_limit_takes_no_time_that_could_not_be_written(api, make_topic):
    topic = make_topic(max_delay_ms=1 << 53)

    send(api, topic, delay_ms=500 * 365 * 24 * HOUR_MS)
    assert_problem(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 1 << 53}),
        422,
        "validation_failed",
        "/delay_ms",
    )


def test_a_topic_without_delayed_messages_refuses_them(api, make_topic):
    topic = make_topic(message_types=["normal", "transactional"])

    answer = api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 5})
    begun = {
        "producer_group": "shop",
        "messages": [{"topic": topic, "message": {"payload": "x", "delay_ms": 5}}],
    }

    assert_problem(answer, 422, "unsupported_combination")
    assert_problem(
        api.post("/v1/transactions", json=begun),
        422,
        "unsupported_combination",
        "/messages/0/message",
    )
    send(api, topic, delay_ms=0)


def test_a_delayed_message_has_no_place_in_an_order(api, topic):
    answer = api.post(
        f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 5, "ordering_key": "k"}
    )

    assert_problem(answer, 422, "unsupported_combination")


# ----------------------------------------------------------------------------------------------
# look at, move and cancel


def test_a_list_shows_what_waits_by_topic_and_time_page_by_page(api, make_topic):
    topic, other = make_topic(), make_topic()
    ids = [send(api, topic, delay_ms=HOUR_MS * (number + 1))["schedule_id"] for number in range(5)]
    send(api, other, delay_ms=HOUR_MS)
    ok(api.delete(f"/v1/schedules/{ids[1]}"))

    assert sorted(listed(api, topic=topic)) == sorted([ids[0], *ids[2:]])
    assert set(listed(api, topic=topic, due_before=from_now(hours=3.5))) == {ids[0], ids[2]}
    assert listed(api, topic=topic, state="cancelled") == [ids[1]]
    assert set(listed(api, topic=topic, state="scheduled,cancelled")) == set(ids)
    found, token = [], None
    while True:
        query = {"topic": topic, "page_size": 2} | ({"page_token": token} if token else {})
        page = ok(api.get("/v1/schedules", params=query))
        assert len(page["items"]) <= 2
        found += [one["schedule_id"] for one in page["items"]]
        token = page.get("next_page_token")
        if token is None:
            break
    assert found == listed(api, topic=topic)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"state": "gone"}, "/query/state"),
        ({"due_before": "tomorrow"}, "/query/due_before"),
        ({"page_size": 0}, "/query/page_size"),
        ({"topics": "x"}, "/query/topics"),
    ],
)
def test_a_list_with_a_wrong_question_is_refused(api, query, pointer):
    assert_problem(api.get("/v1/schedules", params=query), 422, "validation_failed", pointer)


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "%RETRY%billing", "rmq_sys_wheel_timer"])
def test_a_reserved_topic_has_no_list_of_its_own(api, name):
    assert_problem(api.get("/v1/schedules", params={"topic": name}), 422, "reserved_topic")


def test_a_moved_message_comes_at_its_new_time(api, topic):
    receipt = send(api, topic, delay_ms=HOUR_MS)
    moment = from_now(milliseconds=300)

    moved = api.patch(f"/v1/schedules/{receipt['schedule_id']}", json={"deliver_at": moment})

    assert (ok(moved)["deliver_at"], ok(moved)["revision"], moved.headers["etag"]) == (
        moment,
        2,
        '"2"',
    )
    (message,) = pulled(api, topic, offset=0, wait_ms=10_000)
    assert at(message["stored_at"]) >= at(moment)
    assert look(api, receipt)["state"] == "delivered"


def test_a_message_that_is_moved_into_the_past_comes_at_once(api, topic):
    receipt = send(api, topic, delay_ms=HOUR_MS)

    ok(
        api.patch(
            f"/v1/schedules/{receipt['schedule_id']}", json={"deliver_at": "1066-10-14T00:00:00Z"}
        )
    )

    assert len(pulled(api, topic, offset=0, wait_ms=10_000)) == 1


def test_a_move_beyond_the_limit_of_the_topic_is_refused_with_the_limit(api, make_topic):
    topic = make_topic(max_delay_ms=HOUR_MS)
    receipt = send(api, topic, delay_ms=HOUR_MS)

    answer = api.patch(
        f"/v1/schedules/{receipt['schedule_id']}", json={"deliver_at": from_now(hours=2)}
    )

    assert assert_problem(answer, 422, "validation_failed", "/deliver_at")["context"] == {
        "max_delay_ms": str(HOUR_MS)
    }
    assert look(api, receipt)["revision"] == 1


def test_a_cancelled_message_never_comes_and_a_second_cancel_is_no_error(api, topic):
    receipt = send(api, topic, delay_ms=300, payload="never")
    path = f"/v1/schedules/{receipt['schedule_id']}"

    cancelled = ok(api.delete(path))

    assert (cancelled["state"], ok(api.delete(path))) == ("cancelled", cancelled)
    assert_problem(
        api.patch(path, json={"deliver_at": from_now(hours=1)}), 409, "already_cancelled"
    )
    send(api, topic, delay_ms=600, payload="after it")
    assert [one["payload"] for one in pulled(api, topic, offset=0, wait_ms=10_000)] == ["after it"]


def test_what_was_delivered_can_neither_be_moved_nor_cancelled(api, topic):
    receipt = send(api, topic, delay_ms=50)
    pulled(api, topic, offset=0, wait_ms=10_000)
    path = f"/v1/schedules/{receipt['schedule_id']}"

    assert_problem(api.delete(path), 409, "already_delivered")
    assert_problem(
        api.patch(path, json={"deliver_at": from_now(hours=1)}), 409, "already_delivered"
    )


def test_a_change_of_a_schedule_that_has_changed_meanwhile_is_refused(api, topic):
    receipt = send(api, topic, delay_ms=HOUR_MS)
    path = f"/v1/schedules/{receipt['schedule_id']}"
    etag = api.get(path).headers["etag"]
    ok(api.patch(path, json={"deliver_at": from_now(hours=2)}, headers={"If-Match": etag}))

    assert_problem(api.delete(path, headers={"If-Match": etag}), 412, "revision_mismatch")
    assert_problem(
        api.patch(path, json={"deliver_at": from_now(hours=3)}, headers={"If-Match": etag}),
        412,
        "revision_mismatch",
    )
    assert ok(api.delete(path, headers={"If-Match": '"2"'}))["state"] == "cancelled"


def test_a_schedule_that_nobody_made_is_not_found(api):
    for answer in (
        api.get("/v1/schedules/sch_nobody"),
        api.delete("/v1/schedules/sch_nobody"),
        api.patch("/v1/schedules/sch_nobody", json={"deliver_at": from_now(hours=1)}),
    ):
        assert_problem(answer, 404, "schedule_not_found")


def test_the_lateness_of_deliveries_is_a_metric(api, topic):
    send(api, topic, delay_ms=20)
    pulled(api, topic, offset=0, wait_ms=10_000)

    metrics = api.get("/metrics").text

    assert "escrowmq_schedule_lateness_seconds_bucket" in metrics
    assert "escrowmq_schedules_scheduled" in metrics


# --------------------------------------------------------------------------------------------------
# transactions


def test_the_delay_of_a_transactional_message_counts_from_the_commit(api, make_topic):
    now_topic, later_topic = make_topic(), make_topic()
    messages = [
        {"topic": now_topic, "message": {"payload": "now"}},
        {"topic": later_topic, "message": {"payload": "later", "delay_ms": 400}},
    ]
    begun = ok(
        api.post("/v1/transactions", json={"producer_group": "shop", "messages": messages}), 201
    )
    assert listed(api, topic=later_topic) == []
    path = f"/v1/transactions/{begun['transaction_id']}"
    time_of_commit = datetime.now(UTC)

    committed = ok(api.post(f"{path}/commit"))

    now, later = committed["messages"]
    assert (now["queue_offset"], set(later)) == (0, {"message_id", "topic", "schedule_id"})
    assert (
        ok(api.post(f"{path}/commit"))["messages"]
        == ok(api.get(path))["messages"]
        == committed["messages"]
    )
    assert (bodies(api, now_topic), bodies(api, later_topic)) == (["now"], [])
    assert look(api, later)["message_id"] == begun["messages"][1]["message_id"]
    (message,) = pulled(api, later_topic, offset=0, wait_ms=10_000)
    assert message["message_id"] == begun["messages"][1]["message_id"]
    assert at(message["stored_at"]) >= time_of_commit + timedelta(milliseconds=399)


def test_an_absolute_time_that_the_commit_has_passed_delivers_at_once(api, topic):
    message = {"payload": "x", "deliver_at": from_now(milliseconds=150)}
    begun = ok(
        api.post(
            "/v1/transactions",
            json={"producer_group": "shop", "messages": [{"topic": topic, "message": message}]},
        ),
        201,
    )
    until(lambda: datetime.now(UTC) > at(message["deliver_at"]), "the time of the message")

    ok(api.post(f"/v1/transactions/{begun['transaction_id']}/commit"))

    assert len(pulled(api, topic, offset=0, wait_ms=10_000)) == 1


def test_a_delayed_message_of_a_committed_transaction_can_be_cancelled_and_a_rolled_back_one_was_never_scheduled(
    api, topic
):
    begun = [
        ok(
            api.post(
                "/v1/transactions",
                json={
                    "producer_group": "shop",
                    "messages": [{"topic": topic, "message": {"payload": word, "delay_ms": 300}}],
                },
            ),
            201,
        )["transaction_id"]
        for word in ("committed", "rolled back")
    ]
    (message,) = ok(api.post(f"/v1/transactions/{begun[0]}/commit"))["messages"]
    ok(api.delete(f"/v1/schedules/{message['schedule_id']}"))
    ok(api.post(f"/v1/transactions/{begun[1]}/rollback"))
    send(api, topic, payload="after them", delay_ms=600)

    assert [one["payload"] for one in pulled(api, topic, offset=0, wait_ms=10_000)] == [
        "after them"
    ]


# --------------------------------------------------------------------------------------------------
# kills

NEVER_SWEEPS = {"ESCROWMQ_SCHEDULE__SWEEP_INTERVAL_MS": str(HOUR_MS)}


def test_what_was_due_when_the_service_was_killed_is_delivered_once_by_the_next_start(tmp_path):
    with Server(tmp_path / "data", environment=NEVER_SWEEPS) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        receipts = [
            send(api, "orders", payload=str(number), delay_ms=50 + number) for number in range(20)
        ]
        cancelled = send(api, "orders", payload="cancelled", delay_ms=50)
        ok(api.delete(f"/v1/schedules/{cancelled['schedule_id']}"))
        moved = send(api, "orders", payload="moved", delay_ms=50)
        ok(
            api.patch(
                f"/v1/schedules/{moved['schedule_id']}", json={"deliver_at": from_now(hours=1)}
            )
        )
        until(lambda: datetime.now(UTC) > at(receipts[-1]["deliver_at"]), "everything is due")
        assert bodies(api, "orders") == []
        server.kill()
    with Server(tmp_path / "data") as server, server.client() as api:
        until(lambda: len(bodies(api, "orders")) >= 20, "everything is delivered")
        server.kill()
        server.start()

        assert look(api, cancelled)["state"] == "cancelled"
        assert (look(api, moved)["state"], look(api, receipts[0])["state"]) == (
            "scheduled",
            "delivered",
        )
        assert listed(api) == [moved["schedule_id"]]
        assert sorted(bodies(api, "orders"), key=int) == [str(number) for number in range(20)]
        assert server.terminate() == 0
        server.start()
        assert listed(api) == [moved["schedule_id"]]


def test_a_delayed_message_of_a_transaction_survives_kill_9_before_and_after_the_commit(tmp_path):
    with Server(tmp_path / "data", environment=NEVER_SWEEPS) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        message = {"topic": "orders", "message": {"payload": "x", "delay_ms": 200}}
        begun = ok(
            api.post("/v1/transactions", json={"producer_group": "shop", "messages": [message]}),
            201,
        )
        path = f"/v1/transactions/{begun['transaction_id']}"
        server.kill()
        server.start()
        committed = ok(api.post(f"{path}/commit"))
        server.kill()
    with Server(tmp_path / "data") as server, server.client() as api:
        (found,) = pulled(api, "orders", offset=0, wait_ms=10_000)

        assert found["message_id"] == begun["messages"][0]["message_id"]
        assert ok(api.get(path))["messages"] == committed["messages"]


@pytest.mark.faults
def test_kills_while_hundreds_are_delivered_lose_none_double_none_and_make_none_early(tmp_path):
    due: dict[str, datetime] = {}
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        for round_ in range(4):
            entries = [
                {"message": {"payload": "x", "delay_ms": 20 + 3 * number}} for number in range(150)
            ]
            answer = ok(
                api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201
            )
            due |= {
                one["receipt"]["message_id"]: at(one["receipt"]["deliver_at"])
                for one in answer["results"]
            }
            begun = time.monotonic()
            until(
                lambda begun=begun, round_=round_: time.monotonic() - begun > 0.1 * (round_ + 1),
                "a moment",
            )
            server.kill()
            server.start()

        found = until(
            lambda: len(messages := pulled(api, "orders")) >= len(due) and messages,
            "all are delivered",
        )

    assert sorted(one["message_id"] for one in found) == sorted(due)
    assert all(at(one["stored_at"]) >= due[one["message_id"]] for one in found)


def test_hundreds_that_are_due_at_the_same_moment_come_within_a_second(api, topic):
    moment = from_now(milliseconds=800)
    entries = [{"message": {"payload": "x", "deliver_at": moment}} for _ in range(1_000)]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)

    found = until(
        lambda: len(messages := pulled(api, topic)) == 1_000 and messages, "all are delivered"
    )

    late = sorted(at(one["stored_at"]) - at(moment) for one in found)
    assert late[0] >= timedelta(0)
    assert late[989] <= timedelta(seconds=1)
