"""The registry's database: one connection, one thread, migrated when it is opened.

A registry has an identity, a row that is made with its tables: by it another database that takes
its place is known, at a start and while the service runs. A SQLite file that was deleted or
replaced would take every change and keep none, since the open connection still has the old file, so
that is asked before and after each change.

One connection, because older SQLite libraries have a bug that two writing ones can meet (fixed in
3.51.3). The rest of the settings are for durability: write-ahead log, FULL sync, no memory map (a
full disk would kill the process; the one that SQLite makes anyway has its blocks from the start).

A server may also neither answer nor refuse: its machine hangs, or a lock is held. So each piece of
work has a limit of time, by which its connection is cut; the next one makes another.

If that happens while a transaction ends, the database has its change or not, and the service cannot
say which. Then it changes nothing more until it has read the tables again (`settle`).
"""

import asyncio
import mmap
import os
import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import structlog
from sqlalchemy import (
    URL,
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    String,
    Table,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from app.registry.tables import metadata, registry_identity, service_leader
from storage.errors import (
    ChangeInDoubt,
    LaterRegistry,
    RegistryUnavailable,
    StorageFull,
    UnavailableError,
    UnusableRegistry,
)
from storage.files.vfs import is_disk_full

log = structlog.get_logger()

T = TypeVar("T")

_DISK_FULL = "53100"  # PostgreSQL's disk_full
# an integrity constraint, a rollback that is not one of "completion unknown"
_ROLLED_BACK = ("23", "40000", "40001", "40002", "40P01")
_UNIQUE_VIOLATION = "23505"  # PostgreSQL's
_DUPLICATES = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
# PostgreSQL's locks are numbers of 64 bits, and whose they are is by agreement
_OPENING = int.from_bytes(b"escrowmq", "big")
_CHANGING = _OPENING + 1  # shared by the changes, those of other services too

# where the wheel has them, see setup.py
_INSTALLED = Path(__file__).resolve().parent / "migrations"
MIGRATIONS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "alembic"

_REVISIONS = frozenset(
    path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py")
)
# The revision that the tables of the code have, which a test compares with alembic's own answer.
HEAD = max(_REVISIONS)

# Where alembic keeps the revision of a database, in its words.
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

_SQLITE_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "busy_timeout=5000",
    "foreign_keys=ON",
    "mmap_size=0",
    "trusted_schema=OFF",
    "cell_size_check=ON",
)

