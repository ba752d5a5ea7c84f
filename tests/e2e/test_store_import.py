"""`escrowmq store import`: the store of a stopped broker becomes a data directory that a service
opens, and the broker's own files stay as they are.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import cli.main
from app.life import exit_codes
from app.store_moves import disk_space, opened_copy
from app.store_moves.work_folder import UNFINISHED
from storage.clock import SystemClock
from storage.errors import StorageFull
from storage.files.vfs import OsVfs
from storage.formats import names
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from tests.support.broker_log import REVIVE, BrokerLog
from tests.support.builders import message
from tests.support.golden import manifest, tree, unpack
from tests.support.http import ok, until
from tests.support.killed_moves import run_killed
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("logging_as_before", "no_settings_of_the_machine")

MESSAGES = 60
SEGMENTS = LocalStoreOptions(
    segment_bytes=16_384, prepare_ahead_bytes=4_096, queue_file_entries=10, index_slots=100,
    index_file_entries=400
)  # fmt: skip


@pytest.fixture
async def store(tmp_path) -> Path:
    """A log of several segments, without anything that only EscrowMQ has in a store."""
    root = tmp_path / "broker"
    clock = SystemClock()
    opened = await LocalMessageStore.open(
        root, SEGMENTS, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    await opened.create_topic("orders", queue_count=1)
    for number in range(MESSAGES):
        await opened.append([message(b"x" * 1_000, message_id=f"m{number}", key=f"k{number}")])
    await opened.aclose()
    for own in ("snapshots", "timers", "making"):
        shutil.rmtree(root / own)
    for own in ("checkpoint", "recovery-reports.json"):
        (root / own).unlink()
    write_config(root)
    return root


def write_config(root: Path) -> None:
    """The files of a broker whose group `billing` has consumed 52 messages."""
    topic = {"topicName": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    tables = {
        "topics.json": {"topicConfigTable": {"orders": topic}},
        "subscriptionGroup.json": {"subscriptionGroupTable": {"billing": {"groupName": "billing"}}},
        "consumerOffset.json": {"offsetTable": {"orders@billing": {"0": 52}}},
        "consumerFilter.json": {"filterDataByTopic": {}},
    }
    for name, table in tables.items():
        (root / "config" / name).write_text(json.dumps(table))


def run(source: Path, target: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, report, output)"""
    file = source.parent / "report.json"
    file.unlink(missing_ok=True)
    done = CliRunner().invoke(
        cli.main.app,
        [
            "store",
            "import",
            "--from",
            str(source),
            "--to",
            str(target),
            "--json",
            str(file),
            *options,
        ],
    )
    return done.exit_code, json.loads(file.read_text()) if file.exists() else {}, done.output


def service(target: Path, report: dict[str, Any]) -> Server:
    settings = {name: str(value) for name, value in report["settings"].items()}
    return Server(target, dev=False, environment=settings)


@pytest.mark.parametrize("name", ["public-1", "public-2"])
def test_every_message_of_a_broker_is_served_after_an_import(name, tmp_path):
    source, target = unpack(name, tmp_path), tmp_path / "data"
    said = manifest(name)

    status, report, _ = run(source, target)
    with service(target, report) as server, server.client() as api:
        found = {
            (topic, number, one["queue_offset"]): one["message_id"]
            for topic, queues in said["topics"].items()
            for number in range(queues)
            for one in pulled(api, topic, number)
        }

    assert status in (0, 1)
    served = {
        (row["topic"], row["queue_id"], row["queue_offset"]): row["properties"]["UNIQ_KEY"]
        for row in said["served"]
        if row["topic"] in said["topics"]
    }
    assert {place: found.get(place) for place in served} == served
    assert report["carried"]["topics"] == len(said["topics"])
    assert report["carried"]["groups"] >= len(said["groups"]) - 1, "one has a name that is too long"
    assert report["carried"]["group_offsets"] > 0
    assert "group_setting" in {one["code"] for one in report["not_kept"]}
    assert report["carried"]["queues"] == sum(said["topics"].values())
    assert report["settings"] == {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": 1 << 20,
        "ESCROWMQ_LOCAL__QUEUE_FILE_ENTRIES": 1_000,
        "ESCROWMQ_LOCAL__INDEX_SLOTS": 5_000,
        "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": 20_000,
    }


