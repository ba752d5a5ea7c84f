"""Several runs of `escrowmq audit` in one process, since Java takes seconds to start."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_PROGRAM = """
import sys
from cli.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["escrowmq", "audit", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code, flush=True)
"""


def audits(
    lines: Iterable[str], folder: Path, environment: Mapping[str, str]
) -> tuple[list[int], str, str]:
    """Each line is one run, begun in the folder: (their exit statuses, standard output, standard
    error).
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input="\n".join(lines),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        # In runs of seconds compiling more costs more than it gains.
        env={
            **os.environ,
            **environment,
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    statuses = [
        int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("ended with")
    ]
    return statuses, done.stdout, done.stderr
