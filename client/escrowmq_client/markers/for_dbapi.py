"""Markers through a driver alone (DB-API 2.0): sqlite3, psycopg, psycopg2, PyMySQL, mysqlclient and
others.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any

from escrowmq_client.markers.base import (
    DEFAULT_LOCK_TIMEOUT_MS,
    IN_LOCAL_TRANSACTION,
    IsOpen,
    Local,
    MarkerCommitsAlone,
    Markers,
)
from escrowmq_client.markers.drivers import (
    begins_always,
    commits_by_itself,
    in_transaction,
    is_autocommit,
)
from escrowmq_client.markers.statements import (
    DEFAULT_TABLE,
    ISOLATION,
    Dialect,
    Paramstyle,
    Statement,
    statements,
)

# Where the driver begins no transaction by itself. On SQLite the insert of a fence is the first
# statement, so that it waits for the one writer as BEGIN IMMEDIATE does, and a read waits for none.
_BEGIN: dict[Dialect, str] = {
    "postgresql": "BEGIN",
    "mysql": "START TRANSACTION",
    "sqlite": "BEGIN",
}


class DbApiMarkers(Markers):
    """Markers in the database that `connect` connects to.

    `connect` returns a new connection, or a context manager that gives one of a pool and takes it
    back, as `psycopg_pool.ConnectionPool.connection` does. It is called for each `outcome`, so a
    pool makes them faster.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        dialect: Dialect,
        paramstyle: Paramstyle,
        table: str = DEFAULT_TABLE,
        lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
    ) -> None:
        """`paramstyle`: that of the driver's module (`sqlite3.paramstyle`)."""
        self._connect = connect
        super().__init__(statements(dialect, paramstyle, table), lock_timeout_ms)

    def _insert(self, db: Any, statement: Statement, values: dict[str, object]) -> IsOpen:
        if commits_by_itself(db):
            raise MarkerCommitsAlone(
                "the connection is in autocommit: begin a transaction, or turn autocommit off"
            )
        _execute(db, statement, values)
        return lambda: False

    @contextmanager
    def _connected(self) -> Iterator[Local]:
        made = self._connect()
        is_connection = hasattr(made, "cursor")
        manager: AbstractContextManager[Any] = closing(made) if is_connection else made
        with manager as connection:
            yield _Own(connection, self._statements.dialect)


class _Own(Local):
    """A connection of a driver, for short transactions."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if in_transaction(self._connection):
            raise RuntimeError(IN_LOCAL_TRANSACTION)
        try:
            self._begin()
            yield
            self._end("COMMIT")
        except BaseException:
            # a connection that is lost has no transaction any more
            with suppress(Exception):
                self._end("ROLLBACK")
            raise

    def _begin(self) -> None:
        level = ISOLATION[self._dialect]
        isolation = f"SET TRANSACTION ISOLATION LEVEL {level}"
        if self._dialect == "mysql":
            self._plain(isolation)  # of the next transaction
        begins_by_itself = self._dialect == "postgresql" or begins_always(self._connection)
        if is_autocommit(self._connection) or not begins_by_itself:
            self._plain(_BEGIN[self._dialect])
        if self._dialect == "postgresql":
            self._plain(isolation)  # of this one

    def run(self, statement: Statement, **values: object) -> list[Any]:
        return _execute(self._connection, statement, values)

    def _plain(self, text: str) -> None:
        _execute(self._connection, Statement(text, (), False), {})

    def _end(self, text: str) -> None:
        if is_autocommit(self._connection):
            self._plain(text)  # some drivers ignore commit() then
        elif text == "COMMIT":
            self._connection.commit()
        else:
            self._connection.rollback()


def _execute(connection: Any, statement: Statement, values: dict[str, object]) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        if statement.names:
            cursor.execute(statement.text, statement.values(values))
        else:
            cursor.execute(statement.text)
        return list(cursor.fetchall()) if cursor.description else []
