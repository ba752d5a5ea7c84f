"""The rules about every transaction, as expressions of SQL: Spark and SQLite both evaluate them, so
either engine finds the same facts.

The reader says of each record what it is to its transaction (`columns.Role`). The rows are grouped
by transaction id into numbers of fixed width (counts, smallest and largest offsets, sums), and from
those the facts are worked out that `verdicts.py` judges. Messages are distinguished by a hash of
their id: that every message of a transaction has exactly one final is the equality of two sums.
Where the sums do not settle it, its records are counted message by message (`BY_MESSAGE`).

No number overflows: what is summed is below 2**31, so there is room for 2**32 of it; sums and
counts are multiplied modulo a prime, and what is equal is equal modulo it, too.

Only what both engines evaluate alike is used: integers, CASE, coalesce, and operators in
parentheses. SQLite is given `least`, `greatest` and `bit_or` (`local/connection.py`).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from audit.columns import Role
from audit.decode.hashes import hash_of
from audit.scope import Scope
from audit.sums import Place
from audit.verdicts import Fact

READ_COLUMNS = (
    "log_offset", "record_bytes", "role", "queue_offset", "stored_ms", "prepared_offset",
    "body_crc", "message_hash",
    "transaction_id", "group_hash", "first_half_offset", "message_count",
)  # fmt: skip

# Numbers behind the facts that a caller asks for.
KEPT: tuple[str, ...] = (
    "transaction_id",
    "stretch",
    "bytes",
    "records",
    "group",
    "group_offset",
    "first_offset",
    "op_first",
)
# instead of a transaction id, where an op names a half that is not there
NAMED_HALF = "half number "

_PUBLISHED = Role.NAMED | Role.UNNAMED | Role.WAITING
_OPS = Role.COMMIT_OP | Role.ROLLBACK_OP | Role.PLAIN_OP
_PREPARED = _PUBLISHED | Role.WAITING_AGAIN | Role.ARRIVED

_PRIME = (1 << 31) - 1
_MOST_MESSAGES = 65_535  # of a transaction, which is one unit; more count as missing


class Bounds(NamedTuple):
    """The beginning of the log, and the first offset of the half topic: retention has deleted
    everything before.
    """

    log_begin: int
    first_half_number: int | None = None  # None: no half is left, or it is not known yet


# --------------------------------------------------------------------------------------------------
# numbers of a transaction: aggregates of the rows of one transaction id and one stretch

STRETCH = f"(role & {int(Role.DAMAGED | Role.FILLER)})"
"""The role of what is no record."""


def _is(roles: Role) -> str:
    return f"((role & {int(roles)}) != 0)"


def _when(condition: str, value: str) -> str:
    return f"(CASE WHEN {condition} THEN {value} END)"


def _count(roles: Role) -> str:
    return f"count({_when(_is(roles), '1')})"


def _sum(roles: Role, name: str) -> str:
    return f"sum({_when(_is(roles), name)})"


def _least(roles: Role, name: str) -> str:
    return f"min({_when(_is(roles), name)})"


def _most(roles: Role, name: str) -> str:
    return f"max({_when(_is(roles), name)})"


_NAMES_HALF = f"({_is(_PREPARED)} AND (prepared_offset > 0))"

NUMBERS: Mapping[str, str] = {
    "bytes": "sum(record_bytes)",
    "records": f"count({_when('record_bytes > 0', '1')})",  # or stretches
    "roles": "bit_or(role)",
    "first_offset": "min(log_offset)",
    "group": "max(group_hash)",
    "group_offset": f"min({_when('group_hash IS NOT NULL', 'log_offset')})",
    "message_count": "max(message_count)",
    "half_count": _count(Role.HALF),
    "half_sum": _sum(Role.HALF, "message_hash"),
    "half_least": _least(Role.HALF, "message_hash"),
    "half_most": _most(Role.HALF, "message_hash"),
    "half_first": _least(Role.HALF, "log_offset"),
    "half_last": _most(Role.HALF, "log_offset"),
    "half_crcs": _sum(Role.HALF, "body_crc"),
    "op_first": _least(_OPS, "log_offset"),
    "named_count": _count(Role.NAMED),
    "named_sum": _sum(Role.NAMED, "message_hash"),
    "unnamed_count": _count(Role.UNNAMED),
    "unnamed_sum": _sum(Role.UNNAMED, "message_hash"),
    "waiting_count": _count(Role.WAITING),
    "waiting_sum": _sum(Role.WAITING, "message_hash"),
    "arrived_count": _count(Role.ARRIVED),
    "arrived_sum": _sum(Role.ARRIVED, "message_hash"),
    "final_first": _least(_PUBLISHED, "log_offset"),
    "final_crcs": _sum(_PUBLISHED, "body_crc"),
    "prepared_least": f"min({_when(_NAMES_HALF, 'prepared_offset')})",
    "prepared_most": f"max({_when(_NAMES_HALF, 'prepared_offset')})",
    "held_first": _least(Role.HELD, "log_offset"),
    "held_last": _most(Role.HELD, "log_offset"),
    "resumed_last": _most(Role.RESUMED, "log_offset"),
}

NUMBERS_OF_QUEUES: Mapping[str, str] = {
    "half_number": _least(Role.HALF, "queue_offset"),
    "op_number": "min(first_half_offset)",
}
"""Conditions under which a missing half was stored before the log's beginning."""

