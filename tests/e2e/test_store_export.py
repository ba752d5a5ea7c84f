"""`escrowmq store export`: a stopped service's data directory becomes a store that a broker opens,
and the directory stays as it is.
"""

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import cli.main
from app.life import exit_codes
from app.store_moves.work_folder import UNFINISHED
from tests.support.golden import tree
from tests.support.http import ok, until
from tests.support.killed_moves import run_killed
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("logging_as_before", "no_settings_of_the_machine")

SEGMENT_BYTES = 1 << 17
SETTINGS = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES),
    "ESCROWMQ_LOCAL__QUEUE_FILE_ENTRIES": "100",
    "ESCROWMQ_LOCAL__INDEX_SLOTS": "100",
    "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": "900",
}
BROKERS_SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 900,
}
DAY_MS = 86_400_000


@pytest.fixture
def server(tmp_path) -> Server:
    return Server(tmp_path / "data", dev=False, environment=SETTINGS)


@pytest.fixture(scope="module")
def plain_data(tmp_path_factory) -> Path:
    """A data directory of several segments, of which everything is kept."""
    data = tmp_path_factory.mktemp("plain") / "data"
    with Server(data, dev=False, environment=SETTINGS) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 2}), 201)
        for number in range(60):
            send(api, "orders", payload=f"{number:04}" * 2_000, queue_id=number % 2)
        assert server.terminate() == 0
    return data


@pytest.fixture
def data(plain_data, tmp_path) -> Path:
    return shutil.copytree(plain_data, tmp_path / "data")


def send(api: httpx.Client, topic: str, **fields: Any) -> dict[str, Any]:
    return ok(api.post(f"/v1/topics/{topic}/messages", json=fields), 201)


def begin(api: httpx.Client, group: str, *messages: dict[str, Any]) -> str:
    body = {
        "producer_group": group,
        "messages": [{"topic": "orders", "message": one} for one in messages],
    }
    return ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]


