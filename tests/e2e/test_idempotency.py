"""Idempotency-Key: the same request again changes nothing and gets the same answer, also after a
kill -9.
"""

import json
import threading
from itertools import count

import httpx
import pytest

from tests.support.http import assert_problem, ok
from tests.support.server import Server

_keys = count(1)


def fresh_key() -> str:
    return f"key-{next(_keys)}"


def with_key(key: str, **headers: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **headers}


def send(api: httpx.Client, topic: str, key: str, body: object) -> httpx.Response:
    return api.post(f"/v1/topics/{topic}/messages", json=body, headers=with_key(key))


def send_batch(api: httpx.Client, topic: str, key: str, body: object) -> httpx.Response:
    return api.post(f"/v1/topics/{topic}/messages/batch", json=body, headers=with_key(key))


def send_raw(
    api: httpx.Client, topic: str, key: str, body: bytes, **headers: str
) -> httpx.Response:
    return api.post(
        f"/v1/topics/{topic}/messages/raw", content=body, headers=with_key(key, **headers)
    )


def begin(api: httpx.Client, topic: str, key: str, **fields: object) -> httpx.Response:
    body = {
        "producer_group": "shop",
        "messages": [{"topic": topic, "message": {"payload": "x"}}],
        **fields,
    }
    return api.post("/v1/transactions", json=body, headers=with_key(key))


def count_of(api: httpx.Client, topic: str) -> int:
    return sum(queue["max_offset"] for queue in ok(api.get(f"/v1/topics/{topic}/queues"))["items"])


def assert_replayed(first: httpx.Response, again: httpx.Response) -> None:
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.status_code == first.status_code
    assert again.headers.get("location") == first.headers.get("location")


def test_a_send_again_is_the_same_message(api, topic):
    key = fresh_key()
    first = send(api, topic, key, {"json": 1})
    again = send(api, topic, key, {"json": 1})

    assert_replayed(first, again)
    assert ok(again, 201) == ok(first, 201) | {"deduplicated": True}
    assert first.json()["deduplicated"] is False
    assert count_of(api, topic) == 1


def test_a_key_with_another_body_is_refused(api, topic):
    key = fresh_key()
    ok(send(api, topic, key, {"json": 1}), 201)

    other = send(api, topic, key, {"json": 2})
    assert_problem(other, 422, "idempotency_key_reused")
    assert other.json()["context"] == {"idempotency_key": key}
    # The bytes count, not what they mean.
    spaced = api.post(
        f"/v1/topics/{topic}/messages",
        content=b'{ "json": 1 }',
        headers=with_key(key, **{"Content-Type": "application/json"}),
    )
    assert_problem(spaced, 422, "idempotency_key_reused")
    assert count_of(api, topic) == 1


def test_a_key_belongs_to_method_and_path(api, make_topic):
    one, other = make_topic(), make_topic()
    key = fresh_key()
    first = ok(send(api, one, key, {"json": 1}), 201)

    assert ok(send(api, other, key, {"json": 1}), 201)["message_id"] != first["message_id"]
    assert ok(send_raw(api, one, key, b"1"), 201)["deduplicated"] is False
    assert (
        ok(send_batch(api, one, key, {"entries": [{"message": {"json": 1}}]}), 201)["results"][0][
            "receipt"
        ]["deduplicated"]
        is False
    )
    assert ok(begin(api, one, key), 201)["state"] == "prepared"
    assert count_of(api, one) == 3


def test_the_same_topic_written_otherwise_in_the_path_is_the_same_path(api, topic):
    key = fresh_key()
    first = ok(send(api, topic, key, {"json": 1}), 201)
    escaped = "".join(f"%{ord(character):02x}" for character in topic)

    again = api.post(f"/v1/topics/{escaped}/messages", json={"json": 1}, headers=with_key(key))

    assert ok(again, 201)["message_id"] == first["message_id"]


def test_a_refused_request_is_not_remembered(api, topic):
    key = fresh_key()
    assert_problem(send(api, topic, key, {"json": 1, "payload": "1"}), 422, "validation_failed")

    assert ok(send(api, topic, key, {"json": 1}), 201)["deduplicated"] is False


