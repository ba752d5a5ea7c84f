"""The targets of an audit's report: files, a folder of rows, a database."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import typer

from cli.audit.common import check_database, needs_matplotlib, write_page, write_report
from cli.common import check_file, check_folder, say


class Outputs(NamedTuple):
    """Targets of a report."""

    json_file: str | None
    html: str | None
    parquet: str | None
    sql: str | None
    sql_timeout_s: int
    shows_summary: bool

    def check(self, master: str | None) -> None:
        """Raise BadParameter for a target that cannot be written."""
        check_file(self.json_file, "--json")
        check_file(self.html, "--html")
        if self.sql is not None:
            check_database(self.sql, "--sql")
        if self.parquet is not None:
            check_folder(self.parquet, "--parquet")
        if self.html is not None:
            needs_matplotlib()
            if self.parquet is None:
                check_that_rows_are_seen(master)

    def open_sink(self) -> Any | None:
        """The sink of `sql`, if there is one. Raises SinkError, which names no password."""
        if self.sql is None:
            return None
        from audit.sql.sink import Sink

        sink = Sink(self.sql, limit_s=self.sql_timeout_s)
        sink.open()
        return sink

    def write(self, report: dict[str, Any], sink: Any | None) -> Exception | None:
        """Write the report to each target but the rows, also behind one that fails; return the
        first failure. `sink`: from `open_sink`.

        If a target fails, and the report is in no file, it is kept in a temporary one.
        """
        targets: list[Callable[[], None]] = []
        if self.html is not None:
            targets.append(partial(write_page, self.html, report))
        if sink is not None:
            targets.append(partial(sink.write, report))
        if self.json_file is not None:
            targets.append(partial(write_report, self.json_file, report))
        failures = [_failure_of(target) for target in targets]
        first = next((error for error in failures if error is not None), None)
        if first is not None and (self.json_file is None or failures[-1] is not None):
            say(f"The report is in {_kept(report)}")
        return first


def check_that_rows_are_seen(master: str | None) -> None:
    """The rows that a page is made of go to a folder of this machine unless it is said where to."""
    if master is not None and not master.startswith("local"):
        text = (
            f"Spark runs at {master}, which cannot reach the folders of this machine: name a "
            "shared one with --parquet, too"
        )
        raise typer.BadParameter(
            f"{text}, a path or URI that all of its workers share", param_hint="--html"
        )


def _failure_of(write: Callable[[], None]) -> Exception | None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other targets are written
        return error
    return None


def _kept(report: dict[str, Any]) -> str:
    """A temporary file with the report."""
    file, path = tempfile.mkstemp(prefix="escrowmq-audit-", suffix=".json")
    os.close(file)
    write_report(path, report)
    return path
