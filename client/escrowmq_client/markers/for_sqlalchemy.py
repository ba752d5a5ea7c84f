"""Markers through SQLAlchemy, 1.4.40 to 2.x: for an Engine, a Connection, a Session, and their
asynchronous forms.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import StaticPool

from escrowmq_client.markers.base import (
    DEFAULT_LOCK_TIMEOUT_MS,
    IN_LOCAL_TRANSACTION,
    Asked,
    IsOpen,
    Local,
    MarkerCommitsAlone,
    Markers,
    Outcome,
    OutcomeUnknown,
    reason_of,
)
from escrowmq_client.markers.drivers import in_transaction, is_autocommit
from escrowmq_client.markers.statements import (
    DEFAULT_TABLE,
    ISOLATION,
    Dialect,
    Statement,
    statements,
)

# SQLAlchemy has names of its own for some.
_DIALECTS: dict[str, Dialect] = {
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}


class SqlAlchemyMarkers(Markers):
    """Markers in the database of an engine.

    `mark` takes a Connection or a Session with a transaction of the caller, or an AsyncConnection
    or AsyncSession through `mark_async` (it is `await db.run_sync(markers.mark, id)`). `outcome`
    takes a connection of the engine for a short transaction of its own.
    """

    def __init__(
        self,
        engine: Any,
        *,
        table: str = DEFAULT_TABLE,
        lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
    ) -> None:
        """`engine`: an Engine or an AsyncEngine."""
        self._async_engine: Any = engine if hasattr(engine, "sync_engine") else None
        self._engine: Engine = getattr(engine, "sync_engine", engine)
        name = self._engine.dialect.name
        if name not in _DIALECTS:
            raise ValueError(f"no markers for {name}: {', '.join(sorted(_DIALECTS))}")
        super().__init__(statements(_DIALECTS[name], "named", table), lock_timeout_ms)

    @classmethod
    def of(cls, db: Any) -> "SqlAlchemyMarkers":
        """Markers in the database of a connection or session, in the table of the usual name."""
        if hasattr(db, "run_sync"):
            bound = getattr(db, "bind", None) or db
        else:
            bound = db.get_bind() if hasattr(db, "get_bind") else db
        # an engine, not a connection; an AsyncEngine has an `engine` too, which is not asynchronous
        return cls(bound if hasattr(bound, "connect") else bound.engine)

    async def mark_async(self, db: Any, transaction_id: str) -> IsOpen:
        """The same as `mark`, for an AsyncConnection or AsyncSession."""
        if hasattr(db, "run_sync"):
            return cast("IsOpen", await db.run_sync(self.mark, transaction_id))
        return self.mark(db, transaction_id)

    async def outcome_async(self, transaction: str | Asked) -> Outcome:
        """The same as `outcome`; through the AsyncEngine if there is one."""
        if self._async_engine is None:
            return await super().outcome_async(transaction)
        transaction_id = transaction if isinstance(transaction, str) else transaction.transaction_id
        try:
            self._refuse_inside()
            async with self._async_engine.connect() as connection:
                return cast("Outcome", await connection.run_sync(self._decide_on, transaction_id))
        except OutcomeUnknown:
            raise
        except Exception as error:
            raise OutcomeUnknown(transaction_id, reason_of(error)) from error

    def create_table(self) -> None:
        """Create the table if it does not exist. Raises TypeError for an AsyncEngine."""
        if self._async_engine is not None:
            raise TypeError("for an AsyncEngine, await markers.create_table_async()")
        super().create_table()

    async def create_table_async(self) -> None:
        """The same as `create_table`; through the AsyncEngine if there is one."""
        if self._async_engine is None:
            await super().create_table_async()
            return
        self._refuse_inside()
        async with self._async_engine.connect() as connection:
            await connection.run_sync(lambda one: self._create(_Own(one)))

    def _insert(self, db: Any, statement: Statement, values: dict[str, object]) -> IsOpen:
        # of a Session, in its transaction
        connection: Connection = db.connection() if hasattr(db, "get_bind") else db
        if _commits_by_itself(connection):
            raise MarkerCommitsAlone(
                "the connection is in autocommit: mark in a transaction, as of engine.begin()"
            )
        _execute(connection, statement, values)
        transaction = connection.get_transaction()
        return lambda: transaction is not None and transaction.is_active

    @contextmanager
    def _connected(self) -> Iterator[Local]:
        self._refuse_inside()
        with self._engine.connect() as connection:
            yield _Own(connection)

    def _refuse_inside(self) -> None:
        """To give the one connection of a StaticPool back would end what is open on it."""
        pool = self._engine.pool
        if isinstance(pool, StaticPool) and in_transaction(pool.connection.driver_connection):
            raise RuntimeError(IN_LOCAL_TRANSACTION)

    def _decide_on(self, connection: Connection, transaction_id: str) -> Outcome:
        return self._decide(_Own(connection), transaction_id)


class _Own(Local):
    """A connection of the engine, for short transactions."""

    def __init__(self, connection: Connection) -> None:
        level = ISOLATION[_DIALECTS[connection.dialect.name]]
        if level is not None:
            connection = connection.execution_options(isolation_level=level)
        self._connection = connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if in_transaction(_driver_connection(self._connection)):
            raise RuntimeError(IN_LOCAL_TRANSACTION)
        with self._connection.begin():
            yield

    def run(self, statement: Statement, **values: object) -> list[Any]:
        return _execute(self._connection, statement, values)


def _execute(connection: Connection, statement: Statement, values: dict[str, object]) -> list[Any]:
    given = {name: values[name] for name in statement.names} or None
    result = connection.execute(text(statement.text), given)
    return list(result.fetchall()) if result.returns_rows else []


def _commits_by_itself(connection: Connection) -> bool:
    """Whether the next statement would be committed at once.

    SQLAlchemy knows of autocommit that it has set itself. Of the asyncpg driver its adapter alone
    does, in `dbapi_connection`.
    """
    driver, adapter = _driver_connection(connection), connection.connection.dbapi_connection
    is_alone = (
        connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        or is_autocommit(driver)
        or is_autocommit(adapter)
    )
    return is_alone and not in_transaction(driver)


def _driver_connection(connection: Connection) -> Any:
    """The connection of the driver itself, without the adapter of an asynchronous one."""
    return connection.connection.driver_connection
