"""`escrowmq store`: look at the files of a store and mend them. Needs neither Spark nor Java."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.audit_common import Exit, check_file, in_short, say

app = typer.Typer(name="store", help="Verify, inspect and repair the files of a store.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(help="The store's folder, which holds commitlog/, or the data directory around it.", metavar="DIR")
]


@app.callback()
def store() -> None:
    """Verify, inspect and repair the files of a store."""


@app.command()
def verify(
    directory: Directory,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
) -> None:
    """Verify every file of a store, running or stopped. Changes nothing and takes no lock.

    Exit status: 0 clean; 1 findings; 2 wrong usage; 3 it could not be carried out.
    """
    check_file(None if json_file is None else str(json_file), "--json")
    root = store_folder(directory)
    from cli import store_verify
    from storage.errors import MessagingError

    try:
        report = store_verify.carry_out(root, shows=not quiet)
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if not quiet:
            store_verify.show(report, sys.stdout)
    except (OSError, MessagingError) as error:
        say(f"The store could not be verified: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    raise typer.Exit(Exit.FINDINGS if report["findings"] else Exit.CLEAN)


def store_folder(directory: Path) -> Path:
    """The folder that holds commitlog/. Raises typer.BadParameter where there is none."""
    for folder in (directory, directory / "store"):
        if (folder / "commitlog").is_dir():
            return folder
    raise typer.BadParameter(f"{directory} holds no commitlog/", param_hint="DIR")
