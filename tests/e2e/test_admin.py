"""What operators look at: the loops and the store, and what both say when something is wrong."""

import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from tests.support.http import ok, request, speak, until
from tests.support.server import Server

LOOPS = [
    *(
        "retention",
        "disk",
        "rates",
        "schedules",
        "schedule_snapshots",
        "cron",
        "cron_snapshots",
        "leases",
        "redrive",
        "lease_snapshots",
        "members",
        "member_snapshots",
        "push",
        "group_ages",
        "broker_files",
    ),
    *(
        "requests",
        "request_snapshots",
        "checkback",
        "webhooks",
        "snapshots",
        "deriver",
        "scrub",
        "registry",
    ),
]


def loops(api) -> dict:
    return {loop["loop"]: loop for loop in ok(api.get("/v1/admin/loops"))["items"]}


def test_every_loop_says_when_it_ran_and_that_all_is_well(api, topic):
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)

    found = until(
        lambda: (now := loops(api)) and all("last_run_at" in loop for loop in now.values()) and now,
        "each has run",
    )

    assert sorted(found) == sorted(LOOPS)
    for loop in found.values():
        assert datetime.fromisoformat(loop["last_run_at"])
        assert (loop["failures"], loop["set_aside"], "last_error" in loop) == (0, 0, False), loop
        assert 0 <= loop["lag_ms"] < 5_000
    metrics = api.get("/metrics").text
    assert 'escrowmq_loop_lag_seconds{loop="cron"}' in metrics
    assert 'escrowmq_loop_failures_total{loop="checkback"} 0.0' in metrics
    assert 'escrowmq_loop_set_aside{loop="schedules"}' in metrics


def test_the_store_says_how_it_is_in_numbers(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        messages = [{"topic": "orders", "message": {"payload": "x"}}]
        for _ in range(3):
            ok(
                api.post("/v1/transactions", json={"producer_group": "shop", "messages": messages}),
                201,
            )
        receipt = ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)

        store = ok(api.get("/v1/admin/store"))

    log = store["log"]
    assert log["min_offset"] == 0
    assert receipt["log_offset"] < log["synced_offset"] <= log["max_offset"]
    assert log["visible_offset"] == log["synced_offset"]
    assert log["segments"] >= 1
    assert store["dispatch_lag_bytes"] == 0
    assert (
        store["pending_transactions"],
        store["held_transactions"],
        store["schedules_due_late"],
    ) == (3, 0, 0)


def ended(api, path: str) -> dict:
    return until(
        lambda: (task := ok(api.get(path)))["state"] != "running" and task, "the task ends"
    )


