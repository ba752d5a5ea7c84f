"""The common parts of the audit's commands: options, required packages, the report."""

import json
import logging
import os
import platform
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from audit.checks.kinds import FAULTY_KINDS, KINDS
from audit.files.uris import without_secrets
from audit.report.terminal import printable
from audit.verdicts import FAIL_ON, FINDINGS
from cli.common import LOCK, Exit, in_short, needs, say, write_whole

Log = Annotated[
    list[str],
    typer.Option(
        help="The store's folder (it holds commitlog/), the data directory around it, or a folder "
        "of segments; a path or a URI. Several are read as one log: an archive and the store."
    ),
]
_MASTER = re.compile(  # as Spark's SparkContext and SparkSubmit read it
    r"local(\[(\*|[1-9][0-9]*)(, *[1-9][0-9]*)?\])?|local-cluster\[[0-9]+, *[0-9]+, *[0-9]+\]"
    r"|spark://[^,\s]+:[0-9]+(,[^,\s]+:[0-9]+)*|yarn|k8s://\S+"
)
_MEMORY = re.compile(r"([1-9][0-9]{0,11})([kmgt])", re.IGNORECASE)
_UNITS = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}  # KiB
_LEAST_MEMORY = 450 << 10  # KiB: with less no Spark starts
_KILLED = re.compile(r"Application has been killed\. Reason: ([^\n]+)")  # in Spark's log
_END_BYTES = 1 << 16


class ProgressAs(StrEnum):
    TEXT = "text"
    JSON = "json"


def _known_master(master: str | None) -> str | None:
    """Refuse a master that Spark would refuse, before Java starts."""
    if master is not None and not _MASTER.fullmatch(master):
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
SparkLog = Annotated[Path | None, typer.Option(help="Log file of Java and Spark.")]
SplitMb = Annotated[int, typer.Option(help="Size of the log that one task reads, in MiB.", min=1)]
JsonFile = Annotated[
    str | None, typer.Option("--json", help="Write the report to this file, a path or a URI.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no summary.")]


def _possible_memory(text: str) -> str:
    """Refuse a size that Java does not understand, or with which no Spark starts."""
    found = _MEMORY.fullmatch(text)
    if found is None or int(found[1]) * _UNITS[found[2].lower()] < _LEAST_MEMORY:
        raise typer.BadParameter(f"{text}: a size is 512m, 4g, ...; Spark needs 450m or more")
    return text


DriverMemory = Annotated[
    str,
    typer.Option(help="Memory of the Java process that drives Spark.", callback=_possible_memory),
]


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM ends the command. A KeyboardInterrupt, since py4j then closes the
    connection to Java whose answer is not awaited.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


_ENDING = (signal.SIGINT, signal.SIGTERM)
_received: list[Stopped] = []


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the block at SIGINT or SIGTERM, and the command with 128 + the number of the signal, as
    a shell reports it. The block cleans up; a second signal ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received.clear()
    kept = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in kept.items():
        if handler is not signal.SIG_IGN:  # as a shell starts what runs in the background
            signal.signal(number, _stop)
    try:
        yield
    except Stopped as stopped:
        say("Stopped")
        raise typer.Exit(stopped.status) from None
    finally:
        for number, handler in kept.items():
            if handler is not None:  # of another language
                signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> NoReturn:
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)  # py4j logs the traceback of every call that it breaks off
    _received.append(Stopped(number))
    raise _received[-1]


def not_carried_out(what: str, error: Exception) -> NoReturn:
    """End the command with the reason. Ctrl-C reaches Spark's Python workers, too: a job that fails
    by that was stopped, and did not fail.
    """
    if _received:
        raise _received[-1]
    say(f"{what}: {in_short(error)}")
    raise typer.Exit(Exit.NOT_CARRIED_OUT)


@contextmanager
def log_of_spark(asked: Path | None) -> Iterator[Path]:
    """The log file of Java and Spark: the requested one, or a temporary one, which stays if the
    command fails.
    """
    path = asked or _temporary_log()
    begin = path.stat().st_size if path.is_file() else 0  # behind those of earlier runs
    says_why = False
    try:
        yield path
    except typer.Exit as ended:
        is_failure = ended.exit_code == Exit.NOT_CARRIED_OUT
        says_why = is_failure and path.is_file() and path.stat().st_size > 0
        if says_why:
            if reason := _reason_of_the_end(path, begin):
                say(f"Spark has ended: {reason}")
            say(f"What Spark had to say is in {path}")
        raise
    finally:
        if asked is None and not says_why:
            path.unlink(missing_ok=True)


def _reason_of_the_end(log: Path, begin: int) -> str | None:
    """Why Spark gave up, for example on a master that does not answer. The error that reaches the
    command says only that it has.
    """
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _END_BYTES, begin))
        found = _KILLED.findall(file.read().decode("utf-8", "replace"))
    return printable(found[-1]) if found else None


def _temporary_log() -> Path:
    """An empty file, which other users of the machine cannot have made before."""
    file, path = tempfile.mkstemp(prefix="escrowmq-audit-", suffix=".log")
    os.close(file)
    return Path(path)


def status_of(report: dict[str, Any]) -> Exit:
    if not report["balanced"]:
        return Exit.NOT_BALANCED
    return Exit.FINDINGS if report["findings"]["total"] else Exit.CLEAN


def needs_spark(*, instead: str = "") -> None:
    """Ends with NOT_CARRIED_OUT where it is not installed; `instead`: what does without it."""
    needs(
        "pyspark",
        "pyarrow",
        text=f"The audit needs Spark: `make audit` installs it, or: {LOCK}{instead}",
    )


def needs_matplotlib() -> None:
    needs("matplotlib", text=f"A page with plots needs matplotlib: {LOCK}")


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
    from audit.report import page

    write_whole(where, page.render(report))
