"""Consumer groups: rows in SQL, all of them in memory too.

A deletion is noted in the row first; from then on the group is unknown. What the group has beside
its row, such as positions, is ended after that, and the row goes last. So a group has all of its
positions or does not exist, whatever interrupts its deletion: every step may be repeated, and one
that was interrupted is finished before a group of the name is made again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import msgspec
import structlog
from pydantic import SecretStr
from sqlalchemy import ColumnElement, delete, insert, select, update

from app.registry.database import NOT_NOW, Database, rows
from app.registry.options import LimitOptions, check_limit
from app.registry.tables import consumer_groups as table
from app.registry.topics import check_name
from app.registry.vault import Vault
from app.registry.webhook import PushSettings, Webhook, columns_of, differing_fields, webhook_of
from delivery.groups import GroupRules
from escrowmq_client.webhooks import new_secret
from storage.clock import Clock
from storage.errors import GroupActive, UnknownGroup

log = structlog.get_logger()

T = TypeVar("T")


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that exists. `webhook`: that its messages are pushed to."""

    name: str
    rules: GroupRules
    webhook: Webhook[PushSettings] | None = None
    created_at_ms: int
    revision: int = 1


async def again_if_deleted(change: Callable[[], Awaitable[T]]) -> T:
    """Make a change that creates its group if necessary: once more where the group is deleted in
    the middle of it, so that it comes after the deletion.
    """
    with suppress(UnknownGroup):
        return await change()
    return await change()


async def _nothing(_: str) -> None:
    """The end of a group that has nothing beside its row."""


