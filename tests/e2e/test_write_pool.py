"""A service whose appends go into a write pool: what its receipts say is what a kill leaves."""

import json
from pathlib import Path

import pytest

from tests.support.http import ok
from tests.support.server import Server

POOL = {
    "ESCROWMQ_LOCAL__APPEND": "pool",
    "ESCROWMQ_LOCAL__FLUSH": "interval",
    "ESCROWMQ_LOCAL__COMMIT_INTERVAL_MS": "600000",
    "ESCROWMQ_LOCAL__COMMIT_THOROUGH_INTERVAL_MS": "600000",
}
PATH = "/v1/topics/orders/messages"


def payloads(api) -> list[str]:
    return [
        message["payload"]
        for message in ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]
    ]


def test_a_kill_leaves_what_was_buffered_and_takes_what_was_in_memory(tmp_path: Path):
    with Server(tmp_path / "data", environment=POOL) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        said = [
            ok(api.post(PATH, json={"payload": f"{asked}"} | given), 201)["durability"]
            for asked, given in [
                ("synced", {"require_durability": "synced"}),
                ("nothing", {}),
                ("memory", {"require_durability": "memory"}),
            ]
        ]
        assert said == ["synced", "buffered", "memory"]
        assert payloads(api) == ["synced", "nothing"]
        server.kill()

    with Server(tmp_path / "data", environment=POOL) as server, server.client() as api:
        assert payloads(api) == ["synced", "nothing"]


def test_every_way_to_send_says_memory_and_a_stop_keeps_it(tmp_path: Path):
    asks = {"payload": "x", "require_durability": "memory"}
    with Server(tmp_path / "data", environment=POOL) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        headers = {"Message-Require-Durability": "memory"}
        raw = ok(api.post(f"{PATH}/raw", content=b"x", headers=headers), 201)
        batch = ok(api.post(f"{PATH}/batch", json={"entries": [{"message": asks}] * 2}), 201)
        lines = b"".join(json.dumps({"message": asks}).encode() + b"\n" for _ in range(2))
        stream = api.post(
            f"{PATH}/stream", content=lines, headers={"Content-Type": "application/x-ndjson"}
        )
        results = [*batch["results"], *map(json.loads, stream.text.splitlines())]
        receipts = [raw, *[one["receipt"] for one in results if "receipt" in one]]
        assert [one["durability"] for one in receipts] == ["memory"] * 5
        assert payloads(api) == []

        store = ok(api.get("/v1/admin/store"))
        assert store["write_pool"]["free_buffers"] == 4
        assert store["write_pool"]["committed_offset"] < store["log"]["max_offset"]
        metrics = api.get("/metrics").text
        assert "escrowmq_write_pool_free_buffers 4" in metrics
        assert "escrowmq_write_pool_refused_total 0" in metrics
        assert server.terminate() == 0

    with Server(tmp_path / "data", environment=POOL) as server, server.client() as api:
        assert payloads(api) == ["x"] * 5


@pytest.mark.parametrize("flush", ["interval", "before_ack"])
def test_without_a_pool_memory_is_as_buffered(tmp_path: Path, flush):
    environment = {"ESCROWMQ_LOCAL__FLUSH": flush}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        asks = {"payload": "x", "require_durability": "memory"}
        assert ok(api.post(PATH, json=asks), 201)["durability"] in ("buffered", "synced")
        assert "write_pool" not in ok(api.get("/v1/admin/store"))