TIMES: Mapping[str, str] = {
    "begun_ms": f"coalesce({_least(Role.HALF, 'stored_ms')}, min(stored_ms))",
    "decided_ms": _least(_OPS, "stored_ms"),
}

NUMBERS_BY_BATCH: Mapping[str, str] = {
    "half_number_last": _most(Role.HALF, "queue_offset"),
    "last_ms": "max(greatest(stored_ms, due_ms))",
    "stored_last": "max(stored_ms)",
    "end_last": "max(log_offset + record_bytes)",
}
"""Of a log that is read bit by bit. `last_ms` is when something of a transaction was stored last,
or is to come out of a delay.
"""


def merge(name: str) -> str:
    """The aggregate that makes one number of those of several stretches of the log."""
    if name == "roles":
        return f"bit_or({name})"
    if name in ("group", "message_count", "last_ms") or name.endswith(("_most", "_last")):
        return f"max(`{name}`)"
    if name in ("bytes", "records") or name.endswith(("_count", "_sum", "_crcs")):
        return f"sum(`{name}`)"
    return f"min(`{name}`)"


# --------------------------------------------------------------------------------------------------
# counts: from the numbers of one transaction


def _or_0(name: str) -> str:
    return f"coalesce({name}, 0)"


def _times(one: str, other: str) -> str:
    """Modulo the prime."""
    return f"((({one} % {_PRIME}) * ({other} % {_PRIME})) % {_PRIME})"


# One, unless the first half says otherwise: a broker's transaction is one message, however often
# stored.
_SAID = f"(CASE WHEN message_count > {_MOST_MESSAGES} THEN {_MOST_MESSAGES} ELSE message_count END)"
_TOTAL = (
    f"coalesce({_SAID}, {_when('half_least = half_most', '1')}, "
    "CASE WHEN half_count > 1 THEN half_count ELSE 1 END)"
)
_BEGINS_THE_LOG = "coalesce(half_first = 0, FALSE)"
_PUBLISHED_COUNT = (
    f"(named_count + (CASE WHEN {_BEGINS_THE_LOG} THEN unnamed_count ELSE 0 END) + waiting_count)"
)
_PUBLISHED_SUM = (
    f"({_or_0('named_sum')} + (CASE WHEN {_BEGINS_THE_LOG} THEN {_or_0('unnamed_sum')} ELSE 0 END) "
    f"+ {_or_0('waiting_sum')})"
)

