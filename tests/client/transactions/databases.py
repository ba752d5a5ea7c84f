"""A producer's database of each kind, and both ways to it: an engine, and a driver's connection."""

import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pymysql
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from escrowmq_client.markers import DbApiMarkers, Dialect, Markers, Paramstyle
from escrowmq_client.markers.for_sqlalchemy import SqlAlchemyMarkers

# Long enough for a busy machine, where it must not end; where it must, a test sets a short one.
LOCK_TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class Database:
    """Can be sent to another process."""

    dialect: Dialect = "sqlite"
    paramstyle: Paramstyle = "qmark"

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        raise NotImplementedError

    def connect(self) -> Any:
        """A new connection of the driver."""
        raise NotImplementedError

    def engine(self, **options: Any) -> Engine:
        return create_engine(self.url, **options)

    def placeholders(self, count: int) -> str:
        return ", ".join(["?" if self.paramstyle == "qmark" else "%s"] * count)


@dataclass(frozen=True)
class SqliteDatabase(Database):
    path: str = ""

    def __init__(self, path: str) -> None:
        super().__init__("sqlite", "qmark")
        object.__setattr__(self, "path", path)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60, check_same_thread=False)


@dataclass(frozen=True)
class PostgreSqlDatabase(Database):
    at: str = ""

    def __init__(self, at: str) -> None:
        super().__init__("postgresql", "pyformat")
        object.__setattr__(self, "at", at)

    @property
    def url(self) -> str:
        return self.at

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.at.replace("+psycopg", ""))


@dataclass(frozen=True)
class MySqlDatabase(Database):
    socket: str = ""
    name: str = ""

    def __init__(self, socket: str, name: str) -> None:
        super().__init__("mysql", "pyformat")
        object.__setattr__(self, "socket", socket)
        object.__setattr__(self, "name", name)

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@localhost/{self.name}?unix_socket={self.socket}"

    def connect(self) -> pymysql.Connection:
        return pymysql.connect(unix_socket=self.socket, user="root", database=self.name)


class Style:
    """Markers of one style, and local transactions with a connection of the same style."""

    def __init__(self, database: Database, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> None:
        self.database = database
        self.markers: Markers = self._made(lock_timeout_ms)

    def _made(self, lock_timeout_ms: int) -> Markers:
        raise NotImplementedError

    @contextmanager
    def local(self):
        """A local transaction, committed at the end."""
        raise NotImplementedError

    def execute(self, db: Any, text: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""


class SqlAlchemyStyle(Style):
    def _made(self, lock_timeout_ms: int) -> Markers:
        self.engine = self.database.engine()
        return SqlAlchemyMarkers(self.engine, lock_timeout_ms=lock_timeout_ms)

    @contextmanager
    def local(self):
        with self.engine.begin() as connection:
            yield connection

    def execute(self, db: Any, text: str) -> None:
        db.exec_driver_sql(text)

    def close(self) -> None:
        self.engine.dispose()


class DbApiStyle(Style):
    def _made(self, lock_timeout_ms: int) -> Markers:
        return DbApiMarkers(
            self.database.connect,
            dialect=self.database.dialect,
            paramstyle=self.database.paramstyle,
            lock_timeout_ms=lock_timeout_ms,
        )

    @contextmanager
    def local(self):
        connection = self.database.connect()
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def execute(self, db: Any, text: str) -> None:
        cursor = db.cursor()
        cursor.execute(text)
        cursor.close()


STYLES = {"sqlalchemy": SqlAlchemyStyle, "dbapi": DbApiStyle}
