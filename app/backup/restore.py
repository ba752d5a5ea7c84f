"""Make a data directory of backups, as it was at a point."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote

import msgspec
from crc32c import crc32c

from app.backup import manifest
from app.backup.folder import Folder
from app.backup.manifest import (
    Backup,
    BackupDamaged,
    BackupRefused,
    Piece,
)
from app.backup.point import Choice, Point, choose, time_text
from app.backup.unit_walk import UnitWalk, Walked
from app.registry.registry_files import REGISTRY
from app.settings import Settings
from app.store_moves.disk_space import DiskFull
from app.store_moves.import_store import write_settings
from app.store_moves.store_folder import COMMIT_LOG
from app.store_moves.work_folder import check_empty, finish, work_folder
from storage.clock import SystemClock
from storage.errors import StorageError
from storage.files import durable
from storage.files.vfs import File, OsVfs, ReadOnlyVfs
from storage.formats import checkpoint, names
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.verify.verification import StoreVerification
from storage.store_status import Finding

Note = Callable[[str, int, int], None]
"""(step, bytes done, bytes in all)"""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a restore. Times as in RFC 3339.

    `problem`: why the store cannot be opened as it is; empty if it was opened, and its derived
    files were built.
    """

    report: str = "store_restore"
    source: str
    target: str
    backup: str
    backup_made_at: str
    seconds: float
    first_offset: int
    end_offset: int
    last_stored_at: str | None
    log_bytes: int
    registry_of: str | None
    problem: str
    findings: list[dict[str, object]]
    advice: list[str]


def restore(
    folder: Folder, target: Path, point: Point, settings: Settings, *, note: Note
) -> Restored:
    """`settings`: of the service that will open it.

    Raises BackupRefused, BackupDamaged, TargetRefused, DiskFull, OSError.
    """
    begun = time.monotonic()
    check_empty(target)
    backups = manifest.read_all(folder)
    choice = choose(backups, point)
    names_of = {id(backup): name for name, backup in backups.items()}
    _check_space(choice, target)
    geometry = choice.files_of.lengths.geometry()
    with work_folder(target) as work:
        store = work / "store"
        log = _RestoredLog(folder, store, choice, point)
        log.write(lambda at, of: note("copy and verify", at, of))
        _refuse_nothing(log, choice, point)
        for file in choice.files_of.files:
            data = _read(folder, file.stored, file.crc32c)
            durable.replace(OsVfs(), work / file.path, data, scratch=store / "making")
        write_settings(work, geometry)
        options = geometry.applied_to(settings.local)
        problem, findings = "", []
        try:
            asyncio.run(_open(store, options, lambda at, of: note("rebuild", at, of)))
        except StorageError as error:
            problem = str(error).replace(str(work), str(target))
        else:
            findings = _verify(store, note)
        # The store has the identity of its registry, without which a service does not open it.
        finish(work, target, first=["store"])
    return Restored(
        source=folder.name,
        target=str(target),
        backup=names_of[id(choice.newest)],
        backup_made_at=time_text(choice.newest.made_ms),
        seconds=round(time.monotonic() - begun, 3),
        first_offset=choice.first_offset,
        end_offset=log.end,
        last_stored_at=time_text(log.last_stored_ms) if log.last_stored_ms else None,
        log_bytes=log.end - choice.first_offset,
        registry_of=time_text(choice.files_of.made_ms) if _has_registry(choice.files_of) else None,
        problem=problem,
        findings=[finding._asdict() for finding in findings],
        advice=list(_advice(choice, target, problem)),
    )


def _refuse_nothing(log: "_RestoredLog", choice: Choice, point: Point) -> None:
    """Raise BackupRefused where the store would be empty, unless an empty one was backed up before
    the point.
    """
    first = log.first_left_out
    if first is None or log.end > choice.first_offset:
        return
    was_empty = not choice.is_registry_newer
    if was_empty and (point.time_ms is None or point.time_ms >= choice.files_of.made_ms):
        return
    assert first.offset is not None
    assert first.time_ms is not None
    raise BackupRefused(
        "nothing in the backups is from before this point, so the store would be empty: the "
        f"earliest point is log offset {first.offset}, {time_text(first.time_ms)}"
    )


