"""Standard Webhooks: sign and verify, nothing but the standard library. Pure: time is an argument.

For receivers of checks: one file, which may be copied into any project.

    webhook-id         the check's id, the same on every try
    webhook-timestamp  when this try was signed, in seconds
    webhook-signature  "v1," and the base64 of HMAC-SHA256 over `id.timestamp.body`; several with a
                       space between while a secret
                       is being replaced, so that receivers may take the new one whenever they like

A secret is `whsec_` and the base64 of 24 to 64 random bytes. Source: standardwebhooks.com,
specification 1.0.0.
"""

import base64
import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from secrets import token_bytes

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

SECRET_PREFIX = "whsec_"  # noqa: S105  the prefix is no secret
TOLERANCE_SECONDS = 300
_NEW_KEY_BYTES = 32
_KEY_BYTES = range(24, 65)
_VERSION = "v1"


class InvalidSignature(Exception):
    """The request is not what its sender signed, or not now; the text says which.

    Do not act on it.
    """


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(token_bytes(_NEW_KEY_BYTES)).decode()


def is_secret(text: str) -> bool:
    """Is the text a signing secret: the prefix and the base64 of 24 to 64 bytes?"""
    if not text.startswith(SECRET_PREFIX):
        return False
    try:
        _key(text)
    except ValueError:
        return False
    return True


def sign(secrets: Sequence[str], *, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers.

    `timestamp` in seconds; with several secrets there is a signature by each.
    """
    signatures = [
        f"{_VERSION},{_signature(secret, webhook_id, str(timestamp), body)}" for secret in secrets
    ]
    return {ID: webhook_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance_seconds: int = TOLERANCE_SECONDS,
) -> str:
    """The id of a request that was signed with one of the secrets and not long ago.

    Raises InvalidSignature.

    `body`: the bytes as they came, before anything decodes them. `now`: `time.time()`. Within the
    tolerance a request can be played again: remember the ids that were acted upon, or act so that a
    second time changes nothing.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        raise InvalidSignature(f"the header {missing[0]} is missing")
    webhook_id, timestamp = given[ID], given[TIMESTAMP]
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        raise InvalidSignature("the timestamp is no number of seconds")
    if abs(now - int(timestamp)) > tolerance_seconds:
        raise InvalidSignature(f"the timestamp is more than {tolerance_seconds} s from now")
    expected = [_signature(secret, webhook_id, timestamp, body).encode() for secret in secrets]
    is_signed = False
    for entry in given[SIGNATURE].split(" "):
        version, _, signature = entry.partition(",")
        if version == _VERSION:
            # Every one is compared, each in constant time: how long it takes tells nothing.
            for one in expected:
                is_signed |= hmac.compare_digest(signature.encode(), one)
    if not is_signed:
        raise InvalidSignature("no signature matches")
    return webhook_id


def _signature(secret: str, webhook_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(_key(secret), signed, sha256)).decode()


def _key(secret: str) -> bytes:
    """Raises ValueError where the secret is none; its text is not repeated."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) not in _KEY_BYTES:
        raise ValueError(f"a signing secret is {SECRET_PREFIX} and the base64 of 24 to 64 bytes")
    return key
