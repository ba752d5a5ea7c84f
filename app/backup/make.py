"""Make a backup of a data directory while its service runs: what is new since the newest one."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
from crc32c import crc32c

from app.backup import manifest, source
from app.backup.folder import Folder, is_written_by_a_backup
from app.backup.manifest import (
    FILES,
    LOG,
    Backup,
    BackupRefused,
    Piece,
    StoredFile,
)
from app.backup.source import LogState, SegmentGone, SourceLog
from app.backup.unit_walk import UnitWalk
from app.registry import registry_files
from app.registry.registry_files import REGISTRY, REGISTRY_ID
from storage.errors import RegistryUnavailable

PIECE_BYTES = 64 << 20
_TRIES = 10  # where retention removes segments faster than they are copied
Note = Callable[[str, int, int], None]
"""(step, bytes done, bytes in all)"""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a run. Times as in RFC 3339; bytes: read, and written to the folder."""

    report: str = "store_backup"
    source: str
    target: str
    name: str
    made_at: str
    seconds: float
    first_offset: int
    end_offset: int
    new_log_bytes: int
    log_bytes: int
    pieces: int
    backups: int
    removed_backups: int
    has_registry: bool
    damaged_at: int | None
    damage: str
    advice: list[str]


class CopyDiffers(Exception):
    """A file reads back with other bytes than were written."""


