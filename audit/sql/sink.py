"""A report into a database: all of it in one transaction, in place of what was there of the same
report.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from alembic.config import Config
from sqlalchemy import (
    Connection,
    Engine,
    NullPool,
    Table,
    create_engine,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from alembic import command
from audit.patience import NoAnswer, limit_locks, within
from audit.sql.tables import counts, findings, groups, runs

LIMIT_S = 60
MIGRATIONS = Path(__file__).parent / "migrations"
# PostgreSQL's locks are numbers of 64 bits, and whose they are is by agreement
_OPENING = int.from_bytes(b"emqaudit", "big")
_OWN_COLUMNS = ("verdict", "check", "transaction_id", "producer_group", "log_offset")


class SinkError(Exception):
    """A database error without the password of its URL."""


class Sink:
    """`open` makes or mends the tables, `write` puts a report there. Both raise SinkError."""

    def __init__(self, url: str, *, limit_s: int = LIMIT_S) -> None:
        """`limit_s`: for all that is done at once. Raises SinkError: it is no URL that SQLAlchemy
        knows, or its driver is not there.
        """
        self._limit_s = limit_s
        try:
            self._secrets = _secrets(url)
        except (ArgumentError, ValueError):  # which may quote it
            raise SinkError("it is no URL that SQLAlchemy knows") from None
        try:
            self._engine: Engine = create_engine(url, poolclass=NullPool)
        except Exception as error:  # noqa: BLE001 - of a driver
            raise self._error(error) from None

    def open(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))

        def migrate(connection: Connection) -> None:
            _make_others_wait(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

        self._do(migrate)

    def write(self, report: Mapping[str, Any]) -> None:
        """Write the report, with its `run` part, whose `report_id` is the report's name."""
        report_id = report["run"]["report_id"]
        made: dict[Table, list[dict[str, Any]]] = {
            runs: [_run(report)],
            counts: list(_counts(report)),
            groups: list(_groups(report)),
            findings: list(_findings(report)),
        }

        def replace(connection: Connection) -> None:
            for table, rows in made.items():
                connection.execute(delete(table).where(table.c.report_id == report_id))
                if rows:
                    connection.execute(
                        insert(table),
                        [{"report_id": report_id, **_storable(row)} for row in rows],
                    )

        self._do(replace, without_answer="; it may have the report")

    def close(self) -> None:
        self._engine.dispose()

    def _do(self, work: Callable[[Connection], None], without_answer: str = "") -> None:
        """Do the work in a transaction, within the limit. Raises SinkError."""

        def transact(_: Callable[[], None]) -> None:
            with self._engine.begin() as connection:
                limit_locks(connection, self._limit_s)
                work(connection)

        try:
            within(self._limit_s, transact)
        except NoAnswer as error:
            raise SinkError(f"{error}{without_answer}") from None
        except Exception as error:  # noqa: BLE001 - of a driver
            raise self._error(error, "the SQL database failed: ") from None

    def _error(self, error: Exception, prefix: str = "") -> SinkError:
        """Drivers quote what they were given; not the rows either, which may be thousands."""
        text = str(getattr(error, "orig", None) or error)
        text = text or f"it does not say why ({type(error).__name__})"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return SinkError(f"{prefix}{text[:2_000]}")


def _make_others_wait(connection: Connection) -> None:
    """Lock the database: a concurrent opener waits, then finds the tables."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_OPENING)))
    elif connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _secrets(url: str) -> list[str]:
    """The password as it is meant and as it is written, and the whole URL; the longest first."""
    password = make_url(url).password
    if password is None:
        return []
    written = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return sorted({url, str(password), written} - {""}, key=len, reverse=True)


# --------------------------------------------------------------------------------------------------
# a report as rows


def _run(report: Mapping[str, Any]) -> dict[str, Any]:
    run, log = report["run"], report["log"]
    return {
        "kind": report["kind"],
        "started_at": run["started_at"],
        "finished_at": run["finished_at"],
        "exit_status": run["exit_status"],
        "balanced": report["balanced"],
        "begun_from": report.get("from"),
        "begun_to": report.get("to"),
        "producer_group": report.get("producer_group"),
        "begun": report["begun"],
        "findings": report["findings"]["total"],
        "log": run["log"],
        "log_begin": log["begin"],
        "log_end": log["end"],
        "records": log["records"],
        "damaged_bytes": log["damaged_bytes"],
        "digest": report["segments"]["digest"],
        "engine": report["engine"],
    }


def _counts(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    parts = {"verdicts": report["verdicts"], "flags": report["flags"]}
    parts |= {name: part["findings"] for name, part in report.get("checks", {}).items()}
    for part, numbers in parts.items():
        for name, number in numbers.items():
            yield {"part": part, "name": name, "number": number}


def _groups(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for place, group in enumerate(report["producer_groups"]):
        for verdict, number in group["verdicts"].items():
            yield {
                "place": place,
                "producer_group": group.get("producer_group"),
                "verdict": verdict,
                "number": number,
            }


def _findings(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for place, item in enumerate(report["findings"]["items"]):
        records = item.get("records", [])
        rest = {name: value for name, value in item.items() if name not in _OWN_COLUMNS}
        yield {
            "place": place,
            "verdict": item["verdict"],
            "check_name": item.get("check"),
            "transaction_id": item.get("transaction_id"),
            "producer_group": item.get("producer_group"),
            "log_offset": item.get("log_offset", records[0]["log_offset"] if records else None),
            "evidence": json.dumps(rest),
        }


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """PostgreSQL has no text with a NUL, and an id may be anything."""
    return {
        name: value.replace("\0", "\ufffd") if isinstance(value, str) else value
        for name, value in row.items()
    }
