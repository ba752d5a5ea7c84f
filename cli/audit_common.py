"""The common part of the audit's commands: exit status, required packages, writing a report."""

import json
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.checks.kinds import FAULTY_KINDS, KINDS
from audit.terminal import printable
from audit.uris import is_uri, without_secrets
from audit.verdicts import FAIL_ON, FINDINGS

Log = Annotated[
    list[str],
    typer.Option(
        help="The store's folder (it holds commitlog/), the data directory around it, or a folder "
        "of segments; a path or a URI. Several are read as one log: an archive and the store."
    ),
]
_MASTERS = ("local", "spark://", "yarn", "k8s://")  # as SparkSubmit tells them apart


def _known_master(master: str | None) -> str | None:
    """Refuse a master that Spark would refuse, before Java starts."""
    if master is not None and not master.startswith(_MASTERS):
        raise typer.BadParameter(
            f"{master}: a master is local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    return master


Master = Annotated[
    str | None,
    typer.Option(
        help=(
            "Spark master: local[*], spark://host:7077, yarn, k8s://...; not needed with "
            "spark-submit."
        ),
        callback=_known_master,
    ),
]
_LOCK = "pip install -r requirements-audit.lock"
_ERROR_CHARACTERS = 2_000
_TRACEBACK = "Traceback (most recent call last)"


class Exit(IntEnum):
    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    NOT_CARRIED_OUT = 3
    NOT_BALANCED = 4


def status_of(report: dict[str, Any]) -> Exit:
    if not report["balanced"]:
        return Exit.NOT_BALANCED
    return Exit.FINDINGS if report["findings"]["total"] else Exit.CLEAN


def needs_spark(*, instead: str = "") -> None:
    """Ends with NOT_CARRIED_OUT where it is not installed; `instead`: what does without it."""
    _needs(
        "pyspark",
        "pyarrow",
        text=f"The audit needs Spark: `make audit` installs it, or: {_LOCK}{instead}",
    )


def needs_pyarrow(why: str) -> None:
    _needs("pyarrow", text=f"{why}: {_LOCK}")


def needs_matplotlib() -> None:
    _needs("matplotlib", text=f"A page with plots needs matplotlib: {_LOCK}")


def _needs(*packages: str, text: str) -> None:
    if any(find_spec(package) is None for package in packages):
        say(text)
        raise typer.Exit(Exit.NOT_CARRIED_OUT)


def check_file(where: str | None, option: str) -> None:
    """Wrong usage, where such a file cannot be written."""
    if where is None:
        return
    if is_uri(where):
        needs_pyarrow("A URI is written by pyarrow")
        check_folder(where, option, of_file=True)
        return
    file = Path(where)
    if file.is_dir() or not file.parent.is_dir():
        raise typer.BadParameter(
            f"{file} cannot be a file: {file.parent} is no folder, or it is one", param_hint=option
        )


def check_database(url: str, option: str) -> None:
    """Wrong usage, where this is no URL of a database that SQLAlchemy knows. Repeats none of it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        made = make_url(url)
        made.get_dialect()
    except (ArgumentError, ValueError):
        text = "not a URL of a database that SQLAlchemy knows, such as postgresql://USER@HOST/NAME"
        raise typer.BadParameter(text, param_hint=option) from None
    if "@" in (made.host or ""):
        raise typer.BadParameter("write an @ in a password as %40", param_hint=option)


def check_folder(uri: str, option: str, *, of_file: bool = False) -> None:
    """Make the folder, or the one that a file is to lie in: wrong usage, where that is not
    possible.
    """
    from audit import whole_files
    from audit.filesystems import filesystem_of

    try:
        filesystem, path = filesystem_of(uri)
        whole_files.make_folder(filesystem, path.rpartition("/")[0] if of_file else path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"it cannot be written: {in_short(error)}", param_hint=option
        ) from None


def named_kinds(text: str) -> set[str]:
    """Names in a `--fail-on`; none in the words that stand for several."""
    return set() if text in ("none", "faults") else {name.strip() for name in text.split(",")}


def counted_by(text: str) -> Callable[[str], bool]:
    """Parse `--fail-on`: a predicate of the kinds that count as findings."""
    if text == "none":
        return lambda name: False
    if text == "faults":
        return {*FAIL_ON, *FAULTY_KINDS}.__contains__
    wanted = named_kinds(text)
    unknown = sorted(wanted - {*FINDINGS, *KINDS})
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}; there are {', '.join([*FINDINGS, *KINDS])}",
            param_hint="--fail-on",
        )
    return wanted.__contains__


def run_part(
    report_id: str, log: Sequence[str], master: str | None, begun_at: datetime, status: Exit
) -> dict[str, Any]:
    """Report fields that differ between runs over the same bytes."""
    ended_at = datetime.now(UTC)
    return {
        "report_id": report_id,
        "started_at": begun_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "finished_at": ended_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "seconds": round((ended_at - begun_at).total_seconds(), 3),
        "exit_status": int(status),
        "log": without_secrets(", ".join(log)),
        **({} if master is None else {"master": master}),
        "python": platform.python_version(),
    }


def report_id_of(begun_at: datetime) -> str:
    """A new id for a report without a given name."""
    return f"rpt_{begun_at:%Y%m%dT%H%M%S%f}"


def write_report(where: str, report: dict[str, Any]) -> None:
    write_whole(where, json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def write_page(where: str, report: dict[str, Any]) -> None:
    from audit import page

    write_whole(where, page.render(report))


def read_file(where: str) -> bytes:
    """Content of a path or a URI. Raises OSError, ValueError."""
    if not is_uri(where):
        return Path(where).read_bytes()
    from audit.filesystems import filesystem_of

    filesystem, path = filesystem_of(where)
    with filesystem.open_input_file(path) as file:
        data: bytes = file.read()
    return data


def write_whole(where: str, text: str) -> None:
    """All of it or nothing, to a path or a URI."""
    from audit import files

    if not is_uri(where):
        files.write_whole(where, text.encode("utf-8"))
        return
    from audit import whole_files
    from audit.filesystems import filesystem_of

    filesystem, path = filesystem_of(where)
    whole_files.write(filesystem, path, text.encode("utf-8"))


def in_short(error: Exception) -> str:
    """Spark's errors go on for pages; what went wrong in a worker stands behind the last of its
    tracebacks.
    """
    text = str(error).partition("\nJVM stacktrace")[0].strip()
    _, traceback, behind = text.rpartition(_TRACEBACK)
    if traceback:
        text = next(
            (line for line in behind.splitlines()[1:] if line and not line[0].isspace()), text
        )
    shown = without_secrets(text)[:_ERROR_CHARACTERS]
    return f"{type(error).__name__}: " + "\n".join(map(printable, shown.splitlines()))


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
