"""C7: a real file system without space.

The log, the registry and the service's own log lines are all on it.

`tests/e2e/test_failing_disk.py` asks the same of a disk that only says it is full, on any machine;
here one has to be mounted.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fault.campaign_size import sized
from tests.support.http import assert_problem, ok, until
from tests.support.server import Server
from tests.support.small_disk import COPY_ON_WRITE, IN_PLACE, fill, give_back, mounted, take

pytestmark = pytest.mark.faults

ROUNDS = sized(ci=4, full=20)
ENVIRONMENT = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 20),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(64 << 10),
}


@pytest.fixture(params=IN_PLACE)
def small_disk(tmp_path, request) -> Iterator[Path]:
    with mounted(request.param, tmp_path, size_mib=16 + 5 * ROUNDS) as disk:
        yield disk


@pytest.mark.parametrize("small_disk", [*IN_PLACE, *COPY_ON_WRITE], indirect=True)
def test_a_service_goes_through_full_disks_decides_what_is_undecided_and_loses_nothing(small_disk):
    sent: list[str] = []
    with Server(small_disk / "data", dev=False, environment=ENVIRONMENT) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        for number in range(ROUNDS):
            with server.client() as api:
                undecided = [begun(api, f"txn-{number}-{count}") for count in range(12)]
            free_bytes = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            take(small_disk, free_bytes - (3 << 20))
            with server.client() as api:
                fill_log(api, sent)
                made = fill_registry(api, number)

                assert_problem(begin(api, "late"), 507, "storage_full")
                for transaction_id in undecided:
                    # Together they take more than the reserve that is there anyway.
                    (settled,) = ok(api.post(f"/v1/transactions/{transaction_id}/commit"))[
                        "messages"
                    ]
                    sent.append(settled["message_id"])
                ok(api.get("/readyz"))
                assert stored(api) == sent
                give_back(small_disk)
                ok(api.put(f"/v1/producer-groups/after-{number}"), 201)
                until(lambda api=api: was_sent(api, sent), "the log goes on", seconds=5)

                assert ok(api.get(f"/v1/topics/{made}"))["topic"] == made
            assert server.terminate() == 0
            server.start()
            with server.client() as api:
                assert stored(api) == sent


def test_a_nearly_full_disk_refuses_new_messages_and_goes_on_with_everything_else(small_disk):
    with (
        Server(small_disk / "data", dev=False, environment=ENVIRONMENT) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        sent: list[str] = []
        assert was_sent(api, sent)
        open_ids = [begun(api, "to-commit"), begun(api, "to-roll-back")]
        before = ok(api.get("/v1/admin/disk"))
        assert (before["writable"], before["used_ratio"] < before["refuse_above"]) == (True, True)
        disk = os.statvfs(small_disk)
        take(small_disk, (disk.f_bavail - int(disk.f_blocks * 0.08)) * disk.f_frsize)

        until(lambda: not was_sent(api, sent), "new messages are refused", seconds=5)

        assert_problem(begin(api, "late"), 507, "storage_full")
        nearly_full = ok(api.get("/v1/admin/disk"))
        assert not nearly_full["writable"]
        assert nearly_full["used_ratio"] > nearly_full["refuse_above"]
        (settled,) = ok(api.post(f"/v1/transactions/{open_ids[0]}/commit"))["messages"]
        ok(api.post(f"/v1/transactions/{open_ids[1]}/rollback"))
        ok(
            api.put(
                "/v1/groups/billing/offsets",
                json={"offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}]},
            )
        )
        assert stored(api) == [*sent, settled["message_id"]]

        give_back(small_disk)
        until(lambda: was_sent(api, sent), "new messages are taken", seconds=5)
        assert ok(api.get("/v1/admin/disk"))["writable"]


def test_a_service_starts_on_a_full_disk_again_and_again_and_goes_on_with_decisions(
    small_disk,
):
    with Server(small_disk / "data", dev=False, environment=ENVIRONMENT) as server:
        sent: list[str] = []
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            undecided = [begun(api, f"txn-{number}") for number in range(6)]
            assert was_sent(api, sent)
            fill(small_disk)
            fill_log(api, sent)
        stop, kill = server.terminate, server.kill
        for end in [stop, stop, kill, kill, stop, stop]:
            end()
            fill(small_disk)
            server.start()

            with server.client() as api:
                assert "full" in ok(api.get("/readyz"))["checks"]["store_writable"]
                assert stored(api) == sent
                (settled,) = ok(api.post(f"/v1/transactions/{undecided.pop()}/commit"))["messages"]
                sent.append(settled["message_id"])
                assert not was_sent(api, sent)
        give_back(small_disk)
        with server.client() as api:
            until(lambda: was_sent(api, sent), "the log goes on", seconds=5)
            assert stored(api) == sent


def was_sent(api: httpx.Client, sent: list[str], *, size: int = 1) -> bool:
    answer = api.post("/v1/topics/orders/messages/raw", content=b"x" * size)
    if answer.status_code == 507:
        assert_problem(answer, 507, "storage_full")
        return False
    sent.append(ok(answer, 201)["message_id"])
    return True


def begin(api: httpx.Client, transaction_id: str) -> httpx.Response:
    messages = [{"topic": "orders", "message": {"payload": "b" * 20_000}}]
    return api.post(
        "/v1/transactions", json={"transaction_id": transaction_id, "producer_group": "shop",
        "messages": messages}
    )  # fmt: skip


def begun(api: httpx.Client, transaction_id: str) -> str:
    return str(ok(begin(api, transaction_id), 201)["transaction_id"])


def fill_log(api: httpx.Client, sent: list[str]) -> None:
    for size in 50_000, 1:
        while was_sent(api, sent, size=size):
            pass


def fill_registry(api: httpx.Client, number: int) -> str:
    """The last topic that could be made."""
    made = "orders"
    for count in range(10_000):
        answer = api.post("/v1/topics", json={"topic": f"topic-{number}-{count}", "queues": 1})
        if answer.status_code != 201:
            assert_problem(answer, 507, "storage_full")
            return made
        made = f"topic-{number}-{count}"
    raise AssertionError("the registry is never full")


def stored(api: httpx.Client) -> list[str]:
    found: list[str] = []
    while True:
        page = ok(
            api.get(
                f"/v1/topics/orders/queues/0/messages?offset={len(found)}&max_messages=1000&"
                "payload=omit"
            )
        )
        if not page["messages"]:
            return found
        found += [message["message_id"] for message in page["messages"]]
