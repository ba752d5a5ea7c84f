"""`escrowmq store repair`: what is to be repaired, or one named repair, as a report."""

import errno
import sys
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any, TextIO

import msgspec

from app.settings import load, settings_file_of
from storage.files.unreadable import UnreadableLog
from storage.files.vfs import LinkedVfs
from storage.local.repair.repair import Repair
from storage.local.repair.repair_report import RepairRefused, replacing

_ALONE = ("accept_beginning", "rebuild_derived")


def run(root: Path, name: str | None, value: object, *, shows: bool) -> dict[str, Any]:
    """The report. `name`: of the repair; None lists what there is to repair. Raises DirectoryInUse,
    RepairRefused, OSError.
    """
    now = datetime.now(UTC)
    owner = Repair(
        LinkedVfs(),
        root,
        folder=f"repair-{now:%Y%m%dT%H%M%S%f}",
        now_ms=int(now.timestamp() * 1000),
        segment_bytes=load(settings_file_of(root.parent)).local.segment_bytes,
        progress=_show_progress if shows and sys.stderr.isatty() else lambda walked, to_walk: None,
    )
    try:
        if name is None:
            return {"store": str(root), "findings": msgspec.to_builtins(owner.findings())}
        done = getattr(owner, name)(*(() if name in _ALONE else (value,)))
        return {
            "store": str(root),
            "lost_messages": done.lost_messages,
            **msgspec.to_builtins(done),
        }
    except UnreadableLog as error:
        raise RepairRefused(f"{error}: first {replacing(error)}") from error
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        raise RepairRefused(
            f"{error.filename} is also a file of another store (a hard link): replace it by a copy "
            "of itself, and repeat the repair"
        ) from error
    finally:
        owner.close()


def show(report: dict[str, Any], out: TextIO) -> None:
    """The report in words."""
    write = out.write
    if "findings" in report:
        for finding in report["findings"]:
            write(f"log offset {finding['offset']}: {finding['problem']}\n")
            write(f"    escrowmq store repair {quote(str(report['store']))} {finding['repair']}\n")
        write(f"{len(report['findings']) or 'Nothing'} to repair. Nothing was changed.\n")
        return
    write(f"Done: {report['repair']}.\n")
    for path in report["set_aside"]:
        write(f"kept: {path}\n")
    for row in report["lost"]:
        write(
            f"lost: {row['topic']}, queue {row['queue_id']}, offsets {row['first_offset']} to "
            f"{row['end_offset'] - 1}\n"
        )
    for message in report["messages"]:
        place = f"{message['topic']}/{message['queue_id']}/{message['queue_offset']}"
        write(f"taken out, still readable in the copy: {place} {message['message_id']}\n")
    if report["transactions"]:
        write(f"transactions affected: {', '.join(report['transactions'])}\n")
    write(f"{report['lost_messages'] or 'No'} messages are known to be lost.\n")


def _show_progress(walked: int, to_walk: int) -> None:
    sys.stderr.write(f"\r{walked >> 20:,} of {to_walk >> 20:,} MiB")
    if walked >= to_walk:
        sys.stderr.write("\n")
