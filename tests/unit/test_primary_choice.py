"""Whom a replica follows, as name servers know more or less."""

import pytest
from pydantic import SecretStr

from app.replicas.options import ReplicaOptions
from app.replicas.primary_choice import KnownPrimary, NoPrimary, PrimaryChoice

BY_NAME = ReplicaOptions()
A, B = "127.0.0.1:1", "127.0.0.1:2"


class Names:
    """Name servers, and the choice of a replica that asks them."""

    def __init__(self, options: ReplicaOptions = BY_NAME) -> None:
        self.known: KnownPrimary | None = None
        self.choice = PrimaryChoice(options, lambda: self.known)

    def follow(self, log_epoch: int) -> str:
        address = self.choice.choose(log_epoch)
        self.choice.note_followed()
        return address

    def know(self, address: str, epoch: int) -> "Names":
        self.known = KnownPrimary(address, epoch)
        return self


def test_the_primary_of_the_settings_is_followed_whatever_name_servers_know():
    names = Names(ReplicaOptions(primary=A)).know(B, 9)
    assert names.choice.choose(0) == A
    assert not names.choice.has_moved(0)


def test_the_primary_that_is_known_is_followed():
    names = Names()
    assert names.choice.address == ""
    with pytest.raises(NoPrimary, match="ESCROWMQ_NAMES__GROUP"):
        names.choice.choose(0)
    assert names.know(A, 3).choice.choose(3) == names.choice.address == A


def test_a_primary_whose_log_is_older_than_that_of_the_replica_is_not_followed():
    with pytest.raises(NoPrimary, match=r"is in epoch 3 of the log, .* none before epoch 4"):
        Names().know(A, 3).choice.choose(4)


def test_what_has_followed_a_later_primary_does_not_go_back_to_an_earlier_one():
    names = Names().know(B, 1_003)
    assert names.follow(3) == B  # it has nothing of its log yet
    names.know(A, 3)
    assert not names.choice.has_moved(0)
    with pytest.raises(NoPrimary, match="1003"):
        names.choice.choose(3)
    assert names.choice.address == B


def test_a_later_primary_that_could_not_be_followed_does_not_keep_one_from_the_earlier():
    names = Names().know(B, 1_003)
    names.choice.choose(3)
    assert names.know(A, 3).follow(3) == A


def test_a_primary_moves_when_another_address_has_a_later_epoch():
    names = Names().know(A, 3)
    names.follow(3)
    assert not names.choice.has_moved(0)
    assert not names.know(A, 4).choice.has_moved(0)  # started again
    assert not names.know(B, 3).choice.has_moved(0)
    assert names.know(B, 1_003).choice.has_moved(0)
    assert names.choice.has_moved(1_003)
    assert not names.choice.has_moved(1_004), "it could not be followed"
    names.known = None
    assert not names.choice.has_moved(0)


def test_an_address_beyond_loopback_is_refused_without_secret_and_certificate():
    with pytest.raises(NoPrimary, match=r"shop-2\.example\.com:10912 is not loopback: secret"):
        Names().know("shop-2.example.com:10912", 3).choice.choose(3)
    guarded = ReplicaOptions(secret=SecretStr("s" * 16), tls_authority="authority.pem")
    address = Names(guarded).know("shop-2.example.com:10912", 3).choice.choose(3)
    assert address == "shop-2.example.com:10912"


@pytest.mark.parametrize("address", ["", "shop-2", "shop-2:", "shop-2:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(NoPrimary, match="no host:port"):
        Names().know(address, 3).choice.choose(3)
