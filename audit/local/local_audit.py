"""The audit in one process: from a log to a report, like `transaction_audit.py`.

The log is read part by part: at most one window of it is in memory.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from audit import columns, findings
from audit.checks import run as checks
from audit.checks.kinds import FAULTY_KINDS
from audit.checks.run import Asked, add_to
from audit.columns import Role
from audit.decode import plain_rows
from audit.decode.records import Records
from audit.decode.walk import Piece, What
from audit.errors import NotLocal
from audit.findings import DAMAGE_COLUMNS, LISTED, LISTED_RECORDS, PROOF_COLUMNS, Proofs
from audit.local.connection import connect
from audit.local.database import LOG_COLUMNS, Database
from audit.local.lookup import rows_at
from audit.local.tables import LocalTables
from audit.log import brokers, digest, log_range
from audit.log.log_files import LogReader
from audit.log.log_range import Log, Part
from audit.report import report
from audit.scope import Outcome, Scope
from audit.sums import Sums
from audit.verdicts import DAMAGED, FAIL_ON, FINDINGS, HELD, is_wanted

ENGINE = "local"
MOST_LOG_BYTES = 4 << 30
_MOST_SETS = 100_000  # of a group and facts
_BATCH_RECORDS = 16_384
_STRETCHES = {
    What.DAMAGE: (Role.DAMAGED, columns.DAMAGED),
    What.MISSING: (Role.DAMAGED, columns.MISSING),
    What.FILLER: (Role.FILLER, columns.FILLER),
}

assert set(DAMAGE_COLUMNS) == {"log_offset", "record_bytes", "kind", "damage", "segment"}

OnRead = Callable[[int, int], None]
"""(bytes of the log that are read, bytes of the log)"""


def run(
    where: str | Sequence[str],
    scope: Scope,
    *,
    found: Log,
    counted: Callable[[str], bool] = {*FAIL_ON, *FAULTY_KINDS}.__contains__,
    split_bytes: int = log_range.SPLIT_BYTES,
    asked: Asked | None = None,
    most_log_bytes: int = MOST_LOG_BYTES,
    on_read: OnRead = lambda read, known: None,
) -> Outcome:
    """The audit of the log that is there, as it was `found`; with the checks that are asked for.

    Raises NotLocal, NoSuchGroup.
    """

    def audit(log: Log) -> Outcome:
        check_log(log, most_log_bytes)
        one = LocalAudit(log, scope, split_bytes=split_bytes, asked=asked, on_read=on_read)
        return one.run(counted=counted)

    return report.while_segments_go(where, found, audit)


def check_log(log: Log, most_log_bytes: int = MOST_LOG_BYTES) -> None:
    """Raises NotLocal for a log that only Spark reads."""
    length = log.end - log.begin
    if length > most_log_bytes:
        raise NotLocal(
            f"the log has {length:,} bytes, and the engine `local` reads at most "
            f"{most_log_bytes:,}: use --engine spark, or raise --max-log-mb"
        )
    if any(segment.is_compacted for segment in log.folder.segments):
        raise NotLocal("the log has segments that are rows (Parquet): use --engine spark")


class LocalAudit:
    """One audit of one log."""

    def __init__(
        self,
        log: Log,
        scope: Scope,
        *,
        split_bytes: int = log_range.SPLIT_BYTES,
        asked: Asked | None = None,
        on_read: OnRead = lambda read, known: None,
    ) -> None:
        self._log = log
        self._asked = asked if asked is not None and asked.names else None
        self._scope = scope
        self._split_bytes = split_bytes
        self._on_read = on_read

    def run(
        self,
        *,
        counted: Callable[[str], bool] = FAIL_ON.__contains__,
        listed: int = LISTED,
        listed_records: int = LISTED_RECORDS,
        most_sets: int = _MOST_SETS,
    ) -> Outcome:
        """`counted`: is this one of FINDINGS or of the checks' kinds to be listed as a finding?

        At most `listed` of them are, in log order. Raises NoSuchGroup.
        """
        connection = connect()
        try:
            database, tables = Database(connection), self._tables(connection)
            self._read_into(database, tables)
            database.judge(self._log.begin, has_plain_ops=brokers.has_brokers_records(self._log))
            sums = self._sums(database, most_sets)
            sums.check_group(self._scope.producer_group)
            wanted = [name for name in FINDINGS if counted(name)]
            found = self._findings(database, sums, wanted, listed, listed_records)
            held = self._findings(database, sums, [HELD], listed, listed_records)
            made = report.of_sums(
                self._log,
                self._scope,
                sums,
                found,
                wanted,
                held=held,
                engine=ENGINE,
                digests=digest.digest_blocks,
            )
            if tables is not None and self._asked is not None:
                add_to(made, checks.run(tables, self._log, self._asked), counted=counted)
        finally:
            connection.close()
        return Outcome(report=made, counts=sums.counts, is_balanced=made["balanced"])

    # ----------------------------------------------------------------------------------------------
    # reading

    def _tables(self, connection: sqlite3.Connection) -> LocalTables | None:
        if self._asked is None:
            return None
        # even if there is no index yet: a service may write its first one before the check looks
        return LocalTables(connection, self._log, has_keys="index" in self._asked.names)

    def _read_into(self, database: Database, tables: LocalTables | None) -> None:
        parts = log_range.parts(self._log, split_bytes=self._split_bytes)
        reader = LogReader()
        try:
            for part in parts:
                for piece in log_range.pieces(self._log, part, reader):
                    _add(database, tables, part, piece)
                    read = piece.offset + piece.length - self._log.begin
                    self._on_read(read, self._log.end - self._log.begin)
        finally:
            reader.close()

    # ----------------------------------------------------------------------------------------------
    # what is found

    def _sums(self, database: Database, most_sets: int) -> Sums:
        rows = database.sums(self._scope, most_sets)
        if rows is None:
            totals, omitted = database.sums_without_groups(self._scope)
            return Sums.without_groups(totals, omitted=omitted)
        return Sums.with_groups(rows, self._group_names, listed=LISTED)

    def _group_names(self, offsets: Sequence[int]) -> dict[int, str]:
        found = rows_at(self._log, offsets, ["producer_group"])
        return {offset: row["producer_group"] for offset, row in found.items()}

    def _findings(
        self,
        database: Database,
        sums: Sums,
        wanted: Sequence[str],
        listed: int,
        listed_records: int,
    ) -> list[dict[str, Any]]:
        """Transactions in log order, then damage."""
        facts = [one for one in sums.facts if is_wanted(one, wanted)]
        picked = database.found(self._scope, facts, listed=listed) if facts else []
        found = self._proven(database, picked, listed_records) if picked else []
        if DAMAGED in wanted:
            found += [findings.of_damage(row) for row in database.damage(listed=listed)]
        return found

    def _proven(
        self, database: Database, picked: Sequence[dict[str, Any]], listed_records: int
    ) -> list[dict[str, Any]]:
        proofs = Proofs(picked)
        ids = [row["transaction_id"] for row in picked]
        offsets = database.records_of(ids, listed=listed_records)
        for record in rows_at(self._log, offsets, PROOF_COLUMNS).values():
            proofs.add(record)
        proofs.add_ops(rows_at(self._log, proofs.missing_ops(), PROOF_COLUMNS))
        groups = [row["group_offset"] for row in picked if row["group_offset"] is not None]
        return proofs.items(self._group_names(groups), listed_records=listed_records)


def _add(database: Database, tables: LocalTables | None, part: Part, piece: Piece) -> None:
    segment = part.begin if part.segment is None else part.segment.base_offset

    def add_stretch(role: Role, kind: str, offset: int, length: int, why: str) -> None:
        database.add_stretch(role, offset, length, kind=kind, why=why, segment=segment)
        if tables is not None:
            tables.add_stretch(kind, offset, length, segment=segment)

    if piece.what is not What.RECORDS:
        add_stretch(*_STRETCHES[piece.what], piece.offset, piece.length, piece.reason)
        return
    for at in range(0, len(piece.record_offsets), _BATCH_RECORDS):
        some = slice(at, at + _BATCH_RECORDS)
        rows = Records(piece, piece.record_offsets[some], piece.record_bytes[some])
        if len(rows):
            _add_records(database, rows)
            if tables is not None:
                tables.add_records(rows, segment)
        for stretch in rows.malformed:
            add_stretch(Role.DAMAGED, *stretch)


def _add_records(database: Database, rows: Records) -> None:
    made = {name: plain_rows.column(rows, name) for name in LOG_COLUMNS}
    is_of_one = np.array([each is not None for each in made["transaction_id"]])
    has_group = np.array([each is not None for each in made["group_hash"]])
    kept = np.flatnonzero(is_of_one | has_group | (np.array(made["role"]) != 0)).tolist()
    database.add_rows([[made[name][number] for name in LOG_COLUMNS] for number in kept])
    others = len(rows) - len(kept)
    lengths = made["record_bytes"]
    database.add_others(others, sum(lengths) - sum(lengths[number] for number in kept))
    plain = np.flatnonzero(rows.are(columns.OP) & ~is_of_one).tolist()
    if plain:
        halves = plain_rows.column(rows, "half_offsets")
        offsets = made["log_offset"]
        database.add_plain_ops((offsets[at], half) for at in plain for half in halves[at])