COUNTS: Mapping[str, str] = {
    "total": _TOTAL,
    "published": _PUBLISHED_COUNT,
    "direct": f"({_PUBLISHED_COUNT} - waiting_count)",
    "arrived": (f"(arrived_count + (CASE WHEN {_BEGINS_THE_LOG} THEN 0 ELSE unnamed_count END))"),
    # A half may be stored again, and then all of its transaction are: so many times the sum of
    # one set.
    "sums_agree": (
        f"(((half_count % {_TOTAL}) = 0) AND "
        f"({_times(_PUBLISHED_SUM, 'half_count')} = {_times(_or_0('half_sum'), _TOTAL)}))"
    ),
    "is_of_one": (
        f"coalesce(({_PUBLISHED_SUM} % {_PRIME}) = {_times('half_least', _PUBLISHED_COUNT)}, TRUE)"
    ),
    "all_arrived": (
        f"((arrived_count = waiting_count) AND ({_or_0('arrived_sum')} = {_or_0('waiting_sum')}))"
    ),
    "with_crc": "(named_count + unnamed_count + waiting_count)",
}
"""Of how many messages it is, and how often those are where they belong; none of it null."""


# --------------------------------------------------------------------------------------------------
# facts: from the numbers and counts of one transaction

_EACH_ONCE = "((published = total) AND sums_agree AND ((arrived <= 1) OR all_arrived))"
_HAS_TOO_MANY = (
    "(CASE WHEN total = 1 "
    "THEN (direct > 1) OR ((waiting_count > 0) AND ((direct > 0) OR (arrived > 1))) "
    "ELSE (published > total) OR ((waiting_count > 0) AND (arrived > waiting_count)) END)"
)
_IS_UNCLEAR = (
    f"((published >= total) AND (NOT {_EACH_ONCE}) "
    f"AND (NOT ((total = 1) AND {_HAS_TOO_MANY} AND is_of_one)))"
)
# On the average a final has the CRC of its half: either may stand several times.
_CRCS_DIFFER = (
    f"({_times(_or_0('final_crcs'), 'half_count')} != {_times(_or_0('half_crcs'), 'with_crc')})"
)


def facts(bounds: Bounds) -> str:
    """Bits of `Fact`; what is null does not hold."""
    found = {
        Fact.HALF: _has(Role.HALF),
        Fact.GONE: _is_gone(bounds),
        Fact.COMMIT_OP: _has(Role.COMMIT_OP),
        Fact.ROLLBACK_OP: _has(Role.ROLLBACK_OP),
        Fact.PLAIN_OP: _has(Role.PLAIN_OP),
        Fact.PUBLISHED: "(published + arrived) > 0",
        Fact.ALL_THERE: "published >= total",
        Fact.DOUBLED: _HAS_TOO_MANY,
        Fact.HELD: "held_last > coalesce(resumed_last, -1)",
        Fact.LATE: "least(op_first, final_first) > held_first",
        Fact.UNCLEAR: _IS_UNCLEAR,
        Fact.ALTERED: (
            f"{_has(Role.HALF)} AND (published >= total) AND (NOT {_IS_UNCLEAR}) AND {_CRCS_DIFFER}"
        ),
        Fact.WRONG_HALF: "(prepared_least < half_first) OR (prepared_most > half_last)",
        Fact.OURS_WITHOUT_OP: (f"{_has(Role.HALF)} AND {_has(Role.OURS)} AND (NOT {_has(_OPS)})"),
        Fact.OP_FIRST: (
            f"{_has(Role.PLAIN_OP)} AND (NOT {_has(Role.ASTRAY)}) AND (op_first < final_first)"
        ),
        Fact.ASTRAY: _has(Role.ASTRAY),
    }
    return bits(found)


def bits(facts_: Mapping[Fact, str]) -> str:
    """The number of those that hold."""
    return " + ".join(
        f"(CASE WHEN {holds} THEN {int(fact)} ELSE 0 END)" for fact, holds in facts_.items()
    )


