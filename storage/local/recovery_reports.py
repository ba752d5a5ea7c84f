"""The reports of the last starts: a JSON list beside the log, the newest first.

Whatever cannot be read of it is no report.
"""

from collections.abc import Sequence
from pathlib import PurePath

import msgspec
import structlog

from storage.files import durable
from storage.files.vfs import Vfs, is_disk_full
from storage.local.data_directory import DataDirectory
from storage.store_status import RecoveryReport

FILE_NAME = "recovery-reports.json"
_KEPT = 20
_decoder = msgspec.json.Decoder(list[dict[str, int | bool | None]])
log = structlog.get_logger()


def load(vfs: Vfs, root: PurePath) -> list[RecoveryReport]:
    try:
        rows = _decoder.decode(durable.read_whole(vfs, root / FILE_NAME) or b"[]")
        return [RecoveryReport(**row) for row in rows]  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError):
        return []


def keep(
    directory: DataDirectory, newest: RecoveryReport, earlier: Sequence[RecoveryReport]
) -> None:
    """Durable on return. On a full disk the file stays as it was: a start needs nothing of it."""
    rows = [report._asdict() for report in (newest, *earlier)][:_KEPT]
    try:
        durable.replace(
            directory.vfs,
            directory.root / FILE_NAME,
            msgspec.json.encode(rows),
            scratch=directory.making,
        )
    except OSError as error:
        if not is_disk_full(error):
            raise
        log.warning("recovery_report_not_kept", error=str(error))
