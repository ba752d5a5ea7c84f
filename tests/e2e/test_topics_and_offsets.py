"""Topics, their queues, producer groups, and where consumer groups continue."""

from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, at_once, ok
from tests.support.server import Server

DAY_MS = 86_400_000


def create(api: httpx.Client, topic: str, **settings: Any) -> httpx.Response:
    return api.post("/v1/topics", json={"topic": topic, **settings})


def commit(api: httpx.Client, group: str, *offsets: tuple[str, int, int]) -> httpx.Response:
    body = {
        "offsets": [
            {"topic": topic, "queue_id": queue, "offset": offset}
            for topic, queue, offset in offsets
        ]
    }
    return api.put(f"/v1/groups/{group}/offsets", json=body)


# --------------------------------------------------------------------------------------------------
# topics


def test_a_topic_is_made_with_the_defaults_of_the_contract(api, topic):
    name = f"plain-{topic}"
    answer = create(api, name)

    body = ok(answer, 201)
    assert body == {
        "topic": name,
        "queues": 4,
        "message_types": ["normal", "fifo", "delayed", "transactional"],
        "retention_ms": 3 * DAY_MS,
        "max_message_bytes": 4 << 20,
        "dedup_window_ms": DAY_MS,
        "max_delay_ms": 30 * DAY_MS,
        "created_at": body["created_at"],
        "revision": 1,
    }
    assert answer.headers["location"] == f"/v1/topics/{name}"
    assert answer.headers["etag"] == '"1"'
    looked = api.get(f"/v1/topics/{name}")
    assert ok(looked) == body
    assert looked.headers["etag"] == '"1"'


def test_making_it_again_is_200_when_it_is_equal_and_409_when_it_is_not(api, topic):
    name = f"again-{topic}"
    first = ok(create(api, name, queues=2, message_types=["fifo", "normal"]), 201)

    assert ok(create(api, name, queues=2, message_types=["normal", "fifo"])) == first
    problem = assert_problem(create(api, name, queues=3), 409, "topic_exists")
    assert problem["retryable"] is False
    assert problem["errors"] == [
        {"pointer": "/queues", "code": "differs", "detail": "it is 2, the request has 3"},
        {
            "pointer": "/message_types",
            "code": "differs",
            "detail": 'it is ["normal","fifo"], the request has '
            '["normal","fifo","delayed","transactional"]',
        },
    ]


def test_a_put_creates_a_topic_once_and_never_changes_it(api, topic):
    path = f"/v1/topics/put-{topic}"
    first = api.put(path, json={"queues": 2})
    made = ok(first, 201)

    assert (made["queues"], made["max_delay_ms"], first.headers["etag"]) == (2, 30 * DAY_MS, '"1"')
    assert first.headers["location"] == path
    assert ok(api.put(path, json={"queues": 2})) == made
    problem = assert_problem(
        api.put(path, json={"queues": 3, "max_delay_ms": 0}), 409, "topic_exists"
    )
    assert [error["pointer"] for error in problem["errors"]] == ["/queues", "/max_delay_ms"]
    assert ok(api.get(path)) == made
    assert_problem(api.put(path, json={"topic": f"put-{topic}"}), 422, "validation_failed")
    assert_problem(api.put("/v1/topics/rmq_sys_x"), 422, "reserved_topic")
    assert ok(api.put(f"/v1/topics/put-all-defaults-{topic}"), 201)["queues"] == 4


@pytest.mark.parametrize("name", ["a", "A", "0", "-", "_x", "a.b", "x" * 127, "a..b", "a."])
def test_names_of_letters_digits_and_three_signs_are_taken(api, name):
    assert ok(create(api, name), 201)["topic"] == name
    assert ok(api.get(f"/v1/topics/{name}"))["topic"] == name


