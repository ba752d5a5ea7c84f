"""The common part of all keyed requests: keys, fingerprints and the names under which both are
stored.
"""

from typing import NamedTuple

import msgspec
import pytest

from delivery.requests.events import Opened, Replied
from storage.errors import IdempotencyInProgress, IdempotencyKeyReused
from storage.idempotency import KeysInProgress, check_fingerprint, fingerprint_of, lookup_key
from txn.half_message import Facts
from txn.transaction import Transaction


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (Facts, "idempotency_print"),
        (Transaction, "idempotency_print"),
        (Opened, "print"),
        (Replied, "print"),
    ],
)
def test_a_fingerprint_has_the_same_name_in_the_log_as_in_older_versions(kind, stored):
    (name,) = (
        field.encode_name for field in msgspec.structs.fields(kind) if field.name == "fingerprint"
    )

    assert name == stored


class Stored(NamedTuple):
    fingerprint: str | None


def test_a_key_counts_for_the_same_request_and_is_refused_for_another():
    stored = Stored(fingerprint_of(b"body", b"headers"))

    check_fingerprint(stored, fingerprint_of(b"body", b"headers"), key="k-1")
    check_fingerprint(None, "any", key="k-1")
    with pytest.raises(IdempotencyKeyReused, match="Idempotency-Key k-1 was used") as refused:
        check_fingerprint(stored, fingerprint_of(b"body"), key="k-1")
    assert refused.value.context == {"idempotency_key": "k-1"}


def test_a_key_is_refused_while_its_first_request_runs_and_taken_after_it():
    running = KeysInProgress()
    running.begin("a")

    with pytest.raises(IdempotencyInProgress):
        running.begin("a")
    running.check("b")
    running.end("a")
    running.begin("a")


def test_the_name_of_a_key_in_the_log_is_the_one_of_older_versions():
    assert lookup_key("sendMessage orders", "k-1") == "c096448c5021e124a98b5655267f2d3a"