def test_a_verification_beside_sends_finds_nothing_over_http_and_from_another_process(
    api, server, make_topic
):
    topic = make_topic(queues=4)
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)
    is_over = threading.Event()

    def send() -> int:
        count = 0
        with server.client() as client:
            while not is_over.is_set():
                messages = [
                    {"message": {"payload": "x" * 500, "key": f"k{count}-{n}", "tag": "a"}}
                    for n in range(20)
                ]
                ok(
                    client.post(f"/v1/topics/{topic}/messages/batch", json={"entries": messages}),
                    201,
                )
                count += 20
        return count

    with ThreadPoolExecutor(2) as pool:
        sending = [pool.submit(send) for _ in range(2)]
        try:
            for _ in range(3):
                begun = api.post("/v1/admin/store/verify")
                task = ended(api, begun.headers["location"])
                assert (task["state"], task["findings"], task["kind"]) == (
                    "done",
                    [],
                    "verify_store",
                ), task
                assert 0 < task["done"] <= task["total"]
            program = Path(sys.executable).with_name("escrowmq")
            command = [str(program), "store", "verify", str(server.data_dir)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "which is running: no findings" in done.stdout
        finally:
            is_over.set()
    assert all(one.result() > 0 for one in sending)


def test_one_verification_runs_at_a_time_and_can_be_cancelled(server, api):
    begin = request("POST", "/v1/admin/store/verify", "Content-Length: 0")
    again = request("POST", "/v1/admin/store/verify", "Content-Length: 0", close=True)
    # In one piece: a small store is verified within the time between two connections.
    first, second = speak(server, begin + again)
    assert (first.status, second.status) == (202, 202)
    assert json.loads(first.body)["task_id"] == json.loads(second.body)["task_id"]
    path = first.headers["location"]

    cancelled = ok(api.delete(path))

    assert cancelled["state"] in ("cancelled", "done")
    assert "ended_at" in cancelled
    assert ok(api.get(path)) == cancelled
    assert (
        cancelled
        in ok(api.get("/v1/tasks", params={"page_size": 1000, "state": cancelled["state"]}))[
            "items"
        ]
    )
    assert ended(api, api.post("/v1/admin/store/verify").headers["location"])["state"] == "done"


def test_damage_of_the_old_log_is_told_by_the_verification_and_by_the_scrub_and_takes_no_readiness_away(
    tmp_path,
):
    with Server(tmp_path / "data") as server, server.client() as api:
        for n in range(20):
            ok(
                api.post(
                    "/v1/topics/orders/messages", json={"payload": f"message {n}", "queue_id": 0}
                ),
                201,
            )
        assert server.terminate() == 0
        path = server.data_dir / "store" / "commitlog" / ("0" * 20)
        raw = path.read_bytes()
        at = raw.index(b"message 7")
        path.write_bytes(raw[:at] + b"M" + raw[at + 1 :])
        server.start()

        found = ended(api, api.post("/v1/admin/store/verify").headers["location"])["findings"]
        scrub = until(
            lambda: (scrub := ok(api.get("/v1/admin/store"))["scrub"])["findings"] and scrub,
            "the scrub finds it",
        )

        assert [(one["code"], one["derived"]) for one in found] == [
            ("log_damaged", False),
            ("log_messages_lost", False),
        ]
        assert found[1]["place"] == "orders/0, offset 7"
        assert scrub["findings"] == found[:1]
        assert scrub["position"] > found[0]["position"]
        checks = ok(api.get("/readyz"))["checks"]
        assert (
            checks["store_intact"] == "the old log is damaged in 1 places, see GET /v1/admin/store"
        )
        assert "escrowmq_scrub_findings 1.0" in api.get("/metrics").text
        assert "log_damage_found" in server.log()


def test_the_store_has_rates_of_sends_transactions_receives_and_acks(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        idle = ok(api.get("/v1/admin/store"))["rates"]
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
        for n in range(5):
            ok(api.post("/v1/topics/orders/messages", json={"payload": f"message {n}"}), 201)
        messages = [{"topic": "orders", "message": {"payload": "x"}}]
        for decision in ("commit", "commit", "rollback"):
            begun = ok(
                api.post("/v1/transactions", json={"producer_group": "shop", "messages": messages}),
                201,
            )
            ok(api.post(f"/v1/transactions/{begun['transaction_id']}/{decision}"))
        received = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 32}))["messages"]
        entries = [{"receipt_handle": one["receipt_handle"]} for one in received]
        ok(api.post("/v1/groups/billing/ack", json={"entries": entries}))

        rates = ok(api.get("/v1/admin/store"))["rates"]

    assert idle["messages_in_per_second"] == 0
    assert "sends" not in idle
    seconds = rates["window_ms"] / 1_000
    assert 0 < seconds < 65
    counts = {name: round(rate * seconds) for name, rate in rates.items() if "per_second" in name}
    assert counts.pop("log_bytes_per_second") > 1_000
    assert counts == {
        "messages_in_per_second": 7,
        "messages_out_per_second": len(received),
        "transactions_begun_per_second": 3,
        "transactions_committed_per_second": 2,
        "transactions_rolled_back_per_second": 1,
        "ack_requests_per_second": 1,
    }
    sends = rates["sends"]
    assert sum(one["requests"] for one in sends["classes"]) == 5
    assert 0 < sends["mean_ms"] <= sends["max_ms"] == sends["classes"][-1]["up_to_ms"]


