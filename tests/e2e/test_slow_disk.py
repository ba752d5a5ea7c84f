"""A disk that takes its time: what senders are told meanwhile, and who starts while the log is
still being read.
"""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.failing_disk import Disk, ServerOnDisk
from tests.support.http import assert_problem, ok, until

MESSAGE = {"payload": "x"}
SYNC_TIMEOUT_MS = 200
IMPATIENT = {
    "ESCROWMQ_LOCAL__SYNC_TIMEOUT_MS": str(SYNC_TIMEOUT_MS),
    "ESCROWMQ_LOCAL__MAX_QUEUED_BYTES": "100000",
}
SENDERS = 4


@pytest.fixture
def disk(tmp_path) -> Disk:
    return Disk(tmp_path / "plan.json")


def send(api: httpx.Client, *, size: int = 1) -> httpx.Response:
    return api.post("/v1/topics/orders/messages/raw", content=b"x" * size)


def begin(api: httpx.Client) -> httpx.Response:
    body = {
        "transaction_id": "open",
        "producer_group": "shop",
        "messages": [{"topic": "orders", "message": MESSAGE}],
    }
    return api.post("/v1/transactions", json=body)


def pull(api: httpx.Client) -> list[str]:
    return [
        message["message_id"]
        for message in ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]
    ]


def test_a_send_whose_sync_takes_too_long_is_202_and_not_seen_before_it_is_on_disk(tmp_path, disk):
    with (
        ServerOnDisk(tmp_path / "data", disk, environment=IMPATIENT) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)

        with disk.slow("fdatasync", "commitlog"):
            receipt = ok(send(api), 202)
            batch = ok(
                api.post(
                    "/v1/topics/orders/messages/batch", json={"entries": [{"message": MESSAGE}]}
                ),
                201,
            )
            seen_meanwhile = pull(api)

        sent = [receipt["message_id"], batch["results"][0]["receipt"]["message_id"]]
        assert receipt["durability"] == "buffered"
        assert [
            (result["status"], result["receipt"]["durability"]) for result in batch["results"]
        ] == [(202, "buffered")]
        assert seen_meanwhile == []
        until(lambda: pull(api) == sent, "they are seen")
        assert ok(send(api), 201)["durability"] == "synced"


def test_a_receipt_that_was_made_during_a_slow_sync_does_not_say_more_than_is_true(tmp_path, disk):
    """The head of the second send is known: its receipt is made before the sync is over."""
    with (
        ServerOnDisk(tmp_path / "data", disk, environment=IMPATIENT) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        before = ok(api.post("/v1/topics/orders/messages", json=MESSAGE), 201)

        with disk.slow("fdatasync", "commitlog"):
            late = ok(api.post("/v1/topics/orders/messages", json=MESSAGE), 202)

        after = ok(api.post("/v1/topics/orders/messages", json=MESSAGE), 201)
        durabilities = [receipt["durability"] for receipt in (before, late, after)]
        assert durabilities == ["synced", "buffered", "synced"]


def test_a_decision_waits_for_its_sync_however_long_that_takes(tmp_path, disk):
    with (
        ServerOnDisk(tmp_path / "data", disk, environment=IMPATIENT) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        ok(begin(api), 201)

        with ThreadPoolExecutor(1) as beside:
            with disk.slow("fdatasync", "commitlog"):
                committing = beside.submit(api.post, "/v1/transactions/open/commit")
                ok(send(api), 202)  # the time of a send is up: that of the commit would be, too
                state_meanwhile = ok(api.get("/v1/transactions/open"))["state"]
                was_answered = committing.done()
            (message,) = ok(committing.result())["messages"]

        assert (state_meanwhile, was_answered) == ("prepared", False)
        assert message["message_id"] in pull(api)


def test_more_than_may_wait_is_refused_and_the_pressure_is_told_before(tmp_path, disk):
    with (
        ServerOnDisk(tmp_path / "data", disk, environment=IMPATIENT) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        quiet = send(api)

        with ThreadPoolExecutor(SENDERS) as senders:
            with disk.slow("fdatasync", "commitlog"):
                waiting = [senders.submit(send, api, size=24_000) for _ in range(SENDERS)]
                until(lambda: queued_bytes(api) > 90_000, "all wait")
                refused = send(api, size=24_000)
            taken = [ok(one.result(), one.result().status_code) for one in waiting]
            pressures = [float(one.result().headers["store-pressure"]) for one in waiting]

        problem = assert_problem(refused, 503, "overloaded")
        assert problem["retryable"]
        assert float(quiet.headers["store-pressure"]) < 0.1
        assert max(pressures) > 0.2
        again = until(
            lambda: answer if (answer := send(api, size=24_000)).status_code == 201 else None,
            "there is room again",
        )
        assert {receipt["message_id"] for receipt in [*taken, ok(again, 201)]} <= set(pull(api))


def test_a_service_that_still_reads_its_log_is_alive_and_not_ready(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = ok(send(api), 201)["message_id"]
        server.kill()

        with disk.slow("pread", "commitlog"):
            server.start(until_ready=False)
            with server.client() as api:
                until(lambda: is_alive(api), "it answers")
                alive = ok(api.get("/livez"))
                ready = api.get("/readyz")
                refused = [
                    send(api),
                    api.get("/v1/topics/orders/queues/0/messages"),
                    api.get("/v1/transactions"),
                ]
                page = api.get("/docs")

        assert alive == {"live": True}
        context = assert_problem(ready, 503, "recovering")["context"]
        assert int(context["walked_bytes"]) <= int(context["bytes_to_walk"])
        assert [assert_problem(one, 503, "recovering")["retryable"] for one in refused] == [
            True
        ] * len(refused)
        assert page.status_code == 200
        server.wait_until_ready()
        with server.client() as api:
            assert pull(api) == [sent]


def test_a_service_that_still_reads_its_log_ends_when_it_is_told_to(tmp_path, disk):
    with ServerOnDisk(tmp_path / "data", disk) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            sent = ok(send(api), 201)["message_id"]
        server.kill()
        with ThreadPoolExecutor(1) as beside, server.client() as api:
            with disk.slow("pread", "commitlog"):
                server.start(until_ready=False)
                until(lambda: is_alive(api), "it answers")
                ending = beside.submit(server.terminate)
                until(lambda: stops(api), "it stops")

            assert ending.result() == 0
        server.start()
        with server.client() as api:
            assert pull(api) == [sent]


def is_alive(api: httpx.Client) -> bool:
    try:
        return api.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def stops(api: httpx.Client) -> bool:
    try:
        return "shutting_down" in api.get("/readyz").text
    except httpx.TransportError:
        return True


def queued_bytes(api: httpx.Client) -> float:
    line = next(
        line
        for line in api.get("/metrics").text.splitlines()
        if line.startswith("escrowmq_log_queued_bytes ")
    )
    return float(line.split()[1])
