"""`escrowmq store`: look at the files of a store and mend them. Needs neither Spark nor Java."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.audit_common import Exit, check_file, in_short, say

app = typer.Typer(
    name="store", help="Verify, inspect and repair the files of a store.", no_args_is_help=True
)

Directory = Annotated[
    Path,
    typer.Argument(
        help="The store's folder, which holds commitlog/, or the data directory around it.",
        metavar="DIR",
    ),
]


@app.callback()
def store() -> None:
    """Verify, inspect and repair the files of a store."""


@app.command()
def verify(
    directory: Directory,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress and no summary.")
    ] = False,
) -> None:
    """Verify every file of a store, running or stopped. Changes nothing and takes no lock.

    Exit status: 0 clean; 1 findings; 2 wrong usage; 3 the command failed.
    """
    check_file(None if json_file is None else str(json_file), "--json")
    root = store_folder(directory)
    from cli import store_verify
    from storage.errors import MessagingError

    try:
        report = store_verify.run(root, shows=not quiet)
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if not quiet:
            store_verify.show(report, sys.stdout)
    except (OSError, MessagingError) as error:
        say(f"The store could not be verified: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    raise typer.Exit(Exit.FINDINGS if report["findings"] else Exit.CLEAN)


@app.command()
def repair(
    directory: Directory,
    cut_log_at: Annotated[
        int | None,
        typer.Option(
            help="End the log at this log offset; all messages behind it are lost.",
            metavar="OFFSET",
            min=0,
        ),
    ] = None,
    blank_unit: Annotated[
        int | None,
        typer.Option(
            help=(
                "Remove the damage that begins at this log offset; whole records of the unit stay."
            ),
            metavar="OFFSET",
            min=0,
        ),
    ] = None,
    accept_beginning: Annotated[
        bool, typer.Option("--accept-beginning", help="Let the log begin at its first segment.")
    ] = False,
    rebuild_derived: Annotated[
        bool,
        typer.Option(
            "--rebuild-derived",
            help="Move queues, index, snapshots and timers aside; the next start rebuilds them.",
        ),
    ] = False,
    set_aside: Annotated[
        str | None,
        typer.Option(help="Move a file that is not a segment out of commitlog/.", metavar="NAME"),
    ] = None,
    fit_segment: Annotated[
        str | None,
        typer.Option(
            help="Restore the full length of a segment, filled with zeros.", metavar="NAME"
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress and no summary.")
    ] = False,
) -> None:
    """Make one repair of a stopped store. Without an option: list the repairs that are needed, and
    change nothing.

    Files are copied to repair-<time>/ beside commitlog/ before they are changed.

    Exit status: 0 nothing to repair, or repaired; 1 a repair is needed; 2 wrong usage; 3 the
    command failed; 73 a process is using the store.
    """
    given = {
        "cut_log_at": cut_log_at,
        "blank_unit": blank_unit,
        "accept_beginning": accept_beginning or None,
        "rebuild_derived": rebuild_derived or None,
        "set_aside": set_aside,
        "fit_segment": fit_segment,
    }
    wanted = [(name, value) for name, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise typer.BadParameter("one repair at a time")
    check_file(None if json_file is None else str(json_file), "--json")
    root = store_folder(directory)
    from app import exit_codes
    from cli import store_repair
    from storage.errors import DirectoryInUse, MessagingError
    from storage.local.repair_report import RepairRefused

    try:
        report = store_repair.run(root, *(wanted[0] if wanted else (None, None)), shows=not quiet)
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if not quiet:
            store_repair.show(report, sys.stdout)
    except DirectoryInUse as error:
        say(f"Stop the service first: {error}")
        raise typer.Exit(exit_codes.DIRECTORY_IN_USE) from None
    except (OSError, MessagingError, RepairRefused) as error:
        say(f"The store could not be repaired: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    raise typer.Exit(Exit.FINDINGS if report.get("findings") else Exit.CLEAN)


@app.command()
def segments(
    directory: Directory,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the table to this file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no table.")] = False,
) -> None:
    """List the segments of the log: their records, times and sizes, and the damage in them. Takes
    no lock.

    Exit status: 0 listed; 2 wrong usage; 3 the command failed.
    """
    check_file(None if json_file is None else str(json_file), "--json")
    root = store_folder(directory)
    from cli import store_segments
    from storage.errors import MessagingError

    try:
        rows = store_segments.rows(root)
        if json_file is not None:
            json_file.write_text(
                json.dumps({"store": str(root), "segments": rows}, indent=2) + "\n", "utf-8"
            )
        if not quiet:
            store_segments.show(rows, sys.stdout)
    except (OSError, MessagingError) as error:
        say(f"The segments could not be listed: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


@app.command()
def dump(
    file: Annotated[
        Path,
        typer.Argument(help="A stored file by its path in the store.", exists=True, dir_okay=False),
    ],
) -> None:
    """Print a stored file as text: a segment, a queue, index, timer or snapshot file, or the
    checkpoint.
    """
    from cli import dump as command

    command.run(file)


@app.command("recovery-report")
def recovery_report(
    directory: Annotated[
        Path | None,
        typer.Argument(help="The store's folder, or the data directory.", metavar="DIR"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of a running service, instead of DIR.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ESCROWMQ_API_KEY", help="API key for --url.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the reports to this file.")
    ] = None,
) -> None:
    """Report in words what the last starts of a store have recovered, newest first.

    Exit status: 0 reported; 2 wrong usage; 3 the command failed.
    """
    if (directory is None) == (url is None):
        raise typer.BadParameter("either DIR or --url")
    check_file(None if json_file is None else str(json_file), "--json")
    from cli import store_recovery

    try:
        reports = (
            store_recovery.of_store(store_folder(directory))
            if directory
            else store_recovery.of_service(str(url), api_key)
        )
        if json_file is not None:
            json_file.write_text(json.dumps(reports, indent=2) + "\n", "utf-8")
        store_recovery.show(reports, sys.stdout)
    except (OSError, ValueError) as error:
        say(f"There is no report: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def store_folder(directory: Path) -> Path:
    """The folder that holds commitlog/. Raises typer.BadParameter where there is none."""
    for folder in (directory, directory / "store"):
        if (folder / "commitlog").is_dir():
            return folder
    raise typer.BadParameter(f"{directory} holds no commitlog/", param_hint="DIR")
