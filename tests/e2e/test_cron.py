"""Cron schedules over HTTP: made, looked at, changed, stopped, and every time of theirs met once,
whatever a kill does.
"""

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

EVERY_SECOND = "* * * * * *"
DAILY = "0 6 * * 1-5"


def make(
    api: httpx.Client,
    topic: str,
    cron: str = DAILY,
    *,
    status: int = 201,
    key: str | None = None,
    **said: Any,
) -> Any:
    headers = {"Idempotency-Key": key} if key else None
    body = {"cron": cron, "topic": topic, "message": {"payload": "tick"}, **said}
    return ok(api.post("/v1/schedules", json=body, headers=headers), status)


def look(api: httpx.Client, schedule: dict[str, Any]) -> dict[str, Any]:
    return ok(api.get(f"/v1/schedules/{schedule['schedule_id']}"))


def change(api: httpx.Client, schedule: dict[str, Any], **said: Any) -> dict[str, Any]:
    return ok(api.patch(f"/v1/schedules/{schedule['schedule_id']}", json=said))


def stop(api: httpx.Client, schedule: dict[str, Any]) -> dict[str, Any]:
    return ok(api.delete(f"/v1/schedules/{schedule['schedule_id']}"))


def pulled(api: httpx.Client, topic: str, offset: int = 0, **query: Any) -> list[dict[str, Any]]:
    query = {"offset": offset, "max_messages": 1_000, **query}
    return ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params=query))["messages"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def listed(api: httpx.Client, **query: Any) -> list[str]:
    return [one["schedule_id"] for one in ok(api.get("/v1/schedules", params=query))["items"]]


# --------------------------------------------------------------------------------------------------
# make and look


def test_a_cron_schedule_says_when_it_fires_next_and_what_it_sends(api, topic):
    answer = api.post(
        "/v1/schedules",
        json={
            "cron": DAILY,
            "time_zone": "Europe/Berlin",
            "topic": topic,
            "message": {"json": {"report": "daily"}, "key": "r"},
        },
    )
    made = ok(answer, 201)

    assert answer.headers["location"] == f"/v1/schedules/{made['schedule_id']}"
    assert answer.headers["etag"] == '"1"'
    assert ok(api.get(answer.headers["location"])) == made
    assert made == {
        "schedule_id": made["schedule_id"],
        "kind": "cron",
        "topic": topic,
        "deliver_at": made["deliver_at"],
        "state": "scheduled",
        "revision": 1,
        "cron": DAILY,
        "time_zone": "Europe/Berlin",
        "description": "At 06:00 on Monday through Friday",
        "catch_up": "skip",
        "created_at": made["created_at"],
        "message": {"payload_encoding": "utf8", "json": {"report": "daily"}, "key": "r"},
        "recent_firings": [],
    }
    assert at(made["deliver_at"]) > at(made["created_at"])


def test_what_it_sends_says_which_schedule_it_is_of_and_which_time_was_meant(api, topic):
    schedule = make(
        api,
        topic,
        EVERY_SECOND,
        message={"json": {"n": 1}, "key": "k", "tag": "t", "properties": {"a": "b"}},
    )

    (sent, *_) = pulled(api, topic, wait_ms=10_000)

    stop(api, schedule)
    meant = sent["properties"]["occurrence"]
    assert sent["properties"] == {
        "a": "b",
        "schedule_id": schedule["schedule_id"],
        "occurrence": meant,
    }
    assert (sent["key"], sent["tag"], sent["payload"]) == ("k", "t", '{"n":1}')
    assert (meant, at(meant).microsecond) == (schedule["deliver_at"], 0)
    assert at(meant) <= at(sent["stored_at"]) <= at(meant) + timedelta(seconds=1)
    firing = look(api, schedule)["recent_firings"][-1]
    assert firing == {
        "event": "fired",
        "at": sent["stored_at"],
        "occurrence": meant,
        "message_id": sent["message_id"],
    }
    assert 'escrowmq_cron_occurrences_total{event="fired"}' in api.get("/metrics").text


def test_a_dry_run_says_when_it_would_fire_and_makes_nothing(api, topic):
    preview = make(api, topic, "30 2 * * *", time_zone="Europe/Berlin", dry_run=True, status=200)

    assert (preview["cron"], preview["time_zone"]) == ("30 2 * * *", "Europe/Berlin")
    assert preview["description"] == "At 02:30 every day"
    assert len(preview["items"]) == 10
    for item in preview["items"]:
        assert at(item["at"]) == at(item["local"])
    assert listed(api, topic=topic) == []


def test_the_next_times_of_a_schedule_are_told(api, topic):
    schedule = make(api, topic, "0 0 29 2 *")
    path = f"/v1/schedules/{schedule['schedule_id']}/occurrences"

    items = ok(api.get(path, params={"count": 3}))["items"]

    assert [item["at"][:10] for item in items] == ["2028-02-29", "2032-02-29", "2036-02-29"]
    assert items[0]["at"] == schedule["deliver_at"]
    assert len(ok(api.get(path))["items"]) == 10
    stop(api, schedule)
    assert_problem(api.get(path), 422, "unsupported_combination")
    assert_problem(api.get(path, params={"count": 101}), 422, "validation_failed", "/query/count")


def test_a_message_has_one_time_and_no_list_of_them(api, topic):
    sent = ok(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 3_600_000}), 201
    )

    assert_problem(
        api.get(f"/v1/schedules/{sent['schedule_id']}/occurrences"), 422, "unsupported_combination"
    )
    assert_problem(api.get("/v1/schedules/sch_nobody/occurrences"), 404, "schedule_not_found")


