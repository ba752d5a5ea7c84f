"""What the log shows of every transaction: one row for each, by one shuffle.

The rows are grouped by transaction id into numbers of fixed width (counts, smallest and largest offsets, sums), and from those
the facts are worked out that `verdicts.py` judges. Messages are told apart by a hash of their id: that every message of a
transaction has exactly one final is the equality of two sums. Where the sums do not settle it, which takes a transaction of
several messages with too many finals, its records are counted message by message (`look_closer`).

In a store that a broker wrote an op names halves by their queue offsets and says nothing else: it is joined to them first.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from audit import columns
from audit.columns import COLUMNS
from audit.verdicts import Fact

READ_COLUMNS = (
    "log_offset", "record_bytes", "kind", "queue_offset", "stored_at", "prepared_offset", "body_crc", "message_id",
    "transaction_id", "producer_group", "schedule_id", "decision", "half_offsets", "message_count", "event",
)  # fmt: skip

# Of the numbers those that somebody asks for behind the facts.
_KEPT = (
    "transaction_id", "bytes", "records", "damaged", "damaged_bytes", "plain_ops", "group", "group_offset", "half_number",
    "first_offset", "last_offset", "first_at", "begun_at", "decided_at", "final_at", "op_first", "answers",
)  # fmt: skip

_HASH_SHIFT = 20  # 44 bits of a message id's hash are left, so that sums of half a million of them fit a bigint
_NAMED_HALF = "half number "  # instead of a transaction id, where an op names a half that is not there


class Bounds(NamedTuple):
    """Where the log begins, and with which number the half topic: what lies before is gone through retention."""

    log_begin: int
    first_half_number: int | None = None  # None: no half is left, or it is not known yet


def by_transaction(rows: DataFrame, bounds: Bounds) -> DataFrame:
    """One row for each transaction, and one without an id for everything that belongs to none. `facts`: bits of `Fact`."""
    rows = rows.withColumns(
        {
            "message": F.shiftrightunsigned(F.xxhash64("message_id"), _HASH_SHIFT),
            "group": F.when(F.col("producer_group").isNotNull(), F.xxhash64("producer_group")),
        }
    )
    numbers = rows.groupBy("transaction_id").agg(*[made.alias(name) for name, made in _numbers().items()])
    counted = numbers.select(*_KEPT, *_FACTS_ARE_MADE_OF, *[made.alias(name) for name, made in _counts().items()])
    return counted.select(*_KEPT, _as_number(_facts(bounds)).alias("facts"))


# ------------------------------------------------------------------------------------------------------------- numbers


def _is(kind: str) -> Column:
    return F.col("kind") == kind


def _numbers() -> dict[str, Column]:
    half, op, final, held = _is(columns.HALF), _is(columns.OP), _is(columns.FINAL), _is(columns.HELD)
    put_off, is_scheduled, prepared = _is(columns.DELAYED), F.col("schedule_id").isNotNull(), F.col("prepared_offset")
    # A final that names no half: of a half at log offset 0, or a broker's delivery of one that waited for its time.
    direct, unnamed = final & ~is_scheduled & (prepared > 0), final & ~is_scheduled & (prepared == 0)
    published = direct | unnamed | put_off
    is_record = ~F.col("kind").isin(list(columns.STRETCHES))
    is_damaged = F.col("kind").isin(columns.DAMAGED, columns.MISSING)
    resumed = _is(columns.CHECK) & (F.col("event") == "resumed")
    offset, at = F.col("log_offset"), F.col("stored_at")
    return {
        "bytes": F.sum("record_bytes"),
        "records": _count(is_record),
        "damaged": _count(is_damaged),
        "damaged_bytes": F.sum(F.when(is_damaged, F.col("record_bytes"))),
        "first_offset": F.min(F.when(is_record, offset)),
        "last_offset": F.max(F.when(is_record, offset)),
        "first_at": F.min("stored_at"),
        "group": F.max("group"),
        "group_offset": F.min(F.when(F.col("producer_group").isNotNull(), offset)),
        "half_count": _count(half),
        "half_sum": F.sum(F.when(half, F.col("message"))),
        "half_least": F.min(F.when(half, F.col("message"))),
        "half_most": F.max(F.when(half, F.col("message"))),
        "half_first": F.min(F.when(half, offset)),
        "half_last": F.max(F.when(half, offset)),
        "half_number": F.min(F.when(half, F.col("queue_offset"))),
        "half_crcs": F.sum(F.when(half, F.col("body_crc"))),
        "message_count": F.max(F.when(half, F.col("message_count"))),
        "begun_at": F.min(F.when(half, at)),
        "commits": _count(op & (F.col("decision") == "commit")),
        "rollbacks": _count(op & (F.col("decision") == "rollback")),
        "plain_ops": _count(op & F.col("decision").isNull()) + F.count("named_by"),
        "op_first": F.min(F.coalesce("named_by", F.when(op, offset))),
        "op_number": F.min(F.when(op, F.array_min("half_offsets"))),
        "decided_at": F.min(F.coalesce("named_at", F.when(op, at))),
        "direct_count": _count(direct),
        "direct_sum": F.sum(F.when(direct, F.col("message"))),
        "unnamed_count": _count(unnamed),
        "unnamed_sum": F.sum(F.when(unnamed, F.col("message"))),
        "waiting_count": _count(put_off),
        "waiting_sum": F.sum(F.when(put_off, F.col("message"))),
        "arrived_count": _count(final & is_scheduled),
        "arrived_sum": F.sum(F.when(final & is_scheduled, F.col("message"))),
        "final_first": F.min(F.when(published, offset)),
        "final_at": F.min(F.when(published, at)),
        "final_crcs": F.sum(F.when(published, F.col("body_crc"))),
        "prepared_least": F.min(F.when((final | put_off) & (prepared > 0), prepared)),
        "prepared_most": F.max(F.when((final | put_off) & (prepared > 0), prepared)),
        "held_first": F.min(F.when(held, offset)),
        "held_last": F.max(F.when(held, offset)),
        "resumed_last": F.max(F.when(resumed, offset)),
        "answers": _count(_is(columns.CHECK) & (F.col("event") == "answered_unknown")),
    }  # fmt: skip


def _count(when: Column) -> Column:
    return F.count(F.when(when, 1))


_FACTS_ARE_MADE_OF = (
    "half_count", "half_first", "half_last", "half_crcs", "commits", "rollbacks", "op_number", "waiting_count", "final_first",
    "final_crcs", "prepared_least", "prepared_most", "held_first", "held_last", "resumed_last",
)  # fmt: skip


def _counts() -> dict[str, Column]:
    """Of how many messages it is, and how often those stand where they belong; none of it null."""
    c = F.col
    # One, unless the first half says otherwise: a broker's transaction is one message, however often stored.
    total = F.coalesce("message_count", F.when(c("half_least") == c("half_most"), 1), F.greatest("half_count", F.lit(1)))
    begins_the_log = F.coalesce(c("half_first") == 0, F.lit(False))
    return {
        "total": total,
        "direct": c("direct_count") + F.when(begins_the_log, c("unnamed_count")).otherwise(0),
        "arrived": c("arrived_count") + F.when(begins_the_log, 0).otherwise(c("unnamed_count")),
        # A half may be stored again, and then all of its transaction are: so many times the sum of one set.
        "sums_agree": (c("half_count") % total == 0)
        & (
            (_or_0("direct_sum") + F.when(begins_the_log, _or_0("unnamed_sum")).otherwise(0) + _or_0("waiting_sum"))
            * c("half_count")
            == _or_0("half_sum") * total
        ),
        "all_arrived": (c("arrived_count") == c("waiting_count")) & (_or_0("arrived_sum") == _or_0("waiting_sum")),
        "with_crc": c("direct_count") + c("unnamed_count") + c("waiting_count"),
    }


def _or_0(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0))


# --------------------------------------------------------------------------------------------------------------- facts


def _facts(bounds: Bounds) -> Mapping[Fact, Column]:
    c = F.col
    published = c("direct") + c("waiting_count")
    is_single = c("total") == 1
    each_once = (published == c("total")) & c("sums_agree") & ((c("arrived") <= 1) | c("all_arrived"))
    has_too_many = F.when(
        is_single,
        (c("direct") > 1) | ((c("waiting_count") > 0) & ((c("direct") > 0) | (c("arrived") > 1))),
    ).otherwise((published > c("total")) | ((c("waiting_count") > 0) & (c("arrived") > c("waiting_count"))))
    is_unclear = ~is_single & (published >= c("total")) & ~each_once
    # On the average a final has the CRC of its half: either may stand several times.
    crcs_differ = c("final_crcs") * c("half_count") != c("half_crcs") * c("with_crc")
    return {
        Fact.HALF: c("half_count") > 0,
        Fact.GONE: _is_gone(bounds),
        Fact.COMMIT_OP: c("commits") > 0,
        Fact.ROLLBACK_OP: c("rollbacks") > 0,
        Fact.PLAIN_OP: c("plain_ops") > 0,
        Fact.PUBLISHED: published + c("arrived") > 0,
        Fact.ALL_THERE: published >= c("total"),
        Fact.DOUBLED: has_too_many,
        Fact.HELD: c("held_last") > F.coalesce("resumed_last", F.lit(-1)),
        Fact.LATE: F.least("op_first", "final_first") > c("held_first"),
        Fact.UNCLEAR: is_unclear,
        Fact.ALTERED: (c("half_count") > 0) & (published >= c("total")) & ~is_unclear & crcs_differ,
        Fact.WRONG_HALF: (c("prepared_least") < c("half_first")) | (c("prepared_most") > c("half_last")),
    }


def _is_gone(bounds: Bounds) -> Column:
    """Did the half lie before the log's beginning? A final says where in the log it lay, an op where in its queue."""
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


