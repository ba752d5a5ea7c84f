"""Programs of the pages on the client: each runs as it is, and prints what its page shows."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.house.source import ROOT
from tests.support.server import Server

PATIENCE_S = 60
BLOCK = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def programs(page: str) -> list[tuple[str, str]]:
    """Each program of a page, and what it prints."""
    text = (ROOT / page).read_text("utf-8")
    if page == "docs/clients.md":  # where other languages have sections of their own
        text = text.partition("\n## Python\n")[2].partition("\n## ")[0]
    return BLOCK.findall(text)


@pytest.mark.parametrize("page", ["docs/clients.md", "docs/python-client.md"])
def test_every_program_of_the_page_prints_what_the_page_shows(page, tmp_path):
    found = programs(page)
    assert len(found) >= 2
    with Server(tmp_path / "data") as server:
        for number, (program, shown) in enumerate(found):
            path = tmp_path / f"program_{number}.py"
            path.write_text(program.replace("http://127.0.0.1:8080", server.url), "utf-8")

            printed = run(path, is_endless="Worker(" in program)

            assert printed, program
            if shown:
                assert printed == shown, program


def run(path, *, is_endless: bool) -> str:
    """What a program prints; one that does not end by itself is ended after its first line."""
    with subprocess.Popen(
        [sys.executable, path],
        cwd=path.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = ""
        if is_endless:
            printed = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
        printed += process.stdout.read()
        assert process.wait(PATIENCE_S) == 0, path.read_text("utf-8")
    return printed
