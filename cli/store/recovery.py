"""`escrowmq store recovery-report`: what the last starts found, from the store's folder or from a
running service.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import UNSET

from app.admin.schemas import RecoveryView, StartView
from storage.files.vfs import ReadOnlyVfs
from storage.local.recovery import recovery_reports

_TIMEOUT_SECONDS = 30


def of_store(root: Path) -> list[StartView]:
    """Raises OSError."""
    return [StartView.of(report) for report in recovery_reports.load(ReadOnlyVfs(), root)]


def of_service(url: str, api_key: str | None) -> list[StartView]:
    """`url`: one that `check_url` takes. Raises OSError, ValueError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # The scheme was checked.
    address = f"{url.rstrip('/')}/v1/admin/recovery"
    asked = urllib.request.Request(address, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            body = answer.read()
    except urllib.error.HTTPError as error:
        raise ValueError(f"{address} returned {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise ConnectionError(f"{url} cannot be reached: {error.reason}") from None
    except OSError as error:  # once connected: urllib does not wrap it
        raise ConnectionError(f"{url} has not answered: {error}") from None
    except http.client.HTTPException as error:
        raise ValueError(f"{address} did not return a whole HTTP response: {error}") from None
    try:
        found = msgspec.json.decode(body, type=RecoveryView)
        # The newest one, without the field `earlier`.
        return [msgspec.json.decode(body, type=StartView), *found.earlier]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{address} did not return a report of this version: {error}") from None


def show(reports: list[StartView], out: TextIO) -> None:
    for report in reports:
        begin = "a stop in order, or new" if report.was_clean else "a crash or a kill"
        end = "" if report.reached_ready else "; it is not known to have become ready"
        out.write(f"{report.started_at}: started after {begin}, in {report.took_ms} ms{end}\n")
        out.writelines(f"{name:>12}  {text}\n" for name, text in _lines(report))
    if not reports:
        out.write("No start has left a report.\n")


def _lines(report: StartView) -> Iterator[tuple[str, str]]:
    end = report.end_offset
    yield "log", f"from {report.first_offset} to {end}"
    known = report.checkpoint_offset
    by_checkpoint = "no checkpoint" if known is UNSET else f"checkpoint: {known}"
    yield "on disk", f"known up to {report.synced_offset} ({by_checkpoint})"
    yield (
        "buffered",
        f"{report.buffered_bytes} bytes with {report.buffered_records} records behind that, "
        "recovered",
    )
    if report.cut_at is not UNSET:
        found = "" if report.cut_end is UNSET else f" to {report.cut_end}"
        yield (
            "cut",
            f"torn bytes from {report.cut_at}{found} with {report.cut_records} whole records; "
            f"{report.wiped_bytes} bytes were set to zero",
        )
    if not report.was_clean:
        yield (
            "lost",
            f"messages from before this start with a log offset from {end} on; no receipt of "
            "them says synced",
        )
    yield "verified", f"{report.walked_bytes} bytes with {report.replayed_records} records"
    base = report.snapshot_offset
    since = "the beginning, without a snapshot" if base is UNSET else f"the snapshot at {base}"
    yield (
        "rebuilt",
        f"{report.rebuilt_queues} of {report.queues} queues and {report.indexed_keys} keys of the "
        f"index, from {since}",
    )
    for table in report.tables:
        events = table.replayed_events
        later = "all events" if events is UNSET else f"its snapshot and {events} later events"
        yield "table", f"{table.table} from {later}"
    for step in report.steps:
        yield "step", f"{step.step}: {step.took_ms} ms"
