"""Derived files of a stopped service are damaged: over HTTP nothing is lost, hidden or reordered,
and no request fails.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.http import ok
from tests.support.server import Server

COUNT = 60
# bytes of entries: two of offsets, one of a length, two of tags' hashes
WRONG = ((50, 0), (7, 4), (20, 8), (30, 15), (58, 19))
DAMAGED = len(WRONG)


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> Iterator[httpx.Client]:
    """Of a service on a damaged store; of its 60 messages each third has the tag `paid`, all have
    the key `shop`.
    """
    with Server(tmp_path_factory.mktemp("damaged") / "data") as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
            entries = [
                {
                    "id": str(n),
                    "message": {
                        "payload": str(n),
                        "key": "shop",
                        **({} if n % 3 else {"tag": "paid"}),
                    },
                }
                for n in range(COUNT)
            ]
            ok(api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201)
        assert server.terminate() == 0
        queue = server.data_dir / "store" / "consumequeue" / "orders" / "0" / ("0" * 20)
        (index,) = (server.data_dir / "store" / "index").iterdir()
        with queue.open("r+b") as file:
            for queue_offset, byte in WRONG:
                at = queue_offset * 20 + byte
                file.seek(at)
                (old,) = file.read(1)
                file.seek(at)
                file.write(bytes([old ^ 0x80]))
        with index.open("r+b") as file:
            file.write(b"junk" * 10)
            file.seek(40 + 4 * 5_000_000)
            file.write(b"junk" * 500)
        server.start()
        with server.client() as api:
            yield api


def pulled(api: httpx.Client, **query: Any) -> list[str]:
    found: list[str] = []
    offset = 0
    while offset < COUNT:
        page = ok(
            api.get(
                "/v1/topics/orders/queues/0/messages",
                params={"offset": offset, "max_messages": 20, **query},
            )
        )
        found += [one["payload"] for one in page["messages"]]
        offset = page["next_offset"]
    return found


def test_a_pull_by_tag_finds_each_message_with_the_tag(api):
    assert pulled(api, tag="paid") == [str(n) for n in range(0, COUNT, 3)]


def test_a_pull_finds_each_message_in_order(api):
    assert pulled(api) == [str(n) for n in range(COUNT)]


def test_a_group_is_delivered_each_message(api):
    received: list[str] = []
    while messages := ok(api.post("/v1/groups/billing/receive", json={"max_messages": 100}))[
        "messages"
    ]:
        received += [one["payload"] for one in messages]
        ok(
            api.post(
                "/v1/groups/billing/ack",
                json={"entries": [{"receipt_handle": one["receipt_handle"]} for one in messages]},
            )
        )
    assert sorted(received, key=int) == [str(n) for n in range(COUNT)]


def test_lookups_by_key_and_by_id_find_each_message(api):
    by_key = ok(
        api.get("/v1/messages", params={"topic": "orders", "key": "shop", "page_size": 100})
    )["items"]
    assert [one["payload"] for one in by_key] == [str(n) for n in reversed(range(COUNT))]
    for one in by_key[::20]:
        assert ok(api.get(f"/v1/messages/{one['message_id']}"))["payload"] == one["payload"]


def test_metrics_count_what_was_made_again(api):
    assert pulled(api, tag="paid")
    ok(api.get("/v1/messages", params={"topic": "orders", "key": "shop"}))

    lines = dict(
        line.split() for line in api.get("/metrics").text.splitlines() if line.count(" ") == 1
    )

    assert float(lines["escrowmq_queue_entries_rebuilt_total"]) == DAMAGED
    assert float(lines["escrowmq_index_files_rebuilt_total"]) == 1
