"""Cron schedules as they were configured: rows in SQL.

What has come of them is in the log (`scheduler/cron_service.py`).
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from app.registry.database import Database, rows
from app.registry.tables import cron_schedules as table
from scheduler.cron_schedule import CatchUp, CronSchedule


class CronSchedules:
    """A `CronRegistry` in the SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[CronSchedule]:
        """The schedules in the order in which they were created."""
        query = select(table).order_by(table.c.created_at_ms, table.c.schedule_id)
        return [
            _from_row(row)
            for row in await self._database.read(lambda connection: rows(connection, query))
        ]

    async def add(self, schedule: CronSchedule) -> None:
        row = _to_row(schedule)

        def save(connection: Connection) -> None:
            connection.execute(insert(table).values(**row))

        await self._database.run(save)

    async def change(self, schedule: CronSchedule) -> None:
        row = _to_row(schedule)

        def save(connection: Connection) -> None:
            connection.execute(
                update(table).where(table.c.schedule_id == schedule.schedule_id).values(**row)
            )

        await self._database.run(save)

    async def forget(self, schedule_ids: Sequence[str]) -> None:
        def drop(connection: Connection) -> None:
            connection.execute(delete(table).where(table.c.schedule_id.in_(schedule_ids)))

        await self._database.run(drop)


def _to_row(schedule: CronSchedule) -> dict[str, Any]:
    values = msgspec.structs.asdict(schedule)
    return values | {
        "message": schedule.message.decode("utf-8"),
        "catch_up": schedule.catch_up.value,
    }


def _from_row(row: dict[str, Any]) -> CronSchedule:
    return CronSchedule(
        **row | {"message": row["message"].encode("utf-8"), "catch_up": CatchUp(row["catch_up"])}
    )