def test_of_the_delayed_messages_those_that_the_broker_has_for_itself_are_not_counted(tmp_path):
    log = BrokerLog(tmp_path / "broker")
    for topic, queue_number in ((REVIVE, 3), (REVIVE, 7), ("orders", 0), ("%RETRY%shop", 0)):
        log.append(
            names.TIMER_TOPIC,
            b"{}",
            {
                "REAL_TOPIC": topic,
                "REAL_QID": str(queue_number),
                "TIMER_OUT_MS": "4102444800000",
            },
        )
    log.append("orders", b"last", {"UNIQ_KEY": "m"})
    log.close()

    _, report, output = run(tmp_path / "broker", tmp_path / "data")

    assert report["carried"]["delayed_waiting"] == 2, output


def pulled(api: Any, topic: str, number: int) -> list[dict[str, Any]]:
    found, at = [], 0
    while True:
        page = ok(
            api.get(
                f"/v1/topics/{topic}/queues/{number}/messages",
                params={"offset": at, "max_messages": 100},
            )
        )
        found += page["messages"]
        at = page["next_offset"]
        if not page["messages"]:
            return found


def test_the_settings_are_also_in_a_file_that_serve_takes(store, tmp_path):
    data = tmp_path / "my data"
    _, report, output = run(store, data)
    file = data / "escrowmq.toml"

    assert f"escrowmq serve --data-dir '{data}'\n" in output
    assert str(file) in output
    for name, value in report["settings"].items():
        assert f"{name.removeprefix('ESCROWMQ_LOCAL__').lower()} = {value}\n" in file.read_text()


def test_serve_reads_the_settings_that_an_import_wrote_unless_others_are_named(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr("tests.support.server._SMALL_AND_QUICK", {})
    target = tmp_path / "data"
    run(store, target)

    with Server(target, dev=False) as server, server.client() as api:
        found = pulled(api, "orders", 0)
        ended = server.terminate()
    other = tmp_path / "other.toml"
    other.write_text("dev = false\n")
    named = Server(target, "--config", str(other), dev=False)
    named.log_path = tmp_path / "named.log"
    larger = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 20)}
    overridden = Server(target, dev=False, environment=larger)
    overridden.log_path = tmp_path / "overridden.log"

    assert (len(found), ended) == (MESSAGES, 0)
    for refused in (named, overridden):
        refused.start(until_ready=False)
        assert refused.wait() == exit_codes.DATA_DAMAGED
        remedy = "the segments have 16384 bytes: start with ESCROWMQ_LOCAL__SEGMENT_BYTES=16384"
        assert remedy in refused.log()
        assert "store repair" not in refused.log()


def test_a_first_start_after_an_import_has_nothing_to_recover(store, tmp_path):
    _, report, _ = run(store, tmp_path / "data")

    with service(tmp_path / "data", report) as server, server.client() as api:
        recovery = ok(api.get("/v1/admin/recovery"))

    assert (recovery["was_clean"], recovery["walked_bytes"]) == (True, 0)


def test_sealed_segments_are_linked_and_neither_side_changes_the_other_s_bytes(store, tmp_path):
    before = tree(store)
    target = tmp_path / "data"

    status, report, _ = run(store, target)
    with service(target, report) as server, server.client() as api:
        for number in range(40):
            ok(api.post("/v1/topics/orders/messages", json={"payload": "y" * 900}), 201)
            if number % 20 == 10:
                server.kill()
                server.start()
        ok(api.get("/v1/topics/orders/queues/0/messages", params={"offset": 0}))
        ended = server.terminate()
    kept, ours = tree(store), tree(target / "store")
    for number in (4, 5):  # as the broker goes on
        with (store / "commitlog" / f"{number * 16_384:020}").open("w+b") as last:
            last.write(b"of the broker")
    (store / "commitlog" / f"{0:020}").unlink()  # its retention
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "delayOffset.json").write_text("{}")

    assert (status, ended) == (0, 0)
    assert report["linked_files"] == 4
    assert kept == before
    assert tree(target / "store") == ours


