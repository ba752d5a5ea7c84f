"""Errors and connections of drivers, each of which has its own way to describe them.

    driver                              code of an error            state of a connection
    psycopg, psycopg2, asyncpg          `sqlstate` or `pgcode`      `info.transaction_status`
    PyMySQL, mysqlclient                the first argument          `server_status` (PyMySQL)
    mysql.connector                     `errno`                     `in_transaction`
    sqlite3                             its text (a code from 3.11) `in_transaction`

SQLAlchemy has the driver's error in `orig`. Pure but for reading attributes.
"""

from enum import Enum
from typing import Any

from escrowmq_client.markers.statements import Dialect, Paramstyle

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the MySQL protocol
_LEGACY_AUTOCOMMIT = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL: `isolation_level` decides


class Failure(Enum):
    """Meaning of a driver's error for a marker."""

    DUPLICATE = "there is a marker already"
    REPEAT = "the database gave the transaction up: deadlock, serialization"
    LOCKED = "the lock was not to be had in time"
    OTHER = "anything else"


_SQLSTATE = {
    "23505": Failure.DUPLICATE,
    "40001": Failure.REPEAT,
    "40P01": Failure.REPEAT,
    "55P03": Failure.LOCKED,
}
_MYSQL = {
    1062: Failure.DUPLICATE,
    1213: Failure.REPEAT,
    1020: Failure.REPEAT,  # MariaDB with innodb_snapshot_isolation
    1205: Failure.LOCKED,
}
_SQLITE = (
    ("UNIQUE constraint failed", Failure.DUPLICATE),
    ("is locked", Failure.LOCKED),  # the database, or its table in a shared cache
)

# By the first part of the module in which the class of the connection is.
_DRIVERS: dict[str, tuple[Dialect, Paramstyle]] = {
    "sqlite3": ("sqlite", "qmark"),
    "psycopg": ("postgresql", "pyformat"),
    "psycopg2": ("postgresql", "pyformat"),
    "pymysql": ("mysql", "pyformat"),
    "MySQLdb": ("mysql", "format"),
    "mysql": ("mysql", "pyformat"),
    "mariadb": ("mysql", "qmark"),
}


def failure_of(error: BaseException) -> Failure:
    """Classify an error, through the wrapping of SQLAlchemy."""
    found: Any = getattr(error, "orig", None) or error
    # the asynchronous drivers of SQLAlchemy wrap it once more
    for one in (found, found.__cause__):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if state in _SQLSTATE:
            return _SQLSTATE[state]
        number = getattr(one, "errno", None) or (one.args[0] if _has_code(one) else None)
        if number in _MYSQL:
            return _MYSQL[number]
        if type(one).__module__.partition(".")[0] == "sqlite3":
            for text, failure in _SQLITE:
                if text in str(one):
                    return failure
    return Failure.OTHER


def driver_of(connection: Any) -> tuple[Dialect, Paramstyle] | None:
    """Dialect and paramstyle by the class of the connection, or one of its bases; None if the
    driver is not a known one.
    """
    for kind in type(connection).__mro__:
        known = _DRIVERS.get(kind.__module__.partition(".")[0])
        if known is not None:
            return known
    return None


def in_transaction(connection: Any) -> bool | None:
    """Whether the connection is in a transaction now; None if its driver does not say."""
    if begins_always(connection):
        return None
    found = getattr(connection, "in_transaction", None)
    if isinstance(found, bool):
        return found
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if isinstance(status, int):
        return status != 0  # IDLE
    status = getattr(connection, "server_status", None)
    return bool(status & _IN_TRANSACTION) if isinstance(status, int) else None


def commits_by_itself(connection: Any) -> bool:
    """Whether the next statement would be committed at once: the connection is in autocommit, and
    not known to be in a transaction.
    """
    return is_autocommit(connection) and not in_transaction(connection)


def is_autocommit(connection: Any) -> bool:
    """Whether the connection begins no transaction by itself; False if its driver does not say."""
    mode = getattr(connection, "autocommit", None)
    if callable(mode):  # PyMySQL, mysqlclient: a method that sets it
        read = getattr(connection, "get_autocommit", None)
        return bool(read()) if callable(read) else False
    if isinstance(mode, bool):
        return mode
    if mode is None or mode == _LEGACY_AUTOCOMMIT:  # sqlite3
        return hasattr(connection, "isolation_level") and connection.isolation_level is None
    return False


def begins_always(connection: Any) -> bool:
    """Whether it is a connection of sqlite3 with `autocommit=False`: always in a transaction."""
    mode = getattr(connection, "autocommit", None)
    return mode is False and driver_of(connection) == _DRIVERS["sqlite3"]


def _has_code(error: Any) -> bool:
    return bool(error is not None and error.args and isinstance(error.args[0], int))
