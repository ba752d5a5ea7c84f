"""Run a verification of a store, show how far it is, and report what it found."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from cli.progress import progress
from storage.files.vfs import ReadOnlyVfs
from storage.local.verify.verification import StoreVerification
from storage.store_status import Finding

_SHOWN = 100


def run(root: Path, *, shows: bool) -> dict[str, Any]:
    """The report of a verification. Raises OSError."""
    begun_at, begun = datetime.now(UTC), monotonic()
    vfs = ReadOnlyVfs()
    is_running = vfs.is_locked(root / "lock")
    verification = StoreVerification(vfs, root, is_running=is_running)
    read_bytes = 0
    findings: list[Finding] = []
    with progress(sys.stderr if shows else None) as note:
        for step in verification.steps():
            read_bytes += step.read_bytes
            findings += step.findings
            note("verify", read_bytes, verification.total_bytes)
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