def look_closer(transactions: DataFrame, rows: DataFrame) -> DataFrame:
    """Rows of `by_transaction`; of the unclear ones the messages are counted one by one in the rows of the log."""
    c = F.col
    is_unclear = c("facts").bitwiseAND(int(Fact.UNCLEAR)) != 0
    unclear = transactions.where(is_unclear & c("transaction_id").isNotNull()).select("transaction_id")
    found = rows.join(F.broadcast(unclear), "transaction_id").where(c("message_id").isNotNull())
    is_scheduled = c("schedule_id").isNotNull()
    by_message = found.groupBy("transaction_id", "message_id").agg(
        _count(_is(columns.HALF)).alias("halves"),
        _count(_is(columns.FINAL) & ~is_scheduled).alias("direct"),
        _count(_is(columns.FINAL) & is_scheduled).alias("arrived"),
        _count(_is(columns.DELAYED)).alias("waiting"),
    )
    is_doubled = (c("direct") > 1) | (c("arrived") > 1) | ((c("direct") > 0) & (c("waiting") > 0))
    settled = by_message.groupBy("transaction_id").agg(
        F.min(F.when(c("halves") > 0, c("direct") + c("waiting") > 0)).alias("all_there"), F.max(is_doubled).alias("doubled")
    )
    others = ~(Fact.ALL_THERE | Fact.DOUBLED | Fact.UNCLEAR)
    exact = (
        c("facts").bitwiseAND(int(others))
        + F.when(c("all_there"), int(Fact.ALL_THERE)).otherwise(0)
        + F.when(c("doubled"), int(Fact.DOUBLED)).otherwise(0)
    )
    joined = transactions.join(F.broadcast(settled), "transaction_id", "left")
    return joined.withColumn("facts", F.when(c("all_there").isNotNull(), exact).otherwise(c("facts"))).drop(
        "all_there", "doubled"
    )


