"""`escrowmq group reset`: shows what it would do, does it with --yes, and says why it did not."""

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

import cli.main
from tests.support.http import ok

pytestmark = pytest.mark.usefixtures("no_settings_of_the_machine")


def run(group: str, topic: str, url: str, *options: str) -> Result:
    command = ["group", "reset", group, "--topic", topic, "--url", url, *options]
    return CliRunner().invoke(cli.main.app, command)


@pytest.fixture
def group(api, topic) -> str:
    """A group that has settled the five messages of the topic; it has the topic's name."""
    for number in range(5):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": str(number)}), 201)
    move(api, topic, 5)
    return topic


def move(api: httpx.Client, topic: str, offset: int) -> None:
    offsets = [{"topic": topic, "queue_id": 0, "offset": offset}]
    ok(api.put(f"/v1/groups/{topic}/offsets", json={"offsets": offsets}))


def offset_of(api: httpx.Client, group: str) -> int:
    (one,) = ok(api.get(f"/v1/groups/{group}/offsets"))["items"]
    return one["offset"]


def test_without_yes_the_effect_is_shown_and_nothing_is_changed(server, api, topic, group):
    shown = run(group, topic, server.url, "--to", "earliest")
    offset_before = offset_of(api, group)
    done = run(group, topic, server.url, "--to", "earliest", "--yes")

    assert (shown.exit_code, offset_before) == (0, 5)
    assert "5 messages would be delivered again." in shown.stdout
    assert "--yes" in shown.stderr
    assert (done.exit_code, offset_of(api, group)) == (0, 0)
    assert "5 messages will be delivered again." in done.stdout
    assert done.stderr == ""


def test_the_effect_on_a_group_with_members_says_that_they_prevent_it(server, api, topic, group):
    member = {"client_id": "a", "topics": [{"topic": topic}]}
    member_id = ok(api.post(f"/v1/groups/{group}/members", json=member), 201)["member_id"]

    shown = run(group, topic, server.url, "--to", "earliest")
    refused = run(group, topic, server.url, "--to", "earliest", "--yes")
    assert api.delete(f"/v1/groups/{group}/members/{member_id}").status_code == 204
    alone = run(group, topic, server.url, "--to", "earliest")

    assert (shown.exit_code, refused.exit_code, alone.exit_code) == (0, 3, 0)
    assert "5 messages would be delivered again; refused while members share" in shown.stdout
    assert "members share the queues" in refused.stderr
    assert "5 messages would be delivered again.\n" in alone.stdout


def test_a_group_is_moved_to_the_message_of_a_time_or_to_an_offset(server, api, topic, group):
    pulled = ok(api.get(f"/v1/topics/{topic}/queues/0/messages?max_messages=10"))["messages"]
    at = pulled[3]["stored_at"]
    expected = next(one["queue_offset"] for one in pulled if one["stored_at"] >= at)

    assert run(group, topic, server.url, "--at", at, "--yes").exit_code == 0
    assert offset_of(api, group) == expected
    assert run(group, topic, server.url, "--at", "2020-01-01", "--yes").exit_code == 0
    assert offset_of(api, group) == 0
    assert run(group, topic, server.url, "--at", "2900-01-01T00:00+01:00", "--yes").exit_code == 0
    assert offset_of(api, group) == 5
    assert run(group, topic, server.url, "--offset", "2", "--queue-id", "0", "--yes").exit_code == 0
    assert offset_of(api, group) == 2


def test_the_effect_is_written_as_json(server, topic, group, tmp_path):
    file = tmp_path / "effect.json"

    shown = run(group, topic, server.url, "--to", "earliest", "--json", str(file))
    alone = run(group, topic, server.url, "--to", "earliest", "--json", "-")

    expected: dict[str, Any] = {
        "group": group,
        "topic": topic,
        "dry_run": True,
        "queues": [{"queue_id": 0, "from_offset": 5, "to_offset": 0}],
        "messages_affected": 5,
        "already_acked": 5,
        "note": "5 messages would be delivered again",
    }
    assert shown.exit_code == alone.exit_code == 0
    assert json.loads(file.read_text("utf-8")) == json.loads(alone.stdout) == expected


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--to", "earliest", "--at", "2026-01-01"),
        ("--to", "middle"),
        ("--at", "yesterday"),
        ("--at", "2026-01-01T00:00:00"),
        ("--offset", "1"),
        ("--offset", "-1", "--queue-id", "0"),
        ("--to", "earliest", "--url", "127.0.0.1:8080"),
        ("--to", "earliest", "--json", "nowhere/effect.json"),
    ],
)
def test_wrong_usage_ends_with_2(server, options):
    assert run("billing", "orders", server.url, *options).exit_code == 2


def test_a_refusal_ends_with_3_and_the_reason_of_the_service(server, topic, group):
    unknown = run("nobodys", topic, server.url, "--to", "latest", "--yes")
    beyond = run(group, topic, server.url, "--offset", "6", "--queue-id", "0", "--yes")

    assert (unknown.exit_code, beyond.exit_code) == (3, 3)
    assert "group nobodys does not exist" in unknown.stderr
    assert "offset 6 is not in [0, 5]" in beyond.stderr
