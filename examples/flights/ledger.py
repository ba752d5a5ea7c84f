"""The example's own database: the flights, and a marker for each transaction that says what became
of it.

This is the half of the pattern that belongs to the application. A flight and its marker are written
in one local transaction, so "is there a marker?" answers every check. Where there is none, the
answer may still be on its way: `fence` puts in the marker "rollback" itself, and the local
transaction of a producer that was only slow then fails on it. Whoever inserts first has decided;
from that moment on the answer never changes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from escrowmq_client import FencedError
from examples.flights.data import Flight

_BUSY_SECONDS = 60
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE flights (
    number INTEGER PRIMARY KEY,
    designator TEXT NOT NULL,
    scheduled TEXT NOT NULL,
    departed TEXT,
    transaction_id TEXT NOT NULL,
    message_id TEXT NOT NULL
);
CREATE TABLE markers (
    position INTEGER PRIMARY KEY,
    transaction_id TEXT NOT NULL UNIQUE,
    outcome TEXT NOT NULL CHECK (outcome IN ('commit', 'rollback')),
    written_by TEXT NOT NULL
);
CREATE INDEX fences ON markers (written_by) WHERE written_by = 'checker';
"""


class Outcome(StrEnum):
    """What became of a transaction. The values are the words of the service's API."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


class Entry(NamedTuple):
    """A flight as the ledger has it."""

    transaction_id: str
    message_id: str


class Fenced(FencedError):
    """The transaction was given up before this producer wrote: nothing was written."""


class Ledger:
    """One connection; each process and each thread has its own."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        # With WAL this survives any kill -9; only a power cut could take the last commits, and the
        # demo cuts no power.
        self._database.execute("PRAGMA synchronous = NORMAL")

    @classmethod
    def create(cls, path: Path) -> "Ledger":
        ledger = cls(path)
        ledger._database.executescript(_SCHEMA)
        return ledger

    def close(self) -> None:
        self._database.close()

    # ----------------------------------------------------------------------------------------------
    # producer, checker

    def write(self, flight: Flight, transaction_id: str, message_id: str) -> Outcome:
        """The local transaction: the flight with its marker, or neither. Raises Fenced."""
        outcome = Outcome.ROLLBACK if flight.departed is None else Outcome.COMMIT
        with self._transaction():
            if not self._mark(transaction_id, outcome, "producer"):
                raise Fenced(transaction_id)
            self._database.execute(
                "INSERT INTO flights VALUES (?, ?, ?, ?, ?, ?)",
                (
                    flight.number,
                    flight.designator,
                    flight.scheduled,
                    flight.departed,
                    transaction_id,
                    message_id,
                ),
            )
        return outcome

    def outcome(self, transaction_id: str) -> Outcome | None:
        """What became of it; None where the ledger has never seen it."""
        outcome = self._value(
            "SELECT outcome FROM markers WHERE transaction_id = ?", transaction_id
        )
        return None if outcome is None else Outcome(outcome)

    def fence(self, transaction_id: str) -> Outcome:
        """Make sure that it has a marker: "rollback", unless a producer has written after all.

        Returns what the marker says.
        """
        with self._transaction():
            self._mark(transaction_id, Outcome.ROLLBACK, "checker")
        outcome = self.outcome(transaction_id)
        assert outcome is not None
        return outcome

    # ----------------------------------------------------------------------------------------------
    # the demo itself

    def last_written(self, first: int, last: int) -> int | None:
        """The highest flight number written from `first` to `last`: a new producer goes on behind
        it.
        """
        number: int | None = self._value(
            "SELECT max(number) FROM flights WHERE number BETWEEN ? AND ?", first, last
        )
        return number

    def written_count(self) -> int:
        """Of flights.

        Each came with a marker and none is ever removed, so nothing large has to be counted.
        """
        return int(self._value("SELECT max(position) FROM markers") or 0) - self.fence_count()

    def fence_count(self) -> int:
        """Of markers that the checker put in."""
        return int(self._value("SELECT count(*) FROM markers WHERE written_by = 'checker'"))

    def flights(self) -> dict[int, Entry]:
        """Every flight by its number."""
        rows = self._database.execute("SELECT number, transaction_id, message_id FROM flights")
        return {
            number: Entry(transaction_id, message_id) for number, transaction_id, message_id in rows
        }

    def markers(self) -> dict[str, Outcome]:
        """Every marker by its transaction."""
        rows = self._database.execute("SELECT transaction_id, outcome FROM markers")
        return {transaction_id: Outcome(outcome) for transaction_id, outcome in rows}

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _mark(self, transaction_id: str, outcome: Outcome, written_by: str) -> bool:
        """False where there is a marker already."""
        inserted = self._database.execute(
            "INSERT OR IGNORE INTO markers (transaction_id, outcome, written_by) VALUES (?, ?, ?)",
            (transaction_id, outcome, written_by),
        )
        return inserted.rowcount == 1

    def _value(self, query: str, *values: str | int) -> Any:
        """The first column of the first row; None where there is no row."""
        row = self._database.execute(query, values).fetchone()
        return None if row is None else row[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: wait for the other writers here, where nothing has been read or written yet.
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
