"""Durations and times that lead behind the year 9999: what has them is stored and shown."""

from tests.support.http import assert_problem, ok

FAR_MS = 1 << 53
LAST = "9999-12-31T23:59:59"


def begin(api, topic, group, **check):
    body = {
        "producer_group": group,
        "messages": [{"topic": topic, "message": {"payload": "x"}}],
        "check": check,
    }
    return ok(api.post("/v1/transactions", json=body), 201)


def test_a_start_behind_the_last_year_is_refused_and_makes_no_group(api, topic):
    body = {
        "topics": [{"topic": topic}],
        "start": "time",
        "start_at": "9999-12-31T23:59:59.999-23:59",
    }

    assert_problem(api.put("/v1/groups/late", json=body), 422, "validation_failed", "/start_at")
    assert_problem(api.get("/v1/groups/late"), 404, "group_not_found")
    ok(api.get("/v1/groups"))


def test_a_transaction_whose_check_never_comes_is_begun_shown_and_decided(api, topic):
    begun = begin(api, topic, "far-checks", first_after_ms=FAR_MS)
    path = f"/v1/transactions/{begun['transaction_id']}"

    assert begun["next_check_at"].startswith(LAST)
    assert ok(api.get(path))["next_check_at"].startswith(LAST)
    ok(api.get(f"{path}/explain"))
    ok(api.post(f"{path}/commit"))
    ok(api.get(path))


def test_a_transaction_that_is_asked_again_never_is_shown(api, topic):
    begun = begin(api, topic, "far-again", first_after_ms=10, interval_ms=FAR_MS)
    path = "/v1/producer-groups/far-again/checks"
    (check,) = ok(api.post(f"{path}/receive", json={"wait_ms": 20_000}))["checks"]
    answers = [{"check_id": check["check_id"], "decision": "unknown"}]
    ok(api.post(f"{path}/answer", json={"answers": answers}))

    shown = ok(api.get(f"/v1/transactions/{begun['transaction_id']}"))

    assert shown["next_check_at"].startswith(LAST)
    ok(api.get(f"/v1/transactions/{begun['transaction_id']}/explain"))


def test_a_message_that_is_put_off_for_ever_has_its_trace(api, topic):
    group = "/v1/groups/far-retry"
    ok(api.put(group, json={"topics": [{"topic": topic}], "ordered": True}), 201)
    sent = ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)
    (leased,) = ok(api.post(f"{group}/receive", json={"wait_ms": 20_000}))["messages"]
    entries = [{"receipt_handle": leased["receipt_handle"], "delay_ms": FAR_MS}]
    ok(api.post(f"{group}/nack", json={"entries": entries}))

    assert "9999-12-31T23:59:59" in api.get(f"/v1/messages/{sent['message_id']}/trace").text