@pytest.mark.parametrize(
    "settings",
    [
        {"queues": 1},
        {"queues": 1_024},
        {"max_message_bytes": 16 << 20},
        {"max_message_bytes": 1},
        {"retention_ms": 1},
    ],
)
def test_settings_at_their_limits_are_taken(api, topic, settings):
    name = f"limit-{topic}"
    body = ok(create(api, name, **settings), 201)

    assert {setting: body[setting] for setting in settings} == settings
    assert len(ok(api.get(f"/v1/topics/{name}/queues"))["items"]) == body["queues"]


def test_queues_show_what_can_be_read(api, make_topic):
    topic = make_topic(queues=2)
    for _ in range(3):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "queue_id": 1}), 201)

    assert ok(api.get(f"/v1/topics/{topic}/queues")) == {
        "items": [
            {"queue_id": 0, "min_offset": 0, "max_offset": 0},
            {"queue_id": 1, "min_offset": 0, "max_offset": 3},
        ]
    }


def test_topics_come_by_name_and_in_pages(api, make_topic):
    mine = {make_topic() for _ in range(5)}
    found, query = [], {"page_size": 2}
    while True:
        page = ok(api.get("/v1/topics", params=query))
        assert len(page["items"]) <= 2
        found += [item["topic"] for item in page["items"]]
        if "next_page_token" not in page:
            break
        query = {"page_size": 2, "page_token": page["next_page_token"]}

    assert found == sorted(found)
    assert len(found) == len(set(found))
    assert mine <= set(found)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "%%%",
        "AAAA",
        "dG9waWNzOg",
        "ü",
        "x" * 1_024,
        "dHJhbnNhY3Rpb25zOngx",
        "dHJhbnNhY3Rpb25zOi0x",
    ],
)
def test_a_page_token_that_the_list_did_not_make_is_refused(api, token):
    for path in ("/v1/topics", "/v1/transactions"):
        assert_problem(api.get(path, params={"page_token": token}), 400, "invalid_page_token")


def test_the_token_of_one_list_is_none_of_another(api, make_topic):
    make_topic(), make_topic()
    token = ok(api.get("/v1/topics", params={"page_size": 1}))["next_page_token"]

    assert_problem(
        api.get("/v1/transactions", params={"page_token": token}), 400, "invalid_page_token"
    )


def test_topics_survive_a_restart_and_are_made_as_they_are_used_in_dev_only(tmp_path):
    with Server(tmp_path / "data", dev=True) as server, server.client() as api:
        first = ok(create(api, "orders", queues=2, retention_ms=5), 201)
        ok(api.post("/v1/topics/used/messages", json={"payload": "x"}), 201)
        begin = {
            "producer_group": "shop",
            "messages": [{"topic": "begun", "message": {"payload": "x"}}],
        }
        ok(api.post("/v1/transactions", json=begin), 201)
        assert_problem(api.get("/v1/topics/looked-at"), 404, "topic_not_found")
        assert_problem(commit(api, "billing", ("nowhere", 0, 0)), 404, "topic_not_found")
        server.kill()

        server.start()
        assert [item["topic"] for item in ok(api.get("/v1/topics"))["items"]] == [
            "begun",
            "orders",
            "used",
        ]
        assert ok(api.get("/v1/topics/orders")) == first
        assert ok(api.get("/v1/topics/used"))["queues"] == 4


