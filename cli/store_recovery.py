"""`escrowmq store recovery-report`: what the last starts found, from the store's folder or from a
running service.
"""

import json
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from storage.files.vfs import ReadOnlyVfs
from storage.local import recovery_reports

_TIMEOUT_SECONDS = 30


def of_store(root: Path) -> list[dict[str, Any]]:
    reports = []
    for found in recovery_reports.load(ReadOnlyVfs(), root):
        row = found._asdict()
        at = datetime.fromtimestamp(row.pop("started_at_ms") / 1000, UTC)
        reports.append(
            {"started_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **row}
        )
    return reports


def of_service(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """Raises OSError, ValueError."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no http address")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # The scheme was checked.
    address = f"{url.rstrip('/')}/v1/admin/recovery"
    asked = urllib.request.Request(address, headers=headers)  # noqa: S310
    with urllib.request.urlopen(asked, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
        newest: dict[str, Any] = json.load(answer)
    earlier: list[dict[str, Any]] = newest.pop("earlier", [])
    return [newest, *earlier]


def show(reports: list[dict[str, Any]], out: TextIO) -> None:
    out.writelines(f"{report['started_at']}: {_in_words(report)}\n" for report in reports)
    if not reports:
        out.write("No start has left a report.\n")


def _in_words(report: dict[str, Any]) -> str:
    begin = "after a stop in order, or new" if report["was_clean"] else "after a crash or a kill"
    text = (
        f"started {begin}, in {report['took_ms']} ms. The log reaches from "
        f"{report['first_offset']} to {report['end_offset']} "
        f"and was known to be on disk up to {report['synced_offset']}. {report['walked_bytes']} "
        "bytes were verified and "
        f"{report['replayed_records']} records queued and indexed again."
    )
    if report.get("cut_at") is not None:
        text += (
            f" The torn end was cut at {report['cut_at']}, {report['wiped_bytes']} bytes: "
            "messages in it that were answered as "
            "buffered are lost, none that was answered as synced."
        )
    return text