def run(verb: str, source: Path, target: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, report, output)"""
    file = target.parent / f"{verb}.json"
    file.unlink(missing_ok=True)
    done = CliRunner().invoke(
        cli.main.app,
        ["store", verb, "--from", str(source), "--to", str(target), "--json", str(file), *options],
    )
    return done.exit_code, json.loads(file.read_text()) if file.exists() else {}, done.output


def export(source: Path, target: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    return run("export", source, target, *options)


def messages(api: httpx.Client, topic: str, queues: int) -> list[tuple[int, int, str, str]]:
    found = []
    for number in range(queues):
        at = 0
        while True:
            path = f"/v1/topics/{topic}/queues/{number}/messages"
            page = ok(api.get(path, params={"offset": at, "max_messages": 100}))
            found += [
                (number, one["queue_offset"], one["message_id"], one["payload"])
                for one in page["messages"]
            ]
            at = page["next_offset"]
            if not page["messages"]:
                break
    return found


def test_an_exported_store_is_whole_and_has_every_message(data, tmp_path):
    before = tree(data)

    status, report, output = export(data, tmp_path / "broker")

    assert status == 0, output
    assert tree(data) == before
    assert report["settings"] == BROKERS_SETTINGS
    for name, value in BROKERS_SETTINGS.items():
        assert f"{name}={value}\n" in output
    assert report["carried"] | {"topics": 1, "queues": 2, "messages": 60} == report["carried"]
    verified = CliRunner().invoke(cli.main.app, ["store", "verify", str(tmp_path / "broker")])
    assert verified.exit_code == 0, verified.output
    status, imported, output = run("import", tmp_path / "broker", tmp_path / "back")
    assert status == 0, output
    with Server(data, dev=False, environment=SETTINGS) as server, server.client() as api:
        expected = messages(api, "orders", 2)
    settings = {name: str(value) for name, value in imported["settings"].items()}
    with (
        Server(tmp_path / "back", dev=False, environment=settings) as server,
        server.client() as api,
    ):
        assert messages(api, "orders", 2) == expected
    assert len(expected) == 60


def test_a_broker_gets_its_own_files_alone(data, tmp_path):
    export(data, tmp_path / "broker")

    names = {path.name for path in (tmp_path / "broker").iterdir()}
    assert names <= {
        "commitlog", "consumequeue", "index", "config", "checkpoint", "lock", "timerwheel",
        "timerlog"
    }  # fmt: skip
    assert {"commitlog", "consumequeue", "index", "config", "checkpoint"} <= names
    lengths = {
        folder: {file.stat().st_size for file in (tmp_path / "broker" / folder).rglob("0*")
                 if file.is_file()}
        for folder in ("commitlog", "consumequeue")
    }  # fmt: skip
    assert lengths == {"commitlog": {SEGMENT_BYTES}, "consumequeue": {2_000}}


def test_sealed_segments_are_linked_and_spare_ones_left_out(data, tmp_path):
    _, report, _ = export(data, tmp_path / "broker")

    theirs = sorted((tmp_path / "broker" / "commitlog").iterdir())
    ours = sorted((data / "store" / "commitlog").iterdir())
    assert len(theirs) < len(ours)
    assert [path.name for path in theirs] == [path.name for path in ours[: len(theirs)]]
    assert report["linked_files"] == len(theirs) - 1 > 1
    shared = [mine.samefile(other) for mine, other in zip(ours, theirs, strict=False)]
    assert shared == [True] * (len(theirs) - 1) + [False]


def test_the_service_goes_on_beside_its_export_and_changes_none_of_its_bytes(data, tmp_path):
    export(data, tmp_path / "broker")
    before = tree(tmp_path / "broker")

    with Server(data, dev=False, environment=SETTINGS) as server, server.client() as api:
        for _ in range(30):
            send(api, "orders", payload="y" * 8_000)
        server.kill()
        server.start()
        send(api, "orders", payload="z")
        server.terminate()

    assert tree(tmp_path / "broker") == before


def test_a_dry_run_reports_the_same_and_changes_nothing(data, tmp_path):
    before = tree(tmp_path)

    status, report, _ = export(data, tmp_path / "broker", "--dry-run")

    (tmp_path / "export.json").unlink()
    assert tree(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    done_status, done, _ = export(data, tmp_path / "broker")
    assert done_status == status
    assert {name for name in done if done[name] != report[name]} <= {
        "dry_run",
        "seconds",
        "free_bytes",
    }


def test_the_store_of_a_killed_service_is_exported_too(server, tmp_path):
    with server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        sent = [send(api, "orders", payload=str(number)) for number in range(20)]
        server.kill()

    status, report, output = export(tmp_path / "data", tmp_path / "broker")

    assert status == 0, output
    assert report["carried"]["messages"] == len(sent)
    assert not (tmp_path / "broker" / "abort").exists()
    assert (tmp_path / "data" / "store" / "abort").exists()


def test_the_settings_for_the_broker_have_absolute_paths_and_a_dry_run_ends_with_its_sentence(
    data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    _, _, output = export(Path("data"), Path("back"), "--dry-run")

    root = tmp_path / "back"
    advice, *settings, last = output.splitlines()[-2 - len(BROKERS_SETTINGS) :]
    assert advice == (
        f"Start the broker with storePathRootDir={root}, "
        f"storePathCommitLog={root / 'commitlog'}, and these settings:"
    )
    assert sorted(settings) == sorted(f"  {name}={one}" for name, one in BROKERS_SETTINGS.items())
    assert last == "Nothing was changed."


def test_the_report_counts_the_retries_that_wait_and_none_that_is_settled(server, tmp_path):
    with server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        group = {"topics": [{"topic": "orders"}], "backoff_ms": [1]}
        ok(api.put("/v1/groups/billing", json=group), 201)
        for number in range(4):
            send(api, "orders", payload=str(number))
        first = receive(api, "billing", 4)
        settle(api, "billing", "nack", first[:3])
        settle(api, "billing", "ack", first[3:])
        retried = until(lambda: receive(api, "billing", 1), "a retry is delivered")
        settle(api, "billing", "ack", retried)
        ok(api.put("/v1/groups/later", json=group | {"backoff_ms": [DAY_MS]}), 201)
        settle(api, "later", "nack", receive(api, "later", 1))
        assert server.terminate() == 0

    _, report, output = export(tmp_path / "data", tmp_path / "broker")
    _, imported, _ = run("import", tmp_path / "broker", tmp_path / "back")

    assert report["carried"]["retries_waiting"] == 2
    assert imported["carried"]["retries_waiting"] == 2
    assert report["carried"]["delayed_waiting"] == 1
    assert "2  retries waiting" in output


@pytest.mark.parametrize("what", ["an exported store", "the folder of a service"])
def test_an_import_of_a_store_that_escrowmq_wrote_has_its_topics_groups_and_offsets(
    what, server, tmp_path
):
    with server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 2}), 201)
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
        ok(api.put("/v1/groups/idle", json={"topics": [{"topic": "orders"}]}), 201)
        for number in range(6):
            send(api, "orders", payload=str(number), queue_id=0)
        settle(api, "billing", "ack", receive(api, "billing", 4))
        assert server.terminate() == 0
    source = tmp_path / "data" / "store"
    if what == "an exported store":
        source = tmp_path / "broker"
        assert export(tmp_path / "data", source)[0] == 0

    _, report, output = run("import", source, tmp_path / "back")

    expected = {"topics": 1, "queues": 2, "messages": 6, "groups": 2}
    assert report["carried"] | expected == report["carried"], output
    with (
        Server(tmp_path / "back", dev=False, environment=SETTINGS) as again,
        again.client() as api,
    ):
        assert [one["payload"] for one in receive(api, "billing", 10)] == ["4", "5"]
        assert len(receive(api, "idle", 10)) == 6


def test_what_a_broker_does_not_keep_is_named(server, tmp_path):
    with server, server.client() as api:
        for name in ("orders", "with.dot"):
            ok(api.post("/v1/topics", json={"topic": name, "queues": 1}), 201)
        checked = {"kind": "json_schema", "json": {"type": "object"}}
        ok(api.post("/v1/topics", json={"topic": "checked", "queues": 1, "schema": checked}), 201)
        group = {"topics": [{"topic": "orders"}], "max_attempts": 1}
        ok(api.put("/v1/groups/billing", json=group), 201)
        for number in range(6):
            send(api, "orders", payload=str(number))
        received = receive(api, "billing", 5)
        settle(api, "billing", "ack", received[1:3])
        settle(api, "billing", "nack", received[3:4])
        ok(api.put("/v1/groups/hurried", json={**group, "skip_lag_over": 5}), 201)
        silent = {"topics": [{"topic": "orders", "filter": {"kind": "tag", "expression": "a"}}]}
        silent |= {"dead_letter": False, "ordered": True}
        ok(api.put("/v1/groups/silent", json=silent), 201)
        plain = begin(api, "shop", {"payload": "a"})
        several = begin(api, "shop", {"payload": "a"}, {"payload": "b"})
        delayed = begin(api, "shop", {"payload": "a", "delay_ms": DAY_MS})
        webhook = {"check_mode": "webhook", "check_url": "https://93.184.215.14/check"}
        ok(api.put("/v1/producer-groups/hooked", json=webhook), 201)
        begin(api, "hooked", {"payload": "a"})
        decided = begin(api, "shop", {"payload": "a"})
        ok(api.post(f"/v1/transactions/{decided}/commit"))
        cron = {"cron": "0 6 1 1 *", "topic": "orders", "message": {"payload": "tick"}}
        schedule = ok(api.post("/v1/schedules", json=cron), 201)["schedule_id"]
        asked = {"message": {"payload": "?"}, "timeout_ms": 600_000, "wait_ms": 0}
        request = ok(api.post("/v1/topics/orders/requests", json=asked), 202)["request_id"]
        ok(
            api.post(
                "/v1/topics/orders/messages",
                json={"payload": "x"},
                headers={"Idempotency-Key": "k1"},
            ),
            201,
        )
        until(lambda: dead_letters(api, "billing"), "the message is a dead letter")
        assert api.delete("/v1/groups/billing/dead-letters").is_success
        assert server.terminate() == 0

    status, report, output = export(tmp_path / "data", tmp_path / "broker")

    assert status == 1
    found = {one["code"]: (one["count"], one["names"]) for one in report["not_kept"]}
    assert found == {
        "topic_names": (1, ["with.dot"]),
        "payload_schemas": (1, ["checked"]),
        "skip_rules": (1, ["hurried"]),
        "groups_without_dead_letters": (1, ["silent"]),
        "group_retries": (2, ["billing", "hurried"]),
        "group_filters": (1, ["silent"]),
        "ordered_groups": (1, ["silent"]),
        "cron_schedules": (1, [schedule]),
        "requests": (1, [request]),
        "idempotency_keys": (1, []),
        "transactions_of_several_messages": (1, [several]),
        "transactions_with_a_delay": (1, [delayed]),
        "transactions_checked_by_webhook": (1, ["hooked"]),
    }
    assert {one["code"]: (one["count"], one["names"]) for one in report["twice"]} == {
        "settled_beyond_the_offset": (3, ["billing: 3"]),
        "leases": (2, ["billing: 2"]),
        "dead_letters_that_ended": (1, ["billing: 1"]),
    }
    assert report["carried"]["transactions_undecided"] == 4
    assert report["settings"]["transactionCheckMax"] > 1_000
    assert plain not in str(report["not_kept"])
    for one in (*report["not_kept"], *report["twice"]):
        assert one["what"] in output


def receive(api: httpx.Client, group: str, count: int) -> list[dict[str, Any]]:
    body = {"max_messages": count, "lease_ms": 600_000}
    return ok(api.post(f"/v1/groups/{group}/receive", json=body))["messages"]


def settle(api: httpx.Client, group: str, verb: str, received: list[dict[str, Any]]) -> None:
    entries = [{"receipt_handle": one["receipt_handle"]} for one in received]
    ok(api.post(f"/v1/groups/{group}/{verb}", json={"entries": entries}))


def dead_letters(api: httpx.Client, group: str) -> list[Any]:
    return ok(api.get(f"/v1/groups/{group}/dead-letters"))["items"]


def test_large_bodies_and_long_retention_are_settings_of_the_broker(tmp_path):
    settings = {**SETTINGS, "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(16 << 20)}
    server = Server(tmp_path / "data", dev=False, environment=settings)
    with server, server.client() as api:
        topic = {"topic": "orders", "queues": 1, "max_message_bytes": 8 << 20}
        ok(api.post("/v1/topics", json={**topic, "retention_ms": 10 * DAY_MS}), 201)
        send(api, "orders", payload="x" * (5 << 20))
        server.terminate()

    _, report, _ = export(tmp_path / "data", tmp_path / "broker")

    assert report["settings"]["maxMessageSize"] == 6 << 20
    assert report["settings"]["fileReservedTime"] == 240


# --------------------------------------------------------------------------------------------------
# refusals, and kill -9


def test_the_store_of_a_running_service_is_not_exported(server, tmp_path):
    with server:
        status, _, output = export(tmp_path / "data", tmp_path / "broker")

    assert status == exit_codes.DIRECTORY_IN_USE
    assert "Stop the broker or service first" in output
    assert not (tmp_path / "broker").exists()


def test_a_registry_of_another_store_is_refused(data, tmp_path):
    with sqlite3.connect(data / "registry.db") as registry:
        registry.execute("UPDATE registry_identity SET identity = 'another'")

    status, _, output = export(data, tmp_path / "broker")

    assert status == exit_codes.NO_REGISTRY
    assert "not the one that this store was used with" in output


@pytest.mark.parametrize("missing", ["registry.db", "store"])
def test_a_folder_that_is_no_data_directory_is_refused(missing, data, tmp_path):
    (data / missing).rename(tmp_path / "elsewhere")

    status, _, output = export(data, tmp_path / "broker")

    assert status == exit_codes.CONFIGURATION
    assert "no data directory" in output


def test_the_settings_in_the_data_directory_hold_for_an_export(data, tmp_path):
    (data / "escrowmq.toml").write_text('database_url = "sqlite:///elsewhere.db"\n')

    status, _, output = export(data, tmp_path / "broker")

    assert status == exit_codes.CONFIGURATION
    assert "DATABASE_URL is set" in output


def test_a_registry_on_a_server_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ESCROWMQ_DATABASE_URL", "sqlite:///elsewhere.db")

    assert export(data, tmp_path / "broker")[0] == exit_codes.CONFIGURATION
    assert run("import", data / "store", tmp_path / "back")[0] == exit_codes.CONFIGURATION


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("export_store", "copy", 0),
        ("opened_copy", "opened", 0),
        ("export_store", "finish", 0),
        ("work_folder", "_move", 1),
        ("work_folder", "_move", 3),
    ],
)
def test_a_killed_export_has_no_log_that_a_broker_would_serve(module, name, after, data, tmp_path):
    before, target = tree(data), tmp_path / "broker"

    run_killed("export", data, target, module=module, name=name, after=after)
    status, _, output = export(data, target)

    assert status == exit_codes.CONFIGURATION
    assert "remove all that is in it, and run the command again" in output
    assert UNFINISHED in os.listdir(target)
    assert "commitlog" not in os.listdir(target)
    assert tree(data) == before
    shutil.rmtree(target)
    assert export(data, target)[0] == 0