def paged(api: httpx.Client, **query: Any) -> list[str]:
    """The list page by page."""
    page = ok(api.get("/v1/schedules", params=query))
    found = [one["schedule_id"] for one in page["items"]]
    while "next_page_token" in page:
        page = ok(api.get("/v1/schedules", params=query | {"page_token": page["next_page_token"]}))
        assert len(page["items"]) <= query["page_size"]
        found += [one["schedule_id"] for one in page["items"]]
    return found


def test_schedules_are_listed_by_kind_and_cron_schedules_before_messages(api, topic):
    def send(delay_ms: int) -> str:
        given = {"payload": "x", "delay_ms": delay_ms}
        return ok(api.post(f"/v1/topics/{topic}/messages", json=given), 201)["schedule_id"]

    later, cron, sooner = send(7_000_000), make(api, topic)["schedule_id"], send(3_000_000)
    paused = make(api, topic, paused=True)["schedule_id"]

    assert listed(api, topic=topic) == [cron, sooner, later]
    assert listed(api, topic=topic, kind="message") == [sooner, later]
    assert listed(api, topic=topic, kind="cron") == [cron]
    assert listed(api, topic=topic, state="paused") == [paused]
    assert listed(api, topic=topic, state="scheduled,paused") == [cron, paused, sooner, later]
    assert listed(api, topic=topic, kind="cron", due_before="2000-01-01T00:00:00Z") == []
    for page_size in (1, 2, 3):
        assert paged(api, topic=topic, page_size=page_size) == [cron, sooner, later]
    assert_problem(
        api.get("/v1/schedules", params={"kind": "both"}), 422, "validation_failed", "/query/kind"
    )


def test_made_again_with_its_idempotency_key_it_is_the_same_schedule(api, topic):
    first = make(api, topic, key=f"once-{topic}")

    body = {"cron": DAILY, "topic": topic, "message": {"payload": "tick"}}
    again = api.post("/v1/schedules", json=body, headers={"Idempotency-Key": f"once-{topic}"})

    assert ok(again, 201) == first
    assert again.headers["idempotency-replayed"] == "true"
    assert_problem(
        api.post(
            "/v1/schedules",
            json=body | {"catch_up": "all"},
            headers={"Idempotency-Key": f"once-{topic}"},
        ),
        422,
        "idempotency_key_reused",
    )
    assert listed(api, topic=topic) == [first["schedule_id"]]


# --------------------------------------------------------------------------------------------------
# change and stop


