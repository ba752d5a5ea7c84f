"""The reports of the last starts: a JSON list beside the log, the newest first.

A start needs nothing of it: what cannot be read of it is no report, and what cannot be written is
logged.
"""

from collections.abc import Sequence
from pathlib import PurePath

import msgspec
import structlog

from storage.files import durable
from storage.files.vfs import Vfs
from storage.local.data_directory import DataDirectory
from storage.store_status import RecoveryReport

FILE_NAME = "recovery-reports.json"
KEPT = 20
_MOST_BYTES = 1 << 20  # 20 reports have some 40 KB
_rows = msgspec.json.Decoder(list[msgspec.Raw])
_report = msgspec.json.Decoder(RecoveryReport)
log = structlog.get_logger()


def load(vfs: Vfs, root: PurePath) -> list[RecoveryReport]:
    """The reports that can be read. Raises OSError."""
    try:
        file = vfs.open(root / FILE_NAME)
    except FileNotFoundError:
        return []
    try:
        raw = file.read(0, file.size()) if file.size() <= _MOST_BYTES else b""
    finally:
        file.close()
    try:
        rows = _rows.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    return [report for row in rows if (report := _decoded(row)) is not None][:KEPT]


def load_for_start(vfs: Vfs, root: PurePath) -> list[RecoveryReport]:
    """The same; without any if the disk refuses."""
    try:
        return load(vfs, root)
    except OSError as error:
        log.warning("recovery_reports_not_read", error=str(error))
        return []


def keep(
    directory: DataDirectory, newest: RecoveryReport, earlier: Sequence[RecoveryReport]
) -> None:
    """Durable on return. If the disk refuses, the file stays as it was."""
    try:
        durable.replace(
            directory.vfs,
            directory.root / FILE_NAME,
            msgspec.json.encode([newest, *earlier][:KEPT]),
            scratch=directory.making,
        )
    except OSError as error:
        log.warning("recovery_report_not_kept", error=str(error))


def _decoded(row: msgspec.Raw) -> RecoveryReport | None:
    """The report; None if it is not one. Fields of later versions are skipped."""
    try:
        return _report.decode(row)
    except (msgspec.DecodeError, RecursionError):
        return None
