"""What the log shows of every transaction: one row for each, by one shuffle.

The reader says of each record what it is to its transaction (`columns.Role`). The rows are grouped
by transaction id into numbers of fixed width (counts, smallest and largest offsets, sums), and from
those the facts are worked out that `verdicts.py` judges. Messages are distinguished by a hash of
their id: that every message of a transaction has exactly one final is the equality of two sums.
Where the sums do not settle it, its records are counted message by message (`look_closer`).

No number overflows: what is summed is below 2**31, so there is room for 2**32 of it; sums and
counts are multiplied modulo a prime, and what is equal is equal modulo it, too.

In a store that a broker wrote an op names halves by their queue offsets and says nothing else: what
it names is looked up, and stands as a row beside the others (`with_plain_ops`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit import columns
from audit.columns import COLUMNS, Role
from audit.verdicts import Fact

READ_COLUMNS = (
    "log_offset", "record_bytes", "role", "queue_offset", "stored_ms", "prepared_offset",
    "body_crc", "message_hash",
    "transaction_id", "group_hash", "first_half_offset", "message_count",
)  # fmt: skip

# Numbers behind the facts that a caller asks for.
_KEPT: tuple[str, ...] = (
    "transaction_id",
    "stretch",
    "bytes",
    "records",
    "group",
    "group_offset",
    "first_offset",
    "op_first",
)
_PUBLISHED = Role.NAMED | Role.UNNAMED | Role.WAITING
_OPS = Role.COMMIT_OP | Role.ROLLBACK_OP | Role.PLAIN_OP
_PREPARED = _PUBLISHED | Role.WAITING_AGAIN | Role.ARRIVED

_PRIME = (1 << 31) - 1
_MOST_MESSAGES = 65_535  # of a transaction, which is one unit; more count as missing
# instead of a transaction id, where an op names a half that is not there
_NAMED_HALF = "half number "

Read = Callable[[Sequence[str]], DataFrame]
"""The rows of the log with these columns, read again at each call: a frame used twice in a query
gets in both places the filters that were pushed down for either (Spark 4.3).
"""


class Bounds(NamedTuple):
    """Where the log begins, and with which number the half topic: what lies before is gone through
    retention.
    """

    log_begin: int
    first_half_number: int | None = None  # None: no half is left, or it is not known yet


def by_transaction(rows: DataFrame, bounds: Bounds, *, is_timed: bool = False) -> DataFrame:
    """One row for each transaction, with its `facts` (bits of `Fact`); a few without an id for all
    that belongs to none.

    `stretch` is the role of what is no record. `half_number` comes where the log's beginning is cut
    off, `begun_ms` and `decided_ms` if asked.
    """
    numbers, kept = _numbers(), _KEPT
    if bounds.log_begin:
        numbers |= _numbers_of_queues()
        kept += ("half_number",)
    if is_timed:
        numbers |= {"begun_ms": F.coalesce(_least(Role.HALF, "stored_ms"), F.min("stored_ms"))}
        numbers |= {"decided_ms": _least(_OPS, "stored_ms")}
        kept += ("begun_ms", "decided_ms")
    return _judged(_grouped(rows, numbers), bounds).select(*kept, "facts")


def _grouped(rows: DataFrame, numbers: Mapping[str, Column]) -> DataFrame:
    stretch = F.col("role").bitwiseAND(int(Role.DAMAGED | Role.FILLER)).alias("stretch")
    return rows.groupBy("transaction_id", stretch).agg(
        *[made.alias(name) for name, made in numbers.items()]
    )


def _judged(numbers: DataFrame, bounds: Bounds) -> DataFrame:
    """With `facts`, and what they are worked out from."""
    counted = numbers.select("*", *[made.alias(name) for name, made in _counts().items()])
    return counted.withColumn("facts", _as_number(_facts(bounds)))


# ------------------------------------------------------------------------------------------------ a
# log that is read bit by bit

READ_BY_BATCH = (*READ_COLUMNS, "due_ms")
"""`last_ms` below is when something of a transaction was stored last, or is to come out of
a delay.
"""


def numbers_of(rows: DataFrame) -> DataFrame:
    """The numbers of a stretch of the log that ends at a border of units; those of several
    stretches can be `merged`.
    """
    more = {
        "half_number_last": _most(Role.HALF, "queue_offset"),
        "last_ms": F.max(F.greatest("stored_ms", "due_ms")),
        "stored_last": F.max("stored_ms"),
        "end_last": F.max(F.col("log_offset") + F.col("record_bytes")),
    }
    return _grouped(rows, _numbers() | _numbers_of_queues() | more)


def merged(numbers: DataFrame, more: Mapping[str, Column]) -> DataFrame:
    """One row for each transaction again; `more` is kept beside its numbers."""
    keys = ("transaction_id", "stretch")
    same = {name: _merge(name) for name in numbers.columns if name not in keys and name not in more}
    return numbers.groupBy(*keys).agg(
        *[made.alias(name) for name, made in {**same, **more}.items()]
    )


def with_facts(numbers: DataFrame, bounds: Bounds) -> DataFrame:
    """The numbers, and the facts that they show."""
    return _judged(numbers, bounds).drop(*_counts())


def _merge(name: str) -> Column:
    if name == "roles":
        return F.bit_or(name)
    if name in ("group", "message_count", "last_ms") or name.endswith(("_most", "_last")):
        return F.max(name)
    if name in ("bytes", "records") or name.endswith(("_count", "_sum", "_crcs")):
        return F.sum(name)
    return F.min(name)


# --------------------------------------------------------------------------------------------------
# numbers


def _is(roles: Role) -> Column:
    return F.col("role").bitwiseAND(int(roles)) != 0


def _count(roles: Role) -> Column:
    return F.count(F.when(_is(roles), 1))


def _sum(roles: Role, name: str) -> Column:
    return F.sum(F.when(_is(roles), F.col(name)))


def _least(roles: Role, name: str) -> Column:
    return F.min(F.when(_is(roles), F.col(name)))


def _most(roles: Role, name: str) -> Column:
    return F.max(F.when(_is(roles), F.col(name)))


def _numbers() -> dict[str, Column]:
    names_half = _is(_PREPARED) & (F.col("prepared_offset") > 0)
    return {
        "bytes": F.sum("record_bytes"),
        "records": F.count(F.when(F.col("record_bytes") > 0, 1)),  # or stretches
        "roles": F.bit_or("role"),
        "first_offset": F.min("log_offset"),
        "group": F.max("group_hash"),
        "group_offset": F.min(F.when(F.col("group_hash").isNotNull(), F.col("log_offset"))),
        "message_count": F.max("message_count"),
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
        "prepared_least": F.min(F.when(names_half, F.col("prepared_offset"))),
        "prepared_most": F.max(F.when(names_half, F.col("prepared_offset"))),
        "held_first": _least(Role.HELD, "log_offset"),
        "held_last": _most(Role.HELD, "log_offset"),
        "resumed_last": _most(Role.RESUMED, "log_offset"),
    }


def _numbers_of_queues() -> dict[str, Column]:
    """By which it is seen whether a half that is not there lay before the log's beginning."""
    return {
        "half_number": _least(Role.HALF, "queue_offset"),
        "op_number": F.min("first_half_offset"),
    }