def test_it_is_changed_where_the_etag_still_holds(api, topic):
    schedule = make(api, topic, catch_up="all")
    path = f"/v1/schedules/{schedule['schedule_id']}"

    changed = api.patch(
        path, json={"cron": "@hourly", "time_zone": "Asia/Tokyo"}, headers={"If-Match": '"1"'}
    )

    found = ok(changed)
    assert (changed.headers["etag"], found["revision"], found["cron"]) == ('"2"', 2, "@hourly")
    assert (found["time_zone"], found["catch_up"]) == ("Asia/Tokyo", "all")
    assert at(found["deliver_at"]) <= datetime.now(UTC) + timedelta(hours=1)
    assert (
        change(api, schedule, message={"payload": "tock"}, catch_up="once")["message"]["payload"]
        == "tock"
    )
    assert_problem(
        api.patch(path, json={"paused": True}, headers={"If-Match": '"1"'}),
        412,
        "revision_mismatch",
    )
    assert_problem(api.delete(path, headers={"If-Match": '"2"'}), 412, "revision_mismatch")
    assert change(api, schedule)["revision"] == 3


def test_paused_it_has_no_next_time_and_resumed_it_fires_again(api, topic):
    schedule = make(api, topic, EVERY_SECOND, paused=True)
    assert (schedule["state"], "deliver_at" in schedule) == ("paused", False)

    resumed = change(api, schedule, paused=False)

    assert resumed["state"] == "scheduled"
    (sent, *_) = pulled(api, topic, wait_ms=10_000)
    assert at(sent["properties"]["occurrence"]) >= at(resumed["deliver_at"])
    stop(api, schedule)


def test_stopped_it_fires_no_more(api, topic):
    schedule = make(api, topic, EVERY_SECOND)
    pulled(api, topic, wait_ms=10_000)

    stopped = stop(api, schedule)
    fired = len(pulled(api, topic))

    assert stopped["state"] == "cancelled"
    assert "deliver_at" not in stopped
    assert stop(api, schedule) == stopped
    assert pulled(api, topic, offset=fired, wait_ms=2_100) == []
    assert listed(api, topic=topic, state="cancelled") == [schedule["schedule_id"]]
    assert_problem(
        api.patch(f"/v1/schedules/{schedule['schedule_id']}", json={"paused": True}),
        409,
        "already_cancelled",
    )


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"cron": "0 0 */20 * 1L"}, "/cron"),
        ({"cron": "every day"}, "/cron"),
        ({"cron": ""}, "/cron"),
        ({"cron": "*" * 256}, "/cron"),
        ({"time_zone": "Mars/Olympus"}, "/time_zone"),
        ({"time_zone": "../../etc/passwd"}, "/time_zone"),
        ({"catch_up": "sometimes"}, "/catch_up"),
        ({"message": {"payload": "x", "delay_ms": 5}}, "/message/delay_ms"),
        (
            {"message": {"payload": "x", "deliver_at": "2030-01-01T00:00:00Z"}},
            "/message/deliver_at",
        ),
        (
            {"message": {"payload": "x", "require_durability": "synced"}},
            "/message/require_durability",
        ),
        (
            {"message": {"payload": "x", "properties": {"occurrence": "y"}}},
            "/message/properties/occurrence",
        ),
        ({"message": {"payload": "x", "tag": "a b"}}, "/message/tag"),
        ({"message": {}}, "/message/payload"),
        ({"surprise": 1}, ""),
    ],
)
def test_what_cannot_be_is_refused_by_its_field_when_it_is_made_and_when_it_is_changed(
    api, topic, wrong, pointer
):
    schedule = make(api, topic)
    body = {"cron": DAILY, "topic": topic, "message": {"payload": "tick"}}

    for answer in (
        api.post("/v1/schedules", json=body | wrong),
        api.patch(f"/v1/schedules/{schedule['schedule_id']}", json=wrong),
    ):
        problem = assert_problem(answer, 422, "validation_failed")
        assert pointer in [error["pointer"] for error in problem["errors"]] or pointer == ""

    assert look(api, schedule) == schedule
    assert listed(api, topic=topic) == [schedule["schedule_id"]]