class ConsumerGroups:
    """Registry of consumer groups. Event loop only.

    `end`: ends what a deleted group has beside its row; durable on return.
    """

    def __init__(
        self, database: Database, clock: Clock, vault: Vault, limits: LimitOptions
    ) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self._limits = limits
        self._groups: dict[str, ConsumerGroup] = {}  # in the order of their creation
        self._deleting: set[str] = set()  # the names of those whose rows have the note
        self._ended: set[str] = set()  # those of them that have nothing any more beside their rows
        self._not_yet: set[str] = set()  # it is logged that they are not deleted yet
        self._changing = asyncio.Lock()
        self.end: Callable[[str], Awaitable[None]] = _nothing

    async def open(self) -> None:
        """Raises CannotOpen where a secret was encrypted with a key that is not there."""
        stored = select(table).order_by(table.c.created_at_ms, table.c.consumer_group)
        found = await self._database.read(lambda connection: rows(connection, stored))
        groups = [_from_row(row, self._vault) for row in found if not row["is_being_deleted"]]
        self._groups = {group.name: group for group in groups}
        self._deleting = {row["consumer_group"] for row in found if row["is_being_deleted"]}
        self._ended &= self._deleting
        self._not_yet &= self._deleting

    async def reload(self) -> None:
        """Read again what a change that is in doubt may have made of them."""
        async with self._changing:
            await self.open()

    def all(self) -> list[ConsumerGroup]:
        """The consumer groups, ordered by name."""
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

    def webhook_of(self, name: str) -> Webhook[PushSettings] | None:
        """The endpoint of the group's messages; None if they are not pushed, or not any more."""
        group = self._groups.get(name)
        webhook = None if group is None else group.webhook
        return webhook if webhook is not None and webhook.disabled_at_ms is None else None

    def pushed(self) -> Iterator[str]:
        """The groups whose messages are pushed."""
        return (name for name in self._groups if self.webhook_of(name) is not None)

    def check_not_pushed(self, name: str) -> None:
        """Raise GroupActive if the group has a webhook, even one that is gone."""
        group = self._groups.get(name)
        if group is not None and group.webhook is not None:
            raise GroupActive(f"messages of group {name} are pushed to its webhook")

    async def put(
        self,
        name: str,
        new_rules: Callable[[ConsumerGroup | None], GroupRules],
        *,
        begin: Callable[[GroupRules], Awaitable[None]],
        new_webhook: Callable[[ConsumerGroup | None], Webhook[PushSettings] | None] | None = None,
    ) -> tuple[ConsumerGroup, bool]:
        """Create or change a group; (the group, was it created now).

        Raises as `check_name`, StorageFull.

        `new_rules` gets the group as it is, None where it does not exist, and may refuse by
        raising; then, before the rules are visible, comes `begin`. `new_webhook` likewise; None: it
        keeps its webhook.
        """
        self.check_name(name)
        async with self._changing:
            await self._finish_deletion(name)
            known = self._groups.get(name)
            rules = new_rules(known)
            old = None if known is None else known.webhook
            webhook = old if new_webhook is None else new_webhook(known)
            if known is None:
                self._check_limit()
            await begin(rules)
            if known is None:
                return await self._insert(name, rules, webhook), True
            if known.rules != rules or old != webhook:
                known = await self._change(known, rules, webhook)
            return known, False

    async def rotate_secret(
        self, name: str, *, overlap_ms: int, check: Callable[[int | None], None]
    ) -> ConsumerGroup | None:
        """A new secret; the one before it signs too for the time of the overlap.

        None where the group has no webhook. `check` gets the group's revision and may refuse by
        raising. Raises as `get`.
        """
        async with self._changing:
            group = self.get(name)
            check(group.revision)
            if group.webhook is None:
                return None
            webhook = group.webhook.with_secret(
                SecretStr(new_secret()), overlap_until_ms=self._clock.wall_ms() + overlap_ms
            )
            return await self._change(group, group.rules, webhook)

    async def disable_webhook(self, name: str, settings: PushSettings) -> None:
        """Send nothing to this endpoint any more, unless another one was named meanwhile."""
        async with self._changing:
            webhook = self.webhook_of(name)
            if webhook is None or webhook.settings != settings:
                return
            group = self._groups[name]
            gone = msgspec.structs.replace(webhook, disabled_at_ms=self._clock.wall_ms())
            await self._change(group, group.rules, gone)

    def subscribed_to(self, topic: str) -> list[ConsumerGroup]:
        """The consumer groups with a subscription to the topic, ordered by name."""
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
                rules = msgspec.structs.replace(group.rules, subscriptions=kept)
                await self._change(group, rules, group.webhook)

    async def create(self, name: str) -> ConsumerGroup:
        """Create the group; one that exists does not change. Raises as `put`."""
        self.check_name(name)
        async with self._changing:
            await self._finish_deletion(name)
            if name not in self._groups:
                self._check_limit()
            return self._groups.get(name) or await self._insert(name, GroupRules(), None)

    def _check_limit(self) -> None:
        check_limit(
            len(self._groups) + 1, self._limits.max_groups, "consumer groups", pointer="/group"
        )

    async def delete(self, name: str, *, check: Callable[[int | None], None]) -> None:
        """Delete a group, and end what it has beside its row. Raises UnknownGroup, and what `end`
        raises.

        `check` gets the group's revision and may refuse by raising. A deletion that failed behind
        its note is finished by the next one of the name, or by `finish_deletions`.
        """
        async with self._changing:
            if name not in self._deleting:
                check(self.get(name).revision)
                note = update(table).where(_is_of(name)).values(is_being_deleted=True)
                await self._database.run(lambda connection: connection.execute(note).close())
                del self._groups[name]
                self._deleting.add(name)
            await self._finish_deletion(name)

    async def finish_deletions(self) -> None:
        """Finish what was begun, by an earlier run of the service or a request that was refused;
        where the store or the registry takes nothing now, a later call does.
        """
        for name in sorted(self._deleting):
            if self._changing.locked():
                return  # by a request, which may take long
            try:
                async with self._changing:
                    await self._finish_deletion(name)
            except NOT_NOW as error:
                if name not in self._not_yet:
                    reason = str(error).partition("\n")[0]
                    log.warning("group_not_deleted_yet", group=name, reason=reason)
                    self._not_yet.add(name)

    async def _finish_deletion(self, name: str) -> None:
        if name in self._deleting:
            if name not in self._ended:
                await self.end(name)
                self._ended.add(name)
            gone = delete(table).where(_is_of(name))
            await self._database.run(lambda connection: connection.execute(gone).close())
            for names in (self._deleting, self._ended, self._not_yet):
                names.discard(name)

    async def _insert(
        self, name: str, rules: GroupRules, webhook: Webhook[PushSettings] | None
    ) -> ConsumerGroup:
        group = ConsumerGroup(
            name=name, rules=rules, webhook=webhook, created_at_ms=self._clock.wall_ms()
        )
        row = _to_row(group, self._vault)
        await self._database.run(lambda connection: connection.execute(insert(table).values(**row)))
        self._groups[name] = group
        return group

    async def _change(
        self, group: ConsumerGroup, rules: GroupRules, webhook: Webhook[PushSettings] | None
    ) -> ConsumerGroup:
        old = msgspec.to_builtins(group.rules)
        changed = await self._update(
            msgspec.structs.replace(
                group, rules=rules, webhook=webhook, revision=group.revision + 1
            )
        )
        changes = {
            field: (old[field], new)
            for field, new in msgspec.to_builtins(rules).items()
            if old[field] != new
        }
        log.info(
            "group_changed",
            group=group.name,
            revision=changed.revision,
            changes=changes,
            webhook_fields=list(differing_fields(group.webhook, webhook)),
        )
        return changed

    async def _update(self, group: ConsumerGroup) -> ConsumerGroup:
        row = _to_row(group, self._vault)
        change = update(table).where(_is_of(group.name)).values(**row)
        await self._database.run(lambda connection: connection.execute(change))
        self._groups[group.name] = group
        return group


def _is_of(name: str) -> ColumnElement[bool]:
    return table.c.consumer_group == name


def _to_row(group: ConsumerGroup, vault: Vault) -> dict[str, Any]:
    rules = msgspec.to_builtins(group.rules)
    webhook = group.webhook
    settings = None if webhook is None else webhook.settings
    return {
        "consumer_group": group.name,
        "topics": rules.pop("subscriptions"),
        **rules,
        "push": None if settings is None else msgspec.to_builtins(settings),
        **dict(columns_of(webhook, vault)),
        "created_at_ms": group.created_at_ms,
        "revision": group.revision,
    }


def _from_row(row: dict[str, Any], vault: Vault) -> ConsumerGroup:
    webhook = None
    if row["push"] is not None:
        webhook = webhook_of(row, msgspec.convert(row["push"], PushSettings), vault)
    rules = {name: row[name] for name in GroupRules.__struct_fields__ if name != "subscriptions"}
    return ConsumerGroup(
        name=row["consumer_group"],
        rules=msgspec.convert({"subscriptions": row["topics"], **rules}, GroupRules),
        webhook=webhook,
        created_at_ms=row["created_at_ms"],
        revision=row["revision"],
    )
