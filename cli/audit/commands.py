"""`escrowmq audit`: jobs that prove the outcome of every transaction, by Spark or in this process.
Spark is imported when a job of it runs.
"""

import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from audit.checks.kinds import CHECKS, KINDS
from audit.checks.policies import POLICIES, Policy
from cli.audit.common import (
    DriverMemory,
    Log,
    Master,
    SparkLog,
    check_database,
    counted_by,
    log_of_spark,
    named_kinds,
    needs_matplotlib,
    needs_spark,
    not_carried_out,
    report_id_of,
    run_part,
    status_of,
    stopped_by_signals,
    write_page,
    write_report,
)
from cli.common import Exit, check_file, check_folder, in_short, needs_pyarrow, read_file, say

app = typer.Typer(
    name="audit",
    help="Prove the outcome of every transaction, from the log alone.",
    no_args_is_help=True,
)

_WHOLE = re.compile("[1-9][0-9]{0,11}")
_TIMES = ["%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"]


@app.command()
def show(
    file: Annotated[
        str,
        typer.Argument(help="A report of --json or of the service; a path or a URI."),
    ],
    html: Annotated[
        str | None,
        typer.Option(help="Write it as an HTML page to this file instead; a path or a URI."),
    ] = None,
) -> None:
    """Show a saved report of `run`, `watch` or `reconcile`. Needs no Spark.

    Exit status: 0 shown; 2 wrong usage, or the file cannot be shown; 3 a package is missing.
    """
    check_file(html, "--html")
    try:
        report = json.loads(read_file(file))
        if not isinstance(report, dict) or report.get("state") != "done":
            raise typer.BadParameter(f"{file} holds no report that is done", param_hint="FILE")
        is_reconciled = report.get("kind") == "reconciliation"
        if html is not None and (is_reconciled or "watch" in report):
            raise typer.BadParameter(
                f"a page is of a report of `audit run`, and {file} is none", param_hint="--html"
            )
        if html is not None:
            write_page(html, report)
            return
        from audit.report import summary

        console = Console(soft_wrap=True)
        if is_reconciled:
            summary.show_reconciliation(console, report)
        else:
            status = report.get("run", {}).get("exit_status", 0)
            summary.show(console, report, exit_status=status)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise typer.BadParameter(
            f"it cannot be shown: {in_short(error)}", param_hint="FILE"
        ) from None


@app.command()
def archive(
    log: Annotated[
        str, typer.Option(help="The store's folder, or a folder of segments; a path or a URI.")
    ],
    to: Annotated[
        str, typer.Option(help="Target folder: a path or a URI, for example s3://bucket/folder.")
    ],
) -> None:
    """Copy sealed segments to an archive, each with its manifest. Segments that are already there
    are skipped.

    Exit status: 0 all sealed segments are archived; 2 wrong usage; 3 the command failed; 130, 143
    stopped by SIGINT or SIGTERM.
    """
    needs_pyarrow("The archive needs pyarrow")
    from audit.jobs import archive as archiving
    from audit.log import log_range

    def tell(manifest: dict[str, Any]) -> None:
        say(
            f"{manifest['segment']}: {manifest['records']:,} records, {manifest['bytes']:,} "
            f"bytes, crc32c {manifest['crc32c']}"
        )

    with stopped_by_signals():
        try:
            made = archiving.archive(log_range.find_log(log), to, on_copied=tell)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
            not_carried_out("The archive could not be made", error)
    say(f"{len(made):,} segments copied")


