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
    if file == STDOUT:
        sys.stdout.write(_text(report, sys.stdout.encoding))
        return
    try:
        file.write_text(_text(report, "utf-8"), "utf-8")
    except OSError as error:
        say(f"{file}: the report could not be written: {error.strerror}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def _text(report: Any, encoding: str) -> str:
    """As JSON, with escapes where this encoding lacks a character, or a path is not Unicode."""
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(report, indent=2) + "\n"
    return text
