"""The manifest of a backup, as JSON in its folder. Pure but for reading and writing it."""

from collections.abc import Container
from operator import attrgetter
from typing import Annotated

import msgspec
from crc32c import crc32c

from app.backup.folder import Folder, is_written_by_a_backup
from app.registry.registry_files import REGISTRY, REGISTRY_ID
from app.store_moves.geometry import Geometry

FORMAT = 1
MANIFESTS, LOG, FILES = "backups", "log", "files"
_ENDING = ".json"

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Crc = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class BackupRefused(Exception):
    """A backup, or a restore, cannot be made this way; the reason, for a person."""


class BackupDamaged(Exception):
    """A file of a backup is missing or has other bytes; the sentence names it."""


class Piece(msgspec.Struct, frozen=True):
    """[begin, end) of the log; never crosses the border of a segment."""

    begin: Offset
    end: Offset
    crc32c: Crc

    @property
    def path(self) -> str:
        return f"{LOG}/{self.begin:020d}-{self.end:020d}"


class StoredFile(msgspec.Struct, frozen=True):
    """A small file whole: `path` in the data directory, `stored` in the folder of backups."""

    path: str
    stored: str
    bytes: Offset
    crc32c: Crc


class Lengths(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lengths of the store's files; None if it has no file of that kind."""

    segment_bytes: Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]
    queue_file_bytes: int | None = None
    index_slots: int | None = None
    index_file_entries: int | None = None

    def geometry(self) -> Geometry:
        return Geometry(
            self.segment_bytes, self.queue_file_bytes, self.index_slots, self.index_file_entries
        )


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Times are wall-clock milliseconds.

    `made_ms`: each message that was acknowledged as synced before it is in the backup.
    `last_stored_ms`: when the newest message of the backup was stored; 0 if it has none.
    `damaged_at`: log offset of the first damage in the pieces that were new, None if there is none.
    """

    format: int = FORMAT
    made_ms: Offset
    version: str
    registry_id: str
    lengths: Lengths
    epoch: Offset
    first_offset: Offset
    end_offset: Offset
    last_stored_ms: Offset
    damaged_at: Offset | None = None
    pieces: list[Piece]
    files: list[StoredFile]
    check: Crc = 0  # crc32c of this as compact JSON with a check of 0

    def sealed(self) -> "Backup":
        """The same with its check."""
        unsealed = msgspec.structs.replace(self, check=0)
        return msgspec.structs.replace(self, check=crc32c(msgspec.json.encode(unsealed)))


def read_all(folder: Folder) -> dict[str, Backup]:
    """The backups by their names, oldest first. Files of other programs are left out, and a
    backup that a person has renamed is not.

    Raises BackupRefused, BackupDamaged, OSError.
    """
    found = {}
    for name in folder.sizes(MANIFESTS):
        if name.endswith(_ENDING):
            path = f"{MANIFESTS}/{name}"
            raw = folder.read(path) or b""
            if is_written_by_a_backup(name) or _is_of_a_backup(raw):
                found[name.removesuffix(_ENDING)] = _decoded(path, raw, folder)
    order = attrgetter("end_offset", "made_ms")
    return dict(sorted(found.items(), key=lambda item: order(item[1])))


def unknown_in(folder: Folder, backups: Container[str]) -> list[str]:
    """Paths of the other JSON files beside the backups: each may be a backup that is damaged.

    Raises OSError.
    """
    names = [name for name in folder.sizes(MANIFESTS) if name.endswith(_ENDING)]
    return [f"{MANIFESTS}/{one}" for one in names if one.removesuffix(_ENDING) not in backups]


def write(folder: Folder, name: str, backup: Backup) -> None:
    """Durable on return. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(backup.sealed()))
    folder.write(f"{MANIFESTS}/{name}{_ENDING}", text)


def remove(folder: Folder, name: str) -> None:
    folder.remove(f"{MANIFESTS}/{name}{_ENDING}")


class _Format(msgspec.Struct):
    format: int


class _Named(_Format):
    """Fields that a manifest of each format has, and hardly any other file."""

    registry_id: str


def _is_of_a_backup(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=_Named)
    except msgspec.DecodeError:
        return False
    return True


def _decoded(path: str, raw: bytes, folder: Folder) -> Backup:
    try:
        if (found := msgspec.json.decode(raw, type=_Format).format) > FORMAT:
            raise BackupRefused(
                f"{folder.name}: {path} has format {found}, a later version of EscrowMQ wrote it"
            )
        backup = msgspec.json.decode(raw, type=Backup)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BackupDamaged(f"{folder.name}: {path} is damaged: {error}") from None
    if reason := _contradiction(backup):
        raise BackupDamaged(f"{folder.name}: {path} is damaged: {reason}")
    if backup != backup.sealed():
        raise BackupDamaged(f"{folder.name}: {path} is damaged: it has other values than its check")
    return backup


def _contradiction(backup: Backup) -> str:
    """The reason why no run can have written this; empty if one can."""
    at, segment_bytes = backup.first_offset, backup.lengths.segment_bytes
    if at % segment_bytes:
        return f"first_offset {at} is not the beginning of a segment"
    for piece in backup.pieces:
        if piece.begin != at:
            return f"no piece begins at log offset {at}"
        if piece.end <= at or (piece.end - 1) // segment_bytes != at // segment_bytes:
            return f"{piece.path} crosses a border of segments"
        at = piece.end
    if at != backup.end_offset:
        return f"the pieces end at log offset {at}, the backup at {backup.end_offset}"
    for file in backup.files:
        if file.path not in (REGISTRY, REGISTRY_ID):
            return f"{file.path!r} is no file of a data directory"
        if not file.stored.startswith(f"{FILES}/") or "/" in file.stored.removeprefix(f"{FILES}/"):
            return f"{file.stored!r} is no file of a backup"
    return ""
