"""C13: checks and messages go to endpoints that hang, drip, redirect, bomb, reset and lie.

Nothing of it decides a transaction, or holds up others.
"""

import json
import os
import time
from pathlib import Path

import httpx
import pytest

from tests.fault.campaign_size import sized
from tests.fault.hostile_receivers import HostileReceivers
from tests.support.http import ok, until
from tests.support.receiver import Receiver, Said, decide
from tests.support.server import Server

pytestmark = pytest.mark.faults

SECONDS = sized(ci=20, full=1_800)
TRANSACTIONS_EACH = 6
MESSAGES_EACH = 50
CHECK = {"first_after_ms": 10, "interval_ms": 200, "max_answers": 3}
CONCURRENCY = 4  # of a host
MOST_GROWTH_BYTES = 64 << 20
SLOWEST_HEALTHY_SECONDS = 2.0


def test_hostile_endpoints_decide_nothing_and_slow_nobody(tmp_path):
    with HostileReceivers(tmp_path) as hostile, Receiver(lambda _: decide("commit")) as honest:
        allowed = json.dumps([*hostile.hosts, "127.0.0.1"])
        environment = {
            "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": allowed,
            "ESCROWMQ_TXN__DECIDED_KEPT": "500",  # else the honest ones are what takes memory
        }
        with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
            groups = {f"group-{number}": name for number, name in enumerate(hostile.urls)}
            for group, name in groups.items():
                _put(api, group, hostile.urls[name])
            _put(api, "honest", honest.url)
            begun = {
                name: [_begin(api, group) for _ in range(TRANSACTIONS_EACH)]
                for group, name in groups.items()
            }
            until(
                lambda: len(hostile.asked) >= len(begun) - 2,
                "each of those that can be asked was asked once",
            )
            before = _footprint(server)

            healthy, peak = [], before
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                began = time.monotonic()
                transaction_id = _begin(api, "honest")
                found = ok(
                    api.get(f"/v1/transactions/{transaction_id}", params={"wait_ms": 10_000})
                )
                assert (found["state"], found["resolved_by"]) == ("committed", "check")
                healthy.append(time.monotonic() - began)
                now = _footprint(server)
                peak = (max(peak[0], now[0]), max(peak[1], now[1]))

            for name, transactions in begun.items():
                states = {ok(api.get(f"/v1/transactions/{one}"))["state"] for one in transactions}
                assert states == {"prepared"}, f"who {name} has decided something: {states}"
                answered = {
                    ok(api.get(f"/v1/transactions/{one}"))["answers"] for one in transactions
                }
                assert answered == {0}, f"what came of who {name} was counted as an answer"
            assert server.terminate() == 0

    healthy.sort()
    assert len(healthy) > SECONDS // 3
    assert healthy[int(len(healthy) * 0.99)] < SLOWEST_HEALTHY_SECONDS, (
        f"the slowest took {healthy[-1]:.1f} s"
    )
    # An endpoint sees the end of a try that was given up a moment after the next one has begun.
    assert max(hostile.most_open.values()) <= 2 * CONCURRENCY
    assert peak[0] - before[0] < MOST_GROWTH_BYTES, f"memory went from {before[0]} to {peak[0]}"
    assert peak[1] - before[1] < CONCURRENCY * len(begun), (
        f"descriptors went from {before[1]} to {peak[1]}"
    )


def test_hostile_endpoints_of_consumers_slow_nobody(tmp_path):
    with HostileReceivers(tmp_path) as hostile, Receiver(lambda _: Said(status=204)) as honest:
        allowed = json.dumps([*hostile.hosts, "127.0.0.1"])
        environment = {"ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": allowed}
        with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
            entries = [{"message": {"json": number}} for number in range(MESSAGES_EACH)]
            ok(api.put("/v1/topics/hostile"), 201)
            ok(api.post("/v1/topics/hostile/messages/batch", json={"entries": entries}), 201)
            ok(api.put("/v1/topics/honest"), 201)
            for number, url in enumerate(hostile.urls.values()):
                _push(api, f"group-{number}", "hostile", url)
            _push(api, "honest", "honest", honest.url)
            until(
                lambda: len(hostile.asked) >= len(hostile.urls) - 2,
                "each of those that can be reached got a message",
            )
            before = _footprint(server)

            healthy, peak = [], before
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                began = time.monotonic()
                ok(api.post("/v1/topics/honest/messages", json={"json": 1}), 201)
                honest.wait_for(len(healthy) + 1)
                healthy.append(time.monotonic() - began)
                now = _footprint(server)
                peak = (max(peak[0], now[0]), max(peak[1], now[1]))

            assert server.terminate() == 0

    healthy.sort()
    assert len(healthy) > SECONDS // 3
    assert healthy[int(len(healthy) * 0.99)] < SLOWEST_HEALTHY_SECONDS, (
        f"the slowest took {healthy[-1]:.1f} s"
    )
    assert max(hostile.most_open.values()) <= 2 * CONCURRENCY
    assert peak[0] - before[0] < MOST_GROWTH_BYTES, f"memory went from {before[0]} to {peak[0]}"
    assert peak[1] - before[1] < CONCURRENCY * len(hostile.urls), (
        f"descriptors went from {before[1]} to {peak[1]}"
    )


def _push(api: httpx.Client, group: str, topic: str, url: str) -> None:
    push = {"url": url, "concurrency": CONCURRENCY, "timeout_ms": 5_000}
    body = {"topics": [{"topic": topic}], "push": push, "backoff_ms": [100], "max_attempts": 1_000}
    ok(api.put(f"/v1/groups/{group}", json=body), 201)


def _put(api: httpx.Client, group: str, url: str) -> None:
    ok(
        api.put(f"/v1/producer-groups/{group}", json={"check_mode": "webhook", "check_url": url}),
        201,
    )


def _begin(api: httpx.Client, group: str) -> str:
    body = {
        "producer_group": group,
        "messages": [{"topic": "orders", "message": {"json": 1}}],
        "check": CHECK,
    }
    return ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]


def _footprint(server: Server) -> tuple[int, int]:
    """(bytes of memory without that of files, open descriptors) of the service."""
    pages = list(map(int, Path(f"/proc/{server.pid}/statm").read_text().split()))
    own_bytes = (pages[1] - pages[2]) * os.sysconf("SC_PAGESIZE")  # the log is mapped, too
    return own_bytes, len(os.listdir(f"/proc/{server.pid}/fd"))
