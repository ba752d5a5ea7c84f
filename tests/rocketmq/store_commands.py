"""`escrowmq store import`, `store export` and `import offsets`, as the tests of this folder run
them.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.rocketmq.broker import ESCROWMQ
from tests.rocketmq.driver import Json
from tests.support.server import clean_environment

PROGRAM = Path(sys.executable).with_name("escrowmq")


def hand_over(command: str, source: Path, target: Path) -> Json:
    """Run the command; its report."""
    target.parent.mkdir(exist_ok=True)
    report = target.with_suffix(".json")
    return _run("store", command, "--from", source, "--to", target, json_file=report)[1]


def import_offsets(source: Path, url: str, *groups: str, json_file: Path) -> tuple[int, Json]:
    """Import the offsets of these groups; the exit status and the report."""
    named = [word for group in groups for word in ("--group", group)]
    arguments = ("--from", source, "--to", url, *named)
    return _run("import", "offsets", *arguments, json_file=json_file)


def _run(*arguments: str | Path, json_file: Path) -> tuple[int, Json]:
    done = subprocess.run(
        [PROGRAM, *arguments, "--json", json_file],
        env={**clean_environment(), **ESCROWMQ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert json_file.exists(), done.stderr
    found: Json = json.loads(json_file.read_text())
    return done.returncode, found


def slave_folder(data: Path, folder: Path) -> Json:
    """Write the folder of a slave that is to follow the service of this data directory."""
    report = folder.with_suffix(".json")
    arguments = ("--data-dir", data, "--out", folder)
    return _run("replica", "rocketmq-config", *arguments, json_file=report)[1]
