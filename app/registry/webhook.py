"""An endpoint of a user that is sent signed requests, as the registry keeps it."""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import SecretStr

from app.registry.vault import Vault
from app.word_sets import PushFormat


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_ms`: of one try. `concurrency`: the most tries at once."""

    url: str
    timeout_ms: int
    concurrency: int


class PushSettings(WebhookSettings, frozen=True, kw_only=True):
    """`format`: of what is sent. What has a value here is the default of a new push."""

    timeout_ms: int = 15_000
    concurrency: int = 4
    format: PushFormat = "message"


S = TypeVar("S", bound=WebhookSettings)


class Webhook(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The endpoint, and the secrets that sign what is sent there."""

    settings: S
    signing_secret: SecretStr
    previous_secret: SecretStr | None = None  # signs too, until then
    previous_secret_until_ms: int | None = None
    disabled_at_ms: int | None = None  # the endpoint said that it is gone

    def secrets(self, now_ms: int) -> list[str]:
        """The secrets that sign, newest first."""
        found = [self.signing_secret]
        if self.previous_secret is not None and now_ms < (self.previous_secret_until_ms or 0):
            found.append(self.previous_secret)
        return [secret.get_secret_value() for secret in found]

    def overlap_until_ms(self, now_ms: int) -> int | None:
        """When the previous secret ends to sign; None if it does not sign."""
        until_ms = self.previous_secret_until_ms
        return until_ms if until_ms is not None and now_ms < until_ms else None

    def with_secret(self, secret: SecretStr, *, overlap_until_ms: int) -> "Webhook[S]":
        """The webhook with another secret; the present one signs too until then."""
        return msgspec.structs.replace(
            self,
            signing_secret=secret,
            previous_secret=self.signing_secret,
            previous_secret_until_ms=overlap_until_ms,
        )

    def with_settings(
        self, settings: S, own_secret: SecretStr | None, *, overlap_until_ms: int
    ) -> "Webhook[S]":
        """The webhook with other settings, which is asked again where it was gone.

        `own_secret`: the user's; one that differs replaces the present one.
        """
        changed = msgspec.structs.replace(self, settings=settings, disabled_at_ms=None)
        if own_secret is None or own_secret == self.signing_secret:
            return changed
        return changed.with_secret(own_secret, overlap_until_ms=overlap_until_ms)


def columns_of(webhook: Webhook[Any] | None, vault: Vault) -> Iterator[tuple[str, Any]]:
    """The columns of a webhook beside those of its settings."""
    yield "signing_secret", None if webhook is None else vault.seal(webhook.signing_secret)
    yield "previous_secret", None if webhook is None else vault.seal(webhook.previous_secret)
    yield "previous_secret_until_ms", None if webhook is None else webhook.previous_secret_until_ms
    yield "disabled_at_ms", None if webhook is None else webhook.disabled_at_ms


def webhook_of(row: Mapping[str, Any], settings: S, vault: Vault) -> Webhook[S]:
    """The webhook of a row. Raises CannotOpen."""
    secret = vault.open(row["signing_secret"])
    assert secret is not None
    return Webhook(
        settings=settings,
        signing_secret=secret,
        previous_secret=vault.open(row["previous_secret"]),
        previous_secret_until_ms=row["previous_secret_until_ms"],
        disabled_at_ms=row["disabled_at_ms"],
    )


def differing_fields(old: Webhook[Any] | None, new: Webhook[Any] | None) -> Iterator[str]:
    """Names of the fields that differ, in order.

    A URL may hold a secret, so that no values are logged.
    """
    before, after = (
        {}
        if webhook is None
        else {**msgspec.structs.asdict(webhook), **msgspec.structs.asdict(webhook.settings)}
        for webhook in (old, new)
    )
    for name in sorted(before | after):
        if name != "settings" and before.get(name) != after.get(name):
            yield name
