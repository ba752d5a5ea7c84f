"""What the registry is given is read from it again, whichever database it stands in."""

from collections.abc import AsyncIterator

import msgspec
import pytest_asyncio

from app.registry.audit_reports import FAILED, AuditReport, AuditReportRows
from app.registry.cron_schedules import CronSchedules
from app.registry.database import Database
from scheduler.cron_schedule import CatchUp, CronSchedule
from tests.unit.test_migrations import ROWS, audit_reports, cron_schedules


@pytest_asyncio.fixture
async def database(database_url) -> AsyncIterator[Database]:
    opened = Database(database_url)
    await opened.open()
    yield opened
    await opened.aclose()


async def test_cron_schedules_are_read_as_they_were_added_or_changed_and_are_forgotten(database):
    kept = CronSchedules(database)
    row = ROWS[cron_schedules]
    first = CronSchedule(
        **row | {"message": row["message"].encode(), "catch_up": CatchUp(row["catch_up"])}
    )
    second = msgspec.structs.replace(
        first, schedule_id="sch_2", cancelled_at_ms=1 << 41, idempotency_key=None
    )
    await kept.add(second)
    await kept.add(first)
    assert await kept.load() == [first, second]

    changed = msgspec.structs.replace(first, paused=False, revision=3)
    await kept.change(changed)
    await kept.forget(["sch_2"])

    assert await kept.load() == [changed]


async def test_audit_reports_are_read_as_they_were_added_or_changed_and_are_forgotten(database):
    kept = AuditReportRows(database)
    first = AuditReport(**ROWS[audit_reports])
    second = AuditReport(report_id="rpt_2", kind=first.kind, created_at_ms=first.created_at_ms)
    await kept.add(second)
    await kept.add(first)
    assert await kept.load() == [first, second]

    changed = msgspec.structs.replace(second, state=FAILED, reason="ä" * 10_000)
    await kept.change(changed)
    await kept.forget("rpt_1")

    assert await kept.load() == [changed]
