"""Consumer groups: rows in SQL, all of them in memory too."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection, delete, insert, select, update

from app.registry.database import Database, rows
from app.registry.options import LimitOptions, check_limit
from app.registry.tables import consumer_groups as table
from app.registry.topics import check_name
from delivery.groups import GroupRules
from storage.clock import Clock
from storage.errors import UnknownGroup

log = structlog.get_logger()


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that exists."""

    name: str
    rules: GroupRules
    created_at_ms: int
    revision: int = 1


class ConsumerGroups:
    """Registry of consumer groups. Event loop only."""

    def __init__(self, database: Database, clock: Clock, limits: LimitOptions) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._groups: dict[str, ConsumerGroup] = {}  # in the order of their creation
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        stored = select(table).order_by(table.c.created_at_ms, table.c.consumer_group)
        for row in await self._database.run(lambda connection: rows(connection, stored)):
            group = _from_row(row)
            self._groups[group.name] = group

    def all(self) -> list[ConsumerGroup]:
        """By name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def __len__(self) -> int:
        return len(self._groups)

    def created_first(self, count: int) -> list[ConsumerGroup]:
        """Up to so many groups, in the order of their creation."""
        return list(islice(self._groups.values(), count))

    def check_name(self, name: str) -> None:
        """Raises ReservedName, InvalidRequest where no group can have this name."""
        if name not in self._groups:
            check_name(name, what="group", pointer="/group")

    def find(self, name: str) -> ConsumerGroup | None:
        """Raises as `check_name`."""
        self.check_name(name)
        return self._groups.get(name)

    def get(self, name: str) -> ConsumerGroup:
        """Raises UnknownGroup, ReservedName, InvalidRequest."""
        group = self._groups.get(name) or self.find(name)
        if group is None:
            raise UnknownGroup(f"group {name} does not exist")
        return group

    def rules_of(self, name: str) -> GroupRules | None:
        group = self._groups.get(name)
        return None if group is None else group.rules

    async def put(
        self,
        name: str,
        new_rules: Callable[[ConsumerGroup | None], GroupRules],
        *,
        begin: Callable[[GroupRules], Awaitable[None]],
    ) -> tuple[ConsumerGroup, bool]:
        """Create or change a group; (the group, was it created now).

        Raises as `check_name`, StorageFull.

        `new_rules` gets the group as it is, None where it does not exist, and may refuse by
        raising; then, before the rules are visible, comes `begin`.
        """
        self.check_name(name)
        async with self._changing:
            known = self._groups.get(name)
            rules = new_rules(known)
            if known is None:
                self._check_limit()
            await begin(rules)
            if known is None:
                return await self._insert(name, rules), True
            if known.rules != rules:
                known = await self._change(known, rules)
            return known, False

    def subscribed_to(self, topic: str) -> list[ConsumerGroup]:
        """By name."""
        return [
            group
            for group in self.all()
            if any(one.topic == topic for one in group.rules.subscriptions)
        ]

    async def unsubscribe(self, topic: str) -> None:
        """End every subscription of a deleted topic."""
        async with self._changing:
            for group in self.subscribed_to(topic):
                kept = tuple(one for one in group.rules.subscriptions if one.topic != topic)
                await self._change(group, msgspec.structs.replace(group.rules, subscriptions=kept))

    async def create(self, name: str) -> ConsumerGroup:
        """As it is, where it exists. Raises as `put`."""
        self.check_name(name)
        async with self._changing:
            if name not in self._groups:
                self._check_limit()
            return self._groups.get(name) or await self._insert(name, GroupRules())

    def _check_limit(self) -> None:
        check_limit(
            len(self._groups) + 1, self._limits.max_groups, "consumer groups", pointer="/group"
        )

    async def delete(
        self, name: str, *, check: Callable[[int | None], None], end: Callable[[], Awaitable[None]]
    ) -> None:
        """Delete a group.

        `end` comes last, before a group of the name can be created again. Raises UnknownGroup.

        `check` gets the group's revision and may refuse by raising.
        """
        async with self._changing:
            check(self.get(name).revision)

            def remove(connection: Connection) -> None:
                connection.execute(delete(table).where(table.c.consumer_group == name))

            await self._database.run(remove)
            del self._groups[name]
            await end()

    async def _insert(self, name: str, rules: GroupRules) -> ConsumerGroup:
        group = ConsumerGroup(name=name, rules=rules, created_at_ms=self._clock.wall_ms())
        row = _to_row(group)
        await self._database.run(lambda connection: connection.execute(insert(table).values(**row)))
        self._groups[name] = group
        return group

    async def _change(self, group: ConsumerGroup, rules: GroupRules) -> ConsumerGroup:
        old = msgspec.to_builtins(group.rules)
        changed = await self._update(
            msgspec.structs.replace(group, rules=rules, revision=group.revision + 1)
        )
        changes = {
            field: (old[field], new)
            for field, new in msgspec.to_builtins(rules).items()
            if old[field] != new
        }
        log.info("group_changed", group=group.name, revision=changed.revision, changes=changes)
        return changed

    async def _update(self, group: ConsumerGroup) -> ConsumerGroup:
        row = _to_row(group)
        change = update(table).where(table.c.consumer_group == group.name).values(**row)
        await self._database.run(lambda connection: connection.execute(change))
        self._groups[group.name] = group
        return group


def _to_row(group: ConsumerGroup) -> dict[str, Any]:
    rules = msgspec.to_builtins(group.rules)
    return {
        "consumer_group": group.name,
        "topics": rules.pop("subscriptions"),
        **rules,
        "created_at_ms": group.created_at_ms,
        "revision": group.revision,
    }


def _from_row(row: dict[str, Any]) -> ConsumerGroup:
    name, created_at_ms, revision = (
        row.pop("consumer_group"),
        row.pop("created_at_ms"),
        row.pop("revision"),
    )
    rules = msgspec.convert({"subscriptions": row.pop("topics"), **row}, GroupRules)
    return ConsumerGroup(name=name, rules=rules, created_at_ms=created_at_ms, revision=revision)
