"""The `escrowmq` command: the service's packages on the path, then `cli`.

An installed wheel has the packages in `_service`, beside this file. A checkout has them at its top,
and the client in `client`.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(_HERE, "_service")


def main() -> None:
    """The entry point."""
    _extend_path()
    from cli.main import main as run

    run()


def _extend_path() -> None:
    """Put the service's packages before everything else on the path.

    First, because PYTHONPATH or the working directory may have packages of the same names.
    """
    folders = _folders()
    sys.path[:0] = folders
    # Processes that the service and Spark start with this interpreter (`python -P -m app.worker`)
    # find the packages by it.
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, given] if given else folders)


def _folders() -> list[str]:
    if os.path.isdir(_INSTALLED):
        return [_INSTALLED]
    repository = os.path.dirname(_HERE)
    return [repository, os.path.join(repository, "client")]


if __name__ == "__main__":
    main()
