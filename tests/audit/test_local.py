"""The engine `local` says of every log what Spark says, in the same report, and needs no Spark."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from audit.checks.kinds import CHECKS, KINDS
from audit.checks.run import EVERYTHING
from audit.errors import NoSuchGroup, NotLocal, SegmentsDropped
from audit.jobs import archive as archiving
from audit.jobs import transaction_audit
from audit.jobs.transaction_audit import TransactionAudit
from audit.local import local_audit
from audit.local.local_audit import LocalAudit
from audit.log import log_range
from audit.report.report import while_segments_go
from audit.scope import Outcome, Scope
from audit.verdicts import FINDINGS
from cli.audit.common import status_of
from cli.audit.run import refusal
from storage.formats import names, queue_entry
from storage.message import QueueId
from tests.audit.test_command import pretended_in_the_second_part
from tests.audit.test_halves import plain_op
from tests.audit.test_outcomes import BROKERS, OURS, unpacked
from tests.fault.campaign_size import sized
from tests.fault.test_audits import copied, crashed_disk, spoiled
from tests.golden import test_whole_store
from tests.support import broker_log, planted_checks
from tests.support.builders import message
from tests.support.logs import broker_record
from tests.support.planted import plant
from tests.support.written_log import WALL_MS, Transactions, WrittenLog

SOON = ("checked", "a broker's, stopped")  # all checks of others take Spark too long
JUDGED = sized(ci=12, full=200)  # crashed stores
PLANTED = sized(ci=2, full=20)  # stores with planted faults
FAR_OFF = 1_100  # messages born so far off that the sum of their times is no bigint
SPOILED_EACH = 2  # of them one in so many
CHECKED_EACH = 3  # one in so many by all checks, too

Store = Callable[[Path], "Path | list[str]"]
"""Writes a store below the folder; where it is, or the folders that are one log."""


# --------------------------------------------------------------------------------------------------
# stores


def golden(archive: Path) -> Store:
    return lambda folder: unpacked(archive, folder)


def whole(folder: Path) -> Path:
    return test_whole_store.unpacked("killed", folder) / "store"


def planted_at(first_offset: int) -> Store:
    return lambda folder: plant(folder, times=1, first_offset=first_offset)[0].root


def damaged(folder: Path) -> Path:
    log, _ = plant(folder, times=1)
    path = min(log.folder.iterdir())
    data = bytearray(path.read_bytes())
    for at in log.borders[20:60:4]:
        data[at + 95] ^= 1
    path.write_bytes(data)
    return log.root


def with_a_missing_segment(folder: Path) -> Path:
    log, _ = plant(folder, times=1, segment_bytes=1 << 15)
    sorted(log.folder.iterdir())[1].unlink()
    return log.root


def deceived(folder: Path) -> Path:
    pretended_in_the_second_part(folder)
    return folder


def empty(folder: Path) -> Path:
    log = WrittenLog(folder)
    log.append(message())
    return log.close()


def checked(folder: Path) -> Path:
    """Leases, delays, retries and dead letters beside transactions."""
    return planted_checks.plant(folder, times=1)[0]


def every_kind(folder: Path) -> Path:
    broker_log.with_every_kind(folder)
    return folder


def with_a_brokers_ops(folder: Path) -> Path:
    """A broker went on in a store of ours, in the midst of a segment."""
    log = WrittenLog(folder)
    shop = Transactions(log)
    halves = {name: shop.begin(name) for name in ("a", "b", "published", "open")}
    log.append(*shop.finals(halves["published"]))
    log.append(plain_op(*halves["a"], *halves["published"]))
    log.append(plain_op(*halves["b"], *shop.unstored("never")))
    log.append(*halves["a"])
    return log.close()


def with_odd_records(folder: Path) -> Path:
    """Texts that are not UTF-8, times that are no dates, facts that are not JSON, an offset of a
    queue twice, a position after it, a final of the log's first half.
    """
    born = {"born_at_ms": -(1 << 63)}
    position = b'{"group":"g","topic":"orders","queue":0,"offset":1000000}'
    facts = b"UNIQ_KEY\x01f\x02__transaction\x01{f\x02"
    (folder / "commitlog").mkdir(parents=True)
    data = b""
    for fields in (
        {"topic": names.HALF_TOPIC, "properties": b"UNIQ_KEY\x01o\xffdd\x02PGROUP\x01sh\xfep\x02"},
        {"properties": b"UNIQ_KEY\x01o\xffdd\x02", "sys_flag": 8, "stored_at_ms": 1 << 62},
        {"properties": b"UNIQ_KEY\x01o\xffdd\x02", "sys_flag": 8, "prepared_offset": 8},
        {"topic": names.OP_TOPIC, "body": b"0,0,77,9" + b"9" * 30, "properties": b"TAGS\x01d\x02"},
        {"topic": names.HALF_TOPIC, "queue_offset": 1, "properties": facts},
        *(born | {"queue_offset": number} for number in range(FAR_OFF)),
        {"queue_offset": FAR_OFF - 1},
        {"topic": names.OFFSET_TOPIC, "body": position},
    ):
        body = fields.pop("body", b"x")
        data += broker_record(len(data), body, **fields)
    path = folder / "commitlog" / names.file_name(0)
    path.write_bytes(data + bytes((1 << 18) - len(data)))
    return folder


def archived_and_dropped(folder: Path) -> list[str]:
    log, _ = plant(folder / "store", times=1, segment_bytes=1 << 14)
    archive = folder / "archive"
    archiving.archive(log_range.find_log(str(log.root)), str(archive))
    for path in sorted(log.folder.iterdir())[:2]:
        path.unlink()
    sorted(archive.glob("*0"))[1].unlink()
    return [str(archive), str(log.root)]


STORES: dict[str, Store] = {
    "ours, closed": golden(OURS / "closed.tar.xz"),
    "ours, cut": golden(OURS / "cut.tar.xz"),
    "ours, whole": whole,
    "a broker's, stopped": golden(BROKERS / "public-1.tar.xz"),
    "a broker's, killed": golden(BROKERS / "public-2.tar.xz"),
    "a broker's, whatever it did": lambda folder: broker_log.plant(folder)[0].root,
    "a broker's, every kind of record": every_kind,
    "planted": planted_at(0),
    "planted, late": planted_at(3 << 18),
    "damaged": damaged,
    "a segment is missing": with_a_missing_segment,
    "deceived": deceived,
    "empty": empty,
    "checked": checked,
    "a broker's ops": with_a_brokers_ops,
    "odd records": with_odd_records,
    "archived": archived_and_dropped,
}


def compare(
    spark,
    where: Path | list[str],
    scope: Scope | None = None,
    *,
    checks: bool = False,
    **asked: int,
) -> dict:
    """The report of both engines, which must be the same but for the name of the engine."""
    found = log_range.find_log(str(where) if isinstance(where, Path) else where)
    scope, split_bytes = scope or Scope(), asked.pop("split_bytes", 1 << 20)

    if checks:
        given = str(where) if isinstance(where, Path) else where
        by_spark = transaction_audit.run(
            spark, given, scope, found=found, split_bytes=split_bytes, asked=EVERYTHING, **asked
        )
        local = local_audit.run(
            given, scope, found=found, split_bytes=split_bytes, asked=EVERYTHING, **asked
        )
    else:
        by_spark = TransactionAudit(spark, found, scope, split_bytes=split_bytes).run(**asked)
        local = LocalAudit(found, scope, split_bytes=split_bytes).run(**asked)

    assert local.report | {"engine": ""} == by_spark.report | {"engine": ""}
    assert list(local.report) == list(by_spark.report)
    assert local.counts == by_spark.counts
    assert status_of(local.report) == status_of(by_spark.report)
    return local.report


# --------------------------------------------------------------------------------------------------
# the same report


@pytest.mark.parametrize("name", STORES)
def test_both_engines_give_the_same_report_and_the_same_exit_status(spark, name, tmp_path):
    report = compare(spark, STORES[name](tmp_path / "store"))

    assert report["balanced"] is (name != "deceived")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOON else pytest.mark.faults) for name in STORES],
)
def test_both_engines_make_all_checks_with_the_same_report(spark, name, tmp_path):
    report = compare(spark, STORES[name](tmp_path / "store"), checks=True)

    assert list(report["checks"]) == list(CHECKS)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2, 2 + PLANTED))
def test_both_engines_find_the_same_planted_faults_also_in_a_log_that_begins_late(
    spark, seed, tmp_path
):
    store, _ = planted_checks.plant(tmp_path / "store", times=3, seed=seed)
    whole = compare(spark, store, checks=True)
    min((store / "commitlog").iterdir()).unlink()

    late = compare(spark, store, checks=True)

    assert whole["findings"]["total"] > 100
    assert late["log"]["begin"] > 0


def test_both_engines_answer_the_same_about_one_group_and_a_stretch_of_time(spark, tmp_path):
    store = planted_at(0)(tmp_path)
    begun = datetime.fromtimestamp(WALL_MS / 1_000, UTC) + timedelta(milliseconds=20)
    scope = Scope(begun_from=begun, begun_to=begun + timedelta(days=1), producer_group="mailer")

    report = compare(spark, store, scope, counted=FINDINGS.__contains__, listed=5, listed_records=2)

    assert 0 < report["begun"] < 40
    assert report["findings"]["omitted"] > 0


def test_both_engines_leave_out_groups_of_which_there_are_too_many(spark, tmp_path):
    report = compare(spark, planted_at(0)(tmp_path), most_sets=3, counted=lambda name: False)

    assert (report["producer_groups"], report["producer_groups_omitted"]) == ([], 3)


def test_a_group_that_the_log_does_not_have_is_refused(tmp_path):
    found = log_range.find_log(str(planted_at(0)(tmp_path)))

    with pytest.raises(NoSuchGroup, match="nobody"):
        LocalAudit(found, Scope(producer_group="nobody")).run()


def test_however_the_log_is_split_the_report_is_the_same(tmp_path):
    found = log_range.find_log(str(planted_at(0)(tmp_path)))

    reports = [
        LocalAudit(found, Scope(), split_bytes=split_bytes).run().report
        for split_bytes in (1 << 30, 70_000, 3_000)
    ]

    assert reports[0] == reports[1] == reports[2]


@pytest.mark.faults
def test_both_engines_give_the_same_report_of_crashed_and_spoiled_stores(spark, tmp_path):
    findings = 0
    for seed in range(JUDGED):
        disk, _, _ = crashed_disk(30_000 + seed)
        store = copied(disk, tmp_path / str(seed))
        if not (store / "commitlog").is_dir() or not any((store / "commitlog").iterdir()):
            continue
        if seed % SPOILED_EACH == 0:
            spoiled(store, Random(seed), log_range.find_log(str(store)).end)
        report = compare(
            spark,
            store,
            checks=seed % CHECKED_EACH == 0,
            split_bytes=9_000,
            counted={*FINDINGS, *KINDS}.__contains__,
        )
        findings += report["findings"]["total"]

    assert findings


# --------------------------------------------------------------------------------------------------
# limits


def test_a_log_that_is_too_large_is_refused_with_the_engine_that_reads_it(tmp_path):
    found = log_range.find_log(str(planted_at(0)(tmp_path)))

    with pytest.raises(NotLocal, match="use --engine spark, or raise --max-log-mb"):
        local_audit.run(str(tmp_path), Scope(), found=found, most_log_bytes=100_000)


def test_an_audit_begins_once_more_when_retention_took_what_it_was_reading(tmp_path):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 16)
    found = log_range.find_log(str(log.root))
    min(log.folder.iterdir()).unlink()

    outcome = local_audit.run(str(log.root), Scope(), found=found)

    assert outcome.is_balanced
    assert outcome.report["log"]["begin"] == 1 << 16 > found.begin


def test_an_audit_from_which_retention_takes_segments_again_and_again_says_so(tmp_path):
    log, _ = plant(tmp_path / "store", times=4, segment_bytes=1 << 14)
    found = log_range.find_log(str(log.root))

    def drop(read: int, known: int) -> None:
        for oldest in sorted(log.folder.iterdir())[:2]:
            oldest.unlink()

    drop(0, 0)

    with pytest.raises(SegmentsDropped, match=r"3 times in a row.*audit archive"):
        local_audit.run(str(log.root), Scope(), found=found, on_read=drop, split_bytes=1 << 14)

    assert len([*log.folder.iterdir()]) > 1


def test_what_an_audit_failed_with_at_last_is_in_its_refusal(tmp_path):
    log, _ = plant(tmp_path / "store", times=4, segment_bytes=1 << 14)
    found = log_range.find_log(str(log.root))

    def fail(_: log_range.Log) -> Outcome:
        min(log.folder.iterdir()).unlink()
        raise OSError(errno.EIO, "Input/output error", "a segment")

    with pytest.raises(SegmentsDropped) as raised:
        while_segments_go(str(log.root), found, fail)

    assert refusal(raised.value).endswith("It failed at last with: a segment: Input/output error")


def test_an_index_whose_first_file_appears_during_the_audit_is_compared_with_the_keys(tmp_path):
    store, aside = whole(tmp_path / "store"), tmp_path / "aside"
    (store / "index").rename(aside)

    def on_read(read: int, known: int) -> None:
        if read == known:
            aside.rename(store / "index")

    outcome = local_audit.run(
        str(store), Scope(), found=log_range.find_log(str(store)), asked=EVERYTHING, on_read=on_read
    )

    index = outcome.report["checks"]["index"]
    assert index["keys"] == index["entries"] > 0
    assert not any(index["findings"].values())


def test_the_light_queues_of_a_broker_are_not_compared_with_the_records_of_a_topic(tmp_path):
    store = whole(tmp_path / "store")
    light = store / "consumequeue" / "%LMQ%a" / "0"
    light.mkdir(parents=True)
    begin = log_range.find_log(str(store)).begin
    (light / names.file_name(0)).write_bytes(queue_entry.encode(begin, 200, 0))

    outcome = local_audit.run(
        str(store), Scope(), found=log_range.find_log(str(store)), asked=EVERYTHING
    )

    queues = outcome.report["checks"]["queues"]
    assert queues["consume_queues"] == "compared"
    assert not any(queues["findings"].values())


def test_memory_does_not_grow_with_the_bytes_of_the_log(tmp_path):
    """A log of 48 MiB of messages outside transactions, in parts of 1 MiB: the peak is that of a
    log of 8 MiB.
    """

    def peak_mb(megabytes: int) -> float:
        log = WrittenLog(tmp_path / str(megabytes), segment_bytes=4 << 20)
        body = bytes(64 << 10)
        while log.end < megabytes << 20:
            log.append(*[message(body, queue=QueueId("orders", 0))] * 8)
        code = (
            "import resource, sys\n"
            "from audit.log import log_range\n"
            "from audit.checks.run import Asked\n"
            "from audit.local import local_audit\n"
            "from audit.scope import Scope\n"
            "found = log_range.find_log(sys.argv[1])\n"
            "asked = Asked()\n"
            "local_audit.run(sys.argv[1], Scope(), found=found, split_bytes=1 << 20, asked=asked)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(log.close())],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return float(done.stdout)

    assert peak_mb(48) < peak_mb(8) + 24


# --------------------------------------------------------------------------------------------------
# the command, where nothing of Spark can be imported

_WITHOUT = """
import sys
for name in ("pyspark", "py4j", "pyarrow", "matplotlib", "pandas", "duckdb"):
    sys.modules[name] = None  # an import of it fails
