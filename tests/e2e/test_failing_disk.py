"""A disk that fails a sync ends the service with status 74; a full one is waited out.

In both nothing acknowledged is lost.
"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from errno import EIO
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.failing_disk import Disk, ServerOnDisk
from tests.support.http import assert_problem, ok, until

pytestmark = pytest.mark.faults

STORAGE_FAILED = 74
MESSAGE = {"payload": "x"}
SENDERS = 8
QUICK = {
    "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "200",
    "ESCROWMQ_LOCAL__QUEUE_FLUSH_INTERVAL_MS": "100",
}
# After the first send all the space that the others need is prepared: nobody but who waits for a
# sync calls for one then.
SMALL = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(256 << 10),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(64 << 10),
    "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "200",
}


@pytest.fixture
def disk(tmp_path) -> Disk:
    return Disk(tmp_path / "plan.json")


def begin(api: httpx.Client, transaction_id: str) -> httpx.Response:
    body = {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "messages": [{"topic": "orders", "message": MESSAGE}],
    }
    return api.post("/v1/transactions", json=body)


def commit_offset(api: httpx.Client, offset: int) -> httpx.Response:
    return api.put(
        "/v1/groups/billing/offsets",
        json={"offsets": [{"topic": "orders", "queue_id": 0, "offset": offset}]},
    )


_numbers = count()

# Everything that is answered with a 2xx only once it is on disk.
REQUESTS: dict[str, Callable[[httpx.Client], httpx.Response]] = {
    "send": lambda api: api.post("/v1/topics/orders/messages", json=MESSAGE),
    "raw": lambda api: api.post("/v1/topics/orders/messages/raw", content=b"x"),
    "batch": lambda api: api.post(
        "/v1/topics/orders/messages/batch", json={"entries": [{"message": MESSAGE}]}
    ),
    "begin": lambda api: begin(api, f"another-{next(_numbers)}"),
    "commit": lambda api: api.post("/v1/transactions/open/commit"),
    "rollback": lambda api: api.post("/v1/transactions/open/rollback"),
    "offset": lambda api: commit_offset(api, 0),
}


@pytest.mark.parametrize(
    ("call", "request_name"),
    [*(("fdatasync", name) for name in REQUESTS), ("pwrite", "send"), ("pwrite", "commit")],
)
def test_the_first_sync_or_write_that_fails_ends_the_service_and_acknowledges_nobody(
    tmp_path, disk, call, request_name
):
    ask = REQUESTS[request_name]
    with ServerOnDisk(tmp_path / "data", disk, environment=SMALL) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [ok(REQUESTS["send"](api), 201)["message_id"] for _ in range(3)]
            ok(begin(api, "open"), 201)
            ok(commit_offset(api, 2))

            disk.fail_once(call, "commitlog")
            with ThreadPoolExecutor(SENDERS) as senders:
                answers = list(senders.map(lambda _: or_none(ask, api), range(SENDERS)))

            assert disk.has_failed
            for answer in answers:
                if answer is not None and answer.json()["code"] != "shutting_down":
                    problem = assert_problem(answer, 503, "storage_failed")
                    assert not problem["retryable"]
            assert any(answer is not None for answer in answers), (
                "those who waited for the sync are told what became of it"
            )
            ready = or_none(lambda api: api.get("/readyz"), api)
            if ready is not None:
                assert_problem(ready, 503, "storage_failed")

        assert server.wait() == STORAGE_FAILED
        assert_one_critical_line(server.log(), "commitlog")

        server.start()
        with server.client() as api:
            assert [message["message_id"] for message in everything(api)][:3] == sent
            assert ok(api.get("/v1/groups/billing/offsets"))["items"][0]["offset"] in (0, 2)
            ok(api.get("/v1/transactions/open"))
            ok(REQUESTS["send"](api), 201)


@pytest.mark.parametrize(
    ("call", "file"),
    [
        ("fdatasync", "store/checkpoint"),
        ("fsync", "store/snapshots"),
        ("pwrite", "commitlog"),
    ],
)
def test_any_other_file_of_the_store_that_fails_ends_it_too_and_everything_acknowledged_is_there(
    tmp_path, disk, call, file
):
    sent: list[str] = []
    with ServerOnDisk(tmp_path / "data", disk, environment={**SMALL, **QUICK}) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent.append(ok(send_much(api), 201)["message_id"])
            disk.fail_once(call, file)
            while (answer := or_none(send_much, api)) is not None and answer.status_code == 201:
                sent.append(answer.json()["message_id"])
                assert len(sent) < 5_000, f"{call} was never called for {file}"

        assert server.wait() == STORAGE_FAILED
        assert disk.has_failed
        assert_one_critical_line(server.log(), file)

        server.start()
        with server.client() as api:
            found = [message["message_id"] for message in everything(api)]
    assert [message_id for message_id in found if message_id in set(sent)] == sent
    assert len(found) <= len(sent) + 1, "the last one is unknown, and nothing else was sent"


@pytest.mark.parametrize(
    ("file", "event"),
    [
        ("store/consumequeue", "queue_file_replaced"),
        ("store/index", "key_index_rebuilt"),
        ("/consume_queues", "file_made_again"),
    ],
)
def test_a_derived_file_whose_sync_fails_is_made_again_while_the_service_runs(
    tmp_path, disk, file, event
):
    sent: list[str] = []
    with ServerOnDisk(tmp_path / "data", disk, environment={**SMALL, **QUICK}) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent.append(ok(send_much(api), 201)["message_id"])
            disk.fail_once("fdatasync", file)
            while event not in server.log():
                sent.append(ok(send_much(api), 201)["message_id"])
                assert len(sent) < 5_000, "no sync has failed"
            assert disk.has_failed
            for message_id in sent[:: len(sent) // 3 + 1]:
                assert ok(api.get(f"/v1/messages/{message_id}"))["message_id"] == message_id
        assert server.terminate() == 0
        server.start()
        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == sent


def test_a_queue_file_that_cannot_be_written_to_is_replaced_while_the_service_runs(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk, environment={**SMALL, **QUICK}) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [ok(send_much(api), 201)["message_id"]]
            until(lambda: any((tmp_path / "data/store/consumequeue/orders").rglob("0*")), "written")
            disk.fail_once("pwrite", "consumequeue")
            sent.append(ok(send_much(api), 201)["message_id"])
            until(lambda: disk.has_failed, "the next entry is written")
            until(lambda: "queue_file_replaced" in server.log(), "the file is replaced")
            assert [message["message_id"] for message in everything(api)] == sent
        assert server.terminate() == 0
        server.start()
        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == sent


@pytest.mark.parametrize(
    ("call", "file"), [("fdatasync", "store/checkpoint"), ("fsync", "store/snapshots")]
)
def test_a_service_whose_disk_fails_as_it_stops_ends_with_its_status_and_nothing_is_lost(
    tmp_path, disk, call, file
):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = ok(REQUESTS["send"](api), 201)["message_id"]
        disk.fail_once(call, file)

        assert server.terminate() == STORAGE_FAILED
        assert disk.has_failed
        assert_one_critical_line(server.log(), file)

        server.start()
        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == [sent]


def test_a_start_over_a_sector_that_cannot_be_read_names_it_and_what_helps(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [ok(send_much(api), 201)["message_id"] for _ in range(10)]
        server.kill()
        store = tmp_path / "data" / "store"
        name = f"{0:020d}"
        disk.fail_reads(f"commitlog/{name}", 40_960, 45_056)

        server.start(until_ready=False)

        assert server.wait() == STORAGE_FAILED
        assert_one_critical_line(server.log(), f"commitlog/{name}")
        (line,) = [line for line in server.log().splitlines() if "service_failed" in line]
        said = json.loads(line)
        assert "at byte 40960, log offset 40960" in said["error"]
        assert said["repair"].startswith("start again: ")
        assert said["repair"].endswith(f"escrowmq store repair {store} --replace-unreadable {name}")

        disk.heal()
        server.start()
        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == sent


def test_a_read_of_a_sector_that_cannot_be_read_is_tried_again_later_and_the_log_names_the_place(
    tmp_path, disk
):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [ok(send_much(api), 201)["message_id"] for _ in range(10)]
        server.terminate()
        server.start()
        name = f"{0:020d}"
        disk.fail_reads(f"commitlog/{name}", 40_960, 45_056)
        with server.client() as api:
            for path in (
                "/v1/topics/orders/queues/0/messages?offset=0&max_messages=10",
                f"/v1/messages/{sent[4]}",
            ):
                problem = assert_problem(api.get(path), 503, "overloaded")
                assert problem["detail"].startswith("The disk does not give back a part")
                assert problem["retryable"] is True
                assert problem["retry_after_ms"] == 1_000

            disk.heal()

            assert [message["message_id"] for message in everything(api)] == sent
        lines = [line for line in server.log().splitlines() if "data_unreadable" in line]
        assert "at byte 40960, log offset 40960" in json.loads(lines[0])["error"]


@pytest.mark.parametrize("file", ["snapshots/consume_queues", "snapshots/key_index-", "checkpoint"])
def test_a_start_over_a_derived_file_that_cannot_be_read_serves_everything(tmp_path, disk, file):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = [ok(send_much(api), 201)["message_id"] for _ in range(10)]
        server.terminate()
        disk.fail_reads(f"store/{file}", 0, 1 << 30)

        server.start()

        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == sent
            for message_id in sent[::3]:
                assert ok(api.get(f"/v1/messages/{message_id}"))["message_id"] == message_id
        assert server.terminate() == 0


def test_who_waits_for_a_message_is_answered_when_the_disk_fails(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk, environment=SMALL) as server:
        with server.client() as api, ThreadPoolExecutor(1) as beside:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            waiting = beside.submit(
                or_none,
                lambda api: api.get("/v1/topics/orders/queues/0/messages?wait_ms=30000"),
                api,
            )
            until(lambda: "escrowmq_long_polls_open 1.0" in api.get("/metrics").text, "it waits")
            begun = time.monotonic()

            disk.fail_once("fdatasync", "commitlog")
            or_none(REQUESTS["send"], api)

            answer = waiting.result()
        assert server.wait() == STORAGE_FAILED
        took = time.monotonic() - begun
    assert answer is None or answer.status_code == 503 or answer.json()["messages"] == []
    assert took < 5


# --------------------------------------------------------------------------------------------------
# full


def test_a_full_disk_refuses_new_messages_takes_decisions_serves_the_rest_and_goes_on_by_itself(
    tmp_path, disk
):
    with ServerOnDisk(tmp_path / "data", disk, environment=SMALL) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        for name in "open", "decided", "to-commit", "to-roll-back":
            ok(begin(api, name), 201)
        ok(api.post("/v1/transactions/decided/commit"))
        ok(api.post("/v1/topics", json={"topic": "later", "queues": 1}), 201)
        ok(api.post("/v1/topics/later/messages", json={"payload": "x", "delay_ms": 2_000}), 201)
        disk.fill()

        sent = fill_up(api)

        ready = ok(api.get("/readyz"))
        assert "the disk is full" in ready["checks"].pop("store_writable")
        assert set(ready["checks"].values()) == {"ok"}
        waiting = until(
            lambda: (now := loop(api, "schedules")) and "waits_for" in now and now,
            "what is due waits",
        )
        assert "the disk is full" in waiting["waits_for"].lower()
        assert (waiting["failures"], "last_error" in waiting) == (0, False)
        for name in "send", "raw", "batch", "begin":
            problem = assert_problem(REQUESTS[name](api), 507, "storage_full")
            assert problem["retryable"]
        (settled,) = ok(api.post("/v1/transactions/to-commit/commit"))["messages"]
        ok(api.post("/v1/transactions/to-roll-back/rollback"))
        ok(commit_offset(api, 0))
        assert ok(api.get("/v1/transactions/decided"))["state"] == "committed"
        assert ok(api.get("/v1/transactions/open"))["state"] == "prepared"
        assert [item["offset"] for item in ok(api.get("/v1/groups/billing/offsets"))["items"]] == [
            0
        ]
        sent.append(settled["message_id"])
        assert [message["message_id"] for message in everything(api)][-len(sent) :] == sent

        disk.make_space()
        receipt = until(lambda: taken(send_much(api)), "it goes on", seconds=5)
        assert ok(api.get("/readyz"))["checks"]["store_writable"] == "ok"
        assert len(ok(api.get("/v1/topics/later/queues/0/messages?wait_ms=10000"))["messages"]) == 1
        until(
            lambda: "waits_for" not in loop(api, "schedules"), "the run that delivered it has ended"
        )

        assert receipt["queue_offset"] == len(everything(api)) - 1
        known = {one["transaction_id"] for one in ok(api.get("/v1/transactions"))["items"]}
        assert known == {"open", "decided", "to-commit", "to-roll-back"}
        (committed,) = ok(api.post("/v1/transactions/open/commit"))["messages"]
        ok(commit_offset(api, 1))
        assert server.terminate() == 0
        server.start()
        with server.client() as again:
            found = [message["message_id"] for message in everything(again)]
    assert {*sent, receipt["message_id"], committed["message_id"]} <= set(found)
    assert len(found) == len(sent) + 3, "what was refused is not there"


def test_a_service_on_a_full_disk_stops_in_order_and_starts_again(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk, environment=SMALL) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            disk.fill()
            sent = fill_up(api)

        assert server.terminate() == 0, server.log()
        server.start()

        with server.client() as api:
            assert [message["message_id"] for message in everything(api)] == sent
            assert_problem(send_much(api), 507, "storage_full")
            disk.make_space()
            until(lambda: taken(send_much(api)), "it goes on", seconds=5)


def test_a_log_that_cannot_be_written_keeps_nothing_from_being_done(tmp_path, disk):
    server = ServerOnDisk(tmp_path / "data", disk, environment=SMALL)
    server.log_path = Path("/dev/full")  # every write to it fails as on a full disk
    with server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            disk.fill()
            fill_up(api)
            disk.make_space()
            until(lambda: taken(send_much(api)), "it goes on", seconds=5)

        assert server.terminate() == 0


# --------------------------------------------------------------------------------------------------
# helpers


def or_none(
    ask: Callable[[httpx.Client], httpx.Response], api: httpx.Client
) -> httpx.Response | None:
    """The answer; None where the connection was closed instead, or cannot be had."""
    try:
        return ask(api)
    except httpx.TransportError:
        return None


def send_much(api: httpx.Client) -> httpx.Response:
    return api.post("/v1/topics/orders/messages/raw", content=b"x" * 10_000)


def taken(answer: httpx.Response) -> dict[str, Any] | None:
    return ok(answer, 201) if answer.status_code != 507 else None


def fill_up(api: httpx.Client) -> list[str]:
    """Send until there is no space, first much, then little; the ids of what was taken."""
    sent = []
    for ask in send_much, REQUESTS["send"]:
        while (answer := ask(api)).status_code == 201:
            sent.append(answer.json()["message_id"])
        assert_problem(answer, 507, "storage_full")
    return sent


def everything(api: httpx.Client) -> list[dict[str, Any]]:
    """The messages of the one queue, in their order."""
    found: list[dict[str, Any]] = []
    while True:
        page = ok(
            api.get(
                f"/v1/topics/orders/queues/0/messages?offset={len(found)}&max_messages=1000&"
                "payload=omit"
            )
        )
        if not page["messages"]:
            return found
        found += page["messages"]


def assert_one_critical_line(log: str, file: str) -> None:
    """It says what ended the service: which file, which error; and there is no traceback."""
    lines = [json.loads(line) for line in log.splitlines()]
    (critical,) = [line for line in lines if line["level"] == "critical"]
    assert critical["event"] == "service_failed"
    assert critical["exit_code"] == STORAGE_FAILED
    assert f"[Errno {EIO}] {os.strerror(EIO)}" in critical["error"]
    assert file in critical["error"]
    assert not any("exception" in line for line in lines)


def loop(api: httpx.Client, name: str) -> dict[str, Any]:
    return next(one for one in ok(api.get("/v1/admin/loops"))["items"] if one["loop"] == name)
