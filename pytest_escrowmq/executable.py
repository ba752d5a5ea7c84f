"""Finds the program `escrowmq`, which is usually installed in an environment of its own."""

import os
import shutil
import sys
from pathlib import Path

VARIABLE = "ESCROWMQ_EXECUTABLE"
_PROGRAM = "escrowmq"


class ServiceNotInstalled(Exception):
    """The program `escrowmq` is in none of the places that are searched."""


def find_executable(named: str | Path | None = None) -> str:
    """The absolute path of the program.

    It is the one `named`, by its path or by a name on PATH; otherwise that of the environment
    variable ESCROWMQ_EXECUTABLE, then `escrowmq` on PATH, then beside this interpreter. Raises
    FileNotFoundError if the named one is no program, ServiceNotInstalled if none is found.
    """
    chosen = named or os.environ.get(VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise FileNotFoundError(f"{chosen}, named as the program of EscrowMQ, is no program")
    else:
        beside = os.path.dirname(sys.executable)
        found = shutil.which(_PROGRAM) or shutil.which(_PROGRAM, path=beside)
        if found is None:
            raise ServiceNotInstalled(
                f"EscrowMQ is not installed: the program {_PROGRAM} is neither on PATH nor in "
                f"{beside}. Install it into an environment of its own, with `uv tool install .` or "
                "`pipx install .` in a checkout of EscrowMQ. If it is installed elsewhere, name "
                "the program by --escrowmq-exec, by escrowmq_exec in pytest's configuration, or by "
                f"{VARIABLE}."
            )
    return os.path.abspath(found)
