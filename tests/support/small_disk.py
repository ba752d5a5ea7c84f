"""A file system of a few megabytes, which a test fills."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

Kind = Literal["tmpfs", "ext4", "xfs", "btrfs"]
IN_PLACE: tuple[Kind, ...] = ("tmpfs", "ext4", "xfs")
COPY_ON_WRITE: tuple[Kind, ...] = ("btrfs",)

_FILLER = "filler"
_JOURNAL_MIB = 8  # of ext4
# of the kinds on an image: how one is made, and the least MiB that it can have
_MAKERS: dict[Kind, tuple[list[str], int]] = {
    "ext4": (["mkfs.ext4", "-q", "-m", "0", "-J", f"size={_JOURNAL_MIB}"], _JOURNAL_MIB + 16),
    "xfs": (["mkfs.xfs", "-q"], 300),
    "btrfs": (["mkfs.btrfs", "-q"], 512),
}


@contextmanager
def mounted(kind: Kind, folder: Path, *, size_mib: int) -> Iterator[Path]:
    """Where it is mounted, for as long as the block runs. The test is skipped where none can be.

    `size_mib`: at least so much, where that is more than the kind needs for itself.
    """
    disk = folder / "disk"
    disk.mkdir()
    if kind == "tmpfs":
        _run_or_skip("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(disk))
    else:
        make, least_mib = _MAKERS[kind]
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(max(size_mib + _JOURNAL_MIB, least_mib) << 20)
        _run_or_skip(*make, str(image))
        _run_or_skip("mount", "-o", "loop", str(image), str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def take(disk: Path, byte_count: int) -> None:
    """So much of its space; a file system may count that when it is synced."""
    with (disk / _FILLER).open("wb") as file:
        file.write(bytes(byte_count))
        os.fsync(file.fileno())


def fill(disk: Path) -> None:
    """To the last byte."""
    file = os.open(disk / _FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in 1 << 16, 1 << 12, 1:
        with suppress(OSError):
            while True:
                os.write(file, bytes(size))
    os.close(file)


def give_back(disk: Path) -> None:
    """All that `take` and `fill` took; btrfs has it only when that is synced."""
    (disk / _FILLER).unlink()
    subprocess.run(["sync", "-f", str(disk)], check=True)


def _run_or_skip(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip(f"there is no {command[0]} here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr.decode()}")
