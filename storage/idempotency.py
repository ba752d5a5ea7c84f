"""Idempotency keys: how a repeated request is recognised, wherever the first one is stored.

Each package stores its keyed requests itself and looks them up by the key; what a key and a
fingerprint are, and when a request is refused for its key, is decided here.
"""

from collections.abc import Hashable
from hashlib import sha256
from typing import Protocol

from storage.errors import IdempotencyInProgress, IdempotencyKeyReused

_DIGEST_BYTES = 16


class Keyed(Protocol):
    """A stored request that had an idempotency key; None of an older version."""

    @property
    def fingerprint(self) -> str | None: ...


def fingerprint_of(*parts: bytes) -> str:
    """The fingerprint of the content of a request: two requests with the same one are the same."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def digest_of(scope: str, key: str) -> bytes:
    """A name of fixed length for a key. `scope`: what the key is unique in."""
    return sha256(f"{scope} {key}".encode()).digest()[:_DIGEST_BYTES]


def lookup_key(scope: str, key: str) -> str:
    """The result of `digest_of`, as the text by which a stored request is looked up."""
    return digest_of(scope, key).hex()


def check_fingerprint(stored: Keyed | None, fingerprint: str | None, *, key: str) -> None:
    """Check that a request is the same as the stored one with its key, if there is one.

    Raises IdempotencyKeyReused.
    """
    if stored is not None and stored.fingerprint != fingerprint:
        raise IdempotencyKeyReused(
            f"Idempotency-Key {key} was used before with another body",
            context={"idempotency_key": key},
        )


class KeysInProgress:
    """Keys whose first request is still running. Event loop only."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()

    def check(self, key: Hashable) -> None:
        """Raises IdempotencyInProgress."""
        if key in self._keys:
            raise IdempotencyInProgress

    def begin(self, key: Hashable) -> None:
        """Refuse other requests with the key until `end`. Raises IdempotencyInProgress."""
        self.check(key)
        self._keys.add(key)

    def end(self, key: Hashable) -> None:
        self._keys.discard(key)
