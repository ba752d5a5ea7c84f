"""Leases of loops: rows in SQL, for engines whose store several processes serve.

When a lease ends is said and asked by the database's clock alone, so the clocks of machines are
never compared. How long a lease is used without asking is measured by a monotonic clock of this
process, from before it asked.
"""

from collections.abc import Callable

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from app.registry.database import Database, rows
from app.registry.tables import loop_leases as table
from storage.clock import Clock

_NOW_MS = {
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}


def database_now_ms(connection: Connection) -> int:
    """The wall clock of the database."""
    now_ms: int = connection.execute(text(_NOW_MS[connection.dialect.name])).scalar_one()
    return now_ms


class LoopLease:
    """An `OwnershipLease` in the SQL database."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        loop: str,
        owner: str,
        lease_ms: int,
        now_ms: Callable[[Connection], int] = database_now_ms,
    ) -> None:
        """`owner`: a name of this process that no other ever has."""
        self._database = database
        self._clock = clock
        self._loop = loop
        self._owner = owner
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._token: int | None = None
        self._ask_again_ms = 0

    async def take(self) -> int | None:
        """The fencing token; asked of the database as soon as a third of the lease has gone."""
        began_ms = self._clock.monotonic_ms()
        if self._token is None or began_ms >= self._ask_again_ms:
            held, self._token = self._token, None  # until the database has said otherwise
            self._token = await self._database.run(lambda connection: self._take(connection, held))
            self._ask_again_ms = began_ms + self._lease_ms // 3
        return self._token

    async def give_back(self) -> None:
        held, self._token = self._token, None
        if held is None:
            return

        def end(connection: Connection) -> None:
            connection.execute(
                update(table)
                .where(table.c.loop == self._loop, table.c.token == held)
                .values(expires_at_ms=0)
            )

        await self._database.run(end)

    def _take(self, connection: Connection, held: int | None) -> int | None:
        now_ms = self._now_ms(connection)
        ours = {"owner": self._owner, "expires_at_ms": now_ms + self._lease_ms}
        found = rows(connection, select(table).where(table.c.loop == self._loop))
        if not found:
            try:
                with connection.begin_nested():
                    connection.execute(insert(table).values(loop=self._loop, token=1, **ours))
            except IntegrityError:
                return None  # another one was quicker
            return 1
        (lease,) = found
        last: int = lease["token"]
        if lease["expires_at_ms"] > now_ms and (lease["owner"], last) != (self._owner, held):
            return None
        # A lease that has ended is a new one even for its last owner: another may have owned it
        # since.
        token = last if lease["expires_at_ms"] > now_ms else last + 1
        changed = connection.execute(
            update(table)
            .where(
                table.c.loop == self._loop,
                table.c.token == last,
                table.c.expires_at_ms == lease["expires_at_ms"],
            )
            .values(token=token, **ours)
        )
        return token if changed.rowcount == 1 else None