def test_a_dry_run_reports_the_same_and_changes_nothing(tmp_path):
    source = unpack("public-1", tmp_path)
    before = tree(tmp_path)

    status, report, output = run(source, tmp_path / "data", "--dry-run")

    (tmp_path / "report.json").unlink()
    assert tree(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    assert "Nothing was changed." in output
    done_status, done, _ = run(source, tmp_path / "data")
    assert (done["dry_run"], report["dry_run"], done_status) == (False, True, status)
    differing = {name for name in done if done[name] != report[name]}
    assert differing <= {"dry_run", "seconds", "free_bytes"}


def test_messages_that_have_all_expired_leave_the_ends_of_their_queues(store, tmp_path):
    ended = store / "consumequeue" / "rare" / "3"
    ended.mkdir(parents=True)
    (store / "commitlog" / f"{0:020}").unlink()
    entry = (100).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
    (ended / f"{0:020}").write_bytes(entry * 7 + bytes(3 * 20))

    _, report, _ = run(store, tmp_path / "data")
    with service(tmp_path / "data", report) as server, server.client() as api:
        placed = ok(
            api.post("/v1/topics/rare/messages", json={"payload": "next", "queue_id": 3}), 201
        )

    assert placed["queue_offset"] == 7


# --------------------------------------------------------------------------------------------------
# files of config/ that are damaged or missing


def group_offset(target: Path, report: dict[str, Any]) -> int | None:
    """Of `billing` in its one queue."""
    with service(target, report) as server, server.client() as api:
        found = ok(api.get("/v1/groups/billing/offsets"))["items"]
    return found[0]["offset"] if found else None


def damaged_offsets(store: Path) -> None:
    file = store / "config" / "consumerOffset.json"
    backup = file.with_name("consumerOffset.json.bak")
    backup.write_text(file.read_text().replace("52", "6"))
    os.utime(backup, (1_700_000_000, 1_700_000_000))
    file.write_bytes(file.read_bytes()[:20])


def test_an_older_copy_of_damaged_offsets_is_read_and_the_report_says_what_comes_twice(
    store, tmp_path
):
    damaged_offsets(store)

    status, report, output = run(store, tmp_path / "data")

    (found,) = report["twice"]
    assert (status, found["code"], found["names"]) == (1, "consumerOffset_backup", ["billing"])
    assert "config/consumerOffset.json is damaged (" in output
    assert "its .bak of 2023-11-14 22:13:20 UTC was read: groups go back" in output
    assert group_offset(tmp_path / "data", report) == 6


def test_a_start_that_takes_over_an_older_copy_logs_it(store, tmp_path):
    damaged_offsets(store)
    store.rename(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "data" / "store")
    names = ("segment_bytes", "queue_file_entries", "index_slots", "index_file_entries")
    settings = {f"ESCROWMQ_LOCAL__{name.upper()}": getattr(SEGMENTS, name) for name in names}

    server = service(tmp_path / "data", {"settings": settings})
    with server:
        pass

    lines = [line for line in server.log().splitlines() if "broker_file_not_read" in line]
    assert any("its .bak of 2023-11-14 22:13:20 UTC was read" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topics.json", "topics without messages are not kept"),
        ("subscriptionGroup.json", "the others have the default attempts"),
        ("consumerOffset.json", "no group has an offset"),
        ("consumerFilter.json", "SQL92 filters are not kept"),
    ],
)
def test_a_missing_file_is_named_with_what_follows(name, said, store, tmp_path):
    (store / "config" / name).unlink()

    status, report, output = run(store, tmp_path / "data")

    stem = name.partition(".")[0]
    assert (status, report["twice"]) == (1, [])
    assert f"{stem}_missing" in {one["code"] for one in report["not_kept"]}
    assert f"config/{name} is missing: " in output
    assert said in output


