"""A file system of a few megabytes, which a test fills."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

_JOURNAL_MIB = 8  # of ext4


@contextmanager
def mounted(kind: Literal["tmpfs", "ext4"], folder: Path, *, size_mib: int) -> Iterator[Path]:
    """Where it is mounted, for as long as the block runs. The test is skipped where none can be."""
    disk = folder / "disk"
    disk.mkdir()
    if kind == "tmpfs":
        _run_or_skip("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(disk))
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_mib + _JOURNAL_MIB << 20)
        _run_or_skip("mkfs.ext4", "-q", "-m", "0", "-J", f"size={_JOURNAL_MIB}", str(image))
        _run_or_skip("mount", "-o", "loop", str(image), str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def filler(disk: Path) -> Path:
    """The file that has what `fill` takes: without it there is space again."""
    return disk / "filler"


def fill(disk: Path) -> None:
    """To the last byte."""
    file = os.open(filler(disk), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in 1 << 16, 1 << 12, 1:
        with suppress(OSError):
            while True:
                os.write(file, bytes(size))
    os.close(file)


def _run_or_skip(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip(f"there is no {command[0]} here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr.decode()}")
