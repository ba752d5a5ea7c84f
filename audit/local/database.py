"""Rows of a log in a temporary SQLite database, and what the rules make of them.

The database has the rows that belong to a transaction; of all others it has their number and
bytes.

All SQL is made of expressions of `rules.py` and of numbers: texts of a log are values only.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit import rules
from audit.columns import Role
from audit.rules import NAMED_HALF, READ_COLUMNS, Bounds
from audit.scope import Scope
from audit.sums import Place
from audit.verdicts import Fact

LOG_COLUMNS = (*READ_COLUMNS, "message_id")
# a row for each half that an op names by its number, with the id of the half's transaction: as
# `outcomes.with_plain_ops` makes them
_PLAIN_OPS = f"""
SELECT {{columns}} FROM (
    SELECT named_by AS log_offset, 0 AS record_bytes, {int(Role.PLAIN_OP)} AS role,
           number AS first_half_offset,
           coalesce(halves.transaction_id, '{NAMED_HALF}' || number) AS transaction_id,
           NULL AS queue_offset, NULL AS stored_ms, NULL AS prepared_offset, NULL AS body_crc,
           NULL AS message_hash, NULL AS group_hash, NULL AS message_count
    FROM (SELECT number, min(log_offset) AS named_by FROM plain_ops GROUP BY number)
    LEFT JOIN log AS halves
        ON halves.queue_offset = number AND (halves.role & {int(Role.HALF)}) != 0
)
"""


class Database:
    """Add everything, then `judge`, then ask."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """`connection`: as `connection.connect` makes it."""
        self._connection = connection
        self._execute(f"CREATE TABLE log ({', '.join(LOG_COLUMNS)})")
        self._execute("CREATE TABLE plain_ops (log_offset, number)")
        self._execute("CREATE TABLE damage (log_offset, record_bytes, kind, damage, segment)")
        self._others = [0, 0]  # records outside transactions, and their bytes

    # ----------------------------------------------------------------------------------------------
    # what is added

    def add_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows with LOG_COLUMNS."""
        self._insert("log", rows)

    def add_others(self, records: int, record_bytes: int) -> None:
        """Records that say nothing about any transaction or producer group."""
        self._others[0] += records
        self._others[1] += record_bytes

    def add_plain_ops(self, named: Iterable[tuple[int, int]]) -> None:
        """(log offset of an op without transaction id, number of a half that it names)"""
        self._insert("plain_ops", named)

    def add_stretch(
        self, role: Role, log_offset: int, length: int, *, kind: str, why: str, segment: int
    ) -> None:
        values = {"log_offset": log_offset, "record_bytes": length, "role": int(role)}
        self.add_rows([[values.get(name) for name in LOG_COLUMNS]])
        if role is Role.DAMAGED:
            self._insert("damage", [(log_offset, length, kind, why or None, segment)])

    def _insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        width = {"log": len(LOG_COLUMNS), "plain_ops": 2, "damage": 5}[table]
        self._execute("BEGIN")
        marks = ", ".join("?" * width)
        self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self._execute("COMMIT")

    # ----------------------------------------------------------------------------------------------
    # outcomes

    def judge(self, log_begin: int, *, has_plain_ops: bool) -> None:
        """Make one row for each transaction, with its facts (`outcomes.by_transaction`)."""
        first = self._one(
            f"SELECT queue_offset FROM log WHERE {_is(Role.HALF)} ORDER BY log_offset LIMIT 1"
        )
        bounds = Bounds(log_begin, None if first is None else first["queue_offset"])
        names = ", ".join(READ_COLUMNS)
        rows = f"SELECT {names} FROM log"
        if has_plain_ops or self._has_plain_ops():
            self._execute(f"CREATE INDEX halves ON log (queue_offset) WHERE {_is(Role.HALF)}")
            rows += f" UNION ALL {_PLAIN_OPS.format(columns=names)}"
        numbers = {**rules.NUMBERS, **rules.NUMBERS_OF_QUEUES, **rules.TIMES}
        grouped = (
            f"SELECT transaction_id, {rules.STRETCH} AS stretch, {_named(numbers)} FROM ({rows}) "
            "GROUP BY 1, 2"
        )
        counted = f"SELECT *, {_named(rules.COUNTS)} FROM ({grouped})"
        kept = ", ".join(f"`{name}`" for name in (*rules.KEPT, *rules.TIMES))
        # materialized: else SQLite works out a count as often as the facts name it
        self._execute(
            f"CREATE TABLE transactions AS WITH counted AS MATERIALIZED ({counted}) "
            f"SELECT {kept}, {rules.facts(bounds)} AS facts FROM counted"
        )
        if self._one(f"SELECT 1 FROM transactions WHERE {_NEEDS_A_LOOK} LIMIT 1") is not None:
            self._look_closer()

    def _has_plain_ops(self) -> bool:
        plain = f"SELECT 1 FROM log WHERE transaction_id IS NULL AND {_is(Role.PLAIN_OP)} LIMIT 1"
        return self._one(plain) is not None

    def _look_closer(self) -> None:
        """The same as `outcomes.look_closer`."""
        self._index_ids()
        by_message = (
            f"SELECT transaction_id, message_id, {_named(rules.BY_MESSAGE)} FROM log "
            "WHERE message_id IS NOT NULL AND transaction_id IN "
            f"(SELECT transaction_id FROM transactions WHERE {_NEEDS_A_LOOK}) GROUP BY 1, 2"
        )
        self._execute(
            "CREATE TABLE settled AS SELECT transaction_id AS settled_id, "
            f"{_named(rules.SETTLED)} FROM ({by_message}) GROUP BY 1"
        )
        self._execute(
            f"UPDATE transactions SET facts = {rules.SETTLED_FACTS} FROM settled "
            "WHERE settled_id = transaction_id"
        )

    # ----------------------------------------------------------------------------------------------
    # answers

    def sums(self, scope: Scope, most_sets: int) -> list[dict[str, Any]] | None:
        """A row for each place, group and set of facts; None if there are more than `most_sets`."""
        found = self._rows(
            f"SELECT place, `group`, facts, {_named(rules.SUMS)}, NULL AS first_half_number "
            f"FROM ({_placed(scope)}) GROUP BY 1, 2, 3 LIMIT {most_sets + 1}"
        )
        return None if len(found) > most_sets else [*found, self._sums_of_others()]

    def sums_without_groups(self, scope: Scope) -> tuple[list[dict[str, Any]], int]:
        """(a row for each place and set of facts, number of groups)"""
        found = self._rows(
            f"SELECT place, NULL AS `group`, facts, {_named(rules.SUMS)}, "
            f"NULL AS first_half_number FROM ({_placed(scope)}) GROUP BY place, facts"
        )
        groups = self._one(
            f"SELECT count(*) AS n FROM (SELECT DISTINCT `group` FROM ({_placed(scope)}) "
            f"WHERE place = {int(Place.ASKED)})"
        )
        assert groups is not None
        return [*found, self._sums_of_others()], groups["n"]

    def _sums_of_others(self) -> dict[str, Any]:
        records, record_bytes = self._others
        none: dict[str, Any] = dict.fromkeys(("group", "group_offset", "first_half_number"))
        counted = {"transactions": 1, "facts": 0, "records": records, "bytes": record_bytes}
        return {"place": Place.NO_TRANSACTION, **none, **counted}

    def found(self, scope: Scope, facts: Sequence[Fact], *, listed: int) -> list[dict[str, Any]]:
        """The first transactions with such facts, in log order."""
        return self._rows(
            f"SELECT * FROM ({_placed(scope)}) WHERE place = {int(Place.ASKED)} "
            f"AND facts IN ({', '.join(str(int(one)) for one in facts)}) "
            f"ORDER BY first_offset, transaction_id LIMIT {listed}"
        )

    def records_of(self, transaction_ids: Iterable[str], *, listed: int) -> list[int]:
        """Log offsets of the first records of each of these transactions, in log order."""
        self._index_ids()
        found: list[int] = []
        for one in transaction_ids:
            rows = self._connection.execute(
                "SELECT log_offset FROM log WHERE transaction_id = ? ORDER BY log_offset LIMIT ?",
                (one, listed),
            )
            found += [row["log_offset"] for row in rows]
        return sorted(found)

    def damage(self, *, listed: int) -> list[dict[str, Any]]:
        return self._rows(f"SELECT * FROM damage ORDER BY log_offset LIMIT {listed}")

    def _index_ids(self) -> None:
        self._execute("CREATE INDEX IF NOT EXISTS ids ON log (transaction_id, log_offset)")

    def _execute(self, statement: str) -> None:
        self._connection.execute(statement)

    def _rows(self, query: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(query)]

    def _one(self, query: str) -> Mapping[str, Any] | None:
        found: sqlite3.Row | None = self._connection.execute(query).fetchone()
        return None if found is None else dict(found)


_NEEDS_A_LOOK = f"{rules.IS_UNCLEAR} AND transaction_id IS NOT NULL"


def _is(role: Role) -> str:
    return f"(role & {int(role)}) != 0"


def _named(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{made} AS `{name}`" for name, made in expressions.items())


def _placed(scope: Scope) -> str:
    return f"SELECT *, {rules.place(scope)} AS place FROM transactions"
