"""A service whose disk fails, or dawdles, when a test says so: the real command, in which some
system calls do not do as usual.

Run as a program it is `escrowmq`, but for some calls on files. These look into the plan first: a
small JSON file that a test writes and takes away while the service runs. An error looks as the
kernel's does: a number, and not which file it was.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EAGAIN, EIO, ENOSPC
from pathlib import Path
from typing import Any

from cli.main import main
from tests.support.server import Server

CALLS = ("fdatasync", "fsync", "pread", "preadv", "pwrite", "posix_fallocate")
_REPOSITORY = Path(__file__).parents[2]


class Disk:
    """What a test says about the disk of one service."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan

    def fail_once(self, call: str, file: str) -> None:
        """The next call of this name on a file or folder whose path holds `file` fails as Linux
        fails it: once, with EIO.
        """
        self._write(calls=[call], file=file, errno=EIO, once=True)

    def fail_reads(self, file: str, begin: int, end: int) -> None:
        """From now on each read of these bytes of such a file fails with EIO, and the page cache
        does not have them.
        """
        calls = ["pread", "preadv"]
        self._write(calls=calls, file=file, errno=EIO, once=False, begin=begin, end=end)

    def heal(self) -> None:
        self.plan.unlink()

    def fill(self) -> None:
        """There is no space left for the log: none is allocated, and no zeros are written ahead of
        it. What it has stays.
        """
        self._write(
            calls=["posix_fallocate", "pwrite"],
            file="commitlog",
            errno=ENOSPC,
            once=False,
            only_zeros=True,
        )

    def make_space(self) -> None:
        self.plan.unlink()

    @contextmanager
    def slow(self, call: str, file: str) -> Iterator[None]:
        """Calls of this name on such files do not return before the end of the block."""
        with self.plan.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write(calls=[call], file=file, wait_for=lock.name)
            yield
            self.plan.unlink()

    @property
    def has_failed(self) -> bool:
        """Has the one call failed?"""
        return not self.plan.exists()

    def _write(self, **plan: Any) -> None:
        made = self.plan.with_suffix(".new")
        made.write_text(json.dumps(plan))
        made.rename(self.plan)


class ServerOnDisk(Server):
    """A `Server` that runs on a `Disk`."""

    def __init__(
        self, data_dir: Path, disk: Disk, *, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            data_dir, dev=False, environment={"PYTHONPATH": str(_REPOSITORY), **(environment or {})}
        )
        self._disk = disk

    @property
    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tests.support.failing_disk",
            str(self._disk.plan),
            *super().command[1:],
        ]


def _failing(name: str, plan: Path) -> Callable[..., Any]:
    call = getattr(os, name)

    def look_first(fd: int, *arguments: Any) -> Any:
        try:
            wanted = json.loads(plan.read_text())
        except FileNotFoundError:
            return call(fd, *arguments)
        if name in wanted["calls"] and wanted["file"] in os.readlink(f"/proc/self/fd/{fd}"):
            if "wait_for" in wanted:
                with open(wanted["wait_for"], "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                return call(fd, *arguments)
            if name == "pwrite" and wanted.get("only_zeros") and any(arguments[0]):
                return call(fd, *arguments)
            if "begin" in wanted:
                length, offset = arguments[:2]
                if name == "preadv":
                    length = sum(map(len, length))
                if offset + length <= wanted["begin"] or wanted["end"] <= offset:
                    return call(fd, *arguments)
            if wanted["once"]:
                plan.unlink()
            number = EAGAIN if name == "preadv" else wanted["errno"]
            raise OSError(number, os.strerror(number))
        return call(fd, *arguments)

    return look_first


def _run() -> None:
    """As `escrowmq`; the first argument is the plan."""
    plan = Path(sys.argv.pop(1))
    for name in CALLS:
        setattr(os, name, _failing(name, plan))
    main()


if __name__ == "__main__":
    _run()
