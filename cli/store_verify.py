"""Run a verification of a store, show how far it is, and report what it found."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from storage.files.vfs import ReadOnlyVfs
from storage.local.verify.verification import StoreVerification
from storage.store_status import Finding

_LINE_SECONDS = 5.0
_SHOWN = 100


class _Note(Protocol):
    def __call__(self, done_bytes: int, total_bytes: int) -> None: ...


def run(root: Path, *, shows: bool) -> dict[str, Any]:
    """The report of a verification. Raises OSError."""
    begun_at, begun = datetime.now(UTC), monotonic()
    vfs = ReadOnlyVfs()
    is_running = vfs.is_locked(root / "lock")
    verification = StoreVerification(vfs, root, is_running=is_running)
    read_bytes = 0
    findings: list[Finding] = []
    with _progress(sys.stderr if shows else None) as note:
        for step in verification.steps():
            read_bytes += step.read_bytes
            findings += step.findings
            note(read_bytes, verification.total_bytes)
    return {
        "report": "store_verify",
        "store": str(root),
        "started_at": begun_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "seconds": round(monotonic() - begun, 3),
        "is_running": is_running,
        "read_bytes": read_bytes,
        "lost": sum(not finding.is_derived for finding in findings),
        "derived": sum(finding.is_derived for finding in findings),
        "findings": [finding._asdict() for finding in findings],
    }


def show(report: dict[str, Any], stream: TextIO) -> None:
    """The report as text."""
    findings = report["findings"]
    for finding in findings[:_SHOWN]:
        kind = "derived, the log has it" if finding["is_derived"] else "LOST unless a copy has it"
        places = f" ({finding['places']} places)" if finding["places"] > 1 else ""
        stream.write(
            f"{finding['code']}{places}: {kind}\n"
            f"  file      {finding['file']}"
            + ("" if finding["position"] is None else f", byte {finding['position']}")
            + "\n"
            f"  place     {finding['place']}\n"
            f"  found     {finding['found']}\n"
            f"  expected  {finding['expected']}\n"
            f"  do        {finding['remedy']}\n"
        )
    if len(findings) > _SHOWN:
        stream.write(f"... and {len(findings) - _SHOWN} more: --json has them all\n")
    running = ", which is running" if report["is_running"] else ""
    outcome = (
        f"{report['lost']} findings in the log, {report['derived']} in derived files"
        if findings
        else "no findings"
    )
    stream.write(f"{report['read_bytes']:,} bytes of {report['store']}{running}: {outcome}\n")


@contextmanager
def _progress(stream: TextIO | None) -> Iterator[_Note]:
    """A bar on a terminal, elsewhere a line every five seconds."""
    if stream is None:
        yield lambda done_bytes, total_bytes: None
        return
    console = Console(file=stream, soft_wrap=True)
    if not console.is_terminal:
        yield _lines(stream)
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("verify", *columns, console=console, transient=True) as progress:
        task = progress.add_task("verify", total=None)

        def note(done_bytes: int, total_bytes: int) -> None:
            progress.update(task, completed=done_bytes, total=max(done_bytes, total_bytes))

        yield note


def _lines(stream: TextIO) -> _Note:
    last = monotonic()

    def note(done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        if monotonic() - last >= _LINE_SECONDS:
            last = monotonic()
            stream.write(
                f"verified {done_bytes:,} of about {max(done_bytes, total_bytes):,} bytes\n"
            )

    return note
