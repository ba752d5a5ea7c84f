"""What a PUT of a consumer group changes, and what it refuses to change."""

import json
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok


def tag(topic: str, expression: str) -> dict[str, Any]:
    return {"topic": topic, "filter": {"kind": "tag", "expression": expression}}


@pytest.fixture
def path(topic) -> str:
    return f"/v1/groups/group-of-{topic}"


@pytest.fixture
def group(api, path, topic) -> dict[str, Any]:
    """A group with a filter and settings that are not the defaults."""
    return ok(
        api.put(path, json={"topics": [tag(topic, "a")], "max_attempts": 5, "lease_ms": 1_000}), 201
    )


def refused(response: httpx.Response) -> list[tuple[str, str]]:
    """(pointer, old and new value) of each conflict."""
    problem = assert_problem(response, 409, "filter_conflict")
    assert {error["code"] for error in problem["errors"]} == {"filter_conflict"}
    return [(error["pointer"], error["detail"]) for error in problem["errors"]]


def test_what_a_put_leaves_out_keeps_its_value(api, path, topic, group):
    for body in (
        {},
        {"topics": [tag(topic, "a")]},
        {"topics": [{"topic": topic}]},
        {"max_attempts": 5},
        {"start": "earliest"},
    ):
        answer = api.put(path, json=body)
        assert ok(answer) == group
        assert answer.headers["etag"] == '"1"'


def test_another_filter_is_refused_with_the_old_and_the_new_one(api, path, topic, group):
    old, new = '{"kind":"tag","expression":"a"}', '{"kind":"tag","expression":"b"}'
    assert refused(api.put(path, json={"topics": [tag(topic, "b")], "max_attempts": 9})) == [
        ("/topics/0/filter", f"it is {old}, the request has {new}")
    ]
    assert ok(api.get(path)) == group


def test_another_start_and_a_topic_left_out_are_refused(api, path, topic, make_topic, group):
    assert refused(api.put(path, json={"start": "latest"})) == [
        ("/start", 'it is "earliest", the request has "latest"')
    ]
    assert refused(api.put(path, json={"topics": []})) == [
        ("/topics", f'it is "{topic}", the request has null')
    ]
    assert refused(
        api.put(path, json={"topics": [{"topic": make_topic()}], "start": "latest"})
    ) == [
        ("/topics", f'it is "{topic}", the request has null'),
        ("/start", 'it is "earliest", the request has "latest"'),
    ]
    assert ok(api.get(path)) == group


def test_a_new_topic_and_other_numbers_are_a_new_revision_and_a_log_line(
    api, path, topic, make_topic, group, server
):
    other = make_topic()
    body = {"topics": [tag(other, "x"), tag(topic, "a")], "max_attempts": 7}
    changed = ok(api.put(path, json=body))

    assert changed == group | {
        "topics": [tag(topic, "a"), tag(other, "x")],
        "max_attempts": 7,
        "revision": 2,
    }
    assert ok(api.put(path, json=body)) == changed
    lines = [json.loads(line) for line in server.log().splitlines() if "group_changed" in line]
    (line,) = [line for line in lines if line["group"] == group["group"]]
    assert (line["revision"], line["changes"]["max_attempts"]) == (2, [5, 7])


def test_with_if_match_a_put_replaces_all_settings(api, path, topic, group):
    assert_problem(
        api.put(path, json={"topics": []}, headers={"If-Match": '"7"'}), 412, "revision_mismatch"
    )
    replaced = ok(
        api.put(
            path, json={"topics": [tag(topic, "b")], "start": "latest"}, headers={"If-Match": '"1"'}
        )
    )

    assert (replaced["topics"], replaced["start"]) == ([tag(topic, "b")], "latest")
    assert (replaced["max_attempts"], replaced["lease_ms"], replaced["revision"]) == (17, 30_000, 2)


def test_a_group_without_topics_takes_its_first_ones_and_a_start(api, path, topic):
    ok(api.put(f"{path}/offsets", json={"offsets": [{"topic": topic, "queue_id": 0, "offset": 0}]}))

    changed = ok(api.put(path, json={"topics": [tag(topic, "a")], "start": "latest"}))

    assert (changed["topics"], changed["start"], changed["revision"]) == (
        [tag(topic, "a")],
        "latest",
        2,
    )