def test_damage_of_an_old_queue_file_and_of_an_old_index_file_is_found_by_the_scrub_over_http(
    tmp_path,
):
    with Server(tmp_path / "data") as server, server.client() as api:
        for n in range(20):
            ok(
                api.post(
                    "/v1/topics/orders/messages", json={"payload": f"message {n}", "queue_id": 0}
                ),
                201,
            )
        until(
            lambda: ok(api.get("/v1/admin/store"))["scrub"].get("last_ended_at"),
            "a pass over a store without damage",
        )
        assert ok(api.get("/v1/admin/store"))["scrub"]["findings"] == []
        assert server.terminate() == 0
        (index_file,) = (server.data_dir / "store" / "index").iterdir()
        queue_file = server.data_dir / "store" / "consumequeue" / "orders" / "0" / ("0" * 20)
        slots = 5_000_000
        flip(queue_file, 7 * 20 + 7)
        flip(index_file, 40 + 4 * slots + 20 * 3 + 11)
        (server.data_dir / "store" / "snapshots" / "scrub").unlink()  # the next pass begins at once
        server.start()

        found = until(
            lambda: (
                (scrub := ok(api.get("/v1/admin/store"))["scrub"]).get("last_ended_at")
                and scrub["findings"]
            ),
            "the scrub finds both",
        )

        assert sorted((one["code"], one["derived"]) for one in found) == [
            ("index_entry_differs", True),
            ("queue_entry_differs", True),
        ]
        checks = ok(api.get("/readyz"))["checks"]
        assert checks["store_intact"] == (
            "queue and index files are damaged in 2 places, see GET /v1/admin/store"
        )
        assert "escrowmq_scrub_findings 2.0" in api.get("/metrics").text
        assert "derived_damage_found" in server.log()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_what_a_loop_went_past_is_told_with_its_reason_and_the_service_is_ready_all_the_same(
    tmp_path,
):
    with Server(tmp_path / "data") as server, server.client() as api:
        schedules = [
            ok(
                api.post(
                    "/v1/schedules",
                    json={"cron": "@hourly", "topic": "ticks", "message": {"payload": "x"}},
                ),
                201,
            )
            for _ in range(2)
        ]
        assert server.terminate() == 0
        lost = schedules[0]["schedule_id"]
        with sqlite3.connect(tmp_path / "data" / "registry.db") as registry:
            registry.execute(
                "UPDATE cron_schedules SET time_zone = 'Atlantis/City' WHERE schedule_id = ?",
                [lost],
            )
        server.start()

        cron = loops(api)["cron"]

        assert (cron["set_aside"], "last_error" in cron) == (1, False)
        assert [item["id"] for item in cron["set_aside_items"]] == [lost]
        assert "Atlantis/City" in cron["set_aside_items"][0]["reason"]
        found = ok(api.get("/v1/schedules", params={"kind": "cron", "state": "set_aside"}))["items"]
        assert [one["schedule_id"] for one in found] == [lost]
        ok(api.get("/readyz"))
        assert (
            ok(api.patch(f"/v1/schedules/{lost}", json={"time_zone": "UTC"}))["state"]
            == "scheduled"
        )
        assert loops(api)["cron"]["set_aside"] == 0


def test_a_damaged_record_under_a_delayed_message_keeps_no_other_from_being_delivered(tmp_path):
    never_sweeps = {"ESCROWMQ_SCHEDULE__SWEEP_INTERVAL_MS": "3600000"}
    with Server(tmp_path / "data", environment=never_sweeps) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        _, sound = (
            ok(
                api.post(
                    "/v1/topics/orders/messages",
                    json={"payload": f"number-{number}", "delay_ms": 50 + number},
                ),
                201,
            )
            for number in (1, 2)
        )
        ok(api.get("/v1/schedules"))  # both are known, and kept by the stop
        assert server.terminate() == 0
    segment = min((tmp_path / "data" / "store" / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"number-1", b"number-7"))
    with Server(tmp_path / "data") as server, server.client() as api:
        path = "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=10000"
        assert [one["message_id"] for one in ok(api.get(path))["messages"]] == [sound["message_id"]]
        schedules = until(
            lambda: (now := loops(api)["schedules"])["set_aside"] and now, "it is set aside"
        )

        assert "last_error" not in schedules
        (aside,) = ok(api.get("/v1/schedules", params={"state": "set_aside"}))["items"]
        assert aside["reason"].startswith(f"{segment.name} at log offset ")
        ok(api.get("/readyz"))
