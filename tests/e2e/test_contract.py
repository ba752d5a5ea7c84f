"""What the contract says of every operation alike, and the small operations that say who, what and
how far.
"""

import json
import re

import pytest
from typer.testing import CliRunner

import cli.main
from app.problems import PROBLEMS
from tests.support.http import assert_problem, ok
from tests.support.line_stream import LineStream
from tests.support.server import AsgiServer, Server

RECEIPT = ["message_id", "topic", "queue_id", "queue_offset"]


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_code_of_the_list_has_its_page(api, code):
    page = api.get(f"/problems/{code}")

    assert page.status_code == 200
    assert f"<code>{code}</code>" in page.text


def test_who_opens_the_root_is_led_to_the_documentation(api):
    answer = api.get("/")

    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")


# --------------------------------------------------------------------------------------------------
# store pressure


def test_a_refused_send_says_how_full_the_queue_of_writes_is_as_a_taken_one_does(api, topic):
    refused = {
        "field": api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "delay_ms": -5}),
        "topic": api.post("/v1/topics/nobody-made-it/messages", json={"payload": "x"}),
        "type": api.post(
            f"/v1/topics/{topic}/messages", content=b"x", headers={"Content-Type": "text/plain"}
        ),
        "batch": api.post(
            f"/v1/topics/{topic}/messages/batch", json={"entries": [{"message": {}}]}
        ),
        "raw": api.post(
            f"/v1/topics/{topic}/messages/raw", content=b"x", headers={"Message-Nothing": "x"}
        ),
        "begin": api.post("/v1/transactions", json={"producer_group": "shop", "messages": []}),
        "stream": api.post("/v1/topics/nobody-made-it/messages/stream", content=b"{}"),
    }

    assert {what: answer.status_code for what, answer in refused.items()} == {
        "field": 422, "topic": 404, "type": 415, "batch": 422, "raw": 422, "begin": 422,
        "stream": 404
    }  # fmt: skip
    for what, answer in refused.items():
        assert 0 <= float(answer.headers["store-pressure"]) <= 1, what
    assert "store-pressure" not in api.get("/v1/topics/nobody-made-it").headers


def test_the_answer_to_a_stream_says_how_full_the_queue_of_writes_is(server, topic):
    with LineStream(server, topic) as stream:
        stream.send({"message": {"payload": "x"}})
        stream.end()

        assert stream.rest()[0]["status"] == 201
        assert 0 <= float(stream.headers["store-pressure"]) <= 1


# --------------------------------------------------------------------------------------------------
# repeating


@pytest.mark.parametrize("kind", [Server, AsgiServer], ids=["lane", "asgi"])
def test_a_refusal_says_in_milliseconds_what_retry_after_says_in_seconds(kind, tmp_path):
    environment = {"ESCROWMQ_TXN__MAX_OPEN": "1"}
    with (
        kind(tmp_path / "data", dev=False, environment=environment) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        message = {"topic": "orders", "message": {"payload": "x"}}
        begin = {"producer_group": "shop", "messages": [message]}
        ok(api.post("/v1/transactions", json=begin), 201)
        refused = api.post("/v1/transactions", json=begin)
        missing = api.get("/v1/topics/nobody-made-it")

    problem = assert_problem(refused, 429, "too_many_open_transactions")
    assert (refused.headers["retry-after"], problem["retry_after_ms"]) == ("1", 1_000)
    assert "retry-after" not in missing.headers
    assert "retry_after_ms" not in missing.json()


# --------------------------------------------------------------------------------------------------
# pointers


@pytest.mark.parametrize(
    ("message", "pointer"), [({"payload": "x", "delay_ms": -5}, "/delay_ms"), ({}, "/payload")]
)
def test_what_is_wrong_with_a_message_is_shown_at_its_place_in_the_line_or_batch(
    api, server, topic, message, pointer
):
    with LineStream(server, topic) as stream:
        stream.send({"id": "1", "message": message})
        stream.end()
        (in_line,) = stream.rest()
    entries = [{"message": {"payload": "y"}}, {"message": message}]
    batch = ok(
        api.post(f"/v1/topics/{topic}/messages/batch", json={"atomic": False, "entries": entries}),
        207,
    )

    for problem, place in (
        (in_line["problem"], "/message"),
        (batch["results"][1]["problem"], "/entries/1/message"),
    ):
        assert [error["pointer"] for error in problem["errors"]] == [place + pointer]
        assert " /delay_ms" not in f" {problem['detail']}", "the text names the same place"


# --------------------------------------------------------------------------------------------------
# small strictness


@pytest.mark.parametrize("number", ["1.0", "+1", "1_0", " 1", "1e1"])
def test_a_number_in_a_query_or_header_is_written_in_digits(api, topic, number):
    pulled = api.get(f"/v1/topics/{topic}/queues/0/messages", params={"max_messages": number})
    sent = api.post(
        f"/v1/topics/{topic}/messages/raw",
        content=b"x",
        headers={"Message-Delay-Ms": number.strip() + ".0"},
    )

    assert_problem(pulled, 422, "validation_failed", "/query/max_messages")
    assert_problem(sent, 422, "validation_failed", "/headers/message-delay-ms")


def test_a_raw_message_sent_again_with_its_key_is_the_same_whatever_its_content_type(api, topic):
    path, key = f"/v1/topics/{topic}/messages/raw", {"Idempotency-Key": "k-1", "Message-Tag": "a"}
    first = ok(api.post(path, content=b"x", headers={**key, "Content-Type": "text/plain"}), 201)

    again = api.post(
        path, content=b"x", headers={**key, "Content-Type": "application/octet-stream"}
    )

    assert again.headers["idempotency-replayed"] == "true"
    assert {name: ok(again, 201)[name] for name in RECEIPT} == {
        name: first[name] for name in RECEIPT
    }
    other = api.post(path, content=b"x", headers={**key, "Message-Tag": "b"})
    assert_problem(other, 422, "idempotency_key_reused")


def test_a_look_at_a_request_waits_for_as_long_as_prefer_says(api, topic):
    asked = ok(
        api.post(
            f"/v1/topics/{topic}/requests", json={"message": {"payload": "x"}, "timeout_ms": 300}
        ),
        202,
    )

    found = ok(api.get(f"/v1/requests/{asked['request_id']}", headers={"Prefer": "wait=20"}))

    assert found["state"] == "timed_out"


# ------------------------------------------------------------------------------------------- who,
# what, how far, how set


def test_a_buffered_message_becomes_durable_when_it_is_waited_for(tmp_path):
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_LOCAL__FLUSH": "interval"}) as server,
        server.client() as api,
    ):
        receipt = ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        assert receipt["durability"] == "buffered"

        waited = ok(
            api.get(
                "/v1/store/durability", params={"offset": receipt["log_offset"], "wait_ms": 20_000}
            )
        )
        beyond = ok(api.get("/v1/store/durability", params={"offset": 1 << 40, "wait_ms": 20_000}))
        ok(api.post("/v1/topics/orders/messages", json={"payload": "y"}), 201)
        flushed = ok(api.post("/v1/admin/store/flush"))
        all_of_it = ok(api.get("/v1/store/durability"))
        log = ok(api.get("/v1/admin/store"))["log"]

    assert waited["synced"]
    assert waited["synced_offset"] > receipt["log_offset"]
    assert not beyond["synced"], "nothing is stored there, and nobody waits for it"
    assert all_of_it["synced"]
    assert waited["synced_offset"] < flushed["synced_offset"] <= log["synced_offset"]
    assert flushed["took_ms"] >= 0