# Primary result codes of SQLite, the low byte of what the driver reports.
_PASSING = {
    sqlite3.SQLITE_BUSY: "another process locks it",
    sqlite3.SQLITE_LOCKED: "another process locks it",
    sqlite3.SQLITE_READONLY: "it cannot be written to",
    sqlite3.SQLITE_PERM: "it cannot be written to",
    sqlite3.SQLITE_IOERR: "its disk reports an error",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# states of PostgreSQL that its drivers do not count among those that may pass
_READ_ONLY, _NO_PERMISSION = "25006", "42501"
_PASSING_AT_SERVER = {
    _READ_ONLY: "it is read-only, as a standby is",
    _NO_PERMISSION: "its user lacks a permission",
}
_DAMAGED_AT_SERVER = ("XX001", "XX002")

# of the index of the write-ahead log: four of the pieces that SQLite maps, each of 4,000 pages
_INDEX_BYTES = 4 << 15

_SQLITE: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
# A server may have been restarted since the connection was last used: tested before use, it is
# replaced.
_SERVER: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_pre_ping": True}

_PATIENCE_S = 5.0  # for a piece of work, its turn and a connection; as SQLite's busy_timeout
_PATIENCE_AT_START_S = 60.0  # another process may be migrating the tables
# at the server, which would go on waiting for a lock when the connection is cut
_STATEMENT_LIMIT_MS = 4_000
_IDLE_LIMIT_MS = 5_000  # and for the end of a transaction, when it does not hear of the cut
_LOCK_LIMIT_MS = 50_000  # at a start

_IN_DOUBT = (
    "the answer to another change was lost, and nothing is changed until the database that holds "
    "topics, groups and schedules says whether it was made"
)

# why what was begun cannot be finished now, though it may be later
NOT_NOW = (UnavailableError, StorageFull, DatabaseError)

# in one statement, which is one round trip
_LIMITS = (
    f"SELECT set_config('statement_timeout', '{_STATEMENT_LIMIT_MS}', true), "
    f"set_config('idle_in_transaction_session_timeout', '{_IDLE_LIMIT_MS}', true)"
)
# a second statement, which the limits apply to, in the same round trip
_LIMITS_OF_CHANGE = f"{_LIMITS}; SELECT pg_advisory_xact_lock_shared({_CHANGING})"
_LIMIT_AT_START = f"SET LOCAL lock_timeout TO {_LOCK_LIMIT_MS}"
_WAIT_FOR_CHANGES = f"SELECT pg_advisory_xact_lock({_CHANGING})"


@dataclass
class _Turn:
    """A piece of work on the thread."""

    until_s: float  # monotonic: when its caller gives up
    may_be_made: bool = False  # the change that it makes


class Database:
    """Opened with `open`; every statement runs on its own thread."""

    def __init__(self, url: str | URL) -> None:
        self.identity = ""  # known once it is open
        self.changes = 0  # that were made, or may have been
        self.in_doubt = False  # one of them may have been; nothing is changed until `settle`
        # why it is no longer the registry that was opened, if it is not
        self.lost: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        url = make_url(url)
        is_sqlite = url.get_backend_name() == "sqlite"
        self._socket: socket.socket | None = None  # of the connection to a server
        self._turn = _Turn(0.0)  # of the job that runs
        if is_sqlite:
            self._engine = create_engine(url, **_SQLITE)
            event.listen(self._engine, "connect", _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_immediately)
        else:
            if "connect_timeout" not in url.query:
                url = url.update_query_dict({"connect_timeout": f"{_PATIENCE_S:.0f}"})
            self._engine = create_engine(url, **_SERVER)
            # first: SQLAlchemy's own listener has questions to a new server
            event.listen(self._engine, "connect", self._note_connection, insert=True)

        self._path = self._engine.url.database if is_sqlite else None
        self._file: tuple[int, int] | None = None  # device and inode of the file that was opened
        self._file_bytes = 0
        self._index: int | None = None  # a descriptor of `registry.db-shm`

    async def open(self) -> None:
        """Bring the schema up to date.

        Raises RegistryUnavailable, LaterRegistry and UnusableRegistry among them; StorageFull;
        DatabaseError where the file is damaged.
        """
        self.identity = await self._call(self._open, _PATIENCE_AT_START_S)

    async def check(self) -> str | None:
        """Compare the database with the one that was opened; the difference, or None. Raises
        RegistryUnavailable if a server cannot be reached.
        """
        await self._call(self._check)
        return self.lost

    async def run(self, work: Callable[[Connection], T]) -> T:
        """`work` in a transaction of its own; committed, and durable, on return.

        Raises StorageFull, RegistryUnavailable: nothing was changed; ChangeInDoubt: it may have
        been.
        """
        return await self._call(partial(self._change, work))

    async def run_apart(self, work: Callable[[Connection], T]) -> T:
        """`work` as `run` does it, but what it changes is read again for each use.

        So it neither waits for a change that is in doubt nor keeps others from being made. Raises
        StorageFull: nothing was changed; RegistryUnavailable: it may have been.
        """
        return await self._call(partial(self._change_apart, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """`work`, which changes nothing, in a transaction of its own. Raises RegistryUnavailable,
        StorageFull.
        """
        return await self._call(partial(self._guarded, work))

    async def settle(self, reload: Callable[[], Awaitable[None]]) -> None:
        """Take changes again after one that is in doubt.

        `reload` reads what the database has, once the transaction has ended. Raises
        RegistryUnavailable, and what `reload` raises: nothing is changed until the next attempt.
        """
        first = _wait_for_changes if self._path is None else _overwrite_what_failed
        await self._call(partial(self._guarded, first))
        await reload()
        self.in_doubt = False

    async def aclose(self) -> None:
        turn = _Turn(time.monotonic() + _PATIENCE_S)
        await asyncio.wrap_future(self._submit(self._close, turn, _PATIENCE_S))
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T], patience_s: float = _PATIENCE_S) -> T:
        turn = _Turn(time.monotonic() + patience_s)
        done = asyncio.wrap_future(self._submit(work, turn, patience_s))
        if self._path is not None:
            return await done  # SQLite itself gives up in time
        try:
            async with asyncio.timeout(patience_s):
                return await done
        except TimeoutError as error:
            if turn.may_be_made:
                self._begin_doubt()
                raise ChangeInDoubt from error
            raise RegistryUnavailable(
                "the database that holds topics, groups and schedules does not answer; messages of "
                "existing topics are not affected"
            ) from error

    def _submit(self, work: Callable[[], T], turn: _Turn, patience_s: float) -> Future[T]:
        """Queue `work` for the thread. Once its time is up its connection is cut, so that it does
        not hold the thread for ever, even if its caller waits no more.
        """
        job = self._thread.submit(self._do, work, turn)
        loop = asyncio.get_running_loop()

        def cut() -> None:
            connected = self._socket
            if connected is not None and job.running():
                with suppress(OSError):  # it is cut already
                    connected.shutdown(socket.SHUT_RDWR)
            if not job.done():  # it has its turn later, or has another connection by then
                loop.call_later(patience_s, cut)

        loop.call_later(patience_s, cut)
        return job

    def _do(self, work: Callable[[], T], turn: _Turn) -> T:
        self._turn = turn
        return work()

    def _note_connection(self, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # A descriptor of our own: the number of the driver's may be that of another connection
        # of the process by the time that this one is cut.
        before, self._socket = self._socket, socket.socket(fileno=os.dup(connection.fileno()))
        if before is not None:
            before.close()

    def _open(self) -> str:
        if self._path is not None:
            # as SQLite does: what it makes beside the file is beside the one that links lead to
            _refuse_unusable(Path(os.path.realpath(self._path)))
        else:
            # A change of the service before this one, which was killed, may not have ended. Not for
            # longer than that: the changes of other services wait meanwhile.
            self._in_transaction(_wait_at_start)
        identity = self._in_transaction(bring_up_to_date)
        if self._path is not None:
            found = os.stat(self._path)
            self._file, self._file_bytes = (found.st_dev, found.st_ino), found.st_size
            self._allocate_index(self._path)
        return identity

    def _allocate_index(self, path: str) -> None:
        """Take all blocks that the index of the write-ahead log needs.

        SQLite maps it, whatever `mmap_size` says, and makes it by writing a byte of each page. In a
        file system of smaller blocks the rest of the page has none, and once the disk is full, a
        write to it kills the process. Raises StorageFull.
        """
        if os.statvfs(path).f_bsize >= mmap.PAGESIZE:
            return  # it has them; to ask xfs for them again takes more space
        if self._index is None:
            with suppress(FileNotFoundError):  # a file system that has no such log
                self._index = os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC)
        if self._index is not None:
            try:
                os.posix_fallocate(self._index, 0, _INDEX_BYTES)
            except OSError as error:
                if is_disk_full(error):
                    raise StorageFull from error
                raise

    def _close(self) -> None:
        self._engine.dispose()
        if self._socket is not None:
            self._socket.close()
        # Not before: to close a descriptor of a file ends all locks of the process on it.
        if self._index is not None:
            os.close(self._index)

    def _change(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._guarded(partial(self._to_its_end, work), _LIMITS_OF_CHANGE)
        except RegistryUnavailable as error:
            if not self._turn.may_be_made:
                raise
            self._begin_doubt()
            raise ChangeInDoubt(self.lost) from error
        finally:
            self.changes += 1

    def _change_apart(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._guarded(work)
        finally:
            self.changes += 1

    def _begin_doubt(self) -> None:
        if not self.in_doubt:
            self.in_doubt = True
            log.warning("registry_in_doubt")

    def _to_its_end(self, work: Callable[[Connection], T], connection: Connection) -> T:
        if self.in_doubt:
            raise RegistryUnavailable(_IN_DOUBT)
        result = work(connection)
        self._turn.may_be_made = True  # from here on only the end of the transaction is missing
        return result

    def _guarded(self, work: Callable[[Connection], T], limits: str = _LIMITS) -> T:
        self._refuse_if_lost()
        try:
            result = self._in_transaction(partial(self._limited, work, limits))
        except DatabaseError as error:
            if _sqlite_code(error) in _DAMAGED or _sqlstate(error) in _DAMAGED_AT_SERVER:
                raise RegistryUnavailable(
                    "the database that holds topics, groups and schedules is damaged"
                ) from error
            raise
        self._refuse_if_lost()
        return result

    def _refuse_if_lost(self) -> None:
        if self._path is not None:
            self._check()
        if self.lost is not None:
            raise RegistryUnavailable(self.lost)

    def _check(self) -> None:
        self.lost = (
            self._in_transaction(partial(self._limited, self._other_tables, _LIMITS))
            if self._path is None
            else self._other_file(self._path)
        )

    def _other_file(self, path: str) -> str | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return "registry.db was deleted or moved away"
        except OSError as error:
            return f"registry.db cannot be reached: {error.strerror}"
        if (found.st_dev, found.st_ino) != self._file:
            return "registry.db was replaced by another file"
        return "registry.db was cut short" if found.st_size < self._file_bytes else None

    def _other_tables(self, connection: Connection) -> str | None:
        if not inspect(connection).has_table(registry_identity.name):
            return "the tables of the registry were deleted"
        if connection.scalar(select(registry_identity.c.identity)) != self.identity:
            return "the tables of the registry were replaced by others"
        return None

    def _limited(self, work: Callable[[Connection], T], limits: str, connection: Connection) -> T:
        """`work`, with limits of the server for each statement and between them, and only while its
        caller waits: what was refused is not made afterwards over another connection.

        Such limits of the connection would be lost behind a pooler.
        """
        if self._path is not None:
            return work(connection)
        self._refuse_if_late()
        connection.exec_driver_sql(limits).close()
        result = work(connection)
        self._refuse_if_late()
        return result

    def _refuse_if_late(self) -> None:
        if time.monotonic() >= self._turn.until_s:
            self._turn.may_be_made = False
            raise RegistryUnavailable

    def _in_transaction(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except DatabaseError as error:
            if _is_rolled_back(error):
                self._turn.may_be_made = False
            raise refused(error, self._engine.dialect.name) from error


def rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries."""
    return [
        {str(name): value for name, value in row.items()}
        for row in connection.execute(query).mappings()
    ]


def bring_up_to_date(connection: Connection) -> str:
    """Make the tables of a new database, migrate those of an older one; one process after the
    other. Returns its identity. Raises LaterRegistry.
    """
    # of SQLite the transaction has been the only one since it began
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LIMIT_AT_START)
        connection.execute(select(func.pg_advisory_xact_lock(_OPENING)))
    known = inspect(connection).get_table_names()
    if not known:
        # What alembic's cookbook says of new databases: the tables as they are now, and not by way
        # of each that they once were.
        metadata.create_all(connection)
        _VERSION.create(connection)
        connection.execute(_VERSION.insert().values(version_num=HEAD))
    else:
        revisions = list(connection.scalars(_VERSION.select())) if _VERSION.name in known else []
        refuse_later(revisions)
        if revisions != [HEAD]:
            migrate(connection, "head")
    identity = connection.scalar(select(registry_identity.c.identity))
    if identity is None:
        identity = token_hex(16)
        connection.execute(registry_identity.insert().values(identity=identity))
    if connection.scalar(select(service_leader.c.epoch)) is None:
        connection.execute(service_leader.insert().values(epoch=0, node="", is_alone=False))
    return str(identity)


def refuse_later(revisions: Iterable[str]) -> None:
    """`revisions`: that a database has. Raises LaterRegistry."""
    if unknown := set(revisions) - _REVISIONS:
        raise LaterRegistry(
            "a later release of EscrowMQ has changed the database that holds topics, groups and "
            f"schedules: it has revision {', '.join(sorted(unknown))}, and this release knows them "
            f"up to {HEAD}"
        )


def migrate(connection: Connection, revision: str) -> None:
    """Bring the schema to a revision, upwards or (by "base" or an older one) downwards."""
    # 250 ms of a start, most of which find everything as it must be
    from alembic.config import Config

    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    if revision == "base":
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def refused(error: DatabaseError, database: str) -> Exception:
    """The error that a failed statement becomes: what may pass, or is over with the next start, is
    RegistryUnavailable; a full disk is StorageFull.
    """
    code = _sqlite_code(error)
    state = _sqlstate(error)
    if code == sqlite3.SQLITE_FULL or state == _DISK_FULL:
        return StorageFull()
    if reason := _PASSING.get(code) or _PASSING_AT_SERVER.get(state):
        return RegistryUnavailable(
            f"the database that holds topics, groups and schedules is not available: {reason}"
        )
    if _is_duplicate(error):
        return RegistryUnavailable(
            "the database that holds topics, groups and schedules has an entry of this name that "
            "this service does not know: another program made it; start the service again"
        )
    is_away = isinstance(error, OperationalError) or error.connection_invalidated
    return RegistryUnavailable() if database != "sqlite" and is_away else error


def _sqlite_code(error: DatabaseError) -> int:
    """0 for an error of another database."""
    return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF


def _sqlstate(error: DatabaseError) -> str:
    """Empty for an error that no server has answered with."""
    return getattr(error.orig, "sqlstate", None) or ""


def _is_rolled_back(error: DatabaseError) -> bool:
    """Did PostgreSQL answer that the transaction is over without its change?"""
    return _sqlstate(error).startswith(_ROLLED_BACK) and not error.connection_invalidated


def _is_duplicate(error: DatabaseError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code in _DUPLICATES or _sqlstate(error) == _UNIQUE_VIOLATION


def _refuse_unusable(file: Path) -> None:
    """Raise UnusableRegistry where this process cannot use the file, or those that SQLite makes
    beside it.
    """
    if problem := next(_problems_of(file), None):
        raise UnusableRegistry(
            f"the database that holds topics, groups and schedules cannot be used: {problem}. "
            "Correct that, or name another database with ESCROWMQ_DATABASE_URL"
        )


def _problems_of(file: Path) -> Iterator[str]:
    folder = file.parent
    if not folder.is_dir():
        yield f"{folder} is not a folder"
    process = f"by this process, which runs as user {os.geteuid()}"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        yield f"{folder} may not be written {process}"
    for path in (file.with_name(f"{file.name}{end}") for end in ("", "-wal", "-shm")):
        if os.path.lexists(path) and not path.is_file():
            yield f"{path} is not a file"
        if path.exists() and not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            yield f"{path} may not be read and written {process}"


def _wait_for_changes(connection: Connection) -> None:
    connection.exec_driver_sql(_WAIT_FOR_CHANGES).close()


def _wait_at_start(connection: Connection) -> None:
    connection.exec_driver_sql(_LIMIT_AT_START)
    _wait_for_changes(connection)


def _overwrite_what_failed(connection: Connection) -> None:
    """Write a page of the file of SQLite.

    Where the disk refused a transaction at its end, the write-ahead log may have it, and a crash
    would bring back what is not read now. The next one takes its place.
    """
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {1 - version}")


def _set_up_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # Transactions are begun by us (below), not by the driver, which would begin them too late.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediately(connection: Connection) -> None:
    # A deferred transaction that read first fails with "database is locked" when it comes to write.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
