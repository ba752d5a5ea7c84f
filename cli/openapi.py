"""`escrowmq openapi`: the document that openapi/openapi.json holds."""

import json
import sys
from pathlib import Path

from app.main import create_app
from app.settings import Settings


def render() -> str:
    """The document as it is committed: indented, with a newline at the end."""
    return json.dumps(create_app(Settings()).openapi(), indent=2, ensure_ascii=False) + "\n"


def run(out: Path | None) -> None:
    if out is None:
        sys.stdout.write(render())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render(), "utf-8")
