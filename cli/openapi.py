"""`escrowmq openapi`: the document that openapi/openapi.json holds."""

import json
import sys
from pathlib import Path

import typer

from app.main import create_app
from app.settings import Settings
from cli.common import Exit, in_short, say


def render() -> str:
    """The document as it is committed: indented, with a newline at the end."""
    return json.dumps(create_app(Settings()).openapi(), indent=2, ensure_ascii=False) + "\n"


def run(out: Path | None) -> None:
    """Raises typer.Exit where the file cannot be written."""
    if out is None:
        sys.stdout.write(render())
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render(), "utf-8")
    except OSError as error:
        say(f"The document could not be written: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
