"""The folder that a handed-over store goes to: it is made in a folder inside, and gets its names at
the end. A run that was killed leaves the inner folder, which no service and no broker opens.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.disk.data_folder import write_in_place
from storage.files.vfs import OsVfs

UNFINISHED = "unfinished-handover"


class TargetRefused(Exception):
    """The folder cannot be used; the reason, for a person."""


def unfinished_in(folder: Path) -> str | None:
    """The reason why a folder that a killed run was filling is not opened, for a person; None for
    any other.
    """
    if not os.path.lexists(folder / UNFINISHED):
        return None
    return (
        f"{folder} has the rest of a store import, export or restore that did not end "
        f"({UNFINISHED}): "
        "remove all that is in it, and run the command again"
    )


def check_target(source: Path, target: Path) -> None:
    """Raises TargetRefused unless the folder is empty, or can be made, and neither it nor the
    source is in the other; OSError.
    """
    check_apart(source, target)
    check_empty(target)


def check_apart(source: Path, target: Path) -> None:
    """Raises TargetRefused if one of them is in the other."""
    begin, end = source.resolve(), target.resolve()
    if begin.is_relative_to(end) or end.is_relative_to(begin):
        raise TargetRefused(f"{source} and {target}: one contains the other, use two folders")


def check_empty(target: Path) -> None:
    """Raises TargetRefused unless the folder is empty, or can be made; OSError."""
    if not target.exists():
        if not target.parent.is_dir():
            raise TargetRefused(f"{target.parent} does not exist, in which {target.name} would be")
        return
    if not target.is_dir():
        raise TargetRefused(f"{target} is not a folder")
    if reason := unfinished_in(target):
        raise TargetRefused(reason)
    if names := sorted(os.listdir(target)):
        raise TargetRefused(f"{target} is not empty: it has {', '.join(names[:5])}")


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """A folder to make a store in; removed at the end, whatever of it was not moved by `finish`.
    Where nothing was, a target that was made for it goes, too.
    """
    is_new = not target.exists()
    target.mkdir(mode=0o700, exist_ok=True)
    write_in_place(target)
    work = target / UNFINISHED
    work.mkdir(mode=0o700)
    try:
        OsVfs().sync_directory(target)
        yield work
    finally:
        shutil.rmtree(work)
        OsVfs().sync_directory(target)
        if is_new and not os.listdir(target):
            target.rmdir()


def finish(work: Path, target: Path, first: Sequence[str]) -> None:
    """Give all that is in `work` its names in `target`, `first` in their order before the others.

    Durable on return.
    """
    names = sorted(os.listdir(work))
    names = [
        *(name for name in first if name in names),
        *(one for one in names if one not in first),
    ]
    OsVfs().sync_directory(work)
    for name in names:
        _move(work / name, target / name)


def _move(path: Path, target: Path) -> None:
    """Durable on return."""
    OsVfs().rename(path, target)
    OsVfs().sync_directory(target.parent)


@contextmanager
def trial_folder(source: Path, target: Path) -> Iterator[Path]:
    """A folder for a dry run, removed at the end: beside the source, where links to it can be made,
    else beside the target.

    Raises OSError.
    """
    beside = [source.resolve().parent, *target.absolute().parents]
    usable = [folder for folder in beside if folder.is_dir() and os.access(folder, os.W_OK)]
    device = source.stat().st_dev
    with tempfile.TemporaryDirectory(
        prefix=".escrowmq-dry-run-",
        dir=next((one for one in usable if one.stat().st_dev == device), next(iter(usable), None)),
    ) as folder:
        yield Path(folder)
