"""Consumer groups and producer groups: rows in SQL, all of them in memory too."""

import asyncio

import msgspec
from sqlalchemy import Connection, insert, select

from app.registry.database import Database, rows
from app.registry.tables import consumer_groups, producer_groups
from app.registry.topics import check_name
from storage.clock import Clock
from storage.errors import UnknownGroup, UnknownProducerGroup


class ProducerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Producers that can answer for one another's transactions."""

    producer_group: str
    check_mode: str = "poll"
    created_at_ms: int
    revision: int = 1


class ProducerGroups:
    """The event loop's."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._groups: dict[str, ProducerGroup] = {}
        self._creating = asyncio.Lock()

    async def open(self) -> None:
        for row in await self._database.run(lambda connection: rows(connection, select(producer_groups))):
            group = msgspec.convert(row, ProducerGroup)
            self._groups[group.producer_group] = group

    def get(self, name: str) -> ProducerGroup:
        """Raises UnknownProducerGroup, ReservedName, InvalidRequest."""
        group = self.find(name)
        if group is None:
            raise UnknownProducerGroup(f"producer group {name} does not exist")
        return group

    def find(self, name: str) -> ProducerGroup | None:
        """Raises ReservedName, InvalidRequest."""
        self.check_name(name)
        return self._groups.get(name)

    def check_name(self, name: str) -> None:
        """Raises ReservedName, InvalidRequest where no group can have this name."""
        if name not in self._groups:
            check_name(name, what="producer group", pointer="/producer_group")

    async def get_or_create(self, name: str) -> tuple[ProducerGroup, bool]:
        """(the group, was it made now). Raises ReservedName, InvalidRequest."""
        known = self.find(name)
        if known is not None:
            return known, False
        async with self._creating:
            if name in self._groups:
                return self._groups[name], False
            group = ProducerGroup(producer_group=name, created_at_ms=self._clock.wall_ms())

            def save(connection: Connection) -> None:
                connection.execute(insert(producer_groups).values(**msgspec.to_builtins(group)))

            await self._database.run(save)
            self._groups[name] = group
            return group, True


class ConsumerGroups:
    """The event loop's."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._groups: set[str] = set()
        self._creating = asyncio.Lock()

    async def open(self) -> None:
        found = await self._database.run(lambda connection: rows(connection, select(consumer_groups)))
        self._groups.update(row["consumer_group"] for row in found)

    def check_name(self, name: str) -> None:
        """Raises ReservedName, InvalidRequest where no group can have this name."""
        if name not in self._groups:
            check_name(name, what="group", pointer="/group")

    def check(self, name: str) -> None:
        """Raises UnknownGroup, ReservedName, InvalidRequest."""
        self.check_name(name)
        if name not in self._groups:
            raise UnknownGroup(f"group {name} does not exist")

    async def create(self, name: str) -> None:
        """Nothing where it exists. Raises ReservedName, InvalidRequest."""
        self.check_name(name)
        if name in self._groups:
            return
        async with self._creating:
            if name in self._groups:
                return

            def save(connection: Connection) -> None:
                row = {"consumer_group": name, "created_at_ms": self._clock.wall_ms(), "revision": 1}
                connection.execute(insert(consumer_groups).values(**row))

            await self._database.run(save)
            self._groups.add(name)