def _counts() -> dict[str, Column]:
    """Of how many messages it is, and how often those stand where they belong; none of it null."""
    c = F.col
    # One, unless the first half says otherwise: a broker's transaction is one message, however
    # often stored.
    said = F.when(c("message_count") > _MOST_MESSAGES, _MOST_MESSAGES).otherwise(c("message_count"))
    total = F.coalesce(
        said, F.when(c("half_least") == c("half_most"), 1), F.greatest("half_count", F.lit(1))
    )
    begins_the_log = F.coalesce(c("half_first") == 0, F.lit(False))
    count = (
        c("named_count")
        + F.when(begins_the_log, c("unnamed_count")).otherwise(0)
        + c("waiting_count")
    )
    published = (
        _or_0("named_sum")
        + F.when(begins_the_log, _or_0("unnamed_sum")).otherwise(0)
        + _or_0("waiting_sum")
    )
    return {
        "total": total,
        "published": count,
        "direct": count - c("waiting_count"),
        "arrived": c("arrived_count") + F.when(begins_the_log, 0).otherwise(c("unnamed_count")),
        # A half may be stored again, and then all of its transaction are: so many times the sum of
        # one set.
        "sums_agree": (c("half_count") % total == 0)
        & (_times(published, "half_count") == _times(_or_0("half_sum"), total)),
        "is_of_one": F.coalesce(published % _PRIME == _times(c("half_least"), count), F.lit(True)),
        "all_arrived": (c("arrived_count") == c("waiting_count"))
        & (_or_0("arrived_sum") == _or_0("waiting_sum")),
        "with_crc": c("named_count") + c("unnamed_count") + c("waiting_count"),
    }