def test_in_dev_what_is_refused_or_only_tried_makes_no_topic(tmp_path):
    good, wrong = {"json": 1}, {"json": 1, "key": "no spaces"}
    cron = {"cron": "@daily", "topic": "t", "message": good}
    begin = {
        "producer_group": "shop",
        "messages": [{"topic": "t", "message": good}, {"topic": "t", "message": wrong}],
    }
    with Server(tmp_path / "data", dev=True) as server, server.client() as api:
        refused = [
            api.post("/v1/topics/t/messages", json=wrong),
            api.post("/v1/topics/t/messages", content=b"{"),
            api.post(
                "/v1/topics/t/messages/raw", content=b"x", headers={"Message-Key": "no spaces"}
            ),
            api.post(
                "/v1/topics/t/messages/batch",
                json={"entries": [{"message": wrong}], "atomic": True},
            ),
            api.post("/v1/topics/t/messages/batch", json={"entries": []}),
            api.post("/v1/topics/t/requests", json={"message": wrong}),
            api.post("/v1/transactions", json=begin),
            api.post("/v1/schedules", json=cron | {"message": wrong}),
        ]
        assert [answer.status_code for answer in refused] == [
            422,
            400,
            422,
            422,
            422,
            422,
            422,
            422,
        ]
        ok(api.post("/v1/schedules", json=cron | {"dry_run": True}))
        assert_problem(api.get("/v1/topics/t"), 404, "topic_not_found")

        answers = at_once([lambda: api.post("/v1/topics/t/messages", json=good)] * 4)
        assert [answer.status_code for answer in answers] == [201] * 4
        ok(api.post("/v1/schedules", json=cron), 201)
        begin["messages"] = [{"topic": name, "message": good} for name in ("t", "u", "u")]
        ok(api.post("/v1/transactions", json=begin), 201)
        ok(api.post("/v1/topics/v/requests", json={"message": good, "timeout_ms": 60_000}), 202)

        assert [ok(api.get(f"/v1/topics/{name}"))["topic"] for name in "tuv"] == ["t", "u", "v"]


def test_without_dev_a_topic_that_nobody_made_is_404_everywhere(api):
    assert_problem(
        api.post("/v1/topics/nowhere/messages", json={"payload": "x"}), 404, "topic_not_found"
    )
    assert_problem(
        api.post("/v1/topics/nowhere/messages/raw", content=b"x"), 404, "topic_not_found"
    )
    batch = {"entries": [{"message": {"payload": "x"}}]}
    assert_problem(
        api.post("/v1/topics/nowhere/messages/batch", json=batch), 404, "topic_not_found"
    )
    assert_problem(api.get("/v1/topics/nowhere/queues/0/messages"), 404, "topic_not_found")
    assert_problem(
        api.get("/v1/topics/nowhere/queues/0/offset?at=2020-01-01T00:00:00Z"),
        404,
        "topic_not_found",
    )
    assert_problem(api.get("/v1/topics/nowhere/queues"), 404, "topic_not_found")
    assert_problem(api.get("/v1/topics/nowhere"), 404, "topic_not_found")


# --------------------------------------------------------------------------------------------------
# producer groups


def test_a_producer_group_is_made_then_found(api, topic):
    path = f"/v1/producer-groups/of-{topic}"
    assert_problem(api.get(path), 404, "producer_group_not_found")

    made = api.put(path, json={"check_mode": "poll"})

    body = ok(made, 201)
    assert (body["producer_group"], body["check_mode"], body["revision"]) == (
        f"of-{topic}",
        "poll",
        1,
    )
    assert made.headers["etag"] == '"1"'
    assert ok(api.put(path, json={"check_mode": "poll"})) == body
    assert ok(api.put(path)) == body
    assert ok(api.get(path)) == body


@pytest.mark.parametrize("kind", ["topics", "groups", "producer-groups"])
def test_the_conditions_of_a_put_must_hold(api, topic, kind):
    path = f"/v1/{kind}/of-{topic}"

    def put(header: str, value: str) -> httpx.Response:
        return api.put(path, json={}, headers={header: value})

    for fails in ('"1"', "*"):
        assert_problem(put("If-Match", fails), 412, "revision_mismatch")
    assert api.get(path).status_code == 404
    ok(put("If-None-Match", "*"), 201)

    assert_problem(put("If-Match", '"2"'), 412, "revision_mismatch")
    for fails in ("*", '"1"', '"7", "1"', 'W/"1"'):
        assert_problem(put("If-None-Match", fails), 412, "revision_mismatch")
    for holds in ('"1"', '"7", "1"', "*"):
        ok(put("If-Match", holds))
    ok(put("If-None-Match", '"2"'))