def test_a_batch_again_is_the_same_batch(api, topic):
    key, body = (
        fresh_key(),
        {"entries": [{"id": "a", "message": {"json": 1}}, {"id": "b", "message": {"json": 2}}]},
    )
    first, again = send_batch(api, topic, key, body), send_batch(api, topic, key, body)

    assert_replayed(first, again)
    for one, other in zip(ok(first, 201)["results"], ok(again, 201)["results"], strict=True):
        assert other == one | {"receipt": one["receipt"] | {"deduplicated": True}}
    assert_problem(
        send_batch(api, topic, key, {**body, "atomic": False}), 422, "idempotency_key_reused"
    )
    assert count_of(api, topic) == 2


def test_a_batch_that_was_partly_or_wholly_refused_is_answered_again_as_it_was(api, topic):
    wrong = {"payload": "x", "queue_id": 9}
    for messages, stored in ([{"payload": "1"}, wrong, {"payload": "2"}], 2), ([wrong], 0):
        key = fresh_key()
        body = {"atomic": False, "entries": [{"message": message} for message in messages]}
        before = count_of(api, topic)
        first, again = send_batch(api, topic, key, body), send_batch(api, topic, key, body)

        assert_replayed(first, again)
        was, now = ok(first, 207), ok(again, 207)
        assert (
            (was["accepted"], was["rejected"])
            == (now["accepted"], now["rejected"])
            == (stored, len(messages) - stored)
        )
        assert [result["status"] for result in was["results"]] == [
            result["status"] for result in now["results"]
        ]
        assert [result.get("problem") for result in was["results"]] == [
            result.get("problem") for result in now["results"]
        ]
        assert_problem(
            send_batch(api, topic, key, {"entries": [{"message": {"payload": "y"}}]}),
            422,
            "idempotency_key_reused",
        )
        assert count_of(api, topic) == before + stored


def test_raw_bytes_again_are_the_same_message_and_their_headers_count(api, topic):
    key = fresh_key()
    first = send_raw(api, topic, key, b"\x00\xff", **{"Message-Key": "k"})
    again = send_raw(api, topic, key, b"\x00\xff", **{"Message-Key": "k"})

    assert_replayed(first, again)
    assert ok(again, 201)["message_id"] == ok(first, 201)["message_id"]
    assert_problem(
        send_raw(api, topic, key, b"\x00\xff", **{"Message-Key": "other"}),
        422,
        "idempotency_key_reused",
    )
    assert_problem(send_raw(api, topic, key, b"\x00"), 422, "idempotency_key_reused")
    assert count_of(api, topic) == 1


def test_a_begin_again_is_the_transaction_as_it_is_now(api, topic):
    key = fresh_key()
    first = begin(api, topic, key)
    again = begin(api, topic, key)
    assert_replayed(first, again)
    assert ok(again, 201) == ok(first, 201)

    api.post(f"/v1/transactions/{first.json()['transaction_id']}/commit")
    later = ok(begin(api, topic, key), 201)
    assert (later["transaction_id"], later["state"]) == (
        first.json()["transaction_id"],
        "committed",
    )
    other = begin(api, topic, key, business_key="other")
    assert_problem(other, 422, "idempotency_key_reused")
    assert other.json()["context"] == {
        "idempotency_key": key,
        "transaction_id": later["transaction_id"],
        "state": "committed",
    }
    assert count_of(api, topic) == 1


def test_a_begin_again_with_its_own_id_is_no_conflict(api, topic):
    key, body = fresh_key(), {"transaction_id": f"own-{topic}"}

    assert_replayed(begin(api, topic, key, **body), begin(api, topic, key, **body))
    assert_problem(begin(api, topic, fresh_key(), **body), 409, "transaction_exists")


def test_creating_a_topic_again_with_its_key_is_201_as_it_was(api, topic):
    key, body = fresh_key(), {"topic": f"keyed-{topic}"}
    first = api.post("/v1/topics", json=body, headers=with_key(key))
    again = api.post("/v1/topics", json=body, headers=with_key(key))

    assert_replayed(first, again)
    assert ok(again, 201) == ok(first, 201)
    # without the key: 200, equal
    assert ok(api.post("/v1/topics", json=body))["topic"] == body["topic"]
    assert_problem(
        api.post("/v1/topics", json={"topic": "x"}, headers=with_key(key)),
        422,
        "idempotency_key_reused",
    )
    assert_problem(
        api.post("/v1/topics", json=body | {"queues": 9}, headers=with_key(fresh_key())),
        409,
        "topic_exists",
    )


