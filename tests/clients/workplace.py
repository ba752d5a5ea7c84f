"""A folder under build/ in which a client is made, and the commands that are run there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "openapi" / "openapi.json"
BUILD = ROOT / "build" / "clients"
LANGUAGES = ("typescript", "python", "go", "java", "rust")

_TOOLS = Path(sys.executable).parent
_PATIENCE_SECONDS = 900
_WARNING = re.compile(r"\bwarn(?:ing)?s?\b", re.IGNORECASE)


def selected(language: str) -> bool:
    """Is the language one of those that `make clients` was called for? Without any, all are."""
    wanted = os.environ.get("CLIENTS", "").split()
    assert set(wanted) <= set(LANGUAGES), f"CLIENTS has words of {', '.join(LANGUAGES)}: {wanted}"
    return not wanted or language in wanted


def skip_without(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@dataclass
class Workplace:
    """The folder, the commands that ran there, and how long they took."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def copy_of(cls, source: Path, name: str) -> "Workplace":
        """Copy the files of `source` that are committed, and the document, to a folder.

        What an earlier run installed there stays, as it is slow to get.
        """
        folder = BUILD / name
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            if left.name not in ("node_modules", "target", "cache"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        not_ours = shutil.ignore_patterns("node_modules", "generated", "build", "dist", "target")
        shutil.copytree(source, folder, ignore=not_ours, dirs_exist_ok=True)
        shutil.copyfile(DOCUMENT, folder / "openapi.json")
        return cls(folder)

    def run(
        self,
        step: str,
        *command: str | Path,
        warnings: bool = False,
        environment: dict[str, str] | None = None,
    ) -> str:
        """The standard output of a command that ended with 0.

        Fails where it ended with another status, or warned of something unless `warnings` permits.
        """
        begun = monotonic()
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        self.seconds[step] = self.seconds.get(step, 0) + monotonic() - begun
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}"
        assert warnings or not _WARNING.search(said), f"{command} warns:\n{said}"
        return done.stdout

    @contextmanager
    def started(
        self, *command: str | Path, environment: dict[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        """A program that runs, killed if the test fails; its errors are among its output."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def lines(self, folder: str, suffix: str) -> int:
        """The number of lines of the files that were generated."""
        files = (self.folder / folder).rglob(f"*{suffix}")
        return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def _environment() -> dict[str, str]:
    """Of the tests, with their tools first; the service is never behind a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ESCROWMQ_")}
    return kept | {
        "PATH": f"{_TOOLS}{os.pathsep}{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
