"""The registry's database: one connection, one thread, migrated when it is opened.

One connection, because older SQLite libraries have a bug that two writing ones can meet (fixed in 3.51.3). The rest of the
settings are for durability: write-ahead log, FULL sync, no memory map (a full disk would kill the process).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from sqlite3 import SQLITE_FULL
from typing import Any, TypeVar

from sqlalchemy import (
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
    select,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from app.registry.tables import metadata
from storage.errors import RegistryUnavailable, StorageFull

T = TypeVar("T")

_DISK_FULL = "53100"  # PostgreSQL's disk_full
_OPENING = int.from_bytes(b"escrowmq", "big")  # PostgreSQL's locks are numbers of 64 bits, and whose they are is by agreement

_INSTALLED = Path(__file__).resolve().parent / "migrations"  # where the wheel has them, see setup.py
MIGRATIONS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "alembic"

# The revision that the tables of the code have, which a test compares with alembic's own answer.
HEAD = max(path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]

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

_SQLITE: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
# A server may have been restarted since the connection was last used: asked before, it is made anew.
_SERVER: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_pre_ping": True}


class Database:
    """Opened with `open`; every statement runs on its own thread."""

    def __init__(self, url: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        is_sqlite = url.startswith("sqlite")
        self._engine = create_engine(url, **(_SQLITE if is_sqlite else _SERVER))
        if is_sqlite:
            event.listen(self._engine, "connect", _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_immediately)

    async def open(self) -> None:
        """Bring the schema up to date."""
        await self._call(partial(self._in_transaction, bring_up_to_date))

    async def run(self, work: Callable[[Connection], T]) -> T:
        """`work` in a transaction of its own; committed, and durable, on return.

        Raises StorageFull: nothing was changed; RegistryUnavailable: it may have been, if the connection was lost at the end.
        """
        return await self._call(partial(self._in_transaction, work))

    async def aclose(self) -> None:
        await self._call(self._engine.dispose)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _in_transaction(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except OperationalError as error:
            raise refused(error, self._engine.dialect.name) from error


def rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in connection.execute(query).mappings()]


def bring_up_to_date(connection: Connection) -> None:
    """Make the tables of a new database, migrate those of an older one; one process after the other."""
    if connection.dialect.name == "postgresql":  # of SQLite the transaction has been the only one since it began
        connection.execute(select(func.pg_advisory_xact_lock(_OPENING)))
    known = inspect(connection).get_table_names()
    if not known:
        # What alembic's cookbook says of new databases: the tables as they are now, and not by way of each that they once were.
        metadata.create_all(connection)
        _VERSION.create(connection)
        connection.execute(_VERSION.insert().values(version_num=HEAD))
    elif _VERSION.name not in known or list(connection.scalars(_VERSION.select())) != [HEAD]:
        migrate(connection, "head")


def migrate(connection: Connection, revision: str) -> None:
    """Bring the schema to a revision, upwards or (by "base" or an older one) downwards."""
    from alembic.config import Config  # 250 ms of a start, most of which find everything as it must be

    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    if revision == "base":
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def refused(error: OperationalError, database: str) -> Exception:
    """What an error of the database's means: of a server it passes, of a file it is damage; the disk of either may be full."""
    if getattr(error.orig, "sqlite_errorcode", None) == SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _DISK_FULL:
        return StorageFull()
    return error if database == "sqlite" else RegistryUnavailable()


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
