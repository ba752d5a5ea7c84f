"""`escrowmq audit compact`: sealed segments made Parquet. Spark is imported when it runs."""

from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from cli.audit.common import (
    DriverMemory,
    Log,
    Master,
    SparkLog,
    log_of_spark,
    needs_spark,
    not_carried_out,
    stopped_by_signals,
)
from cli.common import say


def compact(
    log: Log,
    to: Annotated[
        str,
        typer.Option(
            help=(
                "Target folder: a path or a URI that all workers share, for example "
                "s3://bucket/rows."
            )
        ),
    ],
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Include the bodies of the messages.")
    ] = False,
    master: Master = None,
    driver_memory: DriverMemory = "2g",
    spark_log: SparkLog = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:
    """Convert sealed segments, or an archive, to Parquet: a row for each record. `audit run --log`
    reads it as the log.

    Segments that are already there are skipped. Exit status: 0 all sealed segments are converted; 2
    wrong usage; 3 the command failed; 130, 143 stopped by SIGINT or SIGTERM.
    """
    needs_spark()
    with stopped_by_signals(), log_of_spark(spark_log) as log_file:
        try:
            from audit.jobs.compact import compact as make_rows
            from audit.log import log_range
            from audit.report import progress
            from audit.spark.session import session, tasks_of

            # before Spark: where there is no log, that is said at once
            found = log_range.find_log(log)
            settings = {"spark.driver.memory": driver_memory}
            console = Console(stderr=True, soft_wrap=True, quiet=quiet)
            what = f"{found.end - found.begin:,} bytes of log"
            with (
                session(master, log=log_file, settings=settings, name="escrowmq compact") as spark,
                progress.shown(partial(tasks_of, spark), what, console=console),
            ):
                made = make_rows(spark, found, to, with_bodies=bodies)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
            not_carried_out("The log could not be compacted", error)
    for one in made:
        say(
            f"{one['segment']}: {one['rows']:,} rows, {one['bytes']:,} bytes made "
            f"{one['file_bytes']:,}"
        )
    say(f"{len(made):,} segments compacted")