def _or_0(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0))


def _times(one: Column, other: Column | str) -> Column:
    """Modulo the prime."""
    other = F.col(other) if isinstance(other, str) else other
    return (one % _PRIME) * (other % _PRIME) % _PRIME


# --------------------------------------------------------------------------------------------------
# facts


def _facts(bounds: Bounds) -> Mapping[Fact, Column]:
    c = F.col
    published = c("published")
    is_single = c("total") == 1
    each_once = (
        (published == c("total")) & c("sums_agree") & ((c("arrived") <= 1) | c("all_arrived"))
    )
    has_too_many = F.when(
        is_single,
        (c("direct") > 1) | ((c("waiting_count") > 0) & ((c("direct") > 0) | (c("arrived") > 1))),
    ).otherwise(
        (published > c("total")) | ((c("waiting_count") > 0) & (c("arrived") > c("waiting_count")))
    )
    is_unclear = (
        (published >= c("total")) & ~each_once & ~(is_single & has_too_many & c("is_of_one"))
    )
    # On the average a final has the CRC of its half: either may stand several times.
    crcs_differ = _times(_or_0("final_crcs"), "half_count") != _times(
        _or_0("half_crcs"), "with_crc"
    )
    return {
        Fact.HALF: _has(Role.HALF),
        Fact.GONE: _is_gone(bounds),
        Fact.COMMIT_OP: _has(Role.COMMIT_OP),
        Fact.ROLLBACK_OP: _has(Role.ROLLBACK_OP),
        Fact.PLAIN_OP: _has(Role.PLAIN_OP),
        Fact.PUBLISHED: published + c("arrived") > 0,
        Fact.ALL_THERE: published >= c("total"),
        Fact.DOUBLED: has_too_many,
        Fact.HELD: c("held_last") > F.coalesce("resumed_last", F.lit(-1)),
        Fact.LATE: F.least("op_first", "final_first") > c("held_first"),
        Fact.UNCLEAR: is_unclear,
        Fact.ALTERED: _has(Role.HALF) & (published >= c("total")) & ~is_unclear & crcs_differ,
        Fact.WRONG_HALF: (c("prepared_least") < c("half_first"))
        | (c("prepared_most") > c("half_last")),
        Fact.OURS_WITHOUT_OP: _has(Role.HALF) & _has(Role.OURS) & ~_has(_OPS),
    }


def _has(roles: Role) -> Column:
    return F.col("roles").bitwiseAND(int(roles)) != 0


def _is_gone(bounds: Bounds) -> Column:
    """Did the half lie before the log's beginning?

    A final says where in the log it lay, an op where in its queue.
    """
    if bounds.log_begin == 0:
        return F.lit(False)
    first = bounds.first_half_number
    by_op = F.lit(True) if first is None else F.col("op_number") < first
    by_final = F.col("prepared_least") < bounds.log_begin
    return F.coalesce(by_final, F.when(F.col("op_number").isNotNull(), by_op), F.lit(True))