class Engine(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


class ProgressAs(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.callback()
def audit() -> None:
    """Prove the outcome of every transaction, from the log alone."""


@app.command()
def run(
    context: typer.Context,
    log: Log,
    engine: Annotated[
        Engine,
        typer.Option(
            help=(
                "spark: any log, all outputs. local: a small log in this process, without "
                "Spark, Java and pyarrow: the same verdicts and checks, no rows and plots."
            )
        ),
    ] = Engine.SPARK,
    max_log_mb: Annotated[
        int,
        typer.Option(help="With --engine local: largest log that is read, in MiB.", min=1),
    ] = 4096,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the report to this file, a path or a URI.")
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(
            help=(
                "Write the report as an HTML page to this file, a path or a URI: plots and tables "
                "in one self-contained file."
            )
        ),
    ] = None,
    parquet: Annotated[
        str | None,
        typer.Option(
            help="Write one row for each transaction to this folder as Parquet, a path or a URI."
        ),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            help="Write the report to this database, as an SQLAlchemy URL: postgresql://..."
        ),
    ] = None,
    sql_timeout_s: Annotated[
        int,
        typer.Option(help="How long the database may take to open, and to take the report.", min=1),
    ] = 60,
    parquet_files: Annotated[
        int | None, typer.Option(help="Number of Parquet files.", min=1)
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(help="What counts as a finding: comma-separated names, `none`, or `faults`."),
    ] = "faults",
    begun_from: Annotated[
        datetime | None,
        typer.Option(
            "--from", formats=_TIMES, help="Only transactions begun at or after this time (UTC)."
        ),
    ] = None,
    begun_to: Annotated[
        datetime | None,
        typer.Option(
            "--to", formats=_TIMES, help="Only transactions begun before this time (UTC)."
        ),
    ] = None,
    producer_group: Annotated[
        str | None, typer.Option(help="Only transactions of this producer group.")
    ] = None,
    checks: Annotated[
        str,
        typer.Option(
            help="Further checks of the whole log: `all`, `none`, or comma-separated names: "
            f"{', '.join(CHECKS)}."
        ),
    ] = "all",
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Policy to simulate, FIRST_AFTER_MS/INTERVAL_MS/LIMIT; may be given several times."
            )
        ),
    ] = None,
    master: Master = None,
    split_mb: Annotated[
        int, typer.Option(help="Size of the log that one task reads, in MiB.", min=1)
    ] = 64,
    driver_memory: DriverMemory = "2g",
    spark_log: SparkLog = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress and no summary.")
    ] = False,
    progress: Annotated[
        ProgressAs,
        typer.Option(
            help=(
                "text: a bar or lines on standard error. json: JSON lines on standard output, "
                "without a summary."
            )
        ),
    ] = ProgressAs.TEXT,
    report_id: Annotated[
        str | None, typer.Option(help="Id of the report; generated by default.")
    ] = None,
    end_with_stdin: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin",
            help="End when standard input is closed, as the parent process has ended.",
        ),
    ] = False,
) -> None:
    """Give every transaction in the log exactly one verdict.

    Also runs further checks of the whole log (--checks).

    Exit status: 0 clean; 1 findings; 2 wrong usage; 3 the command failed; 4 the counts do not
    balance; 130, 143 stopped by SIGINT or SIGTERM.
    """
    begun_at = datetime.now(UTC)
    if end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    if engine is Engine.LOCAL:
        _check_for_local(context)
    else:
        _check_for_spark(context)
    is_finding = counted_by(fail_on)
    named, policies = _names_of_checks(checks), _policies(what_if)
    _check_that_kinds_are_found(fail_on, named)
    if begun_from is not None and begun_to is not None and begun_from > begun_to:
        raise typer.BadParameter("it is later than --to", param_hint="--from")
    shows_summary = not quiet and progress is ProgressAs.TEXT
    outputs = _Outputs(json_file, html, parquet, sql, sql_timeout_s, shows_summary)
    outputs.check(master)
    report_id = report_id or report_id_of(begun_at)
    has_rows = parquet is not None or html is not None
    asked = _Asked(
        engine,
        max_log_mb << 20,
        log,
        _utc(begun_from),
        _utc(begun_to),
        producer_group,
        master,
        split_mb,
        driver_memory,
        spark_log,
        None if quiet else progress,
        _Rows(parquet, parquet_files, report_id) if has_rows else None,
        named,
        policies,
    )
    describe = partial(run_part, report_id, log, master, begun_at)
    raise typer.Exit(_run_or_exit(asked, is_finding, outputs, describe))


class _Rows(NamedTuple):
    """Where a row for each transaction goes: nowhere that stays, where only a page is wanted."""

    uri: str | None
    files: int | None
    run_id: str


