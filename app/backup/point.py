"""The point that a restore goes to, and the part of the backups that gives it. Pure."""

from datetime import UTC, datetime
from typing import NamedTuple

from app.backup.manifest import Backup, BackupRefused, Piece


class Point(NamedTuple):
    """The log ends there: before the first unit that ends behind `offset`, or has a record stored
    after `time_ms` (wall clock). Neither: the newest backup whole.
    """

    offset: int | None = None
    time_ms: int | None = None

    def is_behind(self, backup: Backup) -> bool:
        """Is all of the backup's log before the point?"""
        if self.offset is not None:
            return backup.end_offset <= self.offset
        return self.time_ms is None or backup.last_stored_ms <= self.time_ms


class Choice(NamedTuple):
    """`files_of`: the backup whose registry belongs to the point; it is newer than the point if
    `is_registry_newer`.
    """

    pieces: list[Piece]
    first_offset: int
    files_of: Backup
    newest: Backup
    is_registry_newer: bool = False


def choose(backups: dict[str, Backup], point: Point) -> Choice:
    """Choose the pieces whose log, cut at the point, is the store as it was then.

    Where a log begins belongs to the point, too: before a service removes a segment, it stores
    again what has to outlive it, behind the point perhaps. So it begins where it did in a backup
    that ends before the point.

    Raises BackupRefused.
    """
    found = list(backups.values())
    if not found:
        raise BackupRefused("there is no backup")
    newest = found[-1]
    if point.offset is not None and point.offset > newest.end_offset:
        raise BackupRefused(
            f"the newest backup ends at log offset {newest.end_offset}, before {point.offset}"
        )
    if point.time_ms is not None and point.time_ms > max(newest.made_ms, newest.last_stored_ms):
        raise BackupRefused(
            f"the newest backup was made at {time_text(newest.made_ms)}, before "
            f"{time_text(point.time_ms)}"
        )
    before = [backup for backup in found if point.is_behind(backup)]
    after = [backup for backup in found if not point.is_behind(backup)]
    if not before:
        oldest = after[0]
        if oldest.first_offset:
            raise BackupRefused(
                f"the earliest point is the end of the oldest backup: log offset "
                f"{oldest.end_offset}, {time_text(oldest.last_stored_ms)}"
            )
        return Choice(oldest.pieces, 0, oldest, oldest, is_registry_newer=True)
    base = before[-1]
    if not after:
        return Choice(base.pieces, base.first_offset, base, base)
    nxt = after[0]
    if nxt.first_offset > base.end_offset:
        raise BackupRefused(
            f"the log from {base.end_offset} to {nxt.first_offset} was removed by retention "
            f"between two backups: the points there are none, the next is log offset "
            f"{nxt.end_offset}"
        )
    new = [piece for piece in nxt.pieces if piece.begin >= base.end_offset]
    return Choice([*base.pieces, *new], base.first_offset, base, nxt)


def time_text(ms: int) -> str:
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
