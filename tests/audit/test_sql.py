"""A report becomes rows of a database, once, and whoever reads an error learns no password."""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, func, select

from audit.sql import sink as sinks
from audit.sql.sink import Sink, SinkError
from audit.sql.tables import VERSION_TABLE, counts, findings, groups, metadata, runs
from tests.audit.test_page import report as kept_report
from tests.conftest import ON_POSTGRESQL
from tests.support import report_program
from tests.support.builders import message
from tests.support.silent_server import silent_server
from tests.support.written_log import WrittenLog

ESCROWMQ = Path(sys.executable).with_name("escrowmq")


def report(report_id: str = "rpt_1") -> dict:
    found = kept_report()
    items = [
        *report_program.FINDINGS,
        {"verdict": "op_without_half", "transaction_id": "a\0b", "records": []},
    ]
    run = {
        "report_id": report_id, "started_at": "2026-03-02T00:00:00.000Z",
        "finished_at": "2026-03-02T00:00:09.000Z",
        "exit_status": 1, "log": "store",
    }  # fmt: skip
    return {
        **found,
        "findings": {"total": 9, "by_verdict": {}, "items": items, "omitted": 4},
        "run": run,
    }


@pytest.fixture
def url(database_url) -> str:
    return database_url


# Opens each database of its arguments when it is told to, and says so.
_OPEN = """
import sys
from contextlib import closing
from audit.sql.sink import Sink

for url in sys.argv[1:]:
    with closing(Sink(url)) as sink:
        print("ready", flush=True)
        sys.stdin.readline()
        sink.open()
        print("open", flush=True)
"""


def written(url: str, *reports: dict) -> None:
    with closing(Sink(url)) as sink:
        sink.open()
        for one in reports:
            sink.write(one)


def rows(url: str, table) -> list[dict]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [
            dict(row)
            for row in connection.execute(
                select(table).order_by(*table.primary_key.columns)
            ).mappings()
        ]
    engine.dispose()
    return found


def test_all_that_open_an_empty_database_at_once_find_its_tables(new_database):
    urls = [new_database() for _ in range(5)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    opening = [subprocess.Popen([sys.executable, "-c", _OPEN, *urls], **pipes) for _ in range(3)]

    for _ in urls:
        assert [one.stdout.readline() for one in opening] == ["ready\n"] * 3
        for one in opening:
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.stdout.readline() for one in opening] == ["open\n"] * 3

    assert [one.communicate()[0] for one in opening] == [""] * 3
    assert [one.returncode for one in opening] == [0] * 3


def test_a_report_is_a_run_its_counts_its_groups_and_its_findings(url):
    made = report()

    written(url, made)

    (run,) = rows(url, runs)
    assert (run["report_id"], run["balanced"], run["begun"], run["findings"]) == (
        "rpt_1",
        True,
        made["begun"],
        9,
    )
    assert (run["log_begin"], run["log_end"]) == (made["log"]["begin"], made["log"]["end"])
    verdicts = {
        row["name"]: row["number"] for row in rows(url, counts) if row["part"] == "verdicts"
    }
    assert verdicts == made["verdicts"]
    assert len(rows(url, groups)) == sum(
        len(group["verdicts"]) for group in made["producer_groups"]
    )
    listed = rows(url, findings)
    assert [row["verdict"] for row in listed] == [
        item["verdict"] for item in made["findings"]["items"]
    ]
    gap = next(row for row in listed if row["verdict"] == "queue_gap")
    assert (
        gap["check_name"],
        gap["log_offset"],
        json.loads(gap["evidence"])["evidence"]["missing"],
    ) == ("queues", 700, 2)
    assert listed[0]["log_offset"] == 0, "the first record that proves it"
    assert listed[-1]["transaction_id"] == "a\ufffdb"


def test_the_same_report_once_more_takes_the_place_of_the_first(url):
    once_more = report()
    once_more["findings"] = {
        **once_more["findings"],
        "total": 1,
        "items": report_program.FINDINGS[:1],
    }

    written(url, report(), report("rpt_2"), once_more)

    assert [(row["report_id"], row["findings"]) for row in rows(url, runs)] == [
        ("rpt_1", 1),
        ("rpt_2", 9),
    ]
    assert [row["report_id"] for row in rows(url, findings)].count("rpt_1") == 1
    assert len(rows(url, counts)) % 2 == 0


def test_a_report_that_cannot_be_written_leaves_what_was_there(url):
    broken = report()
    broken["findings"]["items"] = [*broken["findings"]["items"], {"verdict": None}]
    written(url, report())
    before = [rows(url, table) for table in metadata.sorted_tables]

    with pytest.raises(SinkError, match=r"(?i)not.null"):
        written(url, broken)

    assert [rows(url, table) for table in metadata.sorted_tables] == before


