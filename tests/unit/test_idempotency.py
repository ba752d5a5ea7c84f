"""What all keyed requests have in common: the fingerprint and the names under which it is stored."""

import msgspec
import pytest

from delivery.requests.events import Opened, Replied
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
