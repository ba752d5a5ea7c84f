"""The disk that a new store takes with the default settings."""

from pathlib import Path

from tests.support.http import ok
from tests.support.live_files import states_of
from tests.support.server import Server

MIB = 1 << 20
DEFAULT_SEGMENT_BYTES = 1 << 30
DEFAULTS = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(DEFAULT_SEGMENT_BYTES)}


def disk_bytes(folder: Path) -> int:
    return sum(512 * state.st_blocks for state in states_of(folder).values())


def test_a_new_store_takes_less_than_64_mib_empty_and_with_a_few_topics_messages_and_groups(
    tmp_path,
):
    data = tmp_path / "data"
    message = {"payload": "x"}
    with Server(data, environment=DEFAULTS) as server:
        with server.client() as api:
            assert disk_bytes(data) < 64 * MIB
            for name in "orders", "refunds", "parcels":
                ok(api.post("/v1/topics", json={"topic": name, "queues": 8}), 201)
                ok(api.post(f"/v1/topics/{name}/messages", json=message), 201)
            body = {
                "producer_group": "shop",
                "messages": [{"topic": "orders", "message": message}],
            }
            for decision in "commit", "rollback":
                begun = ok(api.post("/v1/transactions", json=body), 201)
                ok(api.post(f"/v1/transactions/{begun['transaction_id']}/{decision}"))
            ok(api.post("/v1/transactions", json=body), 201)
            ok(api.post("/v1/topics/orders/messages", json={**message, "delay_ms": 60_000}), 201)
            committed = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": 0}]}
            ok(api.put("/v1/groups/billing/offsets", json=committed))
        assert server.terminate() == 0
        assert disk_bytes(data) < 64 * MIB
        server.start()
        assert server.terminate() == 0

    assert disk_bytes(data) < 64 * MIB
    (segment,) = (data / "store" / "commitlog").iterdir()
    assert segment.stat().st_size == DEFAULT_SEGMENT_BYTES, "a broker needs its full length"
