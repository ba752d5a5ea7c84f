"""Producer groups: rows in SQL, all of them in memory too."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr
from sqlalchemy import Connection, insert, select, update

from app.registry.database import Database, rows
from app.registry.options import LimitOptions, check_limit
from app.registry.tables import producer_groups
from app.registry.topics import check_name
from app.registry.vault import Vault
from app.registry.webhook import (
    Webhook,
    WebhookSettings,
    columns_of,
    differing_fields,
    webhook_of,
)
from escrowmq_client.webhooks import new_secret
from storage.clock import Clock
from storage.errors import UnknownProducerGroup

log = structlog.get_logger()


class ProducerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Producers that can answer for one another's transactions."""

    producer_group: str
    created_at_ms: int
    revision: int = 1
    webhook: Webhook[WebhookSettings] | None = None  # without one its checks are polled for

    @property
    def check_mode(self) -> str:
        return "poll" if self.webhook is None else "webhook"


class ProducerGroups:
    """Registry of producer groups. Event loop only."""

    def __init__(
        self, database: Database, clock: Clock, vault: Vault, limits: LimitOptions
    ) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self._limits = limits
        self._groups: dict[str, ProducerGroup] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Raises CannotOpen where a secret was encrypted with a key that is not there."""
        stored = select(producer_groups)
        found = await self._database.read(lambda connection: rows(connection, stored))
        groups = [self._from_row(row) for row in found]
        self._groups = {group.producer_group: group for group in groups}

    async def reload(self) -> None:
        """Read again what a change that is in doubt may have made of them."""
        async with self._changing:
            await self.open()

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

    def webhook_of(self, name: str) -> Webhook[WebhookSettings] | None:
        """The endpoint of the group's checks; None if they are not sent, or not any more."""
        group = self._groups.get(name)
        webhook = None if group is None else group.webhook
        return webhook if webhook is not None and webhook.disabled_at_ms is None else None

    def check_name(self, name: str) -> None:
        """Raises ReservedName, InvalidRequest where no group can have this name."""
        if name not in self._groups:
            check_name(name, what="producer group", pointer="/producer_group")

    async def get_or_create(self, name: str) -> tuple[ProducerGroup, bool]:
        """(the group, was it made now); a new one is polled.

        Raises ReservedName, InvalidRequest.
        """
        known = self.find(name)
        if known is not None:
            return known, False
        async with self._changing:
            if name in self._groups:
                return self._groups[name], False
            return await self._create(name, None), True

    async def put(
        self,
        name: str,
        new_settings: Callable[[ProducerGroup | None], WebhookSettings | None],
        *,
        signing_secret: SecretStr | None,
        overlap_ms: int,
    ) -> tuple[ProducerGroup, bool, bool]:
        """Create or change a group; (the group, was it created now, was a secret made for it).

        Raises as `find`.

        `new_settings` gets the group as it is, None where it does not exist, and may refuse by
        raising; it returns None for checks by poll. `signing_secret`: the user's own; one that
        differs replaces the present one as `rotate_secret` does. None: keep the present one, or
        make one.
        """
        self.check_name(name)
        async with self._changing:
            known = self._groups.get(name)
            settings = new_settings(known)
            old = None if known is None else known.webhook
            if settings is None:
                new = None
            elif old is None:
                secret = signing_secret or SecretStr(new_secret())
                new = Webhook(settings=settings, signing_secret=secret)
            else:
                new = old.with_settings(
                    settings, signing_secret, overlap_until_ms=self._overlap_until_ms(overlap_ms)
                )
            was_made = new is not None and old is None and signing_secret is None
            if known is None:
                return await self._create(name, new), True, was_made
            if new != old:
                known = await self._change(known, new)
            return known, False, was_made

    async def rotate_secret(
        self, name: str, *, overlap_ms: int, check: Callable[[int | None], None]
    ) -> ProducerGroup | None:  # fmt: skip
        """A new secret; the one before it signs too for the time of the overlap.

        None where it has no webhook.

        `check` as for `put`. Raises as `get`.
        """
        async with self._changing:
            group = self.get(name)
            check(group.revision)
            if group.webhook is None:
                return None
            changed = group.webhook.with_secret(
                SecretStr(new_secret()), overlap_until_ms=self._overlap_until_ms(overlap_ms)
            )
            return await self._change(group, changed)

    def _overlap_until_ms(self, overlap_ms: int) -> int:
        return self._clock.wall_ms() + overlap_ms

    async def disable(self, name: str, settings: WebhookSettings) -> bool:
        """Ask no more at this endpoint, which is gone.

        False where another one was named meanwhile.
        """
        async with self._changing:
            webhook = self.webhook_of(name)
            if webhook is None or webhook.settings != settings:
                return False
            changed = msgspec.structs.replace(webhook, disabled_at_ms=self._clock.wall_ms())
            await self._change(self._groups[name], changed)
            return True

    async def _create(self, name: str, webhook: Webhook[WebhookSettings] | None) -> ProducerGroup:
        check_limit(
            len(self._groups) + 1,
            self._limits.max_producer_groups,
            "producer groups",
            pointer="/producer_group",
        )
        group = ProducerGroup(
            producer_group=name, created_at_ms=self._clock.wall_ms(), webhook=webhook
        )
        row = self._to_row(group)

        def save(connection: Connection) -> None:
            connection.execute(insert(producer_groups).values(**row))

        await self._database.run(save)
        self._groups[name] = group
        return group

    async def _change(
        self, group: ProducerGroup, webhook: Webhook[WebhookSettings] | None
    ) -> ProducerGroup:
        changed = msgspec.structs.replace(group, webhook=webhook, revision=group.revision + 1)
        row = self._to_row(changed)

        def save(connection: Connection) -> None:
            name = producer_groups.c.producer_group
            connection.execute(
                update(producer_groups).where(name == group.producer_group).values(**row)
            )

        await self._database.run(save)
        self._groups[group.producer_group] = changed
        fields = sorted(
            "check_url" if name == "url" else name
            for name in differing_fields(group.webhook, webhook)
        )
        log.info(
            "producer_group_changed",
            producer_group=group.producer_group,
            revision=changed.revision,
            fields=fields,
        )
        return changed

    def _to_row(self, group: ProducerGroup) -> dict[str, Any]:
        return dict(_columns(group, self._vault))

    def _from_row(self, row: dict[str, Any]) -> ProducerGroup:
        webhook = None
        if row["check_mode"] == "webhook":
            settings = WebhookSettings(
                url=row["check_url"], timeout_ms=row["timeout_ms"], concurrency=row["concurrency"]
            )
            webhook = webhook_of(row, settings, self._vault)
        return ProducerGroup(
            producer_group=row["producer_group"],
            created_at_ms=row["created_at_ms"],
            revision=row["revision"],
            webhook=webhook,
        )


def _columns(group: ProducerGroup, vault: Vault) -> Iterator[tuple[str, Any]]:
    yield "producer_group", group.producer_group
    yield "check_mode", group.check_mode
    yield "created_at_ms", group.created_at_ms
    yield "revision", group.revision
    webhook = group.webhook
    yield "check_url", None if webhook is None else webhook.settings.url
    yield "timeout_ms", None if webhook is None else webhook.settings.timeout_ms
    yield "concurrency", None if webhook is None else webhook.settings.concurrency
    yield from columns_of(webhook, vault)