def test_fields_of_one_kind_are_refused_on_the_other(api, topic):
    schedule = make(api, topic)
    sent = ok(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": 3_600_000}), 201
    )

    later = {"deliver_at": "2030-01-01T00:00:00Z"}
    assert_problem(
        api.patch(f"/v1/schedules/{schedule['schedule_id']}", json=later),
        422,
        "validation_failed",
        "/deliver_at",
    )
    path = f"/v1/schedules/{sent['schedule_id']}"
    assert_problem(api.patch(path, json={"paused": True}), 422, "validation_failed", "/paused")
    assert_problem(api.patch(path, json={}), 422, "validation_failed", "/deliver_at")


def test_its_topic_must_exist_and_take_its_message(api, topic, make_topic):
    body = {"cron": DAILY, "topic": "nobody-made-it", "message": {"payload": "x"}}
    assert_problem(api.post("/v1/schedules", json=body), 404, "topic_not_found")
    assert_problem(
        api.post("/v1/schedules", json=body | {"topic": "%RETRY%x"}), 422, "reserved_topic"
    )
    no_order = make_topic(message_types=["normal"])
    ordered = {"payload": "x", "ordering_key": "k"}
    assert_problem(
        api.post("/v1/schedules", json=body | {"topic": no_order, "message": ordered}),
        422,
        "unsupported_combination",
    )
    large = {"payload": "x" * 70_000}
    problem = assert_problem(
        api.post("/v1/schedules", json=body | {"topic": topic, "message": large}),
        413,
        "message_too_large",
        "/message",
    )
    assert problem["context"] == {"limit_bytes": "65536"}


# --------------------------------------------------------------------------------------------------
# kills


@pytest.mark.faults
def test_killed_again_and_again_every_second_comes_once_and_none_is_missing(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "ticks", "queues": 1}), 201)
        schedule = make(api, "ticks", EVERY_SECOND, catch_up="all")
        begin, seen = at(schedule["deliver_at"]), 0
        for _ in range(3):
            seen = len(pulled(api, "ticks", offset=seen, wait_ms=10_000)) + seen
            server.kill()
            server.start()
        assert pulled(api, "ticks", offset=seen, wait_ms=10_000)
        schedule = stop(api, schedule)
        found = [at(one["properties"]["occurrence"]) for one in pulled(api, "ticks")]
        recent = schedule["recent_firings"]
        server.kill()
        server.start()
        assert look(api, schedule) == schedule

    assert found == [begin + timedelta(seconds=number) for number in range(len(found))]
    assert len(found) > seen >= 3
    assert [at(one["occurrence"]) for one in recent] == found[: -len(recent) - 1 : -1]


def test_what_its_topic_does_not_take_any_more_is_set_aside_and_shown_until_the_topic_is_there_again(
    tmp_path,
):
    with Server(tmp_path / "data", dev=False) as server, server.client() as api:
        for topic in ("gone", "stays"):
            ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
        schedule, other = (
            make(api, topic, EVERY_SECOND, paused=True) for topic in ("gone", "stays")
        )
        assert server.terminate() == 0
        with sqlite3.connect(tmp_path / "data" / "registry.db") as registry:
            # as an older copy of the registry would have it
            registry.execute("DELETE FROM topics WHERE topic = 'gone'")
        server.start()
        change(api, schedule, paused=False)
        change(api, other, paused=False)

        aside = until(lambda: look(api, schedule)["recent_firings"], "it was tried")

        assert {one["event"] for one in aside} == {"set_aside"}
        assert "topic gone does not exist" in aside[-1]["reason"]
        assert look(api, schedule)["state"] == "scheduled"
        assert len(pulled(api, "stays", wait_ms=10_000)) >= 1
        ok(api.get("/readyz"))
        ok(api.post("/v1/topics", json={"topic": "gone", "queues": 1}), 201)
        (sent, *_) = pulled(api, "gone", wait_ms=10_000)
        assert at(sent["properties"]["occurrence"]) > at(aside[0]["occurrence"])