def make_backup(
    data_dir: Path,
    folder: Folder,
    *,
    note: Note,
    keep: int | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Made:
    """`keep`: how many of the newest backups stay; None: all.

    Raises BackupRefused, BackupDamaged, CopyDiffers, DirectoryInUse, RegistryUnavailable, OSError.
    """
    begun = time.monotonic()
    source.check(data_dir)
    with folder.own():
        earlier = manifest.read_all(folder)
        previous = list(earlier.values())[-1] if earlier else None
        # Before the log: a registry may be older than its store, not newer.
        made_at = datetime.now(UTC)
        name = f"{made_at:%Y%m%dT%H%M%S}{made_at.microsecond // 1000:03d}Z"
        files = _copy_files(_small_files(data_dir), folder, name, previous)
        run = _Run(data_dir, folder, previous, note, piece_bytes)
        made_at = datetime.now(UTC)
        backup = run.copy_log(made_at, files)
        manifest.write(folder, name, backup)
        kept = {**earlier, name: backup}
        removed = [] if keep is None else list(kept)[:-keep]
        advice = []
        if removed and (unknown := manifest.unknown_in(folder, kept)):
            removed = []  # it may be the only one that names a piece
            advice.append(_UNKNOWN.format(", ".join(sorted(unknown))))
        for one in removed:
            manifest.remove(folder, one)
            del kept[one]
        if removed:
            _remove_unnamed(folder, list(kept.values()))
    has_registry = any(file.path == REGISTRY for file in files)
    return Made(
        source=str(data_dir),
        target=folder.name,
        name=name,
        made_at=made_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        seconds=round(time.monotonic() - begun, 3),
        first_offset=backup.first_offset,
        end_offset=backup.end_offset,
        new_log_bytes=run.new_bytes,
        log_bytes=backup.end_offset - backup.first_offset,
        pieces=len(backup.pieces),
        backups=len(kept),
        removed_backups=len(removed),
        has_registry=has_registry,
        damaged_at=backup.damaged_at,
        damage=run.damage,
        advice=advice if has_registry else [*advice, _NO_REGISTRY],
    )


class _Run:
    """The log's part of one backup."""

    def __init__(
        self, data_dir: Path, folder: Folder, previous: Backup | None, note: Note, piece_bytes: int
    ) -> None:
        self._data_dir = data_dir
        self._folder = folder
        self._previous = previous
        self._note = note
        self._piece_bytes = piece_bytes
        self._lengths = source.lengths_of(data_dir)
        self._log = SourceLog(data_dir, self._lengths.segment_bytes)
        self.new_bytes = 0
        self.damage = ""

    def copy_log(self, made_at: datetime, files: list[StoredFile]) -> Backup:
        """The backup, whose pieces are all in the folder and verified."""
        made_ms = int(made_at.timestamp() * 1000)
        with closing(self._log):
            for tried in range(_TRIES):
                state = source.look(self._data_dir)
                try:
                    kept = self._kept(state)
                    begin = kept[-1].end if kept else state.first_offset
                    walk = UnitWalk(begin, self._lengths.segment_bytes)
                    new, last_stored_ms = self._copy(walk, begin, state.end_offset)
                    break
                except SegmentGone as gone:
                    if (
                        tried == _TRIES - 1
                        or source.look(self._data_dir).first_offset == state.first_offset
                    ):
                        raise BackupRefused(
                            f"a segment of the log is missing: {gone}; `escrowmq store repair` "
                            "says more"
                        ) from None
        self.damage = walk.damage
        return Backup(
            made_ms=made_ms,
            version=version("escrowmq"),
            registry_id=_identity(files, self._folder),
            lengths=self._lengths,
            epoch=state.epoch,
            first_offset=state.first_offset,
            end_offset=state.end_offset,
            last_stored_ms=max(
                last_stored_ms,
                self._previous.last_stored_ms if self._previous is not None and kept else 0,
                state.last_stored_ms if walk.damage else 0,
            ),
            damaged_at=walk.end if walk.damage else None,
            pieces=[*kept, *new],
            files=files,
        )

    def _kept(self, state: LogState) -> list[Piece]:
        """The pieces of the previous backup from the beginning of the log on.

        Raises BackupRefused where they are of another log; SegmentGone, OSError.
        """
        previous = self._previous
        if previous is None:
            return []
        if previous.lengths.segment_bytes != self._lengths.segment_bytes:
            raise BackupRefused(
                f"{self._folder.name} has backups of a store with segments of "
                f"{previous.lengths.segment_bytes:,} bytes, this one has "
                f"{self._lengths.segment_bytes:,}: use another folder"
            )
        if previous.end_offset > state.end_offset or previous.epoch > state.epoch:
            raise BackupRefused(
                f"{self._folder.name} has backups of a log that goes on to "
                f"{previous.end_offset}, this one ends at {state.end_offset}: it is another "
                "store, or was repaired or restored. Use another folder"
            )
        if previous.end_offset <= state.first_offset:
            return []
        kept = [piece for piece in previous.pieces if piece.begin >= state.first_offset]
        if kept:
            last = kept[-1]
            if crc32c(self._log.read(last.begin, last.end)) != last.crc32c:
                raise BackupRefused(
                    f"{self._folder.name} has other bytes at log offset {last.begin} to {last.end} "
                    "than the log: they are of another store, or the log was repaired. Use another "
                    "folder"
                )
        return kept

    def _copy(self, walk: UnitWalk, begin: int, end: int) -> tuple[list[Piece], int]:
        """The pieces of [begin, end), and when the last record in them was stored."""
        sizes = self._folder.sizes(LOG)
        pieces, last_stored_ms = [], 0
        for at, until in borders(begin, end, self._lengths.segment_bytes, self._piece_bytes):
            data = self._log.read(at, until)
            piece = Piece(at, until, crc32c(data))
            name = piece.path.removeprefix(f"{LOG}/")
            # An earlier run, which did not end, may have copied it.
            if sizes.get(name) != len(data) or self._folder.read(piece.path) != data:
                self._folder.write(piece.path, data)
                if self._folder.read(piece.path) != data:
                    raise CopyDiffers(
                        f"{self._folder.name}: {piece.path} reads back with other bytes than were "
                        "written"
                    )
            walked = walk.feed(at, data)
            if walked is not None:
                last_stored_ms = walked.last_stored_ms() or last_stored_ms
            pieces.append(piece)
            self._note("copy and verify", until - begin, end - begin)
        walk.finish(end)
        self.new_bytes = end - begin
        return pieces, last_stored_ms


def borders(
    begin: int, end: int, segment_bytes: int, piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """[begin, end) in pieces: each ends where its segment does, or at a multiple of `piece_bytes`
    in it. So two runs that end elsewhere have all pieces but the last in common.
    """
    at = begin
    while at < end:
        base = at - at % segment_bytes
        in_segment = at - base
        until = base + min(segment_bytes, in_segment - in_segment % piece_bytes + piece_bytes)
        yield at, min(until, end)
        at = min(until, end)


def _small_files(data_dir: Path) -> dict[str, bytes]:
    try:
        return registry_files.read_files(data_dir)
    except sqlite3.DatabaseError as error:
        raise RegistryUnavailable(f"{data_dir / REGISTRY}: {error}") from error


def _copy_files(
    found: dict[str, bytes], folder: Folder, name: str, previous: Backup | None
) -> list[StoredFile]:
    """Copies of small files; the one of the previous backup where nothing has changed."""
    earlier = {file.path: file for file in previous.files} if previous is not None else {}
    files = []
    for path, data in found.items():
        stored = f"{FILES}/{name}-{path.rpartition('/')[2]}"
        file = StoredFile(path, stored, len(data), crc32c(data))
        before = earlier.get(path)
        if before is not None and folder.read(before.stored) == data:
            file = msgspec.structs.replace(file, stored=before.stored)
        else:
            folder.write(stored, data)
            if folder.read(stored) != data:
                raise CopyDiffers(
                    f"{folder.name}: {stored} reads back with other bytes than were written"
                )
        files.append(file)
    return files


def _identity(files: list[StoredFile], folder: Folder) -> str:
    for file in files:
        if file.path == REGISTRY_ID:
            return (folder.read(file.stored) or b"").decode("ascii", "replace").strip()
    return ""


def _remove_unnamed(folder: Folder, backups: list[Backup]) -> None:
    """Remove what no backup names: of removed ones, and of runs that did not end."""
    named = {piece.path for backup in backups for piece in backup.pieces}
    named.update(file.stored for backup in backups for file in backup.files)
    for kind in (LOG, FILES):
        for name in folder.sizes(kind):
            if f"{kind}/{name}" not in named and is_written_by_a_backup(name):
                folder.remove(f"{kind}/{name}")


_UNKNOWN = (
    "Nothing was removed, as this may be a backup that is damaged: {}. If it is none, move it "
    "elsewhere"
)
_NO_REGISTRY = (
    "The registry (topics, groups, keys, schedules) is not in the backup, as it is no file in the "
    "data directory: back up its database as well, before the log"
)
