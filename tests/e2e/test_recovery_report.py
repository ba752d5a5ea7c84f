"""After kill -9 and after a power cut the report tells which receipts survived."""

import json
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

import cli.main
from storage.formats.names import file_name
from tests.support.http import assert_problem, ok
from tests.support.server import Server

HOUR_MS = str(3_600_000)
# Nothing is synced unless a request asks for it.
BY_INTERVAL = {
    "ESCROWMQ_LOCAL__FLUSH": "interval",
    "ESCROWMQ_LOCAL__FLUSH_INTERVAL_MS": HOUR_MS,
    "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": HOUR_MS,
}


def send(api: httpx.Client, count: int, **fields: Any) -> list[dict[str, Any]]:
    path = "/v1/topics/orders/messages"
    return [ok(api.post(path, json={"payload": "x" * 100, **fields}), 201) for _ in range(count)]


def reports_of(data: Path, tmp_path: Path) -> tuple[list[dict[str, Any]], str]:
    """The reports as JSON and as text, by the command."""
    file = tmp_path / "reports.json"
    done = CliRunner().invoke(
        cli.main.app, ["store", "recovery-report", str(data), "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    return json.loads(file.read_text("utf-8")), done.output


def test_the_report_after_a_kill_and_after_a_power_cut_tells_which_receipts_survived(tmp_path):
    data = tmp_path / "data"
    with Server(data, environment=BY_INTERVAL) as server, server.client() as api:
        (synced,) = send(api, 1, require_durability="synced")
        buffered = send(api, 5)
        assert {one["durability"] for one in buffered} == {"buffered"}
        server.kill()
        server.start()
        after_kill = ok(api.get("/v1/admin/recovery"))

        assert not after_kill["was_clean"]
        assert "cut_at" not in after_kill
        assert synced["log_offset"] < after_kill["synced_offset"] <= buffered[0]["log_offset"]
        assert after_kill["checkpoint_offset"] <= after_kill["synced_offset"]
        assert after_kill["buffered_records"] >= 5
        assert after_kill["end_offset"] == (
            after_kill["synced_offset"] + after_kill["buffered_bytes"]
        )
        assert buffered[-1]["log_offset"] < after_kill["end_offset"]
        assert after_kill["rebuilt_queues"] >= 1
        for receipt in (synced, *buffered):
            ok(api.get(f"/v1/messages/{receipt['message_id']}"))

        (synced,) = send(api, 1, require_durability="synced")
        buffered = send(api, 6)
        server.kill()
        torn = buffered[3]
        with (data / "store/commitlog" / file_name(0)).open("r+b") as log:
            log.seek(torn["log_offset"])
            log.write(bytes(512))
        server.start()
        after_cut = ok(api.get("/v1/admin/recovery"))

        assert after_cut["cut_at"] == after_cut["end_offset"] == torn["log_offset"]
        assert after_cut["cut_end"] > buffered[-1]["log_offset"]
        assert after_cut["cut_records"] in (1, 2)  # a sector may hold parts of two of them
        assert after_cut["buffered_records"] >= 3
        for receipt in (synced, *buffered):
            answer = api.get(f"/v1/messages/{receipt['message_id']}")
            if receipt["log_offset"] < after_cut["end_offset"]:
                ok(answer)
            else:
                assert receipt["durability"] == "buffered"
                assert_problem(answer, 404, "message_not_found")

        reports, text = reports_of(data, tmp_path)
        assert reports[0] == {key: after_cut[key] for key in after_cut if key != "earlier"}
        assert reports[1:] == after_cut["earlier"]
        assert len(reports) == 3
        assert f"log offset from {torn['log_offset']} on" in text
