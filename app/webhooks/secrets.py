"""Secrets of users that sign what is sent to their endpoints."""

from msgspec import UNSET, UnsetType
from pydantic import SecretStr

from app.problems import invalid_field
from escrowmq_client.webhooks import SECRET_PREFIX, is_secret


def own_secret(given: str | UnsetType) -> SecretStr | None:
    """The secret that the request has; None for none. Raises Refusal."""
    if given is UNSET:
        return None
    if not is_secret(given):
        detail = f"must be {SECRET_PREFIX} and the base64 of 24 to 64 bytes"
        raise invalid_field("/signing_secret", "invalid_format", detail)
    return SecretStr(given)
