"""The data directory of a replica: a note in it says that it follows, and no service starts there
before a person has promoted it.
"""

from pathlib import Path

import msgspec

from app.registry.registry_files import REGISTRY, REGISTRY_ID
from app.replicas.promise import Promise
from storage.files import durable
from storage.files.vfs import OsVfs, is_disk_full
from storage.formats import names
from storage.local.repair.repair import Repair
from storage.local.repair.repair_report import Done

_NOTE = "replica.json"
_PROMISE = "promise.json"
_COMMIT_LOG = "commitlog"


class ReplicaNote(msgspec.Struct, frozen=True, kw_only=True):
    """Whom it follows, where clients reach that, and how far it was when it was last heard of.

    `promotes_from`, `promotes_to`: epochs of a promotion that has begun; no service has started in
    the later one as long as there is a note.
    """

    primary: str
    primary_end: int = 0
    end: int = 0
    heard_at_ms: int = 0
    api_url: str = ""
    promotes_from: int = 0
    promotes_to: int = 0


class _WrittenPromise(msgspec.Struct, frozen=True):
    """A promise as the file has it: a file of another program has no such fields."""

    epoch: int
    node: str


class NoteDamaged(Exception):
    """Whom the directory follows cannot be read."""


def read_note(data_dir: Path) -> ReplicaNote | None:
    """The note of a replica; None if the directory is not one's. Raises NoteDamaged, OSError."""
    path = data_dir / _NOTE
    raw = durable.read_whole(OsVfs(), path)
    try:
        return None if raw is None else msgspec.json.decode(raw, type=ReplicaNote)
    except msgspec.DecodeError as error:
        raise NoteDamaged(
            f"{path} is damaged ({error}). It says that the directory is a replica: write "
            '{"primary":"HOST:PORT"} into it, with the address of the service that is followed'
        ) from None


def is_replica(data_dir: Path) -> bool:
    """Does it have a note, damaged or not?"""
    return (data_dir / _NOTE).exists()


def write_note(data_dir: Path, note: ReplicaNote) -> None:
    """Durable on return."""
    _replace(data_dir, data_dir / _NOTE, msgspec.json.encode(note))


def note_promotion(data_dir: Path, before: int, after: int) -> None:
    """Note in the note of a replica from which epoch to which it is promoted. Durable on return.

    On a full disk it stays as it was: the promotion can be repeated all the same.
    """
    note = read_note(data_dir)
    if note is None:
        return
    if before == note.promotes_to:  # that was begun, and did not end
        before = note.promotes_from
    try:
        write_note(data_dir, msgspec.structs.replace(note, promotes_from=before, promotes_to=after))
    except OSError as error:
        if not is_disk_full(error):
            raise


def remove_note(data_dir: Path) -> None:
    """Durable on return. Nothing where the directory is that of a service."""
    vfs, path = OsVfs(), data_dir / _NOTE
    if path.exists():
        vfs.remove(path)
        vfs.sync_directory(data_dir)


def read_promise(data_dir: Path) -> Promise:
    """Raises NoteDamaged, OSError."""
    path = data_dir / _PROMISE
    raw = durable.read_whole(OsVfs(), path)
    if raw is None:
        return Promise()
    try:
        found = msgspec.json.decode(raw, type=_WrittenPromise)
    except msgspec.DecodeError as error:
        raise NoteDamaged(
            f"{path} is damaged, or of another program ({error}). It names the latest service that "
            'this machine may follow: write {"epoch":EPOCH,"node":"NAME"} into it, as '
            "`GET /v1/names/nodes` has them; or choose another data directory"
        ) from None
    return Promise(found.epoch, found.node)


def write_promise(data_dir: Path, promise: Promise) -> None:
    """Durable on return."""
    _replace(data_dir, data_dir / _PROMISE, msgspec.json.encode(promise))


def has_log(data_dir: Path) -> bool:
    return bool(_segments(data_dir / "store"))


def remove_empty_store(data_dir: Path) -> None:
    """Remove the log of a store without any unit, that is closed, and what says how far it was:
    nothing is derived from it.

    Other files stay: the directory may have been one with a `store` of another program.
    """
    store = data_dir / "store"
    for path in (*_segments(store), *_files(store / "snapshots"), store / "checkpoint"):
        path.unlink(missing_ok=True)


def cut_log(data_dir: Path, offset: int, *, folder: str, segment_bytes: int) -> Done:
    """Move what the log has from this offset on, and what is derived from it, into a folder of the
    store, which is closed. Durable on return.
    """
    repair = Repair(
        OsVfs(), data_dir / "store", folder=folder, now_ms=0, segment_bytes=segment_bytes
    )
    try:
        return repair.cut_to_follow(offset)
    finally:
        repair.close()


def begin_log(data_dir: Path, first_offset: int, segment_bytes: int) -> None:
    """Make the first segment of a log that begins there. Durable on return."""
    vfs, folder = OsVfs(), data_dir / "store" / _COMMIT_LOG
    vfs.make_directory(folder)
    making = data_dir / "store" / "making"
    vfs.make_directory(making)
    durable.make_sized(vfs, folder / names.file_name(first_offset), segment_bytes, scratch=making)


def write_registry(data_dir: Path, files: dict[str, bytes]) -> None:
    """Durable on return. Names that are none of a registry's are left out."""
    for beside in (f"{REGISTRY}-wal", f"{REGISTRY}-shm"):  # of a service that ran here before
        (data_dir / beside).unlink(missing_ok=True)
    for name in (REGISTRY_ID, REGISTRY):
        if name in files:
            _replace(data_dir, data_dir / name, files[name])


def _replace(data_dir: Path, path: Path, data: bytes) -> None:
    making = data_dir / "store" / "making"
    OsVfs().make_directory(making)
    durable.replace(OsVfs(), path, data, scratch=making)


def _segments(store: Path) -> list[Path]:
    return [
        path for path in _files(store / _COMMIT_LOG) if names.base_offset(path.name) is not None
    ]


def _files(folder: Path) -> list[Path]:
    """The files in a folder; none where there is no such folder."""
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
