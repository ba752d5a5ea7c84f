"""`escrowmq audit watch`: the audit of a log that goes on. Spark is imported when it runs."""

import json
import signal
import sys
import threading
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from audit.checks.kinds import KINDS
from audit.report.terminal import printable
from cli.audit.common import (
    DriverMemory,
    Master,
    ProgressAs,
    SparkLog,
    SplitMb,
    counted_by,
    log_of_spark,
    named_kinds,
    needs_spark,
    not_carried_out,
    report_id_of,
    run_part,
    status_of,
    stopped_by_signals,
    write_report,
)
from cli.common import check_file

_ENDING = (signal.SIGINT, signal.SIGTERM)


def watch(
    log: Annotated[
        str,
        typer.Option(
            help="The store's folder, of a running or stopped service; as for `audit run`."
        ),
    ],
    state: Annotated[
        str,
        typer.Option(
            help="Folder for the state of the watch: a path or a URI that all workers share."
        ),
    ],
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help="End when the present log is processed; for cron jobs."
        ),
    ] = False,
    batch_mb: Annotated[int, typer.Option(help="Size of a batch of the log, in MiB.", min=1)] = 256,
    interval_ms: Annotated[
        int, typer.Option(help="Interval between looks for new log, in milliseconds.", min=100)
    ] = 5_000,
    horizon_ms: Annotated[
        int,
        typer.Option(
            help=(
                "How long a decided transaction is kept in the state after its last record, in "
                "log time."
            ),
            min=0,
        ),
    ] = 3_600_000,
    fail_on: Annotated[
        str,
        typer.Option(help="What counts as a finding: comma-separated names, `none`, or `faults`."),
    ] = "faults",
    json_file: Annotated[
        str | None,
        typer.Option("--json", help="Write the counts to this file at the end, a path or a URI."),
    ] = None,
    progress: Annotated[
        ProgressAs,
        typer.Option(
            help=(
                "Format of findings and batches on standard output: text, or JSON lines without a "
                "summary."
            )
        ),
    ] = ProgressAs.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print findings only.")] = False,
    master: Master = None,
    split_mb: SplitMb = 64,
    driver_memory: DriverMemory = "2g",
    spark_log: SparkLog = None,
) -> None:
    """Keep the verdicts of a growing log up to date, and report findings as they appear. SIGINT and
    SIGTERM end it.

    Started again with the same --state, it continues where it was.

    Exit status, of all counts since the beginning: 0 clean; 1 findings; 2 wrong usage; 3 the
    command failed; 4 the counts do not balance. 130, 143: stopped by SIGINT or SIGTERM before it
    began.
    """
    begun_at = datetime.now(UTC)
    needs_spark()
    counted = counted_by(fail_on)
    check_file(json_file, "--json")
    if unknown := sorted(named_kinds(fail_on) & set(KINDS)):
        raise typer.BadParameter(
            f"{', '.join(unknown)}: a watch has no checks", param_hint="--fail-on"
        )
    printer = _Printer(progress, is_quiet=quiet)
    with stopped_by_signals(), log_of_spark(spark_log) as of_spark:
        try:
            from audit.log.log_range import find_log

            find_log(log)  # before Spark: where there is no log, that is said at once

            from audit.jobs.watch import Watch
            from audit.jobs.watch_state import StateFolder
            from audit.spark.session import session

            over = threading.Event()
            settings = {"spark.driver.memory": driver_memory}
            with session(master, log=of_spark, settings=settings) as spark:
                for number in _ENDING:  # a started watch ends with its status
                    signal.signal(number, lambda *_: over.set())
                watching = Watch(
                    spark,
                    log,
                    StateFolder(state),
                    counted=counted,
                    horizon_ms=horizon_ms,
                    on_step=printer.step,
                    split_bytes=split_mb << 20,
                )
                interval = None if until_caught_up else interval_ms
                watching.run(batch_bytes=batch_mb << 20, interval_ms=interval, over=over)
                report = {**watching.report(), "engine": f"spark {spark.version}"}
            status = status_of(report)
            if json_file is not None:
                of_run = run_part(report_id_of(begun_at), [log], master, begun_at, status)
                write_report(json_file, {**report, "run": of_run})
            if progress is ProgressAs.TEXT and not quiet:
                from audit.report import summary

                summary.show(Console(soft_wrap=True), report, exit_status=status)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
            not_carried_out("The watch could not go on", error)
    raise typer.Exit(status)


class _Printer:
    """Standard output, a line for each finding and each batch."""

    def __init__(self, progress: ProgressAs, *, is_quiet: bool) -> None:
        self._is_json = progress is ProgressAs.JSON
        self._is_quiet = is_quiet

    def step(self, step: Any) -> None:
        for item in step.findings:
            self._line({"finding": item}, printable(" ".join([item["verdict"], *_rest(item)])))
        if step.omitted:
            self._line(
                {"findings_omitted": step.omitted}, "and more findings than are listed of one batch"
            )
        state = step.state
        if not self._is_quiet:
            numbers = {
                "batch": state.batch,
                "reached": state.reached,
                "kept": sum(state.open.values()),
            }
            self._line(numbers, ", ".join(f"{name} {value:,}" for name, value in numbers.items()))

    def _line(self, values: dict[str, Any], text: str) -> None:
        sys.stdout.write((json.dumps(values) if self._is_json else text) + "\n")
        sys.stdout.flush()


def _rest(item: dict[str, Any]) -> list[str]:
    return [
        name if value is True else f"{name}={value}"
        for name, value in item.items()
        if name != "verdict"
    ]
