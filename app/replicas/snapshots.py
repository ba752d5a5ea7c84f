"""Snapshots of a service's tables, copied to its replica: when that is promoted, its first start
reads them and replays only what came later.

They go between the blocks of the log, a piece at a time, and no faster than a given rate. A replica
keeps one only when its disk has all of the log that the snapshot reflects. One that is damaged, or
knows more than the log, is passed over by the start that reads it.
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

import structlog

from app.idempotency import SNAPSHOT as SENT_KEYS
from app.replicas.frames import BadFrame, Piece
from delivery.leases.journal import SNAPSHOT as LEASES
from delivery.members.journal import SNAPSHOT as MEMBERS
from delivery.requests.journal import SNAPSHOT as REQUESTS
from scheduler.cron_log import SNAPSHOT as CRON
from storage.clock import Clock
from storage.files.vfs import OsVfs
from txn.journal import SNAPSHOT as TRANSACTIONS

PIECE_BYTES = 256 << 10
_BYTES_PER_S = 8 << 20
_LOOK_MS = 5_000
_LOG_FIRST_MS = 50  # until it is looked again whether the log has been sent
# Of tables. Not of what the store of a replica derives itself; nor of due times, which are in files
# of their own, and of the progress of schedules in them.
COPIED = (LEASES, MEMBERS, TRANSACTIONS, REQUESTS, CRON, SENT_KEYS)

log = structlog.get_logger()


class _Version(NamedTuple):
    """Marks that differ between one snapshot of a name and the next."""

    inode: int
    modified_ns: int
    size: int


class _Open(NamedTuple):
    """A snapshot that is being sent. `log_end`: it reflects nothing behind that."""

    name: str
    version: _Version
    file: BinaryIO
    log_end: int


class OutgoingSnapshots:
    """To one replica. From any thread."""

    def __init__(self, data_dir: Path, clock: Clock) -> None:
        self._folder = data_dir / "store" / "snapshots"
        self._clock = clock
        self._sent: dict[str, _Version] = {}  # that sent last is the last
        self._open: _Open | None = None
        self._is_closed = False
        self._guard = Lock()
        self._due_ms = clock.monotonic_ms()

    def wait_ms(self) -> int:
        """How long until there may be a piece."""
        return max(0, self._due_ms - self._clock.monotonic_ms())

    def next_piece(self, *, on_disk_end: int, sent_end: int) -> Piece | None:
        """The next piece; None where there is none now. Blocking.

        `on_disk_end`: of the log here. `sent_end`: of what the replica has been sent of it.
        """
        with self._guard:
            return None if self._is_closed else self._read(on_disk_end, sent_end)

    def close(self) -> None:
        with self._guard:
            self._is_closed = True
            self._end()

    def _read(self, on_disk_end: int, sent_end: int) -> Piece | None:
        now_ms = self._clock.monotonic_ms()
        if self._open is None:
            self._open = self._next(on_disk_end)
        if self._open is None:
            self._due_ms = now_ms + _LOOK_MS
            return None
        name, version, file, log_end = self._open
        at = file.tell()
        is_last = version.size - at <= PIECE_BYTES
        if is_last and sent_end < log_end:
            self._due_ms = now_ms + _LOG_FIRST_MS
            return None
        data = file.read(PIECE_BYTES)
        self._due_ms = now_ms + len(data) * 1000 // _BYTES_PER_S
        if is_last:
            self._end()
            self._sent.pop(name, None)
            self._sent[name] = version
        return Piece(name, version.size, at, data)

    def _end(self) -> None:
        if self._open is not None:
            self._open.file.close()
            self._open = None

    def _next(self, on_disk_end: int) -> _Open | None:
        """A snapshot that was not sent yet, or the one whose last was sent longest ago."""
        for name in [*(one for one in COPIED if one not in self._sent), *self._sent]:
            try:
                file = (self._folder / name).open("rb")
            except FileNotFoundError:
                continue
            found = os.fstat(file.fileno())
            version = _Version(found.st_ino, found.st_mtime_ns, found.st_size)
            if version.size and version != self._sent.get(name):
                return _Open(name, version, file, on_disk_end)
            file.close()
        return None


class IncomingSnapshots:
    """Of one connection. One thread at a time, blocking."""

    def __init__(self, data_dir: Path) -> None:
        store = data_dir / "store"
        self._folder = store / "snapshots"
        self._path = store / "making" / "copied-snapshot"
        self._name = ""  # of the one that is being received
        self._at = 0

    def add(self, piece: Piece) -> bool:
        """Keep a piece; is the snapshot whole now? Raises BadFrame."""
        if piece.name not in COPIED:
            raise BadFrame(f"a snapshot of the name {piece.name[:100]!r}")
        if piece.offset and (piece.name, piece.offset) != (self._name, self._at):
            if not self._name:
                return False  # its beginning had no space
            raise BadFrame(f"a piece of snapshot {piece.name} that does not follow the one before")
        self._name, self._at = piece.name, piece.offset + len(piece.data)
        if not piece.data or self._at > piece.size:
            raise BadFrame(f"a piece of snapshot {piece.name} that ends at {self._at}")
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._path.open("ab" if piece.offset else "wb") as file:
                file.write(piece.data)
        except OSError as error:
            self._give_up(error)
            return False
        return self._at == piece.size

    def keep(self) -> None:
        """Put the whole snapshot in place of the last one of its name; durable on return."""
        try:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._path.replace(self._folder / self._name)
            OsVfs().sync_directory(self._folder)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The log goes on without it, and the next one may have space."""
        log.warning("snapshot_not_kept", name=self._name, reason=str(error))
        self._name = ""
        with suppress(OSError):
            self._path.unlink()