def _as_number(facts: Mapping[Fact, Column]) -> Column:
    """The bits of those that hold; what is null does not."""
    return reduce(
        lambda number, bit: number + bit,
        [F.when(holds, int(fact)).otherwise(0) for fact, holds in facts.items()],
    )


def look_closer(transactions: DataFrame, read: Read) -> DataFrame:
    """Rows of `by_transaction`; of the unclear ones the messages are counted one by one in the rows
    of the log.
    """
    c = F.col
    is_unclear = c("facts").bitwiseAND(int(Fact.UNCLEAR)) != 0
    unclear = transactions.where(is_unclear & c("transaction_id").isNotNull()).select(
        "transaction_id"
    )
    rows = read(("role", "transaction_id", "message_id", "log_offset"))
    found = rows.join(unclear, "transaction_id").where(c("message_id").isNotNull())
    by_message = found.groupBy("transaction_id", "message_id").agg(
        _count(Role.HALF).alias("halves"),
        (_least(Role.HALF, "log_offset") == 0).alias("begins_the_log"),  # then its final names none
        _count(Role.NAMED).alias("named"),
        _count(Role.UNNAMED).alias("unnamed"),
        _count(Role.WAITING).alias("waiting"),
        _count(Role.ARRIVED).alias("scheduled"),
    )
    by_message = by_message.select(
        "transaction_id",
        "halves",
        "waiting",
        (c("named") + F.when(c("begins_the_log"), c("unnamed")).otherwise(0)).alias("direct"),
        (c("scheduled") + F.when(c("begins_the_log"), 0).otherwise(c("unnamed"))).alias("arrived"),
    )
    is_doubled = (c("direct") > 1) | (c("arrived") > 1) | ((c("direct") > 0) & (c("waiting") > 0))
    settled = by_message.groupBy("transaction_id").agg(
        F.min(F.when(c("halves") > 0, c("direct") + c("waiting") > 0)).alias("all_there"),
        F.max(is_doubled).alias("doubled"),
    )
    others = ~(Fact.ALL_THERE | Fact.DOUBLED | Fact.UNCLEAR)
    exact = (
        c("facts").bitwiseAND(int(others))
        + F.when(c("all_there"), int(Fact.ALL_THERE)).otherwise(0)
        + F.when(c("doubled"), int(Fact.DOUBLED)).otherwise(0)
    )
    joined = transactions.join(settled, "transaction_id", "left")
    return joined.withColumn(
        "facts", F.when(c("all_there").isNotNull(), exact).otherwise(c("facts"))
    ).drop("all_there", "doubled")


# --------------------------------------------------------------------------------------------------
# what brokers wrote


def with_plain_ops(read: Read) -> DataFrame:
    """The rows of the log, and one for each half that an op names by its number, with the id of the
    half's transaction.

    An op that names any copy of a half decides its transaction. One that names a half that is not
    there has a row with an id that says so. These rows take no bytes: they are no records.
    """
    c = F.col
    ops = read(("kind", "log_offset", "transaction_id", "half_offsets")).where(
        c("kind") == columns.OP
    )
    plain = ops.where(c("transaction_id").isNull()).select(
        "log_offset", F.explode("half_offsets").alias("number")
    )
    named = plain.groupBy("number").agg(F.min("log_offset").alias("named_by"))
    halves = read(("kind", "queue_offset", "transaction_id")).where(c("kind") == columns.HALF)
    met = named.join(
        halves.select(c("queue_offset").alias("number"), c("transaction_id").alias("of_half")),
        "number",
        "left",
    )
    as_rows = {
        "transaction_id": F.coalesce(
            "of_half", F.concat(F.lit(_NAMED_HALF), c("number").cast("string"))
        ),
        "role": F.lit(int(Role.PLAIN_OP)),
        "log_offset": c("named_by"),
        "first_half_offset": c("number"),
        "record_bytes": F.lit(0),
    }
    return read(READ_COLUMNS).unionByName(
        met.select(
            *[
                as_rows.get(name, F.lit(None)).cast(COLUMNS[name]).alias(name)
                for name in READ_COLUMNS
            ]
        )
    )