class _Asked(NamedTuple):
    engine: Engine
    most_log_bytes: int  # of the engine `local`
    log: list[str]
    begun_from: datetime | None
    begun_to: datetime | None
    producer_group: str | None
    master: str | None
    split_mb: int
    driver_memory: str
    spark_log: Path | None
    progress: ProgressAs | None
    rows: _Rows | None
    checks: tuple[str, ...]
    policies: tuple[Policy, ...]


class _Outputs(NamedTuple):
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
                _check_that_rows_are_seen(master)

    def write(self, report: dict[str, Any], sink: Any | None) -> Exception | None:
        """Write the report to each target but the rows, also behind one that fails; return the
        first failure. `sink`: of `sql`.

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


def _run_or_exit(
    asked: _Asked,
    is_finding: Callable[[str], bool],
    outputs: _Outputs,
    describe: Callable[[Exit], dict[str, Any]],
) -> Exit:
    """Run the audit and write its report; the status. Raises typer.Exit if that fails.

    `describe`: the part of the report that differs between runs over the same bytes.
    """
    with stopped_by_signals(), log_of_spark(asked.spark_log) as spark_log:
        return _run_and_write(asked, is_finding, outputs, describe, spark_log)


def _run_and_write(
    asked: _Asked,
    is_finding: Callable[[str], bool],
    outputs: _Outputs,
    describe: Callable[[Exit], dict[str, Any]],
    spark_log: Path,
) -> Exit:
    from audit.errors import NoSuchGroup, NotLocal

    try:
        # before Spark: what is wrong with it is said at once
        sink = None if outputs.sql is None else _open_sink(outputs.sql, outputs.sql_timeout_s)
        outcome = _run(asked, is_finding, spark_log)
        status = status_of(outcome.report)
        failure = outputs.write({**outcome.report, "run": describe(status)}, sink)
        if outputs.shows_summary:
            from audit.report import summary

            summary.show(Console(soft_wrap=True), outcome.report, exit_status=status)
        if failure is not None:
            raise failure
    except typer.BadParameter:
        raise
    except NoSuchGroup as error:
        raise typer.BadParameter(str(error), param_hint="--producer-group") from None
    except NotLocal as error:
        say(f"The audit was not made: {error}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
        not_carried_out("The audit failed", error)
    return status


def _open_sink(url: str, limit_s: int) -> Any:
    """Raises SinkError, which names no password."""
    from audit.sql.sink import Sink

    sink = Sink(url, limit_s=limit_s)
    sink.open()
    return sink


def _run(asked: _Asked, is_finding: Callable[[str], bool], spark_log: Path) -> Any:
    from audit.log import log_range
    from audit.scope import Scope

    # before Spark: where there is no log, that is said at once
    found = log_range.find_log(asked.log)
    scope = Scope(
        begun_from=asked.begun_from, begun_to=asked.begun_to, producer_group=asked.producer_group
    )
    if asked.engine is Engine.LOCAL:
        return _run_here(asked, found, scope, is_finding)
    return _run_by_spark(asked, found, scope, is_finding, spark_log)


def _run_here(asked: _Asked, found: Any, scope: Any, is_finding: Callable[[str], bool]) -> Any:
    from audit.checks.run import Asked
    from audit.local import local_audit

    tasks = (0, -(-(found.end - found.begin) >> 20))  # in MiB

    def on_read(read: int, known: int) -> None:
        nonlocal tasks
        tasks = read >> 20, -(-known >> 20)

    with _shown(asked.progress, lambda: tasks, found, unit="MiB"):
        return local_audit.run(
            asked.log,
            scope,
            found=found,
            counted=is_finding,
            split_bytes=asked.split_mb << 20,
            asked=Asked(asked.checks, asked.policies),
            most_log_bytes=asked.most_log_bytes,
            on_read=on_read,
        )


def _run_by_spark(
    asked: _Asked, found: Any, scope: Any, is_finding: Callable[[str], bool], spark_log: Path
) -> Any:
    from audit.checks.run import Asked
    from audit.jobs.transaction_audit import run
    from audit.report.details import Wanted
    from audit.spark.session import session, tasks_of

    settings = {"spark.driver.memory": asked.driver_memory}
    length = found.end - found.begin
    with (
        session(asked.master, log=spark_log, to_read_bytes=length, settings=settings) as spark,
        _shown(asked.progress, partial(tasks_of, spark), found),
        tempfile.TemporaryDirectory(prefix="escrowmq-audit-rows-") as scratch,
    ):
        wanted = None
        if asked.rows is not None:
            if asked.rows.uri is None:  # spark-submit may have said where Spark runs
                _check_that_rows_are_seen(spark.sparkContext.master)
            wanted = Wanted(
                uri=asked.rows.uri or scratch, run_id=asked.rows.run_id, files=asked.rows.files
            )
        return run(
            spark,
            asked.log,
            scope,
            found=found,
            counted=is_finding,
            split_bytes=asked.split_mb << 20,
            asked=Asked(asked.checks, asked.policies),
            rows=wanted,
        )


def _shown(
    form: ProgressAs | None,
    tasks: Callable[[], tuple[int, int]],
    found: Any,
    *,
    unit: str = "tasks",
) -> AbstractContextManager[None]:
    """Progress of the tasks while the block runs."""
    from audit.report import progress

    if form is ProgressAs.TEXT:
        what = f"{found.end - found.begin:,} bytes of log"
        return progress.shown(tasks, what, unit=unit, console=Console(stderr=True, soft_wrap=True))
    return nullcontext() if form is None else progress.told(tasks, sys.stdout)


_OF_SPARK = {
    "master": "there is no cluster",
    "driver_memory": "there is no Java process",
    "spark_log": "there is no Spark",
    "parquet": "its rows are written by Spark",
    "parquet_files": "its rows are written by Spark",
    "html": "a page is made from rows that Spark writes; "
    "`escrowmq audit show FILE --html` makes one without them from a report of --json",
}
"""Options that only Spark has, and why."""


def _check_for_local(context: typer.Context) -> None:
    """Raise BadParameter for options that the engine `local` does not have."""
    for name, why in _OF_SPARK.items():
        if _is_given(context, name):
            raise typer.BadParameter(
                f"it needs --engine spark: {why}", param_hint=f"--{name.replace('_', '-')}"
            )


def _check_for_spark(context: typer.Context) -> None:
    needs_spark(instead="; or audit a small log without it: --engine local")
    if _is_given(context, "max_log_mb"):
        raise typer.BadParameter("it needs --engine local", param_hint="--max-log-mb")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_that_rows_are_seen(master: str | None) -> None:
    """The rows that a page is made of go to a folder of this machine unless it is said where to."""
    if master is not None and not master.startswith("local"):
        text = (
            f"Spark runs at {master}, which cannot reach the folders of this machine: name a "
            "shared one with --parquet, too"
        )
        raise typer.BadParameter(
            f"{text}, a path or URI that all of its workers share", param_hint="--html"
        )


def _names_of_checks(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return tuple(CHECKS) if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}; there are {', '.join(CHECKS)}", param_hint="--checks"
        )
    return names


def _check_that_kinds_are_found(fail_on: str, checks: tuple[str, ...]) -> None:
    """Raise BadParameter for kinds in --fail-on whose checks are not made."""
    for name in sorted(named_kinds(fail_on)):
        check = KINDS[name].check if name in KINDS else None
        if check is not None and check not in checks:
            raise typer.BadParameter(
                f"{name} is found by the check `{check}`, which --checks leaves out",
                param_hint="--fail-on",
            )


def _policies(texts: list[str] | None) -> tuple[Policy, ...]:
    found = []
    for text in texts or ():
        numbers = text.split("/")
        if len(numbers) != len(Policy._fields) or not all(_WHOLE.fullmatch(one) for one in numbers):
            raise typer.BadParameter(
                f"{text} is not FIRST_AFTER_MS/INTERVAL_MS/LIMIT", param_hint="--what-if"
            )
        found.append(Policy._make(map(int, numbers)))
    return tuple(found) or POLICIES


def _end_with_stdin() -> None:
    """Java goes with us: it reads from a pipe of ours in the same way."""
    while os.read(0, 1 << 16):
        pass
    os._exit(Exit.NOT_CARRIED_OUT)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
