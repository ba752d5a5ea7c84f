"""Secrets at rest: sealed with the first key, opened with any, taken as they are where there was no
key.
"""

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from app.registry.vault import CannotOpen, Vault

SECRET = SecretStr("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def key() -> SecretStr:
    return SecretStr(Fernet.generate_key().decode())


def test_without_a_key_a_secret_is_stored_as_it_is():
    assert Vault().seal(SECRET) == SECRET.get_secret_value()
    assert Vault().open(SECRET.get_secret_value()) == SECRET


def test_with_a_key_nothing_of_it_is_readable_and_it_fits_its_column():
    vault = Vault([key()])

    stored = vault.seal(SECRET)

    assert SECRET.get_secret_value()[6:] not in stored
    assert len(stored) <= 512
    assert vault.open(stored) == SECRET


def test_a_key_is_replaced_by_putting_another_in_front():
    old, new = key(), key()
    stored = Vault([old]).seal(SECRET)

    both = Vault([new, old])

    assert both.open(stored) == SECRET
    assert Vault([new]).open(both.seal(SECRET)) == SECRET


def test_what_was_stored_before_there_was_a_key_is_taken():
    assert Vault([key()]).open(SECRET.get_secret_value()) == SECRET


def test_no_secret_is_no_secret_with_and_without_a_key():
    for vault in (Vault(), Vault([key()])):
        assert vault.seal(None) is None
        assert vault.open(None) is None


def test_a_secret_whose_key_is_not_there_cannot_be_opened():
    stored = Vault([key()]).seal(SECRET)

    for vault in (Vault(), Vault([key()])):
        with pytest.raises(CannotOpen):
            vault.open(stored)