@pytest.mark.parametrize("kind", ["topics", "groups", "producer-groups"])
def test_what_the_client_has_by_its_etag_is_not_sent_again(api, topic, kind):
    path = f"/v1/{kind}/known-{topic}"
    ok(api.put(path, json={}), 201)
    for method in ("GET", "HEAD"):
        for known in ('"1"', 'W/"1"', '"7", "1"', "*"):
            answer = api.request(method, path, headers={"If-None-Match": known})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == '"1"'
            assert not answer.headers.keys() & {"content-length", "content-type"}
        changed = api.request(method, path, headers={"If-None-Match": '"2"'})
        assert (changed.status_code, changed.headers["etag"]) == (200, '"1"')
    # of another resource it says nothing
    ok(api.get("/v1/version", headers={"If-None-Match": "*"}))
    assert api.get(f"{path}-not", headers={"If-None-Match": "*"}).status_code == 404


# --------------------------------------------------------------------------------------------------
# offsets


def test_a_group_continues_where_it_said(api, make_topic):
    first, second = make_topic(queues=2), make_topic()
    group = f"group-of-{first}"
    for topic in (first, first, first, second):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "queue_id": 0}), 201)
    assert_problem(api.get(f"/v1/groups/{group}/offsets"), 404, "group_not_found")

    answer = ok(commit(api, group, (first, 0, 2), (second, 0, 1)))

    of_first = {"topic": first, "queue_id": 0, "offset": 2, "min_offset": 0, "max_offset": 3}
    of_second = {"topic": second, "queue_id": 0, "offset": 1, "min_offset": 0, "max_offset": 1}
    assert answer == {"items": [of_first, of_second]}
    found = ok(api.get(f"/v1/groups/{group}/offsets"))["items"]
    assert sorted(found, key=str) == sorted([of_first, of_second], key=str)
    assert ok(api.get(f"/v1/groups/{group}/offsets", params={"topic": second})) == {
        "items": [of_second]
    }
    # It may go back as well as forward, to the beginning and to the end.
    for offset in (3, 0):
        assert ok(commit(api, group, (first, 0, offset)))["items"][0]["offset"] == offset


def test_many_offsets_wait_for_the_disk_together(api, make_topic):
    topic = make_topic(queues=300)

    before = syncs(api)
    ok(commit(api, f"group-of-{topic}", *[(topic, queue, 0) for queue in range(300)]))

    assert syncs(api) - before < 30


def syncs(api: httpx.Client) -> float:
    """How often the log was synced."""
    lines = api.get("/metrics").text.splitlines()
    return float(
        next(line for line in lines if line.startswith("escrowmq_log_sync_seconds_count ")).split()[
            1
        ]
    )


def test_an_offset_that_cannot_be_is_refused_and_none_of_the_request_is_committed(api, make_topic):
    topic = make_topic(queues=2)
    group = f"group-of-{topic}"

    assert_problem(
        commit(api, group, (topic, 0, 0), (topic, 1, 1)), 400, "offset_beyond_end", "/offsets/1"
    )
    assert_problem(
        commit(api, group, (topic, 0, 0), (topic, 2, 0)), 404, "queue_not_found", "/offsets/1"
    )
    assert_problem(
        commit(api, group, (topic, 0, 0), ("nowhere", 0, 0)), 404, "topic_not_found", "/offsets/1"
    )
    assert_problem(
        commit(api, group, (topic, 0, 0), (topic, 0, 0)), 422, "validation_failed", "/offsets/1"
    )

    assert_problem(api.get(f"/v1/groups/{group}/offsets"), 404, "group_not_found")


def test_offsets_survive_kill_9(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        for _ in range(3):
            ok(api.post("/v1/topics/orders/messages", json={"payload": "x", "queue_id": 0}), 201)
        for offset in range(3):
            ok(commit(api, "billing", ("orders", 0, offset)))
        server.kill()

        server.start()
        (item,) = ok(api.get("/v1/groups/billing/offsets"))["items"]
        assert item == {
            "topic": "orders",
            "queue_id": 0,
            "offset": 2,
            "min_offset": 0,
            "max_offset": 3,
        }
