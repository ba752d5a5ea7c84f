"""Snapshots of a service's tables, copied to its replica: when that is promoted, its first start
reads them and replays only what came later.

They go between the blocks of the log, a piece at a time, and no faster than a given rate. A replica
keeps one only when its disk has all of the log that the snapshot reflects. One that is damaged, or
knows more than the log, is passed over by the start that reads it.

The snapshot of the due times is a list of timer files, which never change: each goes once over a
connection, before the first list that names it.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

import structlog

from app.idempotency.keys import SNAPSHOT as SENT_KEYS
from app.replicas import copied_timers
from app.replicas.copied_timers import CopiedTimers
from app.replicas.frames import BadFrame, Piece
from delivery.leases.journal import SNAPSHOT as LEASES
from delivery.members.journal import SNAPSHOT as MEMBERS
from delivery.requests.journal import SNAPSHOT as REQUESTS
from scheduler.cron_log import SNAPSHOT as CRON
from scheduler.schedule_log import SNAPSHOT as SCHEDULE_PROGRESS
from storage.clock import Clock
from storage.files.vfs import OsVfs
from storage.formats import names
from storage.formats.timer_list import SNAPSHOT as TIMERS
from txn.journal import SNAPSHOT as TRANSACTIONS

PIECE_BYTES = 256 << 10
_BYTES_PER_S = 8 << 20
_LOOK_MS = 5_000
_LOG_FIRST_MS = 50  # until it is looked again whether the log has been sent
# Of what is above the store, and of the due times. A replica derives the rest from the log.
COPIED = (
    LEASES,
    MEMBERS,
    TRANSACTIONS,
    REQUESTS,
    CRON,
    SENT_KEYS,
    SCHEDULE_PROGRESS,
    TIMERS,
)
_TIMER_FILE = "timer-file/"  # and its number: the name of its pieces

log = structlog.get_logger()


class _Version(NamedTuple):
    """Marks that differ between one snapshot of a name and the next."""

    inode: int
    modified_ns: int
    size: int


class _File(NamedTuple):
    """A file that is being sent, under the name of its pieces."""

    name: str
    size: int
    file: BinaryIO


class _Open(NamedTuple):
    """A snapshot that is being sent: files that it needs, and itself behind them.

    `log_end`: it reflects nothing behind that.
    """

    name: str
    version: _Version
    files: deque[_File]
    log_end: int


class OutgoingSnapshots:
    """To one replica. From any thread."""

    def __init__(self, data_dir: Path, clock: Clock) -> None:
        self._snapshots = data_dir / "store" / "snapshots"
        self._timers = data_dir / "store" / "timers"
        self._clock = clock
        self._sent: dict[str, _Version] = {}  # that sent last is the last
        self._sent_timers: set[str] = set()  # of those that the last list named
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
            if self._open is not None:
                _close(self._open.files)
                self._open = None

    def _read(self, on_disk_end: int, sent_end: int) -> Piece | None:
        now_ms = self._clock.monotonic_ms()
        if self._open is None:
            self._open = self._next(on_disk_end)
        if self._open is None:
            self._due_ms = now_ms + _LOOK_MS
            return None
        files = self._open.files
        name, size, file = files[0]
        at = file.tell()
        is_last = size - at <= PIECE_BYTES
        if is_last and sent_end < self._open.log_end:
            self._due_ms = now_ms + _LOG_FIRST_MS
            return None
        data = file.read(PIECE_BYTES)
        self._due_ms = now_ms + len(data) * 1000 // _BYTES_PER_S
        if is_last:
            file.close()
            files.popleft()
            self._note_sent(self._open, name)
        return Piece(name, size, at, data)

    def _note_sent(self, snapshot: _Open, name: str) -> None:
        if snapshot.files:
            self._sent_timers.add(name.removeprefix(_TIMER_FILE))
            return
        self._open = None
        self._sent.pop(name, None)
        self._sent[name] = snapshot.version

    def _next(self, on_disk_end: int) -> _Open | None:
        """A snapshot that was not sent yet, or the one whose last was sent longest ago."""
        for name in [*(one for one in COPIED if one not in self._sent), *self._sent]:
            try:
                file = (self._snapshots / name).open("rb")
            except FileNotFoundError:
                continue
            found = os.fstat(file.fileno())
            version = _Version(found.st_ino, found.st_mtime_ns, found.st_size)
            files = deque([_File(name, version.size, file)])
            is_new = version.size > 0 and version != self._sent.get(name)
            if is_new and (name != TIMERS or self._add_timers(files)):
                return _Open(name, version, files, on_disk_end)
            _close(files)
        return None

    def _add_timers(self, files: deque[_File]) -> bool:
        """Put the files before their list that the replica does not have; False where the list is
        damaged, or was replaced meanwhile and one of them removed.
        """
        listed = files[-1].file
        found = copied_timers.names_in(listed.read())
        listed.seek(0)
        if found is None:
            return False
        self._sent_timers &= found
        for name in found - self._sent_timers:
            try:
                file = (self._timers / name).open("rb")
            except FileNotFoundError:
                return False
            files.appendleft(_File(_TIMER_FILE + name, os.fstat(file.fileno()).st_size, file))
        return True


class IncomingSnapshots:
    """Snapshots received over one connection. One thread at a time, blocking."""

    def __init__(self, data_dir: Path) -> None:
        store = data_dir / "store"
        self._folder = store / "snapshots"
        self._path = store / "making" / "copied-snapshot"
        self._timers = CopiedTimers(store)
        self._name = ""  # of the one that is being received
        self._at = 0

    def add(self, piece: Piece) -> bool:
        """Keep a piece; is a snapshot whole now? Raises BadFrame."""
        timers = _timer_file(piece.name)
        if piece.name not in COPIED and timers is None:
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
                if self._at == piece.size:
                    file.flush()
                    os.fsync(file.fileno())
            if timers is not None and self._at == piece.size:
                self._timers.add(timers, self._path)
                return False
        except OSError as error:
            self._give_up(error)
            return False
        return self._at == piece.size

    def keep(self) -> None:
        """Put the whole snapshot in place of the last one of its name; durable on return.

        Raises BadFrame.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path = self._folder / self._name
            if self._name == TIMERS:
                listed = copied_timers.names_in(self._path.read_bytes())
                if listed is None:
                    raise BadFrame("a list of timer files that cannot be read")
                self._timers.put_in_place(listed, before=path)
            self._path.replace(path)
            OsVfs().sync_directory(self._folder)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Abandon a snapshot; the log continues without it, and the next one may have space."""
        log.warning("snapshot_not_kept", name=self._name, reason=str(error))
        self._name = ""
        with suppress(OSError):
            self._path.unlink()


def _close(files: deque[_File]) -> None:
    for file in files:
        file.file.close()


def _timer_file(piece_name: str) -> str | None:
    """The name of the timer file that a piece is of."""
    name = piece_name.removeprefix(_TIMER_FILE)
    return name if name != piece_name and names.base_offset(name) is not None else None
