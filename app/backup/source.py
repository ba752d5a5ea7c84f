"""The data directory that is backed up: how far its log is on disk, bytes of it, its registry.

Reads, and changes nothing; the service may run. Below the position that the checkpoint states as
synced no byte of the log changes any more, until retention removes its segment.
"""

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.backup.manifest import BackupRefused, Lengths
from app.store_moves.geometry import geometry_of
from app.store_moves.opened_copy import read_file
from app.store_moves.store_folder import COMMIT_LOG, list_files
from storage.files import durable
from storage.files.vfs import File, ReadOnlyVfs
from storage.formats import checkpoint, names

_LOOKS = 10  # of a store whose files come and go meanwhile


class LogState(NamedTuple):
    """The log at one moment: its beginning, and where it is known to be on disk."""

    first_offset: int
    end_offset: int
    epoch: int
    last_stored_ms: int
    is_closed: bool


class SegmentGone(Exception):
    """Retention has removed a segment since its log was looked at."""


def check(data_dir: Path) -> None:
    """Raises BackupRefused where this is no data directory that a service has used."""
    store = data_dir / "store"
    if not (store / COMMIT_LOG).is_dir():
        raise BackupRefused(f"{data_dir} is no data directory: it has no store/{COMMIT_LOG}")
    look(data_dir)


def look(data_dir: Path) -> LogState:
    """Raises BackupRefused, OSError."""
    store = data_dir / "store"
    page = durable.read_whole(ReadOnlyVfs(), store / "checkpoint") or b""
    page = page.ljust(checkpoint.PAGE_BYTES, b"\0")
    slot = checkpoint.newest_slot(page)
    if slot is None:
        raise BackupRefused(
            f"{store} has no checkpoint of EscrowMQ: no service has opened it yet, or it is a "
            "RocketMQ broker's"
        )
    first_offset = slot.first_offset
    if first_offset is None:  # an earlier version did not record it
        found = map(names.base_offset, os.listdir(store / COMMIT_LOG))
        first_offset = min((base for base in found if base is not None), default=0)
    return LogState(
        first_offset,
        max(first_offset, slot.synced_offset),
        slot.epoch,
        checkpoint.decode_fields(page).physic_ms,
        slot.is_clean and not (store / "abort").exists(),
    )


def lengths_of(data_dir: Path) -> Lengths:
    """Lengths of the store's files. Raises BackupRefused, OSError."""
    store = data_dir / "store"
    geometry, problems = geometry_of(list_files(store), partial(read_file, store))
    if problems or geometry.segment_bytes is None:
        raise BackupRefused(" ".join(problems) or f"{store / COMMIT_LOG} has no segment")
    return Lengths(
        geometry.segment_bytes,
        geometry.queue_file_bytes,
        geometry.index_slots,
        geometry.index_file_entries,
    )


class SourceLog:
    """Bytes of the log by their log offsets. One segment is open at a time."""

    def __init__(self, data_dir: Path, segment_bytes: int) -> None:
        self._folder = data_dir / "store" / COMMIT_LOG
        self._segment_bytes = segment_bytes
        self._base = -1
        self._file: File | None = None

    def read(self, begin: int, end: int) -> bytes:
        """Bytes of one segment. Raises SegmentGone, BackupRefused, OSError."""
        base = begin - begin % self._segment_bytes
        path = self._folder / names.file_name(base)
        if self._file is None or base != self._base:
            self.close()
            try:
                self._file = ReadOnlyVfs().open(path)
            except FileNotFoundError:
                raise SegmentGone(f"{path} does not exist") from None
            self._base = base
        data = self._file.read(begin - base, end - begin)
        if len(data) != end - begin:
            raise BackupRefused(f"{path} is too short: see `escrowmq store repair`")
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
