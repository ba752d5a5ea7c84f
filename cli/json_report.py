"""The JSON report of a command: a file, or the standard output for `-`."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from cli.common import Exit, check_file, say

STDOUT = Path("-")


def check_json(file: Path | None) -> None:
    """Raises typer.BadParameter where this cannot be a file."""
    if file is not None and file != STDOUT:
        check_file(str(file), "--json")


def write_json(file: Path | None, report: Any) -> None:
    """Write the report, if a file is given.

    Raises typer.Exit where it cannot be written, which is said; the command itself is at its end.
    """
    if file is None:
        return
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if file == STDOUT:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        say(f"{file}: the report could not be written: {error}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
