"""`escrowmq audit`: jobs that prove the outcome of every transaction, by Spark or in this process.
Spark is imported when a job of it runs.
"""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from cli.audit.common import not_carried_out, stopped_by_signals, write_page
from cli.common import check_file, in_short, needs_pyarrow, read_file, say

app = typer.Typer(
    name="audit",
    help="Prove the outcome of every transaction, from the log alone.",
    no_args_is_help=True,
)


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


@app.callback()
def audit() -> None:
    """Prove the outcome of every transaction, from the log alone."""
