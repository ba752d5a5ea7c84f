"""Audit reports as requested, and their results: rows in SQL. Their contents are files."""

from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from app.registry.database import Database, rows
from app.registry.tables import audit_reports as table

QUEUED = "queued"
RUNNING = "running"
DONE = "done"
FAILED = "failed"


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Times are wall milliseconds."""

    report_id: str
    kind: str
    begun_from_ms: int | None = None
    begun_to_ms: int | None = None
    producer_group: str | None = None
    checks: str = ""  # names with commas between; empty: none
    state: str = QUEUED
    starts: int = 0  # how often it has been begun: a service that ends takes its run with it
    exit_status: int | None = None
    reason: str | None = None  # why it failed
    created_at_ms: int
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    dropped_at_ms: int | None = None  # its files are gone since
    idempotency_key: str | None = None
    fingerprint: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in (DONE, FAILED)


class AuditReportRows:
    """Rows of the audit reports, in the order in which they were requested: ids are ordered by
    time.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[AuditReport]:
        query = select(table).order_by(table.c.created_at_ms, table.c.report_id)
        return [
            AuditReport(**row)
            for row in await self._database.read(lambda connection: rows(connection, query))
        ]

    async def add(self, report: AuditReport) -> None:
        values = _to_row(report)
        await self._database.run(
            lambda connection: _execute(connection, insert(table).values(**values))
        )

    async def change(self, report: AuditReport) -> None:
        values = _to_row(report)
        change = update(table).where(table.c.report_id == report.report_id).values(**values)
        await self._database.run(lambda connection: _execute(connection, change))

    async def forget(self, report_id: str) -> None:
        gone = delete(table).where(table.c.report_id == report_id)
        await self._database.run(lambda connection: _execute(connection, gone))


def _execute(connection: Connection, statement: Any) -> None:
    connection.execute(statement)


def _to_row(report: AuditReport) -> dict[str, Any]:
    return msgspec.structs.asdict(report)