from cli.main import main
sys.argv = ["escrowmq", "audit", *sys.argv[1:]]
main()
"""


def audit(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_it_runs_where_spark_arrow_and_matplotlib_cannot_be_imported(tmp_path):
    _, truth = plant(tmp_path / "planted", times=1)
    shop = Transactions(WrittenLog(tmp_path / "clean"))
    shop.commit(shop.begin("honest"))
    shop.log.close()
    local = ("run", "--engine", "local", "--log")

    faulty = audit(
        *local, "planted", "--json", "planted.json", "--sql", "sqlite:///r.db", cwd=tmp_path
    )
    clean = audit(*local, "clean", cwd=tmp_path)
    progress = audit(*local, "clean", "--progress", "json", cwd=tmp_path)
    by_spark = audit("run", "--log", "clean", cwd=tmp_path)
    shown = audit("show", "planted.json", cwd=tmp_path)

    assert (faulty.returncode, clean.returncode, by_spark.returncode) == (1, 0, 3), faulty.stderr
    assert f"{len(truth)} transactions" in faulty.stdout
    assert "rolled_back_but_delivered" in faulty.stdout
    assert "It balances" in clean.stdout
    assert "--engine local" in by_spark.stderr
    assert f"{len(truth)} transactions" in shown.stdout
    report = json.loads((tmp_path / "planted.json").read_text("utf-8"))
    assert (report["engine"], report["begun"]) == ("local", len(truth))
    assert (report["run"]["exit_status"], report["run"]["log"]) == (1, "planted")
    assert (progress.returncode, progress.stderr) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        ("--master", "local[2]"),
        ("--driver-memory", "1g"),
        ("--spark-log", "spark.log"),
        ("--parquet", "rows"),
        ("--parquet-files", "1"),
        ("--html", "page.html"),
    ],
)
def test_an_option_that_only_spark_has_is_refused_by_its_name(tmp_path, options):
    done = audit("run", "--engine", "local", "--log", ".", *options, cwd=tmp_path)

    assert done.returncode == 2
    assert f"Invalid value for {options[0]}" in done.stderr
    assert "it needs --engine spark" in done.stderr


def test_everything_that_is_wrong_is_found_without_spark_as_often_as_it_is_there(tmp_path):
    store, truth = planted_checks.plant(tmp_path / "store", times=2)
    found = log_range.find_log(str(store))

    report = local_audit.run(str(store), Scope(), found=found, asked=EVERYTHING).report

    counts = [check["findings"] for check in report["checks"].values()]
    assert {kind: n for kinds in counts for kind, n in kinds.items() if n} == dict(truth)


def test_of_records_with_the_same_queue_offset_the_last_one_is_named_as_by_spark(tmp_path):
    store = with_odd_records(tmp_path / "store")
    found = log_range.find_log(str(store))

    report = local_audit.run(str(store), Scope(), found=found, asked=EVERYTHING).report

    found_by_kind = {item["verdict"]: item for item in report["findings"]["items"]}
    outside, last_repeat = found_by_kind["position_outside"], found_by_kind["queue_repeat"]
    assert last_repeat["evidence"]["queue_offset"] == FAR_OFF - 1
    assert outside["evidence"]["last_log_offset"] == last_repeat["log_offset"]


def test_no_value_that_a_client_chose_ends_the_checks(tmp_path):
    store = with_odd_records(tmp_path / "store")
    found = log_range.find_log(str(store))

    report = local_audit.run(str(store), Scope(), found=found, asked=EVERYTHING).report

    (born,) = report["checks"]["latencies"]["stages"]["born_to_stored"]
    assert born["n"] == FAR_OFF + 1
    assert born["max_ms"] > 1 << 52
    assert born["mean_ms"] == pytest.approx(born["max_ms"], rel=0.01)
    assert report["checks"]["halves"]["halves"] == 2


def test_the_checks_are_made_without_spark_and_by_name(tmp_path):
    store, truth = planted_checks.plant(tmp_path / "store", times=1)
    local = ("run", "--engine", "local", "--log", str(store), "--json", "report.json")

    done = audit(
        *local, "--checks", "queues,what_if", "--what-if", "5000/10000/2", "--fail-on", "queue_gap",
        cwd=tmp_path,
    )  # fmt: skip

    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert done.returncode == 1, done.stderr
    assert list(report["checks"]) == ["queues", "what_if"]
    assert report["findings"]["by_verdict"] == {"queue_gap": truth["queue_gap"]}
    assert [policy["limit"] for policy in report["checks"]["what_if"]["policies"]] == [2]


@pytest.mark.parametrize("checks", ["none", "delays"])
def test_a_kind_to_fail_on_whose_check_is_left_out_is_wrong_usage(tmp_path, checks):
    local = ("run", "--engine", "local", "--log", ".", "--checks", checks)

    done = audit(*local, "--fail-on", "undecided,queue_gap", cwd=tmp_path)

    assert done.returncode == 2
    assert "queue_gap is found by the check `queues`, which --checks leaves out" in done.stderr


def test_what_the_engine_does_not_read_ends_with_3_and_names_spark(tmp_path):
    log = WrittenLog(tmp_path / "store", segment_bytes=4 << 20)
    log.append(*[message(bytes(64 << 10))] * 20)
    log.close()
    local = ("run", "--engine", "local", "--log")

    large = audit(*local, "store", "--max-log-mb", "1", cwd=tmp_path)
    remote = audit(*local, "s3://bucket/store", cwd=tmp_path)

    assert (large.returncode, remote.returncode) == (3, 3)
    assert "use --engine spark" in large.stderr
    assert "read by pyarrow; it is not installed" in remote.stderr