class _RestoredLog:
    """`end`: where the restored log ends. `last_stored_ms`: when its newest record was stored; 0 if
    it has none. `first_left_out`: the first point at which there is more.
    """

    def __init__(self, folder: Folder, store: Path, choice: Choice, point: Point) -> None:
        self._folder = folder
        self._store = store
        self._choice = choice
        self._point = point
        self._segments = _Segments(store, choice.newest.lengths.segment_bytes)
        self.end = choice.first_offset
        self.last_stored_ms = 0
        self.first_left_out: Point | None = None

    def write(self, note: Callable[[int, int], None]) -> None:
        """Segments and checkpoint. Durable on return.

        Raises BackupDamaged, BackupRefused, OSError.
        """
        first, newest = self._choice.first_offset, self._choice.newest
        walk = UnitWalk(first, newest.lengths.segment_bytes)
        with closing(self._segments):
            for piece in self._choice.pieces:
                data = _read(self._folder, piece.path, piece.crc32c)
                epoch = walk.epoch
                walked = walk.feed(piece.begin, data)
                cut = None if walked is None else self._cut(walked, epoch)
                if walk.damage and self._point.offset == walk.end:
                    cut = walk.end
                if cut is not None:
                    self._end_at(cut, piece, data)
                    break
                self._segments.write(piece.begin, data)
                self.end = piece.end
                note(piece.end - first, newest.end_offset - first)
            else:
                if not self._point.is_behind(newest):
                    raise BackupRefused(
                        f"the log is damaged at log offset {walk.end} ({walk.damage}), and units "
                        f"behind it cannot be told apart: restore to log offset {walk.end}, or to "
                        "the end of a backup"
                    )
            self._segments.write(self.end, b"")
        self._write_checkpoint()

    def _cut(self, walked: Walked, epoch: int) -> int | None:
        """The log offset at which the log ends if the point is in these units, else None.

        `epoch`: of the units before.
        """
        last_stored_ms = walked.last_stored_ms()
        if not self._is_passed(walked.found.end, last_stored_ms):
            self.last_stored_ms = max(self.last_stored_ms, last_stored_ms)
            return None
        cut = walked.begin
        for end, stored_ms in walked.ends(epoch):
            if self._is_passed(end, stored_ms):
                self.first_left_out = Point(end, stored_ms)
                break
            cut, self.last_stored_ms = end, stored_ms
        return cut

    def _is_passed(self, end: int, stored_ms: int) -> bool:
        """`end`: of a unit; `stored_ms`: when its last record was stored."""
        offset, time_ms = self._point
        return (offset is not None and end > offset) or (
            time_ms is not None and stored_ms > time_ms
        )

    def _end_at(self, cut: int, piece: Piece, data: bytes) -> None:
        if cut >= piece.begin:
            self._segments.write(piece.begin, data[: cut - piece.begin])
        else:  # the unit that goes too far began in the piece before
            self._segments.write(cut, bytes(piece.begin - cut))
        self.end = cut

    def _write_checkpoint(self) -> None:
        epoch, first = self._choice.newest.epoch, self._choice.first_offset
        fields = checkpoint.Fields(self.last_stored_ms, 0, 0, 0, self.end)
        slot = checkpoint.Slot(1, self.end, epoch, is_clean=False, first_offset=first)
        page = bytearray(checkpoint.PAGE_BYTES)
        page[: checkpoint.FIELDS_BYTES] = checkpoint.encode_fields(fields)
        encoded, at = checkpoint.encode_slot(slot), checkpoint.SLOT_AT[slot.sequence % 2]
        page[at : at + len(encoded)] = encoded
        durable.replace(
            OsVfs(), self._store / "checkpoint", bytes(page), scratch=self._store / "making"
        )


class _Segments:
    """Segments that are written from front to back, sparse and of full length; one is open at a
    time.
    """

    def __init__(self, store: Path, segment_bytes: int) -> None:
        self._vfs = OsVfs()
        self._folder = store / COMMIT_LOG
        self._segment_bytes = segment_bytes
        self._base = -1
        self._file: File | None = None
        for folder in (self._folder, store / "making"):
            self._vfs.make_directory(folder)

    def write(self, at: int, data: bytes) -> None:
        """Bytes of one segment, which is made where it is missing."""
        base = at - at % self._segment_bytes
        if self._file is None or base != self._base:
            self._sync()
            self._file = self._vfs.open(self._folder / names.file_name(base), create=True)
            self._file.extend(self._segment_bytes)
            self._base = base
        self._file.write(at - base, data)

    def close(self) -> None:
        """All is on disk on return."""
        self._sync()
        for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
            self._vfs.sync_directory(folder)

    def _sync(self) -> None:
        if self._file is not None:
            try:
                self._file.sync()
            finally:
                self._file.close()
                self._file = None


def _read(folder: Folder, path: str, crc: int) -> bytes:
    """Raises BackupDamaged, OSError."""
    data = folder.read(path)
    if data is None:
        raise BackupDamaged(f"{folder.name}: {path} is missing")
    if crc32c(data) != crc:
        raise BackupDamaged(f"{folder.name}: {path} has other bytes than were written")
    return data


def _check_space(choice: Choice, target: Path) -> None:
    """Raises DiskFull if the log does not fit on the disk of the target."""
    folder = target if target.exists() else target.parent
    needed = choice.newest.end_offset - choice.first_offset
    free = OsVfs().space(folder).usable_bytes
    if needed > free:
        raise DiskFull(
            f"The disk of {folder} is too full: the log has up to {needed:,} bytes, and "
            f"{free:,} are free"
        )


async def _open(
    store: Path, options: LocalStoreOptions, progress: Callable[[int, int], None]
) -> None:
    """Let a start build the derived files, and close in order. Raises StorageError, OSError."""
    clock = SystemClock()
    opened = await LocalMessageStore.open(
        store, options, OsVfs(), clock, Identifiers(clock, SystemRandom()), progress=progress
    )
    await opened.aclose()


def _verify(store: Path, note: Note) -> list[Finding]:
    verification = StoreVerification(ReadOnlyVfs(), store, is_running=False)
    read_bytes = 0
    findings: list[Finding] = []
    for step in verification.steps():
        read_bytes += step.read_bytes
        findings += step.findings
        note("verify", read_bytes, verification.total_bytes)
    return findings


def _has_registry(backup: Backup) -> bool:
    return any(file.path == REGISTRY for file in backup.files)


def _advice(choice: Choice, target: Path, problem: str) -> Iterator[str]:
    if problem:
        repair = f"escrowmq store repair {quote(str(target))}"
        yield f"Repair the store ({repair}) before you start the service"
    if not _has_registry(choice.files_of):
        yield (
            "The backup has no registry: restore its database to the same point before you start "
            "the service"
        )
    elif choice.is_registry_newer:
        yield "The registry is that of the backup, which is newer than the point"
    yield f"Start the service with: escrowmq serve --data-dir {quote(str(target))}"