# ---------------------------------------------------------------------------------------------------- what brokers wrote


def without_plain_ops(rows: DataFrame) -> DataFrame:
    """The rows of a log in which every op names its transaction."""
    return rows.withColumns({"named_by": F.lit(None).cast("bigint"), "named_at": F.lit(None).cast("timestamp")})


def with_plain_ops(read: Callable[[], DataFrame]) -> DataFrame:
    """The rows, each half with the op that names it by its number; an op of a half that is not there is a row of its own.

    An op that names any copy of a half decides its transaction. `read` gives the rows of the log, anew at each call: of one
    frame used twice in a query Spark 4.3 gives both the filters that were pushed down for either.
    """
    c = F.col
    named = (
        read()
        .where(_is(columns.OP) & c("transaction_id").isNull())
        .select("log_offset", "stored_at", F.explode("half_offsets").alias("number"))
        .groupBy("number")
        .agg(F.min("log_offset").alias("named_by"), F.min("stored_at").alias("named_at"))
        .persist()
    )
    rows = read().withColumn("number", F.when(_is(columns.HALF), c("queue_offset")))
    joined = rows.join(named, "number", "left").drop("number")
    lost = named.join(read().where(_is(columns.HALF)).select(c("queue_offset").alias("number")), "number", "left_anti")
    as_rows = {
        "transaction_id": F.concat(F.lit(_NAMED_HALF), c("number").cast("string")),
        "kind": F.lit(columns.OP),
        "log_offset": c("named_by"),
        "stored_at": c("named_at"),
        "half_offsets": F.array("number"),
        "record_bytes": F.lit(0),
    }
    strays = lost.select(
        *[as_rows.get(name, F.lit(None)).cast(COLUMNS[name]).alias(name) for name in READ_COLUMNS],
        F.lit(None).cast("bigint").alias("named_by"),
        F.lit(None).cast("timestamp").alias("named_at"),
    )
    return joined.unionByName(strays)
