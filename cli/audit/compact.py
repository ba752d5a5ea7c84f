"""`escrowmq audit compact`: sealed segments made Parquet. Spark is imported when it runs."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli.audit.common import Log, Master, needs_spark
from cli.common import Exit, in_short, say


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
    driver_memory: Annotated[
        str, typer.Option(help="Memory of the Java process that drives Spark.")
    ] = "2g",
) -> None:
    """Convert sealed segments, or an archive, to Parquet: a row for each record. `audit run --log`
    reads it as the log.

    Segments that are already there are skipped. Exit status: 0 all sealed segments are converted; 2
    wrong usage; 3 the command failed.
    """
    needs_spark()
    try:
        from audit import log_range
        from audit.compact import compact as make_rows
        from audit.session import session

        found = log_range.find_log(log)  # before Spark: where there is no log, that is said at once
        with tempfile.TemporaryDirectory() as folder:
            settings = {"spark.driver.memory": driver_memory}
            with session(
                master, log=Path(folder) / "spark.log", settings=settings, name="escrowmq compact"
            ) as spark:
                made = make_rows(spark, found, to, with_bodies=bodies)
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: the command failed
        say(f"The log could not be compacted: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    for one in made:
        say(
            f"{one['segment']}: {one['rows']:,} rows, {one['bytes']:,} bytes made "
            f"{one['file_bytes']:,}"
        )
    say(f"{len(made):,} segments compacted")
