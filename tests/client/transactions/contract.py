"""The contract of a transaction block, put to the test: the program dies, or is slow, at each of
its steps, and what the service published and what the database holds agree all the same.

A step is each request and each statement, before it and behind it; the program itself says what its
steps are. At each one the program is killed with SIGKILL, ended with `os._exit`, or made to wait
while the checker answers. Then checks are answered until the transaction is decided.

`python -m tests.client.transactions.contract --style dbapi --database JSON --runs N` prints what it
found.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import event

from escrowmq_client import Checker, Client, CommitPending, FencedError, NotFound, Retry
from escrowmq_client.call import Call
from escrowmq_client.markers import DbApiMarkers
from pytest_escrowmq.service import EscrowMQ
from tests.client.transactions.databases import (
    STYLES,
    Database,
    MySqlDatabase,
    PostgreSqlDatabase,
    SqliteDatabase,
    Style,
)

GROUP = "shop"
TOPIC = "orders"
LOCK_TIMEOUT_MS = 100  # the checker beside a program that waits
_MOST_ROUNDS = 10  # of checks, until a transaction is decided

At = Callable[[str], None]
WAYS = ("SIGKILL", "os._exit", "slow")


class WatchedClient(Client):
    """Its calls are steps."""

    at: At

    def call(self, call: Call[Any], /) -> Any:
        self.at(f"before {call.operation}")
        result = super().call(call)
        self.at(f"behind {call.operation}")
        return result


class Watched:
    """A connection or cursor of a driver whose statements are steps."""

    def __init__(self, inner: Any, at: At) -> None:
        self._inner = inner
        self._at = at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "cursor":
            return lambda: Watched(found(), self._at)
        if name not in ("execute", "commit"):
            return found

        def watched(*given: Any) -> Any:
            what = " ".join(given[0].split()[:3]) if given else "COMMIT"
            self._at(f"before {what}")
            result = found(*given)
            self._at(f"behind {what}")
            return result

        return watched


def watch(style: Style, at: At) -> None:
    """Make steps of the statements of this style."""
    if not hasattr(style, "engine"):
        database, connect = style.database, style.database.connect
        object.__setattr__(database, "connect", lambda: Watched(connect(), at))
        style.markers = DbApiMarkers(
            database.connect, dialect=database.dialect, paramstyle=database.paramstyle
        )
        return

    @event.listens_for(style.engine, "before_cursor_execute")
    def before(connection, cursor, statement, *_):
        at(f"before {' '.join(statement.split()[:3])}")

    @event.listens_for(style.engine, "after_cursor_execute")
    def behind(connection, cursor, statement, *_):
        at(f"behind {' '.join(statement.split()[:3])}")

    do_commit = style.engine.dialect.do_commit

    def commit(connection) -> None:
        at("before COMMIT")
        do_commit(connection)
        at("behind COMMIT")

    style.engine.dialect.do_commit = commit


def produce(style_name: str, database: Database, url: str, transaction_id: str, at: At) -> None:
    """The program under test: an order and its message, or neither."""
    style = STYLES[style_name](database)
    watch(style, at)
    client = WatchedClient(url, retry=Retry(total_ms=0))
    client.at = at
    with (
        suppress(FencedError, CommitPending),
        client.transaction(GROUP, id=transaction_id, markers=style.markers) as tx,
    ):
        tx.add(TOPIC, json=transaction_id, key=transaction_id)
        with style.local() as db:
            tx.mark(db)
            style.execute(db, f"INSERT INTO orders VALUES ('{transaction_id}')")


class Campaign:
    """Runs of the program against one database."""

    def __init__(self, style_name: str, database: Database, service: EscrowMQ) -> None:
        self._style_name = style_name
        self._database = database
        self._service = service
        self._style = STYLES[style_name](database, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._client = Client(service.url)
        self._numbers = count(1)
        self._checker = Checker(self._client, GROUP, self._style.markers.outcome, wait_ms=0)
        self._style.markers.create_table()
        with self._style.local() as db:
            self._style.execute(db, "CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY)")
        service.topic(TOPIC)
        service.producer_group(GROUP)

    def steps(self) -> list[str]:
        """What the program does, in order, seen once without a kill."""
        reader, writer = os.pipe()
        seen: list[str] = []

        def look() -> None:
            self._produce(self._new_id(), seen.append)
            os.write(writer, "\n".join(seen).encode())

        child = fork(look)
        os.close(writer)
        with os.fdopen(reader) as told:
            lines = told.read().splitlines()
        assert os.waitpid(child, 0)[1] == 0
        return lines

    def run(self, step: int, way: str) -> str | None:
        """One program that is stopped at this step; how database and service differ, or None."""
        transaction_id = self._new_id()
        report, reported = os.pipe()
        resume, resumed = os.pipe()
        passed = count()

        def at(_: str) -> None:
            if next(passed) != step:
                return
            os.write(reported, b"!")
            if way == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            elif way == "os._exit":
                os._exit(9)
            os.read(resume, 1)

        child = fork(lambda: self._produce(transaction_id, at))
        os.close(reported)
        was_reached = os.read(report, 1) == b"!"
        if was_reached and way == "slow":
            self._check()
        os.write(resumed, b"!")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for end in (report, resume, resumed):
            os.close(end)
        if status != {"SIGKILL": -9, "os._exit": 9, "slow": 0}[way] and was_reached:
            return f"the program ended with {status}"
        return self._difference(transaction_id)

    def close(self) -> None:
        self._client.close()
        self._style.close()

    def published(self) -> Counter[str]:
        """What consumers see, and how often."""
        return Counter(json.loads(one["payload"]) for one in self._service.messages(TOPIC))

    def written(self) -> Counter[str]:
        """The orders in the database."""
        with closing(self._database.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id FROM orders")
            found = Counter(row[0] for row in cursor.fetchall())
            cursor.close()
        return found

    def _new_id(self) -> str:
        return f"order-{next(self._numbers)}"

    def _produce(self, transaction_id: str, at: At) -> None:
        produce(self._style_name, self._database, self._service.url, transaction_id, at)

    def _check(self) -> None:
        self._service.advance(seconds=31)
        self._checker.run_once()

    def _difference(self, transaction_id: str) -> str | None:
        state = self._state(transaction_id)
        for _ in range(_MOST_ROUNDS):
            if state not in ("prepared", "held"):
                break
            self._check()
            state = self._state(transaction_id)
        is_written = self.written()[transaction_id]
        expected = "committed" if is_written else "rolled_back"
        if state == expected or (state == "unknown to the service" and not is_written):
            return None
        return f"{state}, and the database has {is_written} orders"

    def _state(self, transaction_id: str) -> str:
        try:
            return self._client.get_transaction(transaction_id).state
        except NotFound:
            return "unknown to the service"


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
    finally:
        os._exit(status)


def database_of(text: str) -> Database:
    """From the command line: its kind and what it is made of."""
    kind, *made_of = json.loads(text)
    return {"sqlite": SqliteDatabase, "postgresql": PostgreSqlDatabase, "mysql": MySqlDatabase}[
        kind
    ](*made_of)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--style", required=True, choices=STYLES)
    arguments.add_argument("--database", required=True, type=database_of)
    arguments.add_argument("--runs", type=int, default=0, help="0: each step once in each way")
    given = arguments.parse_args()
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as folder, EscrowMQ(Path(folder)) as service:
        campaign = Campaign(given.style, given.database, service)
        steps = campaign.steps()
        everything = [(step, way) for step in range(len(steps)) for way in WAYS]
        runs = given.runs or len(everything)
        for number in range(runs):
            step, way = everything[number % len(everything)]
            difference = campaign.run(step, way)
            if difference is not None:
                differences.append(f"{way} {steps[step]} ({step}): {difference}")
        if campaign.published() != campaign.written():
            differences.append("messages and orders differ")
        campaign.close()
    sys.stdout.writelines(f"{difference}\n" for difference in differences)
    sys.stdout.write(f"{runs} runs at {len(steps)} steps, {len(differences)} differ\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
