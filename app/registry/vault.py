"""Secrets at rest: encrypted where the operator gave a key, as they are where none was given.

A sealed one is `fernet:` and a Fernet token (AES-128-CBC with HMAC-SHA256). The first key seals;
all of them open, so a key is replaced by putting a new one in front.
"""

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from pydantic import SecretStr

_SEALED = "fernet:"


class CannotOpen(Exception):
    """A secret was sealed with a key that is not among those given."""


class Vault:
    def __init__(self, keys: Sequence[SecretStr] = ()) -> None:
        self._fernet = (
            MultiFernet([Fernet(key.get_secret_value()) for key in keys]) if keys else None
        )

    def seal(self, secret: SecretStr | None) -> str | None:
        """The secret as stored."""
        if secret is None:
            return None
        text = secret.get_secret_value()
        return (
            text if self._fernet is None else _SEALED + self._fernet.encrypt(text.encode()).decode()
        )

    def open(self, stored: str | None) -> SecretStr | None:
        """Decrypt a stored secret. One that was stored before there was a key is returned as it is.
        Raises CannotOpen.
        """
        if stored is None or not stored.startswith(_SEALED):
            return None if stored is None else SecretStr(stored)
        if self._fernet is None:
            raise CannotOpen("a secret is encrypted, and no key is given")
        try:
            return SecretStr(self._fernet.decrypt(stored.removeprefix(_SEALED).encode()).decode())
        except InvalidToken:
            raise CannotOpen("a secret is encrypted with none of the keys that are given") from None
