"""Pieces of the SQL that the checks have in common."""

from collections.abc import Iterable

from storage.formats import record as records
from storage.message import TransactionBits

TRANSACTION_BITS = f"(sys_flag & {records.TRANSACTION_MASK})"
# a broker numbers neither prepared nor rolled-back messages
IS_NUMBERED = f"({TRANSACTION_BITS} IN ({TransactionBits.NONE:d}, {TransactionBits.COMMIT:d}))"


def one_of(values: Iterable[str]) -> str:
    """A list of constants of the code, behind IN."""
    return f"({', '.join(quoted(value) for value in values)})"


def quoted(value: str) -> str:
    assert "'" not in value
    return f"'{value}'"


def begins(name: str, prefix: str) -> str:
    return f"(substr({name}, 1, {len(prefix)}) = {quoted(prefix)})"


def behind(name: str, prefix: str) -> str:
    """The text without its prefix."""
    return f"substr({name}, {len(prefix) + 1})"