def test_groups_whose_offsets_are_missing_are_named(store, tmp_path):
    (store / "config" / "consumerOffset.json").unlink()

    _, report, _ = run(store, tmp_path / "data")

    named = {one["code"]: (one["what"], one["names"]) for one in report["not_kept"]}
    what, names = named["group_setting"]
    assert names == ["billing"]
    assert "its offset is not known: it reads no topic until PUT" in what
    assert named["consumerOffset_missing"][1] == ["billing"]


def test_a_store_without_any_configuration_has_each_file_named(store, tmp_path):
    shutil.rmtree(store / "config")

    status, report, output = run(store, tmp_path / "data")

    codes = [one["code"] for one in report["not_kept"]]
    assert (status, codes) == (1, ["topics_missing", "consumerOffset_missing"])
    assert "config/ has no subscriptionGroup.json, consumerFilter.json, delayOffset.json" in output
    assert "No group has consumed" in output


def test_a_broker_that_no_group_has_consumed_from_is_no_finding(store, tmp_path):
    (store / "config" / "subscriptionGroup.json").unlink()
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')

    status, report, output = run(store, tmp_path / "data")

    assert (status, report["not_kept"], report["twice"]) == (0, [], [])
    assert "No group has consumed: the store names none\n" in output


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize("what", ["a file", "another store", "the rest of a run"])
def test_a_folder_that_is_not_empty_is_not_imported_into(what, store, tmp_path):
    target = tmp_path / "data"
    target.mkdir()
    (target / {"a file": "x", "another store": "store"}.get(what, UNFINISHED)).mkdir()

    status, report, output = run(store, target)

    assert status == exit_codes.CONFIGURATION
    assert str(target) in output
    assert report["refused"] == [output.strip()]
    assert ("did not end" in output) == (what == "the rest of a run")


@contextmanager
def running_broker(store: Path) -> Iterator[None]:
    """A process that owns the lock file."""
    (store / "lock").write_bytes(b"lock")
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'r+b'); "
            "fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print('locked', flush=True); sys.stdin.read()",
            store / "lock",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        yield
    finally:
        holder.communicate(b"")


def test_the_store_of_a_running_broker_is_not_touched(store, tmp_path):
    with running_broker(store):
        status, _, output = run(store, tmp_path / "data")

    assert status == exit_codes.DIRECTORY_IN_USE
    assert "Stop the broker" in output
    assert not (tmp_path / "data").exists()