def test_a_start_says_what_it_found_and_the_settings_are_shown_without_secrets(tmp_path):
    environment = {
        "ESCROWMQ_API_KEYS": '["a-secret-key"]',
        "ESCROWMQ_REPLICA__SECRET": "c2VjcmV0LXNlY3JldA",
        "ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS": json.dumps(
            ["c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="]
        ),
        "ESCROWMQ_HTTP__MAX_WAITING": "77",
    }
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        for path in (
            "/v1/whoami",
            "/v1/version",
            "/v1/admin/config",
            "/v1/admin/recovery",
            "/v1/store/durability",
        ):
            assert_problem(api.get(path), 401, "unauthenticated")
        api.headers["Authorization"] = "Bearer a-secret-key"
        new = ok(api.get("/v1/admin/recovery"))
        assert server.terminate() == 0
        server.start()
        after_a_stop = ok(api.get("/v1/admin/recovery"))
        ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        server.kill()
        server.start()
        after_a_kill = ok(api.get("/v1/admin/recovery"))
        told = CliRunner().invoke(
            cli.main.app,
            ["store", "recovery-report", "--url", server.url, "--api-key", "a-secret-key"],
        )
        config = api.get("/v1/admin/config")
        whoami, version = ok(api.get("/v1/whoami")), ok(api.get("/v1/version"))

    stored = CliRunner().invoke(cli.main.app, ["store", "recovery-report", str(tmp_path / "data")])
    assert told.output == stored.output
    assert re.findall(r": started (.*?),", stored.output) == [
        "after a crash or a kill",
        "after a stop in order",
        "after a stop in order",
    ]
    assert (new["was_clean"], new["earlier"]) == (True, [])
    assert [one["reached_ready"] for one in (new, after_a_stop, after_a_kill)] == [True] * 3
    assert {"transactions", "group_offsets"} <= {one["table"] for one in new["tables"]}
    assert {"walk", "transactions", "delivery"} <= {one["step"] for one in new["steps"]}
    assert [report["was_clean"] for report in after_a_kill["earlier"]] == [True, True]
    assert (after_a_stop["was_clean"], after_a_stop["walked_bytes"]) == (True, 0)
    assert not after_a_kill["was_clean"]
    assert after_a_kill["walked_bytes"] > 0
    settings = ok(config)["settings"]
    assert settings["ESCROWMQ_HTTP__MAX_WAITING"] == "77"
    assert (settings["ESCROWMQ_API_KEYS"], settings["ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS"]) == (
        "(set)",
        "(set)",
    )
    assert "secret" not in re.sub("replica__secret|secret_overlap_ms", "", config.text.lower())
    assert settings["ESCROWMQ_REPLICA__SECRET"] == "(set)"
    assert "c2VjcmV0" not in config.text
    assert (whoami["authenticated"], whoami["namespace"], len(whoami["scopes"])) == (
        True,
        "default",
        6,
    )
    assert (version["name"], version["api_version"]) == ("EscrowMQ", "v1")