def test_the_steps_of_alembic_make_the_tables_that_the_code_speaks_of(url):
    written(url, report())
    written(url, report())  # they are there already

    engine = create_engine(url)
    with engine.connect() as connection:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        )
    engine.dispose()
    assert {path.name for path in (sinks.MIGRATIONS / "versions").glob("v*.py")} == {
        "v0001_reports.py"
    }


@pytest.mark.parametrize(
    ("command", "option"),
    [(["run", "--engine", "local"], "--sql"), (["reconcile"], "--database")],
    ids=["run", "reconcile"],
)
@pytest.mark.parametrize(
    ("url", "status", "reason"),
    [
        ("sqlite://shop:s3cret%21@/nowhere/at/all.db", 3, "Invalid SQLite URL"),
        ("nosuchdatabase://shop:s3cret%21@db/audits", 2, "not a URL of a database"),
        ("s3cret%21", 2, "not a URL of a database"),
        ("postgresql://shop:s3cret%21@db:port/audits", 2, "not a URL of a database"),
        ("postgresql://shop:much@s3cret@db/audits", 2, "write an @ in a password as %40"),
    ],
)
def test_an_error_tells_the_reason_and_no_password(tmp_path, command, option, url, status, reason):
    log = WrittenLog(tmp_path / "store")
    log.append(message())
    store = log.close()
    whole = [ESCROWMQ, "audit", *command, "--log", str(store), option, url]

    done = subprocess.run(
        whole, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == status
    assert "s3cret" not in done.stdout + done.stderr
    assert reason in done.stderr


# --------------------------------------------------------------------------------------------------
# a database that does not answer

SILENT = [
    "postgresql+psycopg://shop@127.0.0.1:{}/audits",
    "mysql+pymysql://shop@127.0.0.1:{}/audits",
]


@pytest.mark.parametrize("url", SILENT, ids=["postgresql", "mysql"])
def test_a_server_that_accepts_and_never_answers_is_given_up(url):
    with (
        silent_server() as port,
        closing(Sink(url.format(port), limit_s=1)) as sink,
        pytest.raises(SinkError, match="does not answer within 1 s"),
    ):
        sink.open()


@ON_POSTGRESQL
def test_a_server_that_stops_to_answer_is_given_up_and_has_no_part_of_the_report(postgresql):
    url = postgresql.new_database()
    with closing(Sink(url, limit_s=2)) as sink:
        sink.open()
        with postgresql.frozen(), pytest.raises(SinkError, match="does not answer within 2 s"):
            sink.write(report())

    engine = create_engine(url)
    # at one moment: the server may still be about to commit
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        found = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (runs, counts, findings)
        ]
    engine.dispose()
    assert found[0] in (0, 1)
    assert len({count > 0 for count in found}) == 1


@ON_POSTGRESQL
def test_a_table_that_another_client_locks_is_waited_for_and_then_named_as_the_reason(postgresql):
    url = postgresql.new_database()
    written(url, report())
    engine = create_engine(url)
    with closing(Sink(url, limit_s=2)) as sink:
        with engine.begin() as other:
            other.exec_driver_sql("LOCK TABLE audit_runs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SinkError, match="lock timeout"):
                sink.write(report("rpt_2"))
        sink.write(report("rpt_3"))
    engine.dispose()

    assert [row["report_id"] for row in rows(url, runs)] == ["rpt_1", "rpt_3"]


@pytest.fixture
def store(tmp_path) -> Path:
    log = WrittenLog(tmp_path / "store")
    log.append(message())
    return log.close()


def audit_run(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    whole = [ESCROWMQ, "audit", "run", "--engine", "local", "--log", str(store), *options]
    return subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("url", SILENT, ids=["postgresql", "mysql"])
def test_an_audit_ends_where_its_database_never_answers(store, url):
    with silent_server() as port:
        done = audit_run(store, "--sql", url.format(port), "--sql-timeout-s", "1")

    assert done.returncode == 3
    assert "does not answer within 1 s" in done.stderr


@pytest.mark.parametrize("file", ["report.json", None])
def test_a_report_that_a_database_refuses_is_written_elsewhere(store, tmp_path, monkeypatch, file):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = f"sqlite:///{tmp_path}/reports.db"
    assert audit_run(store, "--sql", url).returncode == 0
    with closing(sqlite3.connect(tmp_path / "reports.db")) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON audit_runs BEGIN SELECT RAISE(ABORT, 'full'); END"
        )

    done = audit_run(store, "--sql", url, *(["--json", tmp_path / file] if file else []))

    assert done.returncode == 3
    assert "The audit failed: the SQL database failed: full" in done.stderr
    assert "It balances" in done.stdout, "the summary"
    kept = re.search(r"The report is in (.*\.json)", done.stderr)
    assert (kept is None) == (file is not None)
    saved = json.loads((tmp_path / file if kept is None else Path(kept[1])).read_text())
    assert (saved["state"], saved["begun"]) == ("done", 0)
