"""`escrowmq audit run` as a person or a job runs it: its exit status says what was found."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import cli.main
from audit.jobs.watch import report_of
from audit.jobs.watch_state import State
from audit.report import summary
from audit.spark.java import fits, parse_version
from audit.verdicts import FLAGS
from tests.audit.test_page import report as kept_report
from tests.support.builders import message
from tests.support.commands import audits
from tests.support.http import until
from tests.support.logs import broker_record
from tests.support.planted import FLAGGED, plant
from tests.support.written_log import Transactions, WrittenLog

ESCROWMQ = Path(sys.executable).with_name("escrowmq")


def audit(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ESCROWMQ, "audit", "run", *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.faults
def test_the_exit_status_says_what_came_of_it(tmp_path):
    """One process for all, since Java takes seconds to start."""
    _, truth = plant(tmp_path / "planted", times=1)
    shop = Transactions(WrittenLog(tmp_path / "clean"))
    shop.commit(shop.begin("honest"))
    shop.log.close()
    pretended_in_the_second_part(tmp_path / "deceived")
    lines = [
        "--log clean --json clean.json",
        "--log planted --json planted.json --sql sqlite:///reports.db --report-id rpt_planted",
        "--log clean --producer-group nobody",
        "--log clean --json /dev/full",
        "--log deceived --split-mb 1",
    ]

    runs = [f"run --master local[2] {line}" for line in lines]
    statuses, said, complained = audits(runs, tmp_path, {"TMPDIR": str(scratch_of(tmp_path))})

    assert statuses == [0, 1, 2, 3, 4], complained
    report = json.loads((tmp_path / "planted.json").read_text("utf-8"))
    assert report["begun"] == len(truth)
    assert report["balanced"] is True
    assert (
        report["findings"]["total"] == sum(report["findings"]["by_verdict"].values()) > len(FLAGGED)
    )
    assert (report["run"]["exit_status"], report["run"]["log"]) == (1, "planted")
    assert rows_of(tmp_path / "reports.db") == (
        report["begun"],
        1,
        report["findings"]["total"],
        report["verdicts"],
    )
    assert f"{len(truth)} transactions" in said
    assert "rolled_back_but_delivered" in said
    assert "no transaction in the log is of nobody" in complained
    assert "No space left on device" in complained
    assert "It does NOT balance" in said
    assert "WARN" not in complained, "Java and Spark speak into their own file"
    left = {path.name.partition("-audit-")[0] for path in scratch_of(tmp_path).iterdir()}
    assert left <= {"escrowmq", "hsperfdata_root"}, "of the run that failed"


def rows_of(database: Path) -> tuple[int, int, int, dict[str, int]]:
    """What a database has of the one report in it."""
    with closing(sqlite3.connect(database)) as connection:
        ((report_id, begun, exit_status, findings),) = connection.execute(
            "select report_id, begun, exit_status, findings from audit_runs"
        )
        verdicts = connection.execute(
            "select name, number from audit_counts where part = 'verdicts'"
        ).fetchall()
    assert report_id == "rpt_planted"
    return begun, exit_status, findings, dict(verdicts)


def scratch_of(folder: Path) -> Path:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return scratch


def pretended_in_the_second_part(root: Path) -> None:
    """A body that looks like a record of its own place, where one part ends and another begins."""
    log = WrittenLog(root, segment_bytes=1 << 22)
    header_bytes, padding = 88, 1 << 20
    log.append(
        message(bytes(padding) + broker_record(log.end + header_bytes + padding, b"pretended"))
    )
    log.close()


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("nowhere", "nowhere has no segments of a log"), ("", "no folder of a log was named")],
)
def test_where_there_is_no_log_it_ends_with_3_and_says_so(tmp_path, folder, reason):
    done = audit("--log", folder, cwd=tmp_path)

    assert done.returncode == 3
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_whose_starter_is_gone_ends(tmp_path):
    """A pipe that is closed says so, long before Java has started."""
    log = WrittenLog(tmp_path / "store")
    log.append(message(b"x"))
    log.close()
    command = [
        ESCROWMQ,
        "audit",
        "run",
        "--log",
        "store",
        "--json",
        "report.json",
        "--end-with-stdin",
    ]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        capture_output=True,
    )

    assert done.returncode == 3
    assert not (tmp_path / "report.json").exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "to_all", "status"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["as Ctrl-C does", "as a supervisor does"],
)
def test_a_run_that_is_stopped_ends_without_a_traceback_and_leaves_nothing(
    tmp_path, number, to_all, status
):
    plant(tmp_path / "store", times=1)
    scratch = scratch_of(tmp_path)
    command = [ESCROWMQ, "audit", "run", "--log", "store", "--master", "local[2]"]
    outputs = ["--json", "report.json", "--html", "report.html", "--progress", "json"]
    running = subprocess.Popen(
        [*command, *outputs],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    next(line for line in running.stdout if json.loads(line)["tasks_known"])

    (os.killpg if to_all else os.kill)(running.pid, number)
    _, complained = running.communicate(timeout=240)

    assert (running.returncode, complained) == (status, "Stopped\n")
    assert not (tmp_path / "report.json").exists()
    left = {path.name for path in scratch.iterdir()}
    assert left <= {"hsperfdata_root"}


@pytest.mark.faults
def test_a_run_that_is_stopped_while_java_starts_leaves_no_java_behind(tmp_path):
    plant(tmp_path / "store", times=1)
    scratch = scratch_of(tmp_path)
    running = subprocess.Popen(
        [ESCROWMQ, "audit", "run", "--log", "store", "--master", "local[1]"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: has_java(running.pid), "Java starts")

    os.kill(running.pid, signal.SIGINT)
    _, complained = running.communicate(timeout=240)

    assert (running.returncode, complained) == (130, "Stopped\n")
    until(lambda: not processes_of(running.pid), "Java has ended")


def processes_of(session: int) -> list[str]:
    """The command lines of the processes in this session."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-s", str(session)],
        capture_output=True,
        text=True,
        check=False,
    )
    return listed.stdout.splitlines()


