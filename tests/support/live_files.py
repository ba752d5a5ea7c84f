"""The files of a folder that a running service writes to."""

import os
from contextlib import suppress
from pathlib import Path


def states_of(folder: Path) -> dict[Path, os.stat_result]:
    """Those of all that is below `folder`, without a file that is renamed or removed meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found[path] = path.lstat()
    return found
