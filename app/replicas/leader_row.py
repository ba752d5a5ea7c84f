"""The entry of the leader (`leader.py`) in the registry's database."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, inspect, select, text, update

from app.registry.database import Database, rows
from app.registry.tables import service_leader as table
from app.replicas.leader import Leader

# No crash of the server may take what a promotion relies on, whatever it is set to; and a machine
# that is lost in the middle of a change holds the row for so long, not until its connection is
# known to be dead: for less than another one waits for it (`database.py`).
_CAREFULLY = (
    "SET LOCAL synchronous_commit TO on",
    "SET LOCAL idle_in_transaction_session_timeout TO '2s'",
)


class LeaderRow:
    """A `LeaderEntry`: one row, which all machines of the service read and change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> Leader:
        """Also in the tables of an earlier release, which have none.

        Raises RegistryUnavailable.
        """
        return await self._database.read(_read)

    async def change(self, change: Callable[[Leader], Leader | None]) -> Leader | None:
        """Change the entry, as `LeaderEntry.change` does."""
        return await self._database.run_apart(lambda connection: _change(connection, change))


def _read(connection: Connection) -> Leader:
    if not inspect(connection).has_table(table.name):
        return Leader()
    return _of(rows(connection, select(table))[0])


def _of(row: dict[str, Any]) -> Leader:
    return Leader(row["epoch"], row["node"], row["is_alone"])


def _change(connection: Connection, change: Callable[[Leader], Leader | None]) -> Leader | None:
    if connection.dialect.name == "postgresql":
        for statement in _CAREFULLY:
            connection.execute(text(statement))
    before = _of(rows(connection, select(table).with_for_update())[0])
    after = change(before)
    if after is not None and after != before:
        connection.execute(
            update(table).values(epoch=after.epoch, node=after.node, is_alone=after.is_alone)
        )
    return after