def has_java(session: int) -> bool:
    """Report whether the Java of Spark has started, after the one that finds its command line."""
    return any(
        "deploy.SparkSubmit" in line and "java" in line.split()[0] and "launcher.Main" not in line
        for line in processes_of(session)
    )


STOPPED_AS_ITS_SESSION_BEGINS = """
import os, signal
from pyspark.sql import SparkSession
from cli.main import app

begin = SparkSession.__init__

def stopped(self, *args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    begin(self, *args, **options)

SparkSession.__init__ = stopped
app()
"""


def test_a_run_that_is_stopped_as_its_session_begins_says_so(tmp_path):
    plant(tmp_path / "store", times=1)
    command = ["audit", "run", "--log", "store", "--master", "local[1]"]

    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AS_ITS_SESSION_BEGINS, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (130, "Stopped\n")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--log", ".", "--fail-on", "everything"),
        ("--log", ".", "--checks", "queues,everything"),
        ("--log", ".", "--what-if", "10000/30000"),
        ("--log", ".", "--master", "somewhere"),
        ("--log", ".", "--master", "local[x]"),
        ("--log", ".", "--master", "spark://127.0.0.1"),
        ("--log", ".", "--driver-memory", "plenty"),
        ("--log", ".", "--driver-memory", "100m"),
        ("--log", ".", "--from", "yesterday"),
        ("--log", ".", "--from", "2026-01-02", "--to", "2026-01-01"),
        ("--log", ".", "--json", "nowhere/report.json"),
        ("--log", ".", "--json", "."),
        ("--log", ".", "--html", "nowhere/report.html"),
        ("--log", ".", "--parquet", "rows", "--parquet-files", "0"),
    ],
)
def test_wrong_usage_ends_with_2(tmp_path, options):
    assert audit(*options, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1"])
def test_a_page_made_on_a_cluster_is_refused_unless_it_is_said_where_the_rows_go(tmp_path, master):
    """The executors do not see the driver's own folder."""
    done = audit("--log", ".", "--html", "report.html", "--master", master, cwd=tmp_path)

    assert done.returncode == 2
    assert "--parquet" in done.stderr


def test_a_report_that_was_kept_is_shown_and_made_a_page_without_spark(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(kept_report()), "utf-8")
    (tmp_path / "other.json").write_text("[]", "utf-8")

    def show(*options: str) -> subprocess.CompletedProcess[str]:
        command = [ESCROWMQ, "audit", "show", *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    assert "1,203 transactions" in show("report.json").stdout
    assert show("report.json", "--html", "report.html").returncode == 0
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")
    assert (show("other.json").returncode, show("nothing.json").returncode) == (2, 2)


def test_reports_of_reconcile_and_watch_are_shown_and_are_no_pages(tmp_path):
    state = State(log="store", begin=0, reached=0)
    watched = report_of(state, [])
    reconciled = {
        "kind": "reconciliation",
        "state": "done",
        "pairs": {"commit / not in the log": 1},
        "balanced": True,
        "findings": {
            "items": [{"verdict": "lost_event", "transaction_id": "o-1", "database": "commit"}],
            "by_verdict": {"lost_event": 1},
        },
    }

    def show(report: dict, *options: str) -> Result:
        file = tmp_path / "report.json"
        file.write_text(json.dumps(report), "utf-8")
        return CliRunner().invoke(cli.main.app, ["audit", "show", str(file), *options])

    shown = show(reconciled)
    pages = [show(one, "--html", str(tmp_path / "report.html")) for one in (reconciled, watched)]

    assert (shown.exit_code, "o-1" in shown.stdout) == (0, True)
    assert "0 transactions" in show(watched).stdout
    assert [page.exit_code for page in pages] == [2, 2]
    assert all("a page is of a report of `audit run`" in page.stderr for page in pages)


def test_what_is_found_in_a_log_is_shown_as_it_is_and_has_no_effect_on_the_terminal():
    report = kept_report()
    report["checks"] = {}
    report["findings"] = {
        "total": 3,
        "items": [
            {
                "verdict": "op_without_half",
                "transaction_id": "[/a]\x1b[2J",
                "records": [],
                **dict.fromkeys(FLAGS, False),
            },
            {"verdict": "queue_gap", "check": "queues", "evidence": {"topic": "[/b]\n"}},
            {"verdict": "damaged", "log_offset": 1, "bytes": 1, "reason": "[/c]\x9b2J"},
        ],
    }
    console = Console(file=StringIO(), width=160)

    summary.show(console, report, exit_status=1)

    shown = console.file.getvalue()
    for text in [r"[/a]\x1b[2J", r"topic [/b]\n", r"[/c]\x9b2J"]:
        assert f" {text} " in shown


@pytest.mark.parametrize(
    ("text", "version", "is_fit"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15), True),
        ('openjdk version "21" 2023-09-19', (21, 0, 0), True),
        ('openjdk version "25.0.2" 2026-01-20', (25, 0, 2), False),  # its collector damages data
        ('openjdk version "25.0.3" 2026-04-21', (25, 0, 3), True),
        ('java version "1.8.0_402"', (1, 8, 0), False),
        ('openjdk version "11.0.22" 2024-01-16', (11, 0, 22), False),
    ],
)
def test_spark_is_given_a_java_that_it_runs_on(text, version, is_fit):
    assert parse_version(text) == version
    assert fits(version) is is_fit