def _has(roles: Role) -> str:
    return f"((roles & {int(roles)}) != 0)"


def _is_gone(bounds: Bounds) -> str:
    """Whether the half was before the log's beginning. A final states its offset in the log, an op
    its offset in the queue.
    """
    if bounds.log_begin == 0:
        return "FALSE"
    first = bounds.first_half_number
    by_op = "TRUE" if first is None else f"op_number < {first}"
    by_final = f"prepared_least < {bounds.log_begin}"
    return f"coalesce({by_final}, {_when('op_number IS NOT NULL', by_op)}, TRUE)"


# --------------------------------------------------------------------------------------------------
# a closer look: messages counted one by one

IS_UNCLEAR = f"((facts & {int(Fact.UNCLEAR)}) != 0)"

BY_MESSAGE: Mapping[str, str] = {
    "halves": _count(Role.HALF),
    # then its final names none
    "begins_the_log": f"({_least(Role.HALF, 'log_offset')} = 0)",
    "named": _count(Role.NAMED),
    "unnamed": _count(Role.UNNAMED),
    "waiting": _count(Role.WAITING),
    "scheduled": _count(Role.ARRIVED),
}
"""Aggregates of the rows of one transaction id and one message id."""

_DIRECT = "(named + (CASE WHEN begins_the_log THEN unnamed ELSE 0 END))"
_ARRIVED = "(scheduled + (CASE WHEN begins_the_log THEN 0 ELSE unnamed END))"
_IS_DOUBLED = f"(({_DIRECT} > 1) OR ({_ARRIVED} > 1) OR (({_DIRECT} > 0) AND (waiting > 0)))"

SETTLED: Mapping[str, str] = {
    "all_there": f"min({_when('halves > 0', f'({_DIRECT} + waiting) > 0')})",
    "doubled": f"max({_IS_DOUBLED})",
}
"""Aggregates of the rows of `BY_MESSAGE` of one transaction id."""

_NOT_SETTLED = ~(Fact.ALL_THERE | Fact.DOUBLED | Fact.UNCLEAR)
SETTLED_FACTS = (
    f"(CASE WHEN all_there IS NOT NULL THEN (facts & {int(_NOT_SETTLED)}) + "
    + bits({Fact.ALL_THERE: "all_there", Fact.DOUBLED: "doubled"})
    + " ELSE facts END)"
)
"""The facts of a transaction beside what its messages settled, which is null for others."""


# --------------------------------------------------------------------------------------------------
# sums over all transactions


def place(scope: Scope) -> str:
    """The SQL expression of a row's `Place`: part of the audit's scope, or outside it."""
    asked = []
    if scope.begun_from is not None:
        asked.append(f"(begun_ms >= {ms_of(scope.begun_from)})")
    if scope.begun_to is not None:
        asked.append(f"(begun_ms < {ms_of(scope.begun_to)})")
    if scope.producer_group is not None:
        asked.append(f"coalesce(`group` = {hash_of(scope.producer_group)}, FALSE)")
    return (
        f"CASE WHEN stretch = {int(Role.DAMAGED)} THEN {int(Place.DAMAGED)} "
        f"WHEN stretch = {int(Role.FILLER)} THEN {int(Place.FILLER)} "
        f"WHEN transaction_id IS NULL THEN {int(Place.NO_TRANSACTION)} "
        f"WHEN {' AND '.join(asked) or 'TRUE'} THEN {int(Place.ASKED)} "
        f"ELSE {int(Place.OTHER)} END"
    )


SUMS: Mapping[str, str] = {
    "transactions": "count(1)",
    "group_offset": "min(group_offset)",
    "bytes": "sum(bytes)",
    "records": "sum(records)",
}
"""Aggregates of the transactions of one place, one group and one set of facts."""

FIRST_HALF_NUMBER = "min(half_number)"


def ms_of(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000 + moment.microsecond // 1_000