def test_after_the_topics_window_a_key_is_free_again(api, make_topic):
    topic, key = make_topic(dedup_window_ms=0), fresh_key()
    first = ok(send(api, topic, key, {"json": 1}), 201)

    ids = {ok(send(api, topic, key, {"json": 1}), 201)["message_id"] for _ in range(20)}

    assert ids - {first["message_id"]}, "twenty sends take longer than 0 ms"


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256, "a\tb"])
def test_a_key_that_is_none_is_refused_on_every_post_that_takes_one(server, api, topic, key):
    header = {"Idempotency-Key": key.encode("utf-8")}
    for path, body in (
        ("/v1/topics", {"topic": "x"}),
        (f"/v1/topics/{topic}/messages", {"json": 1}),
        (f"/v1/topics/{topic}/messages/batch", {"entries": [{"message": {"json": 1}}]}),
        (f"/v1/topics/{topic}/messages/raw", {"json": 1}),
        (
            "/v1/transactions",
            {"producer_group": "shop", "messages": [{"topic": topic, "message": {"json": 1}}]},
        ),
    ):
        answer = api.post(path, json=body, headers=header)  # type: ignore[arg-type]
        assert_problem(answer, 422, "validation_failed", "/headers/idempotency-key")


def test_a_key_of_255_characters_is_taken(api, topic):
    assert ok(send(api, topic, "!" * 255, {"json": 1}), 201)["deduplicated"] is False
    assert ok(send(api, topic, "!" * 255, {"json": 1}), 201)["deduplicated"] is True


def test_two_different_keys_in_one_request_are_refused(api, topic):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]

    answer = api.post(f"/v1/topics/{topic}/messages", json={"json": 1}, headers=headers)

    assert_problem(answer, 422, "validation_failed", "/headers/idempotency-key")


@pytest.mark.parametrize("kind", ["send", "raw", "batch", "begin"])
def test_of_many_at_once_with_one_key_one_is_taken_and_the_others_are_told_to_come_back(
    server, topic, kind
):
    requests = {
        "send": lambda client, key: send(client, topic, key, {"json": 1}),
        "raw": lambda client, key: send_raw(client, topic, key, b"1"),
        "batch": lambda client, key: send_batch(
            client, topic, key, {"entries": [{"message": {"json": 1}}]}
        ),
        "begin": lambda client, key: begin(client, topic, key),
    }
    were_in_progress = 0
    rounds = 0
    with server.client(limits=httpx.Limits(max_connections=8)) as client:
        while not were_in_progress and rounds < 50:
            rounds += 1
            key, found, gate = fresh_key(), [], threading.Barrier(8)

            def one(key=key, found=found, gate=gate) -> None:
                gate.wait()
                found.append(requests[kind](client, key))

            threads = [threading.Thread(target=one) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            taken = [answer for answer in found if answer.status_code == 201]
            others = [answer for answer in found if answer.status_code != 201]
            assert sum("idempotency-replayed" not in answer.headers for answer in taken) == 1
            for answer in others:
                assert_problem(answer, 409, "idempotency_in_progress")
            were_in_progress += len(others)
    assert were_in_progress, "in fifty rounds no two requests met"


def test_every_key_is_known_after_kill_9(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(
            api.post("/v1/topics", json={"topic": "orders", "queues": 1}, headers=with_key("k")),
            201,
        )
        partly = {
            "atomic": False,
            "entries": [{"message": {"json": 2}}, {"message": {"payload": "x", "queue_id": 7}}],
        }
        requests = [
            lambda: api.post(
                "/v1/topics", json={"topic": "orders", "queues": 1}, headers=with_key("k")
            ),
            lambda: send(api, "orders", "k", {"json": 1}),
            lambda: send_batch(api, "orders", "k", partly),
            lambda: send_raw(api, "orders", "k", b"3", **{"Message-Tag": "t"}),
            lambda: begin(api, "orders", "k", check={"first_after_ms": 3_600_000}),
        ]
        before = [request() for request in requests]
        server.kill()
        server.start()
        after = [request() for request in requests]

        for was, now in zip(before, after, strict=True):
            assert now.headers["idempotency-replayed"] == "true"
            assert now.status_code == was.status_code
            assert (
                json.loads(now.text.replace('"deduplicated":true', '"deduplicated":false'))
                == was.json()
            )
        assert_problem(send(api, "orders", "k", {"json": 9}), 422, "idempotency_key_reused")
        assert_problem(
            begin(api, "orders", "k", business_key="other"), 422, "idempotency_key_reused"
        )
        assert count_of(api, "orders") == 3
