"""`escrowmq audit reconcile`: the log held against the producers' own database. Spark is imported
when it runs.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from cli.audit.common import (
    DriverMemory,
    JsonFile,
    Log,
    Master,
    Quiet,
    SparkLog,
    SplitMb,
    check_database,
    log_of_spark,
    needs_spark,
    not_carried_out,
    report_id_of,
    run_part,
    status_of,
    stopped_by_signals,
    write_report,
)
from cli.common import check_file


def reconcile(
    log: Log,
    database: Annotated[
        str,
        typer.Option(
            help="Database with the producers' markers, as an SQLAlchemy URL: postgresql://..."
        ),
    ],
    database_timeout_s: Annotated[
        int,
        typer.Option(help="How long the database may take for each 50,000 rows.", min=1),
    ] = 300,
    table: Annotated[
        str, typer.Option(help="Table of markers, with one row for each transaction.")
    ] = "markers",
    id_column: Annotated[
        str, typer.Option(help="Column with the id of the transaction.")
    ] = "transaction_id",
    outcome_column: Annotated[str, typer.Option(help="Column with the outcome.")] = "outcome",
    commit_value: Annotated[
        str, typer.Option(help="Value of the outcome column for a commit.")
    ] = "commit",
    rollback_value: Annotated[
        str, typer.Option(help="Value of the outcome column for a rollback.")
    ] = "rollback",
    producer_group: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Only transactions of this producer group; may be given several times. By default "
                "the database has markers for every transaction in the log."
            )
        ),
    ] = None,
    json_file: JsonFile = None,
    master: Master = None,
    split_mb: SplitMb = 64,
    driver_memory: DriverMemory = "2g",
    spark_log: SparkLog = None,
    quiet: Quiet = False,
) -> None:
    """Compare the log with the markers that producers write in their own transactions: lost events
    and phantoms.

    Exit status: 0 both agree; 1 findings; 2 wrong usage; 3 the command failed; 4 the counts do not
    balance; 130, 143 stopped by SIGINT or SIGTERM.
    """
    begun_at = datetime.now(UTC)
    needs_spark()
    check_database(database, "--database")
    if commit_value == rollback_value:
        raise typer.BadParameter("it is that of a commit, too", param_hint="--rollback-value")
    check_file(json_file, "--json")
    from audit.errors import NoSuchGroup

    with stopped_by_signals(), log_of_spark(spark_log) as log_file:
        try:
            from audit.jobs.reconcile import Markers, read_markers, run
            from audit.log import log_range
            from audit.report import progress
            from audit.spark.session import session, tasks_of

            found = log_range.find_log(log)
            markers = read_markers(
                Markers(database, table, id_column, outcome_column, commit_value, rollback_value),
                limit_s=database_timeout_s,
            )  # before Spark
            length, settings = found.end - found.begin, {"spark.driver.memory": driver_memory}
            console = Console(stderr=True, soft_wrap=True, quiet=quiet)
            with (
                session(master, log=log_file, to_read_bytes=length, settings=settings) as spark,
                progress.shown(
                    partial(tasks_of, spark), f"{length:,} bytes of log", console=console
                ),
            ):
                report = run(
                    spark,
                    found,
                    markers,
                    producer_groups=producer_group or (),
                    split_bytes=split_mb << 20,
                )
            status = status_of(report)
            if json_file is not None:
                of_run = run_part(report_id_of(begun_at), log, master, begun_at, status)
                write_report(json_file, {**report, "run": of_run})
            if not quiet:
                from audit.report import summary

                summary.show_reconciliation(Console(soft_wrap=True), report)
        except NoSuchGroup as error:
            raise typer.BadParameter(str(error), param_hint="--producer-group") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
            not_carried_out("The log could not be reconciled", error)
    raise typer.Exit(status)
