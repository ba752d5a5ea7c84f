"""`escrowmq store backup` beside a service under load, and `restore`: each message that was
acknowledged before the point is there, and none that was stored after it.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import cli.main
from app.life import exit_codes
from tests.support.http import ok, until
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("logging_as_before")

TOPIC = "/v1/topics/orders/messages"


def command(*arguments: str | Path, status: int = 0) -> dict[str, Any]:
    """The report of a run of `escrowmq store`."""
    done = CliRunner().invoke(
        cli.main.app, ["store", *map(str, arguments), "--json", "-"], catch_exceptions=False
    )
    assert done.exit_code == status, done.output
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return report


class Load:
    """Sends of several producers; `receipts` of what was acknowledged as synced."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ends = threading.Event()
        self.receipts: dict[str, dict[str, Any]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._send, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            for thread in threads:
                thread.join()

    def _send(self, producer: int) -> None:
        with self._server.client() as api:
            number = 0
            while not self._ends.is_set():
                entries = [
                    {"id": str(one), "message": {"payload": f"{producer}-{number}-{one}" * 30}}
                    for one in range(20)
                ]
                answer = ok(api.post(f"{TOPIC}/batch", json={"entries": entries}), 201)
                for result in answer["results"]:
                    assert result["receipt"]["durability"] == "synced"
                    self.receipts[result["receipt"]["message_id"]] = result["receipt"]
                number += 1


def stored_in(api: httpx.Client) -> dict[str, dict[str, Any]]:
    """All messages of the topic by their ids."""
    found = {}
    for queue in ok(api.get("/v1/topics/orders/queues"))["items"]:
        offset = queue["min_offset"]
        while True:
            page = ok(
                api.get(
                    f"/v1/topics/orders/queues/{queue['queue_id']}/messages",
                    params={"offset": offset, "max_messages": 1000},
                )
            )["messages"]
            if not page:
                break
            found.update({one["message_id"]: one for one in page})
            offset = page[-1]["queue_offset"] + 1
    return found


def test_a_restore_finds_each_message_that_was_acknowledged_before_the_point(tmp_path):
    data, backups = tmp_path / "data", tmp_path / "backups"
    made = []
    acknowledged: list[set[str]] = []
    with Server(data) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "billing", "queues": 3}), 201)
        load = Load(server)
        with load.running():
            for more in (500, 1_500, 1_000):
                enough = len(load.receipts) + more
                until(lambda enough=enough: len(load.receipts) >= enough, "enough sends")
                acknowledged.append(set(load.receipts))
                made.append(command("backup", "--from", data, "--to", backups))
        held = ok(
            api.post(
                "/v1/transactions",
                json={
                    "producer_group": "shop",
                    "messages": [{"topic": "orders", "message": {"payload": "of a half"}}],
                },
            ),
            201,
        )
        made.append(command("backup", "--from", data, "--to", backups))
        server.kill()

    assert [one["report"] for one in made] == ["store_backup"] * 4
    assert len(command("backups", backups)["backups"]) == 4
    middle = sorted(load.receipts.values(), key=lambda one: one["log_offset"])[
        len(load.receipts) // 2
    ]
    points = {
        "newest": [],
        "offset": ["--until-offset", str(made[1]["end_offset"])],
        "time": ["--until-time", middle["stored_at"]],
    }
    for name, point in points.items():
        target = tmp_path / name
        report = command("restore", "--from", backups, "--to", target, *point)
        assert report["findings"] == []
        with Server(target) as server, server.client() as api:
            found = stored_in(api)
            for receipt in load.receipts.values():
                is_before = receipt["log_offset"] < report["end_offset"]
                assert (receipt["message_id"] in found) == is_before
                if name == "time":
                    assert is_before == (receipt["stored_at"] <= middle["stored_at"])
            if name == "offset":
                assert acknowledged[1] <= found.keys()
            if name == "newest":
                assert found.keys() >= load.receipts.keys()
                txn = f"/v1/transactions/{held['transaction_id']}"
                assert ok(api.get(txn))["state"] == "prepared"
                ok(api.post(f"{txn}/commit"))
            assert len(ok(api.get("/v1/topics/billing/queues"))["items"]) == 3
            ok(api.post(TOPIC, json={"payload": "life goes on"}), 201)


def test_a_backup_that_is_refused_says_why_and_changes_nothing(tmp_path):
    assert "refused" in command(
        "backup", "--from", tmp_path, "--to", tmp_path / "b", status=exit_codes.CONFIGURATION
    )
    command("restore", "--from", tmp_path / "none", "--to", tmp_path / "t", status=78)
    command("backup", "--from", tmp_path, "--to", tmp_path / "inside", status=78)
    assert command("backups", tmp_path / "none", status=78)["refused"] == [
        f"{tmp_path / 'none'} is no folder"
    ]
    times = ["--until-time", "yesterday"]
    command("restore", "--from", tmp_path, "--to", tmp_path / "t", *times, status=2)
    both = ["--until-time", "2026-01-01T00:00:00Z", "--until-offset", "7"]
    command("restore", "--from", tmp_path, "--to", tmp_path / "t", *both, status=2)
    assert list(tmp_path.iterdir()) == []
