"""Commands of the pages that a newcomer starts with, typed one after another into one shell: each
answers what its page shows.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.http import ok
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/start-producer.md", "docs/start-consumer.md", "docs/sending.md")
# What they start: the service itself, and Spark.
OTHERS = ("make ", "escrowmq serve")
# Of an answer the values that are the same in each run.
SAME = re.compile(r'"(\w*(?:state|status|code|durability|attempts?|accepted|rejected))":("?\w+)')
NAME = re.compile(r'"(\w+)":')
HANDLE = re.compile(r"lh_[\w-]{20,}")


def typed(command: str, folder: Path) -> str:
    """What the commands print."""
    done = subprocess.run(
        ["bash", "-c", f"curl() {{ command curl -sS --noproxy '*' \"$@\"; }}; set -e; {command}"],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, command + done.stderr
    return done.stdout


def test_every_command_of_the_pages_to_start_with_answers_what_the_page_shows(tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    (tmp_path / "photo.png").write_bytes(bytes(range(256)))
    handles: dict[str, str] = {}
    compared = 0
    with Server(tmp_path / "data") as server, server.client() as api:
        for page in PAGES:
            text = (ROOT / page).read_text("utf-8")
            blocks = re.findall(r"```sh\n(.*?)```(?:\n+```json\n(.*?)```)?", text, re.DOTALL)
            for command, shown in blocks:
                if any(other in command for other in OTHERS):
                    continue
                command = command.replace("localhost:8080", server.url.removeprefix("http://"))
                for theirs, ours in handles.items():
                    command = command.replace(theirs, ours)

                answered = typed(command, tmp_path)

                for name in NAME.findall(shown):
                    assert f'"{name}":' in answered, (page, command, name)
                assert set(SAME.findall(shown)) <= set(SAME.findall(answered)), (page, command)
                on_the_page = HANDLE.findall(shown)
                handles |= dict(
                    zip(on_the_page, HANDLE.findall(answered)[-len(on_the_page) :], strict=False)
                )
                compared += bool(shown)
        assert compared > 20
        explained = ok(api.get("/v1/transactions/order-7304/explain"))
    assert explained["next"] == "Nothing: the first decision wins."