def test_no_broker_can_start_on_the_store_while_it_is_imported(store, tmp_path, monkeypatch):
    (store / "lock").write_bytes(b"lock")
    asked = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); "
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    )
    seen: list[int] = []
    carry_out = opened_copy.carry_out

    def look(*given: Any) -> Any:
        seen.append(subprocess.call([sys.executable, "-c", asked, store / "lock"], stderr=-3))
        return carry_out(*given)

    monkeypatch.setattr(opened_copy, "carry_out", look)
    status, _, _ = run(store, tmp_path / "data")

    assert (status, seen) == (0, [1])
    with (store / "lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_each_reason_why_a_store_cannot_be_served_is_a_sentence(store, tmp_path):
    (store / "config" / "topics").mkdir(parents=True)
    (store / "config" / "topics" / "CURRENT").touch()
    (store / "consumequeue" / "orders" / "0" / f"{200:020}").write_bytes(b"x" * 7)

    status, report, output = run(store, tmp_path / "data")

    assert status == exit_codes.CONFIGURATION
    assert [sentence.partition(":")[0] for sentence in report["refused"]] == [
        "config/topics",
        "The files of consumequeue/ have different lengths",
    ]
    assert output.splitlines() == report["refused"]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_damaged_log_is_not_taken_over_and_a_repaired_copy_is(options, store, tmp_path):
    segment = store / "commitlog" / f"{16_384:020}"
    raw = bytearray(segment.read_bytes())
    raw[5_000] ^= 0xFF
    segment.write_bytes(raw)
    target = tmp_path / "data"

    status, _, output = run(store, target, *options)

    assert status == exit_codes.DATA_DAMAGED
    assert str(segment) in output
    assert (UNFINISHED in output, "escrowmq-dry-run" in output) == (False, False)
    assert not target.exists()
    repair = re.search(r"`escrowmq store repair` .* with (--[a-z-]+) (\d+)", output)
    assert repair is not None
    copy = shutil.copytree(store, tmp_path / "copy")
    CliRunner().invoke(cli.main.app, ["store", "repair", str(copy), *repair.groups()])
    assert run(copy, target)[0] == 0


def test_damaged_offsets_without_a_copy_are_named_in_the_store_itself(store, tmp_path):
    file = store / "config" / "consumerOffset.json"
    file.write_bytes(file.read_bytes()[:20])

    status, _, output = run(store, tmp_path / "data")

    assert status == exit_codes.DATA_DAMAGED
    assert f"{file}: " in output
    assert UNFINISHED not in output


def test_a_refusal_is_told_from_an_import_that_keeps_not_all_and_says_why_with_quiet(
    store, tmp_path
):
    shutil.rmtree(store / "commitlog")

    arguments = ["store", "import", "--from", str(store), "--to", str(tmp_path / "data"), "--quiet"]
    done = CliRunner().invoke(cli.main.app, arguments)

    assert done.exit_code == exit_codes.CONFIGURATION
    assert "There is no commitlog/ with segments" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("length", [5_000, 4_096])
def test_a_truncated_segment_is_named_with_its_length(length, store, tmp_path):
    segment = store / "commitlog" / f"{2 * 16_384:020}"
    os.truncate(segment, length)

    status, _, output = run(store, tmp_path / "data")

    assert status == exit_codes.CONFIGURATION
    assert f"(commitlog/{segment.name} has {length:,})" in output


def test_a_lone_truncated_segment_is_named_with_its_length(store, tmp_path):
    for segment in sorted((store / "commitlog").iterdir())[1:]:
        segment.unlink()
    os.truncate(store / "commitlog" / f"{0:020}", 5_000)

    _, _, output = run(store, tmp_path / "data")

    assert f", got 5000 (commitlog/{0:020} has 5,000 bytes)" in output


@pytest.mark.parametrize("target", ["broker/data", "broker", "."])
def test_a_folder_that_contains_the_other_one_is_refused(target, store, tmp_path):
    before = tree(store)

    status, _, output = run(store, tmp_path / target)

    assert status == exit_codes.CONFIGURATION
    assert "one contains the other" in output
    assert tree(store) == before


def read_only(folder: Path, monkeypatch: Any) -> None:
    """The files of the folder as on a read-only file system."""
    opened = os.open

    def without_writing(path: Any, flags: int, *mode: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and Path(path).is_relative_to(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", without_writing)


def test_a_dry_run_reads_a_store_that_cannot_be_written_to_and_says_that_it_has_no_lock(
    store, tmp_path, monkeypatch
):
    read_only(store, monkeypatch)

    status, _, output = run(store, tmp_path / "data", "--dry-run")

    assert status == 0
    lock = store / "lock"
    assert f"The lock {lock} could not be taken (Read-only file system), so that no" in output


def test_an_import_from_a_store_that_cannot_be_written_to_is_refused(store, tmp_path, monkeypatch):
    read_only(store, monkeypatch)

    status, _, output = run(store, tmp_path / "data")

    assert status == exit_codes.NO_PERMISSION
    assert output.startswith(f"{store / 'lock'}: Read-only file system. Run the command as")
    assert not (tmp_path / "data").exists()


def test_a_dry_run_of_a_running_broker_s_store_that_cannot_be_written_to_is_refused(
    store, tmp_path, monkeypatch
):
    with running_broker(store):
        read_only(store, monkeypatch)
        status, _, output = run(store, tmp_path / "data", "--dry-run")

    assert status == exit_codes.DIRECTORY_IN_USE
    assert "Stop the broker" in output


def test_the_json_report_goes_to_the_standard_output_alone_for_a_dash(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    arguments = ["store", "import", "--from", str(store), "--to", str(tmp_path / "data")]
    done = CliRunner().invoke(cli.main.app, [*arguments, "--json", "-"])

    assert json.loads(done.stdout)["report"] == "store_import"
    assert not (tmp_path / "-").exists()


def test_a_segment_that_the_start_would_cut_is_copied_after_all(store, tmp_path, monkeypatch):
    before = tree(store)
    opened, failed = opened_copy.opened, []

    def cutting(settings: Any, progress: Any, **named: Any) -> Any:
        if not failed:
            failed.append(settings.store_dir / "commitlog" / f"{2 * 16_384:020}")
            raise OSError(errno.EBADF, "it is linked", str(failed[0]))
        return opened(settings, progress, **named)

    monkeypatch.setattr(opened_copy, "opened", cutting)
    status, report, _ = run(store, tmp_path / "data")

    assert status == 0
    assert report["linked_files"] == 2
    assert tree(store) == before


def test_a_run_that_is_interrupted_says_that_nothing_is_left(store, tmp_path, monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(opened_copy, "carry_out", interrupted)
    target = tmp_path / "data"

    status, _, output = run(store, target)

    assert status == 130
    assert output == f"Stopped. Nothing is left in {target}\n"
    assert not target.exists()


def test_a_run_that_is_interrupted_when_its_folder_is_made_leaves_none(
    store, tmp_path, monkeypatch
):
    target, sync = tmp_path / "data", OsVfs.sync_directory

    def interrupted(vfs: OsVfs, path: Path) -> None:
        if os.path.lexists(target / UNFINISHED):
            raise KeyboardInterrupt
        sync(vfs, path)

    monkeypatch.setattr(OsVfs, "sync_directory", interrupted)

    status, _, output = run(store, target)

    assert (status, output) == (130, f"Stopped. Nothing is left in {target}\n")
    assert not target.exists()


# --------------------------------------------------------------------------------------------------
# a full disk


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_disk_with_too_little_space_for_the_copies_is_named_before_they_begin(
    options, store, tmp_path, monkeypatch
):
    free = os.statvfs_result((4_096, 4_096, 100, 2, 2, 100, 100, 100, 0, 255))
    monkeypatch.setattr(disk_space.os, "statvfs", lambda _: free)
    monkeypatch.setattr(opened_copy, "carry_out", None)
    target = tmp_path / "data"

    status, report, output = run(store, target, *options)

    assert (status, report) == (exit_codes.STORAGE_FAILED, {})
    assert re.search(r"too full: [\d,]+ bytes are needed for copies, and 8,192 are free", output)
    assert f"Nothing is left in {target}" in output
    assert not target.exists()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("carry_out", OSError(errno.ENOSPC, "No space left on device")),
        ("opened", StorageFull()),
        ("opened", OSError(errno.EDQUOT, "Disk quota exceeded")),
    ],
)
def test_a_disk_that_gets_full_is_no_damage_and_leaves_nothing(
    name, error, store, tmp_path, monkeypatch
):
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(opened_copy, name, full)
    target = tmp_path / "data"

    status, _, output = run(store, target)

    assert status == exit_codes.STORAGE_FAILED
    assert f"The disk of {target} is full: " in output
    assert f"Nothing is left in {target}" in output
    assert "damaged" not in output
    assert not target.exists()


def test_a_repair_does_not_change_a_segment_that_is_a_file_of_the_broker_too(store, tmp_path):
    target = tmp_path / "data"
    run(store, target)
    before = tree(store)
    entries = (store / "consumequeue" / "orders" / "0" / f"{0:020}").read_bytes()
    border = int.from_bytes(entries[60:68], "big")  # of the fourth message, in the first segment
    wanted = ["store", "repair", str(target), "--cut-log-at", str(border)]

    refused = CliRunner().invoke(cli.main.app, wanted)
    segment = target / "store" / "commitlog" / f"{0:020}"
    was_unchanged = tree(store) == before
    shutil.copy2(segment, tmp_path / "own")
    os.replace(tmp_path / "own", segment)
    done = CliRunner().invoke(cli.main.app, wanted)

    assert was_unchanged
    assert refused.exit_code == 3
    assert f"{segment} is also a file of another store (a hard link)" in refused.output
    assert done.exit_code == 0
    assert "lost: orders, queue 0, offsets 3 to 59\n" in done.output
    assert tree(store) == before


# --------------------------------------------------------------------------------------------------
# kill -9


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("transfer", "copy", 0),
        ("transfer", "copy", 2),
        ("opened_copy", "opened", 0),
        ("import_store", "carried", 0),
        ("import_store", "finish", 0),
        ("work_folder", "_move", 0),
        ("work_folder", "_move", 1),
    ],
)
def test_a_killed_import_leaves_nothing_that_looks_whole(module, name, after, store, tmp_path):
    target = tmp_path / "data"

    run_killed("import", store, target, module=module, name=name, after=after)
    status, _, output = run(store, target)

    assert status == exit_codes.CONFIGURATION
    assert "remove all that is in it, and run the command again" in output
    assert {path.name for path in target.iterdir()} <= {UNFINISHED, "store"}
    shutil.rmtree(target)
    assert run(store, target)[0] == 0


@pytest.mark.parametrize(("module", "after"), [("import_store", 0), ("work_folder", 1)])
def test_a_folder_with_the_rest_of_a_killed_run_is_not_opened(module, after, store, tmp_path):
    target = tmp_path / "data"
    name = {"import_store": "finish", "work_folder": "_move"}[module]
    run_killed("import", store, target, module=module, name=name, after=after)
    before = tree(target)

    serve = "import sys; from cli.main import main; sys.argv[0] = 'escrowmq'; main()"
    served = subprocess.run(
        [sys.executable, "-c", serve, "serve", "--data-dir", target, "--port", "0"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    verified = CliRunner().invoke(cli.main.app, ["store", "verify", str(target)])
    exported = CliRunner().invoke(
        cli.main.app,
        ["store", "export", "--from", str(target), "--to", str(tmp_path / "back")],
    )

    assert served.returncode == exit_codes.CONFIGURATION
    assert str(target) in served.stderr + served.stdout
    assert UNFINISHED in served.stderr + served.stdout
    assert "remove all that is in it" in served.stderr + served.stdout
    assert verified.exit_code == 2
    assert exported.exit_code == exit_codes.CONFIGURATION
    assert UNFINISHED in exported.output
    assert tree(target) == before


def test_a_store_without_the_registry_of_its_import_is_not_served(store, tmp_path):
    target = tmp_path / "data"
    run(store, target)
    (target / "registry.db").unlink()

    names = ("segment_bytes", "queue_file_entries", "index_slots", "index_file_entries")
    settings = {f"ESCROWMQ_LOCAL__{name.upper()}": getattr(SEGMENTS, name) for name in names}
    server = service(target, {"settings": settings})
    server.start(until_ready=False)
    try:
        with server.client() as api:
            found = until(lambda: _code_of(api, "/readyz"), "the probe answers")
    finally:
        server.kill()

    assert found == "registry_unavailable"


def _code_of(api: Any, path: str) -> str | None:
    """The code of a problem, once the service has looked at its store."""
    try:
        code = api.get(path).json().get("code")
    except httpx.TransportError:
        return None
    return None if code == "recovering" else code
