"""Work of a database within a limit of time, with any driver.

A driver waits in the system for a server that does not answer, some of them without end, and there
it cannot be interrupted: the work gets a thread of its own, which is left behind. Where a server
knows limits for locks, it ends such a wait itself, and says why.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from sqlalchemy import Connection

T = TypeVar("T")

# By the dialect: of a transaction, or of a connection, which is used for nothing else.
_LOCK_LIMITS = {
    "postgresql": "SET LOCAL lock_timeout = '{seconds}s'",
    "mysql": "SET SESSION lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}",
    "mssql": "SET LOCK_TIMEOUT {seconds}000",
}
_LOCK_LIMITS["mariadb"] = _LOCK_LIMITS["mysql"]


class NoAnswer(Exception):
    """A database that does not answer: the work may still be done."""


def within(limit_s: int, work: Callable[[Callable[[], None]], T]) -> T:
    """Do the work in a thread of its own, and return its result. Raises NoAnswer; what it raises.

    The work calls its argument whenever the database has answered: the limit counts from then.
    """
    signs: SimpleQueue[Future[T] | None] = SimpleQueue()

    def do() -> None:
        done: Future[T] = Future()
        try:
            done.set_result(work(lambda: signs.put(None)))
        except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
            done.set_exception(error)
        signs.put(done)

    threading.Thread(target=do, name="database", daemon=True).start()
    done = None
    while done is None:
        try:
            done = signs.get(timeout=limit_s)
        except Empty:
            raise NoAnswer(f"the database does not answer within {limit_s} s") from None
    return done.result()


def limit_locks(connection: Connection, limit_s: int) -> None:
    """Have the server end a wait for a lock within half of the limit, if it can, in this
    transaction.
    """
    statement = _LOCK_LIMITS.get(connection.dialect.name)
    if statement is not None:
        connection.exec_driver_sql(statement.format(seconds=-(-limit_s // 2)))
