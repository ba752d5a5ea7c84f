"""Messages with several keys, over HTTP: sent in every way, found by each key, also after a kill and
when the key index is rebuilt, and shown with all keys wherever a message is shown.
"""

import json
import shutil
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

KEYS = ["order-8812", "kunde-ü", "rechnung,7"]
LONG_MS = 20_000
LARGE = "x" * 600_000  # is decoded in the process of large bodies


def single(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    ok(api.post(f"{path}/messages", json=message), 201)


def batch(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    entries = [{"message": message}, {"message": {"payload": "behind it"}}]
    ok(api.post(f"{path}/messages/batch", json={"entries": entries}), 201)


def loose_batch(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    given = {"atomic": False, "entries": [{"message": {}}, {"message": message}]}
    ok(api.post(f"{path}/messages/batch", json=given), 207)


def packed_batch(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    body = msgspec.msgpack.encode({"entries": [{"message": message}]})
    headers = {"Content-Type": "application/msgpack"}
    ok(api.post(f"{path}/messages/batch", content=body, headers=headers), 201)


def stream(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    lines = [{"message": {"payload": "in front of it"}}, {"message": message}]
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    answer = api.post(f"{path}/messages/stream", content=content)
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [201, 201]


def raw(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    headers = {"Message-Keys": "order-8812 kunde-%C3%BC rechnung%2C7"}
    ok(api.post(f"{path}/messages/raw", content=message["payload"], headers=headers), 201)


def transactional(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    topic = path.rpartition("/")[2]
    begun = {"producer_group": "shop", "messages": [{"topic": topic, "message": message}]}
    location = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]
    ok(api.post(f"/v1/transactions/{location}/commit"))


def delayed(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    ok(api.post(f"{path}/messages", json=message | {"delay_ms": 1}), 201)


def request(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    given = {"message": message, "timeout_ms": LONG_MS}
    assert api.post(f"{path}/requests", json=given).status_code == 202


def large(api: httpx.Client, path: str, message: dict[str, Any]) -> None:
    ok(api.post(f"{path}/messages", json=message | {"payload": LARGE}), 201)


WAYS: list[Callable[[httpx.Client, str, dict[str, Any]], None]] = [
    single, batch, loose_batch, packed_batch, stream, raw, transactional, delayed, request, large,
]  # fmt: skip


def found_by(api: httpx.Client, topic: str, key: str) -> list[dict[str, Any]]:
    query = {"topic": topic, "key": key}
    items: list[dict[str, Any]] = ok(api.get("/v1/messages", params=query))["items"]
    return items


def test_a_message_sent_in_any_way_is_found_by_each_key_also_after_a_kill_and_a_rebuilt_index(
    tmp_path,
):
    ids: dict[str, str] = {}

    def all_are_found_by_each_key() -> None:
        for way in WAYS:
            for key in KEYS:
                (found,) = found_by(api, way.__name__, key)
                assert (found["key"], found["keys"]) == (KEYS[0], KEYS), way.__name__
                assert ids.setdefault(way.__name__, found["message_id"]) == found["message_id"]
                assert ok(api.get(f"/v1/messages/{found['message_id']}")) == found
            for no_key in ("order", "kunde", "order-8812 kunde-ü", "rechnung", "7"):
                assert found_by(api, way.__name__, no_key) == []

    with Server(tmp_path / "data") as server, server.client() as api:
        for way in WAYS:
            ok(api.post("/v1/topics", json={"topic": way.__name__, "queues": 1}), 201)
            way(api, f"/v1/topics/{way.__name__}", {"payload": "x", "keys": KEYS})
        until(lambda: found_by(api, "delayed", KEYS[0]), "the delayed message is delivered")
        all_are_found_by_each_key()

        server.kill()
        server.start()
        all_are_found_by_each_key()

        server.kill()
        shutil.rmtree(server.data_dir / "store" / "index")
        server.start()
        all_are_found_by_each_key()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"key": "a"}, {"key": "a"}),
        ({"keys": ["a"]}, {"key": "a"}),
        ({"keys": ["b", "a"]}, {"key": "b", "keys": ["b", "a"]}),
        ({}, {}),
    ],
)
def test_key_is_the_first_key_and_keys_are_all_of_several(api, topic, sent, shown):
    message_id = ok(
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", "tag": "t", **sent}), 201
    )["message_id"]

    for one in (
        ok(api.get(f"/v1/messages/{message_id}")),
        ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"][0],
        ok(api.get(f"/v1/topics/{topic}/queues/0/messages?payload=base64"))["messages"][0],
    ):
        assert {name: one[name] for name in ("key", "keys") if name in one} == shown


@pytest.mark.parametrize(
    "headers",
    [
        [("Message-Keys", "a b%2C c")],
        [("Message-Keys", "a,b%2C,c")],
        [("Message-Keys", "a, b%2C ,  c")],
        [("Message-Keys", "a"), ("Message-Keys", "b%2C c")],
    ],
)
def test_the_keys_of_a_raw_message_are_separated_by_spaces_or_commas(api, topic, headers):
    answer = api.post(f"/v1/topics/{topic}/messages/raw", content=b"x", headers=headers)

    assert ok(api.get(ok(answer, 201) and answer.headers["location"]))["keys"] == ["a", "b,", "c"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Message-Keys": "a b%20"},
        {"Message-Key": "b", "Message-Keys": "a"},
        {"Message-Keys": "a a"},
        {"Message-Keys": ", ,"},
        {"Message-Keys": "a %FF"},
        {"Message-Keys": b"a \xfc"},
        {"Message-Keys": b"a\xa0b"},
        {"Message-Keys": " ".join(map(str, range(33)))},
        {"Message-Keys": f"a {'k' * 256}"},
    ],
    ids=[
        "a space in a key", "key and keys", "the same key twice", "no key", "not UTF-8",
        "not ASCII", "a space that is not ASCII", "33 keys", "a long key",
    ],
)  # fmt: skip
def test_wrong_keys_of_a_raw_message_are_refused_by_the_name_of_their_header(api, topic, headers):
    answer = api.post(f"/v1/topics/{topic}/messages/raw", content=b"x", headers=headers)

    assert_problem(answer, 422, "validation_failed", "/headers/message-keys")


def test_a_lease_a_retry_and_a_dead_letter_have_all_keys_and_each_selects_the_dead_letter(
    api, topic
):
    group = f"/v1/groups/of-{topic}"
    rules = {"topics": [{"topic": topic}], "max_attempts": 2, "backoff_ms": [0]}
    ok(api.put(group, json=rules), 201)
    single(api, f"/v1/topics/{topic}", {"payload": "x", "keys": ["a", "b"]})
    single(api, f"/v1/topics/{topic}", {"payload": "y", "key": "c"})

    for attempt in (1, 2):
        received: list[dict[str, Any]] = []
        while len(received) < 2:
            given = {"wait_ms": LONG_MS, "max_messages": 2}
            received += ok(api.post(f"{group}/receive", json=given))["messages"]
        leases = ok(api.get(f"{group}/leases"))["items"]
        for shown in (received, leases):
            keys = sorted((one["key"], one.get("keys"), one["attempt"]) for one in shown)
            assert keys == [("a", ["a", "b"], attempt), ("c", None, attempt)]
        entries = [
            {"receipt_handle": one["receipt_handle"], "delay_ms": 0, "reason": "no"}
            for one in received
        ]
        ok(api.post(f"{group}/nack", json={"entries": entries}))

    letters = ok(api.get(f"{group}/dead-letters"))["items"]
    assert sorted(one["message"].get("keys", ["c"]) for one in letters) == [["a", "b"], ["c"]]

    def selected(key: str) -> int:
        query = {"select": "query", "key": key, "dry_run": True}
        count: int = ok(api.post(f"{group}/dead-letters/redrive", json=query))["total"]
        return count

    assert [selected(key) for key in ("a", "b", "c", "a b", "d")] == [1, 1, 1, 0, 0]
    again = {"select": "query", "key": "b"}
    ok(api.post(f"{group}/dead-letters/redrive", json=again), 202)
    (redriven,) = ok(api.post(f"{group}/receive", json={"wait_ms": LONG_MS}))["messages"]
    assert (redriven["payload"], redriven["keys"]) == ("x", ["a", "b"])


def test_a_check_names_the_first_key_of_each_message_also_after_a_restart(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.put("/v1/producer-groups/shop", json={"check_mode": "poll"}), 201)
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        messages = [
            {"topic": "orders", "message": {"payload": "x", "keys": ["a", "b"]}},
            {"topic": "orders", "message": {"payload": "x", "key": "c"}},
            {"topic": "orders", "message": {"payload": "x"}},
        ]
        check = {"first_after_ms": 10, "interval_ms": 1_000}
        begun = {"producer_group": "shop", "messages": messages, "check": check}
        transaction_id = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]

        def named() -> list[str | None]:
            given = {"wait_ms": LONG_MS, "lease_ms": 100}
            path = "/v1/producer-groups/shop/checks/receive"
            (found,) = ok(api.post(path, json=given))["checks"]
            return [one.get("key") for one in found["messages"]]

        assert named() == ["a", "c", None]
        server.kill()
        server.start()
        assert named() == ["a", "c", None]
        ok(api.post(f"/v1/transactions/{transaction_id}/commit"))
        (found,) = found_by(api, "orders", "b")
        assert found["keys"] == ["a", "b"]


def test_an_ordered_group_orders_by_the_ordering_key_alone(api, topic):
    group = f"/v1/groups/of-{topic}"
    ok(api.put(group, json={"topics": [{"topic": topic}], "ordered": True}), 201)
    for keys, ordering_key in ((["a", "b"], "1"), (["a", "b"], "2"), (["c", "d"], "1")):
        message = {"payload": "x", "keys": keys, "ordering_key": ordering_key}
        single(api, f"/v1/topics/{topic}", message)

    received = ok(api.post(f"{group}/receive", json={"max_messages": 2}))["messages"]
    more = ok(api.post(f"{group}/receive", json={"max_messages": 2}))["messages"]

    assert [one["ordering_key"] for one in received] == ["1", "2"]
    assert more == []


def test_keys_in_a_filter_are_all_keys_with_a_space_between_each_two(api, topic):
    group = f"/v1/groups/of-{topic}"
    condition = {"kind": "sql92", "expression": "KEYS CONTAINS 'b' AND KEYS <> 'b'"}
    ok(api.put(group, json={"topics": [{"topic": topic, "filter": condition}]}), 201)
    for given in ({"keys": ["a", "b"]}, {"key": "b"}, {"keys": ["a", "c"]}):
        single(api, f"/v1/topics/{topic}", {"payload": "x", **given})

    received = ok(api.post(f"{group}/receive", json={"max_messages": 9}))["messages"]

    assert [one["keys"] for one in received] == [["a", "b"]]
